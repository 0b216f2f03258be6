"""Events, memory and NVML on a real GPU, with torch as the worker whose truth is known."""

from typing import Any

import pytest

from attnbench.errors import MeasurementError
from attnbench.measure import nvml
from attnbench.measure.cuda_driver import Gpu
from attnbench.measure.device_memory import DeviceMeter, Neighbours
from attnbench.measure.device_timing import DeviceTimer, refuse_wrong_stream

pytestmark = pytest.mark.gpu
SIZE = 4096
NOBODY = Neighbours(pids=None, reason="not asked")


class Product:
    """A matrix product on a stream of its own; `claims` is the stream that it says."""

    replays_graph = False

    def __init__(self, torch: Any, device: str, *, is_honest: bool = True) -> None:
        self._torch = torch
        self._worker, self._other = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._matrix = torch.ones(SIZE, SIZE, device=device, dtype=torch.float16)
        self._out = torch.empty_like(self._matrix)
        torch.cuda.synchronize(device)
        self.stream = int((self._worker if is_honest else self._other).cuda_stream)

    def enqueue(self) -> None:
        with self._torch.cuda.stream(self._worker):
            self._torch.matmul(self._matrix, self._matrix, out=self._out)


@pytest.fixture
def torch(device: str) -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip(f"torch {module.__version__} has no CUDA")
    return module


def test_events_see_at_least_what_the_hardware_needs_and_at_most_what_the_host_waits(torch: Any, device: str) -> None:
    import time

    gpu, work = Gpu(device), Product(torch, device)
    timer = DeviceTimer(gpu, work)
    timer.visit(drop=20, keep=5)
    samples = timer.visit(drop=5, keep=20).samples_ns
    start = time.perf_counter_ns()
    for _ in range(20):
        work.enqueue()
    torch.cuda.synchronize(device)
    host_ns = time.perf_counter_ns() - start
    assert timer.scope == "device"
    assert min(samples) > 2 * SIZE**3 / 1e16 * 1e9  # no GPU computes 10 PFLOP/s of fp16
    assert sum(samples) < 3 * host_ns


def test_a_session_that_names_the_wrong_stream_is_refused(torch: Any, device: str) -> None:
    gpu = Gpu(device)
    gpu.join()
    honest = Product(torch, device)
    call_ns = int(sorted(DeviceTimer(gpu, honest).visit(drop=5, keep=9).samples_ns)[4])
    refuse_wrong_stream(gpu, honest, call_ns=call_ns)
    with pytest.raises(MeasurementError, match="another stream"):
        refuse_wrong_stream(gpu, Product(torch, device, is_honest=False), call_ns=call_ns)


def test_a_flush_writes_more_than_the_l2_cache_holds(torch: Any, device: str) -> None:
    gpu = Gpu(device)
    assert gpu.l2_bytes() >= 1 << 20
    assert len(DeviceTimer(gpu, Product(torch, device), flushes_l2=True).visit(drop=2, keep=5).samples_ns) == 5


def test_the_meter_sees_what_a_call_takes(torch: Any, device: str) -> None:
    wanted = 512 << 20
    meter = DeviceMeter(Gpu(device), device)

    def call() -> None:
        torch.empty(wanted, dtype=torch.uint8, device=device)

    meter.watched(call)()
    peak = meter.peak(NOBODY, NOBODY)
    assert peak.peak_bytes is not None
    assert wanted <= peak.peak_bytes <= wanted + (64 << 20)


def test_nvml_tells_clocks_and_power(device: str) -> None:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    state = nvml.DeviceMonitor(Gpu(device).uuid()).state()
    assert state.sm_clock_mhz is None or 100 <= state.sm_clock_mhz <= 5000
    assert state.power_w is None or 1 <= state.power_w <= 2000
