"""A Python environment beside ours that has a few of our packages and no attnbench."""

import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path


def make_python(folder: Path, distributions: Mapping[str, str | None]) -> str:
    """An environment with links to our copies of some distributions; the path of its python.

    Args:
        folder: where it goes; its name is the environment's.
        distributions: name -> the version that its metadata has there; None: its own.
    """
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\n", encoding="utf-8"
    )
    for name, version in distributions.items():
        install(packages, name, version)
    return str(folder / "bin" / "python")


def install(packages: Path, name: str, version: str | None = None) -> None:
    """Link a distribution of ours into a site-packages folder; its metadata may tell another version."""
    found = importlib.metadata.distribution(name)
    assert found.files is not None
    for root in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
        if not root.endswith(".dist-info"):
            (packages / root).symlink_to(str(found.locate_file(root)))
    info = packages / f"{name.replace('-', '_')}-{version or found.version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version or found.version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
