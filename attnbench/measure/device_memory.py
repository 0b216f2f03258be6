"""Peak memory of calls on a GPU, in a fresh process of their own, beside the host's (`memory.measure_peak`).

The driver tells only what is free on the whole device, now. Runtimes keep what a call took until they close, so the
least that was free after a call tells the peak, provided that nobody else uses the device: the processes on it are
listed before this one joins it and after the calls.

The watch begins before the inputs at T are bound, since some runtimes (TensorRT) take a call's memory then. So inputs
and output at T count, for all runtimes alike.

torch says itself what its own allocator peaked at. That is exact, where the driver's figure moves in segments and may
not move at all while a small call fits into what is kept.

Tested without a GPU; not yet measured on one.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnbench.measure.cuda_driver import Gpu
from attnbench.measure.nvml import DeviceMonitor

NO_GROWTH = "no growth was seen: the calls fit into what the runtime kept from before, which the driver counts as used"


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    """Bytes on the device beyond those before the inputs were bound; None with a reason where not measured."""

    peak_bytes: int | None
    reason: str = ""
    allocator_peak_bytes: int | None = None  # by torch's own count; None where torch does not work on the device
    is_shared: bool | None = None  # other processes were on the device; None: not known
    sharing: str = ""  # which ones, or why it is not known


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The processes on a device at one time."""

    pids: frozenset[int] | None  # as the host counts them; None: not told
    reason: str = ""  # why not


def neighbours(monitor: DeviceMonitor) -> Neighbours:
    """Who computes on the device now."""
    pids = monitor.processes()
    return Neighbours(pids=pids, reason="" if pids is not None else "this GPU does not list its processes")


def shared_by(before: Neighbours, after: Neighbours, *, own_pid: int | None = None) -> tuple[bool | None, str]:
    """Were others on the device? None where it cannot be known. With words.

    Args:
        before: from before this process joined the device.
        after: from after its calls.
        own_pid: as this process knows itself; in a container the host counts another one.
    """
    if before.pids is None or after.pids is None:
        return None, before.reason or after.reason
    if before.pids:
        return True, f"on the device before: {_listed(before.pids)}"
    if not after.pids:
        return None, "no process is listed, though this one works on the device: a container hides them"
    others = after.pids - {os.getpid() if own_pid is None else own_pid}
    if len(after.pids) > 1:
        return True, f"on the device during the calls: {_listed(others)}"
    return False, ""


def _listed(pids: frozenset[int]) -> str:
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, sorted(pids)))}"


class DeviceMeter:
    """Watches the free memory of a device over binding and calls; made when the session is loaded."""

    def __init__(self, gpu: Gpu, device: str, *, torch: Any | None = None) -> None:
        """device: `cuda:0`; torch: the module, where it is not the one that this process has imported."""
        gpu.join()
        self._gpu, self._index = gpu, int(device.partition(":")[2])
        imported = sys.modules.get("torch") if torch is None else torch
        self._cuda = imported.cuda if imported is not None and imported.cuda.is_initialized() else None
        self._gpu.synchronize()
        self._allocated = 0
        if self._cuda is not None:
            self._cuda.empty_cache()  # blocks that loading left would serve the calls unseen
            self._cuda.reset_peak_memory_stats(self._index)
            self._allocated = self._cuda.memory_allocated(self._index)
        self._free = self._least = gpu.memory()[0]

    def watched(self, call: Callable[[], object]) -> Callable[[], None]:
        """The call, and a look at what it left free."""

        def watched() -> None:
            call()
            self._gpu.synchronize()
            self._least = min(self._least, self._gpu.memory()[0])

        return watched

    def peak(self, before: Neighbours, after: Neighbours) -> DevicePeak:
        """What the watched calls took."""
        by_torch = None
        if self._cuda is not None:
            by_torch = self._cuda.max_memory_allocated(self._index) - self._allocated
        grown = max(self._free - self._least, by_torch or 0)
        is_shared, sharing = shared_by(before, after)
        return DevicePeak(
            peak_bytes=grown or None,
            reason="" if grown else NO_GROWTH,
            allocator_peak_bytes=by_torch,
            is_shared=is_shared,
            sharing=sharing,
        )
