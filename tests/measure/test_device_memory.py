"""Peak memory on a GPU: a simulated driver, the signatures of torch's own counters."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from attnbench.measure.cuda_driver import Gpu
from attnbench.measure.device_memory import NO_GROWTH, DeviceMeter, Neighbours, neighbours, shared_by
from attnbench.measure.nvml import DeviceMonitor
from tests.fake_cuda import FakeCuda

NOBODY = Neighbours(pids=frozenset())
ONLY_US = Neighbours(pids=frozenset({11}))


def fake_torch(*, initialised: bool = True, before: int = 0, peak: int = 0) -> Any:
    """torch's counters with the real signatures."""
    import torch

    answers = {"is_initialized": initialised, "empty_cache": None, "reset_peak_memory_stats": None,
               "memory_allocated": before, "max_memory_allocated": peak}  # fmt: skip
    return SimpleNamespace(
        cuda=SimpleNamespace(
            **{name: create_autospec(getattr(torch.cuda, name), return_value=it) for name, it in answers.items()}
        )
    )


def measured(cuda: FakeCuda, left_free: list[int], torch: Any) -> Any:
    """The peak over calls that leave so much free each."""
    meter = DeviceMeter(Gpu("cuda:0", library=cuda), "cuda:0", torch=torch)
    steps = iter(left_free)

    def call() -> None:
        cuda.free = next(steps)

    watched = meter.watched(call)
    for _ in left_free:
        watched()
    return meter.peak(NOBODY, ONLY_US)


def test_the_least_that_was_free_after_a_call_is_the_peak() -> None:
    cuda = FakeCuda(free=100 << 20)
    found = measured(cuda, [90 << 20, 60 << 20, 70 << 20], fake_torch(initialised=False))
    assert (found.peak_bytes, found.allocator_peak_bytes) == (40 << 20, None)
    assert (found.is_shared, found.reason) == (False, "")


def test_the_device_is_idle_when_it_is_read() -> None:
    cuda = FakeCuda()
    measured(cuda, [90 << 20], fake_torch(initialised=False))
    assert cuda.asked[-2:] == ["cuCtxSynchronize", "cuMemGetInfo_v2"]


def test_torchs_own_peak_stands_beside_the_drivers() -> None:
    torch = fake_torch(before=5 << 20, peak=35 << 20)
    found = measured(FakeCuda(free=100 << 20), [60 << 20], torch)
    assert (found.peak_bytes, found.allocator_peak_bytes) == (40 << 20, 30 << 20)
    torch.cuda.empty_cache.assert_called_once_with()
    torch.cuda.reset_peak_memory_stats.assert_called_once_with(0)


def test_a_small_call_has_torchs_figure_where_the_driver_sees_none() -> None:
    found = measured(FakeCuda(free=100 << 20), [100 << 20], fake_torch(before=0, peak=4096))
    assert found.peak_bytes == 4096


def test_no_growth_is_no_zero() -> None:
    found = measured(FakeCuda(free=100 << 20), [100 << 20], fake_torch(initialised=False))
    assert (found.peak_bytes, found.reason) == (None, NO_GROWTH)


@pytest.mark.parametrize(
    ("before", "after", "is_shared", "words"),
    [
        (NOBODY, ONLY_US, False, ""),
        (NOBODY, Neighbours(pids=frozenset({4711})), False, ""),  # us, as the host of a container counts
        (ONLY_US, Neighbours(pids=frozenset({11, 12})), True, "on the device before: process 11"),
        (NOBODY, Neighbours(pids=frozenset({11, 12})), True, "on the device during the calls: process 12"),
        (NOBODY, Neighbours(pids=frozenset({5, 6})), True, "on the device during the calls: processes 5, 6"),
        (NOBODY, NOBODY, None, "a container hides them"),
        (Neighbours(pids=None, reason="no package"), ONLY_US, None, "no package"),
    ],
)
def test_neighbours_are_told_or_it_is_said_that_they_are_not_known(
    before: Neighbours, after: Neighbours, is_shared: bool | None, words: str
) -> None:
    found = shared_by(before, after, own_pid=11)
    assert found[0] is is_shared
    assert words in found[1]


@pytest.mark.parametrize(("pids", "reason"), [(frozenset({3}), ""), (None, "this GPU does not list its processes")])
def test_a_gpu_lists_its_processes_or_it_is_said_that_it_does_not(pids: frozenset[int] | None, reason: str) -> None:
    monitor = create_autospec(DeviceMonitor, instance=True)
    monitor.processes.return_value = pids
    assert neighbours(monitor) == Neighbours(pids=pids, reason=reason)
