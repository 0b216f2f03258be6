"""Timing on a GPU by events, on a simulated driver that takes the C types of NVIDIA's header only."""

import ctypes

import pytest

from attnbench.errors import MeasurementError
from attnbench.measure import cuda_driver, timing
from attnbench.measure.cuda_driver import Gpu
from attnbench.measure.device_timing import DeviceTimer, refuse_wrong_stream
from tests.fake_cuda import FakeCuda, FakeSession, argument_types


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


def test_every_function_has_the_types_of_the_header() -> None:
    assert {name: argument_types(name) for name in cuda_driver.PROTOTYPES} == cuda_driver.PROTOTYPES


def test_the_double_refuses_what_the_driver_would_misread(cuda: FakeCuda) -> None:
    with pytest.raises(TypeError):
        cuda.cuEventRecord(1)
    with pytest.raises(ctypes.ArgumentError):
        cuda.cuMemGetInfo_v2(ctypes.byref(ctypes.c_int()), ctypes.byref(ctypes.c_size_t()))


def test_a_sample_is_the_devices_time_not_the_launch(cuda: FakeCuda) -> None:
    session = FakeSession(cuda, device_ns=250_000)
    visit = DeviceTimer(Gpu("cuda:0", library=cuda), session).visit(drop=2, keep=5)
    assert visit.samples_ns == pytest.approx([250_000] * 5, abs=50)
    assert (session.calls, visit.dropped) == (7, 2)


def test_events_are_kept_for_the_next_visit(cuda: FakeCuda) -> None:
    timer = DeviceTimer(Gpu("cuda:0", library=cuda), FakeSession(cuda))
    for _ in range(3):
        timer.visit(drop=0, keep=4)
    assert cuda.asked.count("cuEventCreate") == 8


def test_a_flush_writes_more_than_the_l2_cache_before_each_call_and_is_not_timed(cuda: FakeCuda) -> None:
    timer = DeviceTimer(Gpu("cuda:0", library=cuda), FakeSession(cuda), flushes_l2=True)
    visit = timer.visit(drop=1, keep=3)
    assert cuda.fills == [(0xF000, 2 * cuda.l2_bytes, 7)] * 4
    assert visit.samples_ns == pytest.approx([250_000] * 3, abs=50)


def test_a_flush_needs_the_size_of_the_cache() -> None:
    cuda = FakeCuda(l2_bytes=0)
    with pytest.raises(MeasurementError, match="does not tell the size of the L2 cache"):
        DeviceTimer(Gpu("cuda:0", library=cuda), FakeSession(cuda), flushes_l2=True)


def test_replaying_a_graph_is_a_scope_of_its_own(cuda: FakeCuda) -> None:
    gpu = Gpu("cuda:0", library=cuda)
    assert DeviceTimer(gpu, FakeSession(cuda)).scope == "device"
    assert DeviceTimer(gpu, FakeSession(cuda, replays_graph=True)).scope == "device_graph"


def test_events_on_another_stream_measure_the_launch() -> None:
    """Why the stream must be proved: 250 us of work read as the 5 us that queueing it takes."""
    cuda = FakeCuda()
    visit = DeviceTimer(Gpu("cuda:0", library=cuda), FakeSession(cuda, says=8)).visit(drop=0, keep=3)
    assert visit.samples_ns == pytest.approx([5_000] * 3, abs=50)


@pytest.mark.parametrize("device_ns", [60_000, 250_000, 30_000_000])
def test_work_on_another_stream_than_was_said_is_refused(cuda: FakeCuda, device_ns: int) -> None:
    gpu, session = Gpu("cuda:0", library=cuda), FakeSession(cuda, device_ns=device_ns, says=8)
    with pytest.raises(MeasurementError, match="works on another stream"):
        refuse_wrong_stream(gpu, session, call_ns=device_ns, clock=cuda.clock)


@pytest.mark.parametrize("device_ns", [1_000, 60_000, 250_000, 30_000_000])
def test_work_on_the_stream_that_was_said_is_taken(cuda: FakeCuda, device_ns: int) -> None:
    gpu, session = Gpu("cuda:0", library=cuda), FakeSession(cuda, device_ns=device_ns)
    refuse_wrong_stream(gpu, session, call_ns=device_ns, clock=cuda.clock)
    assert session.calls >= 1


def test_one_late_wait_is_a_busy_host_not_another_stream(cuda: FakeCuda) -> None:
    readings = 0

    def late_once() -> int:
        nonlocal readings
        readings += 1
        cuda.now_ns += 9_000_000 * (readings == 3)  # the host slept before its third look
        return cuda.now_ns

    refuse_wrong_stream(Gpu("cuda:0", library=cuda), FakeSession(cuda), call_ns=250_000, clock=late_once)
    assert readings == 6


def test_waiting_for_a_device_is_no_contention() -> None:
    quiet = {"samples_ns": [10], "involuntary_switches": 0, "steal_ticks": 0, "wall_ns": 10**9, "thread_cpu_ns": 10**8,
             "process_cpu_ns": 10**8, "dropped": 0}  # fmt: skip
    assert timing.is_contended(timing.Visit(**quiet), threads=1)
    assert not timing.is_contended(timing.Visit(**quiet, waits_for_device=True), threads=1)
    noisy = {**quiet, "involuntary_switches": 500}
    assert timing.is_contended(timing.Visit(**noisy, waits_for_device=True), threads=1)


def test_a_device_is_named_by_its_number_among_the_visible(cuda: FakeCuda) -> None:
    assert Gpu("cuda:0", library=cuda).uuid() == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    with pytest.raises(MeasurementError, match="'cpu' has none"):
        Gpu("cpu", library=cuda)


def test_the_drivers_refusals_come_in_its_words(cuda: FakeCuda) -> None:
    cuda.fail["cuDeviceGet"] = 100
    with pytest.raises(MeasurementError, match=r"refuses cuDeviceGet: CUDA_ERROR_NO_DEVICE \(100\)"):
        Gpu("cuda:0", library=cuda)


def test_no_memory_on_the_device_is_said_as_such(cuda: FakeCuda) -> None:
    cuda.fail["cuMemAlloc_v2"] = 2
    with pytest.raises(MemoryError, match="cuMemAlloc_v2"):
        DeviceTimer(Gpu("cuda:0", library=cuda), FakeSession(cuda), flushes_l2=True)


def test_without_a_driver_the_missing_library_is_named() -> None:
    try:
        ctypes.CDLL(cuda_driver.LIBRARY)
    except OSError:
        with pytest.raises(MeasurementError, match=r"no NVIDIA driver: libcuda\.so\.1 is missing"):
            Gpu("cuda:0")
    else:
        pytest.skip("there is a driver here")
