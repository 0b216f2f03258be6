"""What a worker measures of a session on a GPU, on a simulated driver."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest

from attnbench import plugins
from attnbench.errors import MeasurementError, UnavailableError, UnsupportedError
from attnbench.interfaces import SUPPORTED, Array, Facts
from attnbench.measure.cuda_driver import Gpu
from attnbench.measure.nvml import DeviceMonitor, DeviceState
from attnbench.problem import Problem
from attnbench.sweep import device_tasks, tasks
from attnbench.sweep.tasks import Tasks
from tests.fake_cuda import FakeCuda, FakeSession

PROBLEM = Problem.make(seq_len=8, num_heads=2, head_dim=8).as_dict()
STATE = DeviceState(sm_clock_mhz=1980, memory_clock_mhz=3201, power_w=300.0, temperature_c=50, throttle=("power cap",))
ARENA = 8 << 20  # what a call at T > 8 takes on the device and keeps
BOUND = 3 << 20  # what binding inputs of T > 8 takes


class OnDevice(FakeSession):
    """A session of a runtime: every call works for 250 us on stream 7."""

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Take memory for the inputs, as an engine does, then queue and wait."""
        is_longer = next(iter(inputs.values())).shape[1] > 8
        self._cuda.free = 100 * ARENA - BOUND * is_longer

        def call() -> None:
            self.enqueue()
            self._cuda.free = 100 * ARENA - (ARENA + BOUND) * is_longer
            self.synchronize()

        return call

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._cuda.wait_until(self._cuda.busy_until[7])

    def outputs(self) -> Array:
        return np.zeros(1)

    def facts(self) -> Facts:
        return Facts(runtime_version="1", device="cuda:0", device_name="none", threads=1, compute_precision="fp32")


class HostOnly(OnDevice):
    """A session that does not tell its stream."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__(cuda)
        del self.stream


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda(free=100 * ARENA, sleeps=True)


@pytest.fixture
def monitor() -> Any:
    found = create_autospec(DeviceMonitor, instance=True)
    found.state.return_value, found.compute_mode.return_value = STATE, "default"
    found.processes.side_effect = [frozenset(), frozenset({4711})]
    return found


@pytest.fixture
def loaded(cuda: FakeCuda, monitor: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Tasks]]:
    """A worker that has loaded a session, timed as asked."""
    work = functools.partial(device_tasks.DeviceWork, open_gpu=lambda device: Gpu(device, library=cuda))
    monkeypatch.setattr(tasks, "DeviceWork", work)
    monkeypatch.setattr(device_tasks, "open_monitor", lambda gpu: monitor)
    with ExitStack() as stack:

        def load(session: Any, *, device: str = "cuda:0", **asked: Any) -> Tasks:
            runtime = SimpleNamespace(
                name="fake", opt_in=False, supports=lambda problem, artifact: SUPPORTED,
                load=lambda *_: contextlib.nullcontext(session),
            )  # fmt: skip
            monkeypatch.setattr(plugins, "load_runtime", lambda name: runtime)
            made = Tasks(stack)
            made.load(runtime="fake", problem=PROBLEM, artifact=None, settings={"device": device}, **asked)
            made.bind(problem=PROBLEM)
            return made

        yield load


def test_the_host_times_calls_that_wait(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    worker = loaded(OnDevice(cuda), timed={})
    assert worker.warm_up(is_warm=True) == {"typical_ns": None, "scope": "host"}
    visit = worker.visit(drop=1, keep=3)
    assert min(visit["samples_ns"]) >= 245_000
    assert visit["waits_for_device"]
    assert "cuEventRecord" not in cuda.asked


def test_the_device_times_its_work_only(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    worker = loaded(OnDevice(cuda), timed={"scope": "device"})
    assert worker.warm_up(is_warm=True)["scope"] == "device"
    assert worker.visit(drop=1, keep=3)["samples_ns"] == pytest.approx([250_000] * 3, abs=50)
    assert not cuda.fills


def test_a_warm_up_lasts_a_fifth_of_a_second(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    session = OnDevice(cuda, device_ns=20_000_000)
    worker = loaded(session, timed={"scope": "device"})
    before = session.calls
    assert worker.warm_up()["typical_ns"] >= 20_000_000
    assert session.calls - before >= 8


def test_a_cold_cache_is_asked_for(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    worker = loaded(OnDevice(cuda), timed={"scope": "device", "l2": "cold"})
    worker.warm_up(is_warm=True)
    worker.visit(drop=0, keep=3)
    assert [size for _, size, _ in cuda.fills] == [2 * cuda.l2_bytes] * 3


def test_a_graph_has_its_own_scope(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    worker = loaded(OnDevice(cuda, replays_graph=True), timed={"scope": "device"})
    assert worker.warm_up(is_warm=True)["scope"] == "device_graph"


def test_a_session_on_another_stream_than_it_says_is_never_timed(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    worker = loaded(OnDevice(cuda, says=8), timed={"scope": "device"})
    with pytest.raises(MeasurementError, match="works on another stream"):
        worker.warm_up(is_warm=True)


def test_a_session_without_a_stream_is_timed_by_the_host_only(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    assert loaded(HostOnly(cuda), timed={}).warm_up(is_warm=True)["scope"] == "host"
    with pytest.raises(UnsupportedError, match="has no stream, so events cannot be put around"):
        loaded(HostOnly(cuda), timed={"scope": "device"})


def test_clocks_are_read_after_every_visit(cuda: FakeCuda, loaded: Callable[..., Tasks], monitor: Any) -> None:
    worker = loaded(OnDevice(cuda), timed={})
    state = worker.visit(drop=0, keep=1)["device_state"]
    assert (state["sm_clock_mhz"], state["throttle"]) == (1980, ["power cap"])
    assert worker.facts()["detail"] == {"device_monitor": "NVML", "compute_mode": "default"}


def test_without_a_monitor_the_reason_is_a_fact(
    cuda: FakeCuda, loaded: Callable[..., Tasks], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(gpu: Gpu) -> DeviceMonitor:
        raise MeasurementError("nvidia-ml-py is not installed")

    monkeypatch.setattr(device_tasks, "open_monitor", missing)
    worker = loaded(OnDevice(cuda), timed={})
    assert worker.visit(drop=0, keep=1)["device_state"] is None
    assert worker.facts()["detail"] == {"device_monitor": "nvidia-ml-py is not installed"}
    peak = worker.measure_memory(problem=PROBLEM)["device"]
    assert (peak["is_shared"], peak["sharing"]) == (None, "nvidia-ml-py is not installed")


@pytest.mark.parametrize(
    ("mode", "pids", "words"),
    [
        (
            "exclusive-process",
            [7],
            "is in compute mode exclusive-process and taken by process 7; .* --gpu-workers one-at-a-time .* DEFAULT",
        ),
        ("prohibited", [], "is in compute mode prohibited;"),
    ],
)
def test_a_compute_mode_that_leaves_no_room_is_named(
    cuda: FakeCuda, loaded: Callable[..., Tasks], monitor: Any, monkeypatch: pytest.MonkeyPatch, mode: str,
    pids: list[int], words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(device_tasks, "LEAVE_S", 0.1)
    monitor.compute_mode.return_value, monitor.processes.side_effect = mode, lambda: frozenset(pids)
    with pytest.raises(UnavailableError, match=words):
        loaded(OnDevice(cuda), timed={})


def test_a_process_that_has_just_ended_is_waited_for(
    cuda: FakeCuda, loaded: Callable[..., Tasks], monitor: Any
) -> None:
    monitor.compute_mode.return_value = "exclusive-process"
    monitor.processes.side_effect = [frozenset({7}), frozenset({7}), frozenset(), frozenset({8}), frozenset({8})]
    worker = loaded(OnDevice(cuda), purpose="memory")
    longer = Problem.make(seq_len=16, num_heads=2, head_dim=8)
    assert worker.measure_memory(problem=longer.as_dict())["device"]["is_shared"] is False


@pytest.mark.parametrize(("mode", "pids"), [("exclusive-process", []), ("default", [7]), (None, [7])])
def test_any_other_compute_mode_is_taken(
    cuda: FakeCuda, loaded: Callable[..., Tasks], monitor: Any, mode: str | None, pids: list[int]
) -> None:
    monitor.compute_mode.return_value, monitor.processes.side_effect = mode, [frozenset(pids)]
    assert loaded(OnDevice(cuda), timed={}).warm_up(is_warm=True)["scope"] == "host"


def test_memory_of_the_device_stands_beside_the_hosts(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    worker = loaded(OnDevice(cuda), purpose="memory")
    longer = Problem.make(seq_len=16, num_heads=2, head_dim=8)
    found = worker.measure_memory(problem=longer.as_dict())
    assert (found["device"]["peak_bytes"], found["device"]["is_shared"]) == (ARENA + BOUND, False)
    assert found["first_call_ns"] > 0


def test_the_cpu_is_asked_nothing_of_a_gpu(cuda: FakeCuda, loaded: Callable[..., Tasks]) -> None:
    worker = loaded(OnDevice(cuda), device="cpu")
    assert worker.warm_up(is_warm=True)["scope"] == "host"
    visit = worker.visit(drop=0, keep=1)
    assert (visit["waits_for_device"], visit["device_state"]) == (False, None)
    assert cuda.asked == []
    assert "device" not in worker.measure_memory(problem=PROBLEM)
