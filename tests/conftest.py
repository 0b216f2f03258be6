"""Fixtures shared by all tests."""

import os
import site
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

InstallPlugin = Callable[..., Path]


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """Install small fake distributions for this process and its children, for one test."""
    return make_installer(tmp_path, monkeypatch)


def make_installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """Installs small fake distributions into a copy of this environment, for this process and its children.

    The copy is a virtual environment whose site-packages holds one .pth file: what is installed here, then the fakes.
    """
    environment = tmp_path / "environment"
    packages = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (environment / "bin").mkdir()
    python = environment / "bin" / "python"
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    python.symlink_to(base)
    (environment / "pyvenv.cfg").write_text(f"home = {base.parent}\n", encoding="utf-8")
    lines = [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]

    def install(
        name: str = "fake-runtime",
        *,
        runtimes: dict[str, str] | None = None,
        exporters: dict[str, str] | None = None,
        modules: dict[str, str] | None = None,
    ) -> Path:
        folder = tmp_path / name
        write_distribution(folder, name, {"attnbench.runtimes": runtimes or {}, "attnbench.exporters": exporters or {}})
        for module, source in (modules or {}).items():
            (folder / f"{module}.py").write_text(source, encoding="utf-8")
        lines.append(str(folder))
        (packages / "all.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
        monkeypatch.syspath_prepend(os.fspath(folder))
        monkeypatch.setattr(sys, "executable", os.fspath(python))
        return folder

    return install


def write_distribution(folder: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    """The metadata of `name` 1.2.3, as an installer writes it."""
    info = folder / f"{name.replace('-', '_')}-1.2.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n", encoding="utf-8")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
