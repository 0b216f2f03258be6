"""A whole run of an arm on a GPU, on a simulated driver in its workers: what reaches the records."""

from collections.abc import Iterator

import pytest

from attnbench import api
from attnbench.records import Record
from attnbench.report import decisions
from attnbench.sweep import grid, runner
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from tests.conftest import make_installer
from tests.sweep.fake_gpus import ON_GPU

pytestmark = pytest.mark.usefixtures("little_timing")

NAMES = {"on-gpu": "fake_gpu:OnGpu", "wrong-stream": "fake_gpu:WrongStream", "host-only": "fake_gpu:HostOnly"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Record]]:
    """The rows of one run, by arm."""
    with pytest.MonkeyPatch.context() as patch:
        install = make_installer(tmp_path_factory.mktemp("plugins"), patch)
        install(runtimes=NAMES, modules={"fake_gpu": ON_GPU})
        sweep = grid.validate(
            {"variants": ("self",), "seq_lens": (16,), "num_heads": (2,), "head_dims": (8,), "baseline": "on-gpu",
             "runtimes": tuple(NAMES), "time_budget_s": 300.0, "timeout_s": 20.0, "threads": 1},
            where="test",
        )  # fmt: skip
        path = tmp_path_factory.mktemp("runs") / "run"
        runner.run(runner.prepare(sweep), RunDirectory.create(path), command="test", progress=Silent())
        yield {record.arm: record for record in api.open_run(path).rows}


def test_both_clocks_have_a_row(found: dict[str, Record]) -> None:
    host, device = found["on-gpu"], found["on-gpu[scope=device]"]
    assert (host.status, device.status) == ("ok", "ok"), (host.reason, device.reason)
    assert (host.latency_scope, device.latency_scope) == ("host", "device")
    assert device.latency_ms_median == pytest.approx(2.0, abs=1e-3)  # what the device worked, to the microsecond
    assert host.latency_ms_median is not None
    assert host.latency_ms_median > 2.0  # and what the host computed before
    assert (host.device, device.device) == ("cuda:0", "cuda:0")


def test_each_has_its_own_noise_and_baseline(found: dict[str, Record]) -> None:
    for name in ("on-gpu", "on-gpu[scope=device]"):
        assert found[name].baseline_arm == name
        assert found[name].noise_log_ratio is not None


def test_memory_of_the_device_is_in_the_row(found: dict[str, Record]) -> None:
    assert found["on-gpu"].peak_device_bytes == 8 << 20
    assert "device_shared" not in found["on-gpu"].flags
    assert found["on-gpu"].facts["device_sharing"]  # NVML does not run here, so who shares it is not known


@pytest.mark.usefixtures("little_timing")
def test_the_longest_t_is_found_in_the_memory_of_the_device(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = make_installer(tmp_path_factory.mktemp("plugins"), monkeypatch)
    install(runtimes={"grows": "fake_gpu:Grows"}, modules={"fake_gpu": ON_GPU})
    sweep = grid.validate(
        {"variants": ("self",), "seq_lens": (16, 32), "num_heads": (2,), "head_dims": (8,), "baseline": "grows",
         "runtimes": ("grows",), "options": ("grows:scope=device",), "time_budget_s": 300.0, "timeout_s": 20.0,
         "threads": 1, "memory_budget_bytes": 8 << 20, "measure_frontier": True},
        where="test",
    )  # fmt: skip
    path = tmp_path_factory.mktemp("runs") / "run"
    runner.run(runner.prepare(sweep), RunDirectory.create(path), command="test", progress=Silent())
    run = api.open_run(path)
    (row,) = run.manifest["frontier"]
    # 64 KiB a token beyond the 8 of the tiny call before: 8 MiB are 136 tokens, far below what the host has.
    assert row["memory"] == "device"
    assert 134 <= row["fits"] <= 136 < row["fails"] <= 139
    assert f"8.00 MiB of device memory suffice for T = {row['fits']}" in decisions.frontier_line(row)


def test_a_wrong_stream_fails_the_row_of_the_devices_clock_only(found: dict[str, Record]) -> None:
    assert found["wrong-stream"].status == "ok"
    assert found["wrong-stream[scope=device]"].status == "error"
    assert "works on another stream" in found["wrong-stream[scope=device]"].reason
    assert found["wrong-stream[scope=device]"].latency_ms_median is None


def test_a_runtime_that_tells_no_stream_has_no_row_of_the_devices_clock(found: dict[str, Record]) -> None:
    assert found["host-only"].status == "ok"
    assert found["host-only[scope=device]"].status == "unsupported"
    assert "has no stream" in found["host-only[scope=device]"].reason
