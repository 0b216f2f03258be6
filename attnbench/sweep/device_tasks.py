"""What a worker does for a session on a GPU beside what it does for any: the device's clock, state and memory."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, cast

from attnbench.errors import MeasurementError, UnavailableError, UnsupportedError
from attnbench.interfaces import DeviceSession
from attnbench.measure import device_memory, device_timing, timing
from attnbench.measure.cuda_driver import Gpu
from attnbench.measure.device_memory import DeviceMeter, Neighbours
from attnbench.measure.nvml import DeviceMonitor

HOST = "host"
EXCLUSIVE = ("exclusive-process", "exclusive-thread")
LEAVE_S = 5.0  # until the driver has forgotten a process that ended
_NEEDED = ("stream", "replays_graph", "enqueue", "synchronize")


class DeviceWork:
    """The device of one worker's session. Made before the session is loaded, so that it sees who was there before."""

    def __init__(self, device: str, timed: Mapping[str, str], *, open_gpu: Callable[[str], Gpu] = Gpu) -> None:
        """device: `cuda:0`; timed: options of timing, such as scope=device and l2=cold.

        Raises:
            MeasurementError: there is no such device.
            UnavailableError: its compute mode leaves no room for this process.
        """
        self._device, self._timed = device, dict(timed)
        self._gpu = open_gpu(device)
        self._timer: device_timing.DeviceTimer | None = None
        self._monitor: DeviceMonitor | None = None
        self._unread = ""  # why clocks and neighbours are not read
        try:
            self._monitor = open_monitor(self._gpu)
        except MeasurementError as err:
            self._unread = str(err)
        self._before = self._neighbours()
        self._refuse_exclusive_mode()

    @property
    def scope(self) -> str:
        """Whose clock the samples are of."""
        return HOST if self._timer is None else self._timer.scope

    def require(self, session: object) -> None:
        """A session that is to be timed by the device must say how.

        Raises:
            UnsupportedError: it does not.
        """
        missing = [name for name in _NEEDED if not hasattr(session, name)]
        if self._timed and missing:
            raise UnsupportedError(
                f"its session has no {', '.join(missing)}, so events cannot be put around its work: only the host's "
                "time is measured"
            )

    def warm(self, session: object, call: Callable[[], object], *, is_warm: bool) -> int | None:
        """Warm up, and prove the stream where the device's clock was asked; the typical time of a call, or None.

        Raises:
            MeasurementError: the work is on another stream than the session says.
        """
        typical_ns = None if is_warm else timing.warm_up(call).typical_ns
        if self._timed:
            on_device = cast(DeviceSession, session)
            cold = self._timed.get("l2") == "cold"
            self._timer = device_timing.DeviceTimer(self._gpu, on_device, flushes_l2=cold)
            call_ns = timing.visit(call, drop=0, keep=1).samples_ns[0]
            device_timing.refuse_wrong_stream(self._gpu, on_device, call_ns=call_ns)
        return typical_ns

    def visit(self, call: Callable[[], object], *, drop: int, keep: int) -> timing.Visit:
        """One visit by the clock that was asked; clocks and power are read right after it, before they fall."""
        if self._timer is not None:
            found = self._timer.visit(drop=drop, keep=keep)
        else:
            found = replace(timing.visit(call, drop=drop, keep=keep), waits_for_device=True)
        return found if self._monitor is None else replace(found, device_state=self._monitor.state().to_json())

    def meter(self) -> DeviceMeter:
        """Watches the device's memory over calls from here on."""
        return DeviceMeter(self._gpu, self._device)

    def peak(self, meter: DeviceMeter) -> dict[str, Any]:
        """What the calls took on the device (see `device_memory.DevicePeak`)."""
        return asdict(meter.peak(self._before, self._neighbours()))

    def facts(self) -> dict[str, Any]:
        """What the report shows of how the device was watched."""
        if self._monitor is None:
            return {"device_monitor": self._unread}
        return {"device_monitor": "NVML", "compute_mode": self._monitor.compute_mode() or "not told"}

    def _refuse_exclusive_mode(self) -> None:
        """CUDA's own words for it are that devices are busy or unavailable, which sends nobody to the mode."""
        mode = self._monitor.compute_mode() if self._monitor is not None else None
        if mode == "prohibited":
            raise UnavailableError(
                f"{self._device} is in compute mode prohibited; set it with nvidia-smi -c DEFAULT, or take another GPU"
            )
        deadline = time.monotonic() + LEAVE_S
        while mode in EXCLUSIVE and self._before.pids and time.monotonic() < deadline:
            time.sleep(LEAVE_S / 50)
            self._before = self._neighbours()
        if mode in EXCLUSIVE and self._before.pids:
            pids = ", ".join(map(str, sorted(self._before.pids)))
            raise UnavailableError(
                f"{self._device} is in compute mode {mode} and taken by process {pids}; if that is an arm of this run, "
                "--gpu-workers one-at-a-time has each alone; else end it, set the mode with nvidia-smi -c DEFAULT, or "
                "take another GPU"
            )

    def _neighbours(self) -> Neighbours:
        if self._monitor is None:
            return Neighbours(pids=None, reason=self._unread)
        return device_memory.neighbours(self._monitor)


def open_monitor(gpu: Gpu) -> DeviceMonitor:
    """What reads the clocks of a device.

    Raises:
        MeasurementError: nothing does here; the message says why.
    """
    return DeviceMonitor(gpu.uuid())
