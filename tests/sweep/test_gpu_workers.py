"""Whether workers wait on a GPU together or have it alone, and what a run of each way leaves."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from attnbench import api
from attnbench.errors import MeasurementError
from attnbench.measure.cuda_driver import Gpu
from attnbench.measure.nvml import DeviceMonitor
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.sweep import gpu_workers, grid, runner
from attnbench.sweep.alone import AloneArm
from attnbench.sweep.bench import Bench
from attnbench.sweep.gpu_workers import Choice, Seen
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from attnbench.sweep.workers import ForkServers
from tests.conftest import make_installer
from tests.sweep.fake_gpus import ON_GPU

SHORT, LONG = Problem.make(seq_len=128), Problem.make(seq_len=16384)
SDPA = grid.Arm(exporter="torch", runtime="torch-sdpa", on_gpu=True)
EAGER = grid.Arm(exporter="torch", runtime="torch-eager", on_gpu=True)
ORT = grid.Arm(exporter="onnx-attention", runtime="ort-cpu")
DEVICES = {"torch-sdpa": "cuda:0", "torch-eager": "cuda:0", "ort-cpu": "cpu"}


def choose(monkeypatch: pytest.MonkeyPatch, seen: Seen, asked: str = "auto", **more: Any) -> Choice | None:
    monkeypatch.setattr(gpu_workers, "look_at", lambda device: seen)
    fields = {"problems": [SHORT, LONG], "arms": [SDPA, EAGER, ORT], "devices": DEVICES, "baseline": "torch-sdpa"}
    return gpu_workers.choose(asked, **fields | more)


def test_workers_that_fit_are_parked_and_the_figures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose(monkeypatch, Seen(compute_mode="default", free_bytes=80 << 30))
    assert choice is not None
    assert (choice.asked, choice.mode, choice.notices) == ("auto", "parked", ())
    # baseline twice: 2 x 0.3 + 2.3 score matrices of 8 x 16384^2 x 4 bytes are 23.2 GiB; three contexts 1.76 GiB.
    assert "3 workers on cuda:0 are predicted to hold 25." in choice.reason
    assert choice.reason.endswith("80.0 GiB are free")


def test_workers_that_do_not_fit_have_the_gpu_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose(monkeypatch, Seen(compute_mode="default", free_bytes=20 << 30))
    assert choice is not None
    assert choice.mode == "one-at-a-time"
    assert "T=16384" in choice.reason
    assert "coarser than parked" in choice.notices[0]
    assert choice.reason in choice.notices[0]


@pytest.mark.parametrize("mode", ["exclusive-process", "exclusive-thread"])
def test_a_gpu_that_admits_one_process_is_had_one_at_a_time(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    choice = choose(monkeypatch, Seen(compute_mode=mode, free_bytes=1 << 50))
    assert choice is not None
    assert (choice.mode, choice.reason) == (
        "one-at-a-time", f"cuda:0 is in compute mode {mode}, which admits one process"
    )  # fmt: skip


def test_what_is_not_known_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose(monkeypatch, Seen(why_unknown="nvidia-ml-py is not installed"))
    assert choice is not None
    assert (choice.mode, choice.reason) == (
        "parked", "free memory of cuda:0 is not known: nvidia-ml-py is not installed"
    )  # fmt: skip


@pytest.mark.parametrize("asked", ["parked", "one-at-a-time"])
def test_what_is_asked_is_done(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    choice = choose(monkeypatch, Seen(compute_mode="exclusive-process", free_bytes=1), asked)
    assert choice == Choice(asked=asked, mode=asked, reason="as asked")


def test_a_run_without_a_gpu_has_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(monkeypatch, Seen(), "one-at-a-time", arms=[ORT]) is None
    compiles = grid.Arm(exporter="onnx-attention", runtime="tensorrt-rtx", on_gpu=True, compiles_only=True)
    assert choose(monkeypatch, Seen(), arms=[compiles]) is None


def test_one_device_of_two_is_enough_for_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {
        "cuda:0": Seen(compute_mode="default", free_bytes=1 << 50),
        "cuda:1": Seen(compute_mode="exclusive-process"),
    }
    monkeypatch.setattr(gpu_workers, "look_at", seen.__getitem__)
    devices = DEVICES | {"torch-eager": "cuda:1"}
    choice = gpu_workers.choose("auto", [SHORT], [SDPA, EAGER], devices, "torch-sdpa")
    assert choice is not None
    assert choice.reason.startswith("cuda:1 is in compute mode")


def test_a_device_is_looked_at_without_joining_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = create_autospec(Gpu, instance=True)
    monitor = create_autospec(DeviceMonitor, instance=True)
    monitor.compute_mode.return_value, monitor.free_bytes.return_value = "default", 5
    monkeypatch.setattr(gpu_workers, "Gpu", lambda device: gpu)
    monkeypatch.setattr(gpu_workers, "DeviceMonitor", lambda uuid: monitor)
    assert gpu_workers.look_at("cuda:0") == Seen(compute_mode="default", free_bytes=5)
    gpu.join.assert_not_called()

    def missing(uuid: str) -> DeviceMonitor:
        raise MeasurementError("nvidia-ml-py is not installed")

    monkeypatch.setattr(gpu_workers, "DeviceMonitor", missing)
    assert gpu_workers.look_at("cuda:0") == Seen(why_unknown="nvidia-ml-py is not installed")


def test_an_arm_that_has_its_gpu_alone_is_not_visited_beside_its_turn() -> None:
    arm = AloneArm(start=lambda: pytest.fail("started"), prepare=print, prove=print, timeout_s=1.0)
    with pytest.raises(MeasurementError, match="within its turn only"):
        arm.visit(drop=0, keep=1)


def test_files_are_verified_one_at_a_time_where_a_gpu_admits_one_process() -> None:
    arms = [grid.Arm(exporter="onnx-attention", runtime="ort-cuda", on_gpu=True, is_alone=True), ORT]
    bench = Bench(
        sweep=grid.validate({}, where="test"), threads=1, arms=arms, runtime_probes={}, exporter_probes={},
        run_dir=create_autospec(RunDirectory), servers=create_autospec(ForkServers), run_id="r",
    )  # fmt: skip
    with bench.gpu_turn("ort-cuda"), bench.gpu_turn("ort-cpu"), bench.gpu_turn("ort-cpu"):
        assert not bench._gpu.acquire(blocking=False)
    assert bench._gpu.acquire(blocking=False)


NAMES = {"exclusive": "fake_gpu:Exclusive", "other": "fake_gpu:Other", "late-on-gpu": "fake_gpu:LateOnGpu",
         "good": "fake_gpu:Good"}  # fmt: skip
FIELDS = {
    "variants": ("self",), "seq_lens": (16,), "num_heads": (2,), "head_dims": (8,), "baseline": "exclusive",
    "runtimes": tuple(NAMES), "time_budget_s": 300.0, "timeout_s": 20.0, "threads": 1,
    "options": ("exclusive:scope=device", "other:scope=device", "late-on-gpu:scope=device"),
}  # fmt: skip
Found = tuple[dict[str, Record], dict[str, Any], list[int], Path]


@pytest.fixture(scope="module")
def run_with(tmp_path_factory: pytest.TempPathFactory, little_timing: None) -> Iterator[Callable[[str], Found]]:
    """A run under a way: rows by arm, the manifest, the processes that had the GPU, the folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("plugins")
        make_installer(folder, patch)(runtimes=NAMES, modules={"fake_gpu": ON_GPU})
        patch.setattr(gpu_workers, "look_at", lambda device: Seen(compute_mode="exclusive-process"))

        def run(asked: str) -> Found:
            path = tmp_path_factory.mktemp(asked) / "run"
            prepared = runner.prepare(grid.validate(FIELDS | {"gpu_workers": asked}, where="test"))
            runner.run(prepared, RunDirectory.create(path), command="test", progress=Silent())
            found = api.open_run(path)
            (lock,) = folder.rglob("gpu")
            pids = [int(line) for line in lock.read_text().split()]
            os.truncate(lock, 0)
            return {record.arm: record for record in found.rows}, dict(found.manifest), pids, path

        yield run


@pytest.fixture(scope="module")
def alone(run_with: Callable[[str], Found]) -> Found:
    return run_with("auto")


DEVICE = "[scope=device]"


def test_on_a_gpu_that_admits_one_process_every_arm_is_timed(alone: Found) -> None:
    rows, _, pids, _ = alone
    for name in ("exclusive", "other"):
        row = rows[name + DEVICE]
        assert (row.status, row.latency_scope, row.round_count) == ("ok", "device", 7), row.reason
        assert row.latency_ms_median == pytest.approx(2.0, abs=1e-3)
        assert row.peak_device_bytes == 8 << 20
        assert row.facts["gpu_workers"] == "one-at-a-time"
    assert rows["other" + DEVICE].speedup_vs_baseline == pytest.approx(1.0, abs=1e-3)
    assert rows["exclusive" + DEVICE].noise_log_ratio == pytest.approx(0.0, abs=1e-3)
    # Checked once, seven rounds, memory once; the baseline has two workers a round. One of the late arm's was enough.
    assert len(pids) == len(set(pids)) >= (1 + 14 + 1) + (1 + 7 + 1) + 2


def test_a_round_has_half_a_second_of_visits_of_an_arm_that_is_alone(alone: Found) -> None:
    samples = api.open_run(alone[3]).samples(alone[0]["other" + DEVICE].case_id)
    counts = samples.groupby("round").size()  # ten visits of five calls of 2 ms; fewer on a busy machine
    assert counts.between(25, 50).all()


def test_an_arm_on_the_cpu_stays_parked_beside_them(alone: Found) -> None:
    row = alone[0]["good"]
    assert row.status == "ok"
    assert "gpu_workers" not in row.facts


def test_an_arm_that_is_wrong_while_it_is_timed_is_caught_in_its_turn(alone: Found) -> None:
    row = alone[0]["late-on-gpu" + DEVICE]
    assert row.status == "mismatch"
    assert row.reason.startswith("after timing: ")
    assert row.round_count == 1


def test_the_run_says_which_way_and_why(alone: Found) -> None:
    manifest, path = alone[1], alone[3]
    why = "cuda:0 is in compute mode exclusive-process, which admits one process"
    assert manifest["gpu_workers"] == {"asked": "auto", "mode": "one-at-a-time", "reason": why}
    (notice,) = [notice for notice in manifest["notices"] if "one-at-a-time" in notice]
    assert notice.startswith(f"workers have the GPU one-at-a-time ({why}): a round is a pass over fresh workers")
    assert runner.reopen(path)[2].gpu_workers == "one-at-a-time"  # whatever the GPU says by then


def test_a_variable_that_would_decide_over_tf32_is_a_notice(
    run_with: Callable[[str], Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    plan = runner.prepare(grid.validate(FIELDS, where="test")).plan
    assert any(notice.startswith("NVIDIA_TF32_OVERRIDE=1 is set and") for notice in plan.notices)
    on_cpu = FIELDS | {"runtimes": ("good",), "baseline": "good", "options": ()}
    assert not runner.prepare(grid.validate(on_cpu, where="test")).plan.notices


def test_parked_workers_cannot_share_it(run_with: Callable[[str], Found]) -> None:
    rows, manifest, _, _ = run_with("parked")
    assert manifest["gpu_workers"]["mode"] == "parked"
    busy = [row for row in rows.values() if "busy or unavailable" in row.reason]
    assert busy
    assert {row.status for row in busy} == {"error"}
