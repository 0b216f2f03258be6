"""Fixtures shared by all tests."""

import os
import signal
import site
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench import api, cli
from attnbench.errors import InputError
from attnbench.records import Record
from attnbench.sweep import plan, runner
from tests.turns import pytest_configure_node, pytest_runtest_protocol, pytest_unconfigure

__all__ = ["pytest_configure_node", "pytest_runtest_protocol", "pytest_unconfigure"]  # hooks of tests/turns.py

InstallPlugin = Callable[..., Path]
Call = tuple[int, str, str]


def pytest_configure() -> None:
    """Let SIGINT end what the tests start: a shell has it ignored by all that it runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def little_timing() -> Iterator[None]:
    """Runs of this process time every group for seven rounds, whatever their budget, and guess the machine's peak.

    For modules that do not look at the figures: a long budget is then room on a busy machine, and takes no time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan.Budget, "timing_s", lambda *_: 0.0)
        patch.setattr(runner, "PEAK_SECONDS", 0.01)
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Call]:
    """Run the command in this process; gives exit code, stdout and stderr."""

    def call(*argv: str) -> Call:
        code = cli.main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


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


def record(status: Any, seq_len: int) -> Record:
    """A record of `ort-cpu` at T = seq_len."""
    return Record(
        run_id="r", started_at_utc="2026-11-29T12:00:00+00:00", case_id=f"c{seq_len}", problem_id=f"p{seq_len}",
        arm="onnx-attention@ort-cpu", part="block", variant="self", mask="none", batch_size=1, q_len=seq_len,
        kv_len=seq_len, num_heads=8, num_kv_heads=8, head_dim=64, embed_dim=512, dtype="fp32",
        exporter="onnx-attention", runtime="ort-cpu", status=status, seed=0, attnbench_version="0",
        latency_ms_median=1.5, latency_ms_ci_low=1.4, latency_ms_ci_high=1.6,
    )  # fmt: skip


@pytest.fixture
def benched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for `api.bench` and `api.plan`; gives what they were called with."""
    seen: dict[str, Any] = {}

    def bench(**arguments: Any) -> SimpleNamespace:
        seen.update(arguments)
        rows = [record("ok", 128), record("mismatch", 512), record("ok", 1024)]
        return SimpleNamespace(
            path=Path("results/x"), rows=rows, manifest={}, notices=["look here"], exit_code=1, is_reported=True
        )

    def plan(**arguments: Any) -> None:
        seen.update(arguments)
        raise InputError("this plan goes no further")

    monkeypatch.setattr(api, "bench", bench)
    monkeypatch.setattr(api, "plan", plan)
    return seen


def assert_one_sentence(call: Call, *parts: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that has all parts."""
    code, out, err = call
    assert (code, out) == (2, ""), err
    assert err.startswith("attnbench: ")
    assert err.count("\n") == 1, err
    for part in parts:
        assert part in err
