"""One run with arms under another interpreter: an onnxruntime that calls itself 9.9.9, and our own python once more."""

import json
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench import api, cli, inputs
from attnbench.analysis.lookup import problem_of
from attnbench.errors import RecordsError, WorkerError
from attnbench.measure import environment
from attnbench.records import Record
from attnbench.sweep import elsewhere, grid, repro, runner
from attnbench.sweep.bench import Bench
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from attnbench.sweep.workers import ForkServers
from tests.conftest import make_installer
from tests.other_python import install, make_python
from tests.sweep import fakes

pytestmark = pytest.mark.usefixtures("little_timing")

SETTINGS: dict[str, Any] = {
    "variants": ("self",), "seq_lens": (16,), "num_heads": (2,), "head_dims": (8,), "time_budget_s": 300.0,
    "timeout_s": 60.0, "threads": 1, "exporters": ("onnx-attention",),
}  # fmt: skip


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_python(tmp_path_factory.mktemp("other") / "ort999", {"numpy": None, "onnxruntime": "9.9.9"})


def run(path: Path, **settings: Any) -> dict[str, Record]:
    prepared = runner.prepare(grid.validate({**SETTINGS, **settings}, where="test"))
    runner.run(prepared, RunDirectory.create(path), command="test", progress=Silent())
    return {r.arm: r for r in api.open_run(path).rows}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, other: str) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    runtimes = ("ort-cpu", f"ort-cpu@{sys.executable}", f"ort-cpu@{other}")
    run(path, runtimes=runtimes, baseline=f"onnx-attention@ort-cpu@{other}")
    return path


@pytest.fixture
def found(path: Path) -> dict[str, Record]:
    return {r.arm: r for r in api.open_run(path).rows}


def test_every_arm_is_right_and_its_label_has_environment_and_version(found: dict[str, Record]) -> None:
    mine = Path(sys.executable).parent.parent.name
    labels = ["onnx-attention@ort-cpu[ort999=9.9.9]", "onnx-attention@ort-cpu",
              f"onnx-attention@ort-cpu[{mine}={version('onnxruntime')}]"]  # fmt: skip
    assert list(found) == labels
    assert {r.status: r.reason for r in found.values()} == {"ok": ""}
    assert {r.baseline_arm for r in found.values()} == {labels[0]}


def test_an_arm_elsewhere_says_what_ours_says_without_the_onnx_package(found: dict[str, Record], other: str) -> None:
    there, here = (found[f"onnx-attention@ort-cpu{bracket}"] for bracket in ("[ort999=9.9.9]", ""))
    assert there.runtime == f"ort-cpu@{other}"
    assert (there.attention_kernel, there.kernel_evidence) == ("fused", "graph")
    assert there.compute_precision == here.compute_precision == "fp32"
    assert there.facts["optimised_operators"] == here.facts["optimised_operators"]
    assert there.worst_row_rel_err == here.worst_row_rel_err  # the same code on the same inputs
    assert there.artifact_sha256 == here.artifact_sha256


def test_the_manifest_has_the_versions_of_the_other_environment(path: Path, other: str) -> None:
    rows = RunDirectory.open(path).read_manifest()["runtimes"]
    told = rows[f"ort-cpu@{other}"]["interpreter"]
    assert told["python"] == other
    assert told["versions"] == {"numpy": version("numpy"), "onnxruntime": "9.9.9"}
    assert "interpreter" not in rows["ort-cpu"]


def test_a_case_of_another_interpreter_is_reproduced_there(
    found: dict[str, Record], path: Path, other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = found["onnx-attention@ort-cpu[ort999=9.9.9]"]
    assert cli.main(["repro", str(path), record.case_id, "-o", str(tmp_path / "case.zip")]) == 0
    assert f"Unpack it and type: {other} run.py" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "case.zip") as archive:
        archive.extractall(tmp_path / "case")
    versions = json.loads((tmp_path / "case" / "versions.json").read_text())
    assert versions["ort-cpu"] == record.runtime_version  # as it says from inside
    assert versions["packages"] == {"numpy": version("numpy"), "onnxruntime": "9.9.9"}
    assert versions["python"] == platform.python_version()
    text = (tmp_path / "case" / "README.md").read_text()
    assert f"`pip install numpy onnxruntime=={record.runtime_version}`" in text
    assert f"another interpreter than attnbench, Python {platform.python_version()}" in text
    assert str(Path(other).parent) not in "".join(
        file.read_text() for file in (tmp_path / "case").iterdir() if file.suffix in (".md", ".json")
    )  # where it lies on this machine is nobody's affair upstream
    ran = subprocess.run(
        [other, "-I", "run.py"], cwd=tmp_path / "case", capture_output=True, text=True, check=False, timeout=120
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "right"), ran.stderr
    ours = found["onnx-attention@ort-cpu"]
    repro.write(repro.of_record(ours, problem_of(ours), path, api.open_run(path).manifest), tmp_path / "ours.zip")
    with zipfile.ZipFile(tmp_path / "ours.zip") as archive:
        assert json.loads(archive.read("versions.json"))["packages"]["onnxruntime"] == version("onnxruntime")
        assert "another interpreter" not in archive.read("README.md").decode()


def test_a_run_goes_on_with_the_same_interpreters(path: Path) -> None:
    run_dir, prepared = runner.resume(path)
    assert run_dir.path == path
    assert prepared.sweep.baseline == "onnx-attention@ort-cpu[ort999=9.9.9]"
    assert len(prepared.arms) == 3  # none was added for the baseline
    assert len(runner._finished(run_dir, prepared)[0]) == 3


def test_a_run_does_not_go_on_with_another_version_there(path: Path, other: str, tmp_path: Path) -> None:
    packages = next((Path(other).parent.parent / "lib").glob("python*/site-packages"))
    kept = packages / "onnxruntime-9.9.9.dist-info"
    shutil.move(kept, tmp_path / "kept")
    (packages / "onnxruntime").rename(tmp_path / "onnxruntime")
    try:
        install(packages, "onnxruntime", "9.9.10")
        with pytest.raises(
            RecordsError, match=r"ran with onnxruntime 9\.9\.9 in .*, installed there is 9\.9\.10: start"
        ):
            runner.resume(path)
    finally:
        shutil.rmtree(packages / "onnxruntime-9.9.10.dist-info")
        (packages / "onnxruntime").unlink()
        (tmp_path / "onnxruntime").rename(packages / "onnxruntime")
        shutil.move(tmp_path / "kept", kept)


def test_a_run_does_not_go_on_without_its_interpreter(path: Path, tmp_path: Path) -> None:
    rows = {"ort-cpu@/gone/python": {"interpreter": {"python": "/gone/python", "python_version": "3", "versions": {}}}}
    with pytest.raises(RecordsError, match=r"ran with /gone/python too, but /gone/python does not exist: name"):
        elsewhere.refuse_changed(path, rows)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory, other: str) -> Iterator[dict[str, Record]]:
    """Runtimes of another package that misbehave, under the other python."""
    with pytest.MonkeyPatch.context() as patch:
        plugin = make_installer(tmp_path_factory.mktemp("plugins"), patch)
        plugin(runtimes=fakes.entry_points(), modules={"fake_runtimes": fakes.FAKES})
        runtimes = tuple(f"{name}@{other}" for name in ("good", "segfault", "half-json", "sleeper"))
        runtimes = (*runtimes, "good@/no/such/python")
        path = tmp_path_factory.mktemp("bad") / "run"
        yield run(path, runtimes=runtimes, exporters=(), baseline=runtimes[0], timeout_s=3.0)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("good", "ok", ""),
        ("segfault", "crashed", "SIGSEGV"),
        ("half-json", "error", "after half an answer"),
        ("sleeper", "timeout", "no answer to"),
    ],
)
def test_workers_elsewhere_die_and_hang_as_ours_do(bad: dict[str, Record], name: str, status: str, words: str) -> None:
    row = next(r for r in bad.values() if r.runtime.startswith(f"{name}@") and r.status != "unavailable")
    assert row.status == status
    assert words in row.reason


def test_an_interpreter_that_is_not_there_is_a_row(bad: dict[str, Record]) -> None:
    row = next(r for r in bad.values() if r.runtime == "good@/no/such/python")
    assert row.status == "unavailable"
    assert row.reason == "/no/such/python does not exist; name the python of an environment that has the runtime"


@pytest.fixture
def bench(other: str, tmp_path: Path) -> Iterator[Bench]:
    """Of a run with an arm elsewhere, before anything was run."""
    runtimes = ("ort-cpu", f"ort-cpu@{other}")
    sweep = grid.validate({**SETTINGS, "runtimes": runtimes, "baseline": "onnx-attention@ort-cpu"}, where="test")
    prepared = runner.prepare(sweep)
    with ForkServers(environment.scrubbed_environment(1)[0]) as servers:
        yield prepared.make_bench(
            sweep=prepared.sweep, threads=1, arms=prepared.arms, runtime_probes=prepared.runtime_probes,
            exporter_probes=prepared.exporter_probes, run_dir=RunDirectory.create(tmp_path / "run"), servers=servers,
            run_id="test",
        )  # fmt: skip


def test_another_numpy_that_draws_other_inputs_is_refused(
    bench: Bench, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert elsewhere.check_interpreters(bench) == {}
    monkeypatch.setattr(inputs, "fingerprint", lambda: {"sha256": "another"})
    refused = elsewhere.check_interpreters(bench)
    assert list(refused) == [f"ort-cpu@{other}"]
    assert f"draws other inputs than NumPy {np.__version__} here" in refused[f"ort-cpu@{other}"].reason
    assert not bench.runtime_probes[f"ort-cpu@{other}"].available
    assert bench.runtime_probes["ort-cpu"].available


def test_what_a_worker_elsewhere_prints_is_kept_though_its_name_has_a_path(bench: Bench, other: str) -> None:
    name = f"ort-cpu@{other}"
    with bench.worker(bench.server("runtime", name), f"verify-{name}") as worker, pytest.raises(WorkerError):
        worker.ask("importlib:import_module", timeout_s=30.0, name="no_such_module")
    (log,) = (bench.run_dir.path / "logs").glob("verify-*.log")
    assert "No module named 'no_such_module'" in log.read_text(encoding="utf-8")
