"""Peak host memory of calls, in a fresh process of their own (Linux).

How a worker takes it, in this order (a session holds one binding at a time):

1. load the arm, make the inputs at T and keep them;
2. bind tiny inputs and call once, where shapes are dynamic: lazy initialisation is not memory of the case;
3. bind the inputs at T: they and their copies exist before the baseline and do not count;
4. `measure_peak(call)`: gc, baseline, reset of the kernel's peak, calls, peak, gc, what is kept.

A call at T before the baseline would hide everything that an arena keeps: all ONNX Runtime arms then read 0. Where
shapes are static step 2 is left out and lazy initialisation counts.
"""

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attnbench.errors import MeasurementError

MIN_CALLS = 3
MAX_CALLS = 6
# The kernel counts pages per CPU in batches of 32: a change below that is no change.
UNCHANGED_BYTES = 32 * 4096

# A call gives an output, so it uses memory, if only pages that were resident before: no growth seen is written as one
# page, the least that the kernel counts. 0 would read as "nothing was measured".
PAGE_BYTES = 4096

_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Host memory of the calls at T, beyond what was resident before them; None with a reason where not measured."""

    peak_bytes: int | None
    kept_bytes: int | None
    baseline_bytes: int | None
    calls: int
    first_call_ns: int  # the first call at T in this process
    reason: str = ""  # why the bytes are None


class PeakMeter:
    """The primitives: resident bytes now, the kernel's high-water mark, and its reset.

    Raises:
        MeasurementError: from every method, where the system has no such counter; the message is the reason.
    """

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._proc = proc

    def read_rss(self) -> int:
        """Resident bytes of this process."""
        return self._status_bytes("VmRSS")

    def read_peak(self) -> int:
        """Highest resident bytes since the last reset."""
        return self._status_bytes("VmHWM")

    def reset_peak(self) -> None:
        """Set the high-water mark to the resident bytes of now."""
        try:
            (self._proc / "clear_refs").write_text("5")
        except OSError as err:
            raise MeasurementError(_unreadable(self._proc / "clear_refs", err)) from err

    def _status_bytes(self, field: str) -> int:
        try:
            text = (self._proc / "status").read_text()
        except OSError as err:
            raise MeasurementError(_unreadable(self._proc / "status", err)) from err
        for line in text.splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise MeasurementError(
            f"{self._proc / 'status'} has no {field}: peak memory needs a Linux kernel that counts it"
        )


def _unreadable(path: Path, err: OSError) -> str:
    if sys.platform != "linux":
        return f"peak memory is measured on Linux only, this is {sys.platform}"
    return f"peak memory needs {path} ({err.strerror}); run where /proc is mounted and writable"


def measure_peak(
    call: Callable[[], object], *, meter: PeakMeter | None = None, clock: Callable[[], int] = time.perf_counter_ns
) -> Peak:
    """Peak and kept bytes of `call`, bound at T and never called before (steps 1 to 3 of the module's docstring).

    Calls until two in a row leave the high-water mark unchanged, three to six times. The first call is timed in any
    case, also where memory cannot be measured.
    """
    meter = PeakMeter() if meter is None else meter
    gc.collect()
    try:
        baseline = meter.read_rss()
        meter.reset_peak()
        meter.read_peak()
    except MeasurementError as err:
        return Peak(
            peak_bytes=None,
            kept_bytes=None,
            baseline_bytes=None,
            calls=1,
            first_call_ns=_timed(call, clock),
            reason=str(err),
        )
    first_call_ns = _timed(call, clock)
    peak, calls, unchanged = meter.read_peak(), 1, 0
    while calls < MAX_CALLS and (calls < MIN_CALLS or unchanged < 2):
        call()
        calls += 1
        now = meter.read_peak()
        unchanged = unchanged + 1 if now - peak <= UNCHANGED_BYTES else 0
        peak = max(peak, now)
    gc.collect()
    kept = meter.read_rss() - baseline
    return Peak(
        peak_bytes=max(PAGE_BYTES, peak - baseline),
        kept_bytes=max(0, kept),
        baseline_bytes=baseline,
        calls=calls,
        first_call_ns=first_call_ns,
    )


def _timed(call: Callable[[], object], clock: Callable[[], int]) -> int:
    start = clock()
    call()
    return clock() - start


def available_memory_bytes(
    *, meminfo: Path = Path("/proc/meminfo"), cgroup_root: Path = _CGROUP_ROOT, own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Bytes that this process can still get: the system's, or less where a control group limits it; None: unknown."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    system = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    known = [n for n in (system, _cgroup_room(cgroup_root, own)) if n is not None]
    return min(known) if known else None


def _cgroup_room(root: Path, own: Path) -> int | None:
    """Least of (limit - use) over this process's control group and its parents; None without a limit."""
    rooms: list[int] = []
    for folder in _cgroup_folders(root, own):
        for limit_name, use_name, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, use = _number(folder / limit_name), _number(folder / use_name)
            if limit is not None and use is not None and limit < 1 << 60:  # version 1 writes 2^63 for "no limit"
                rooms.append(max(0, limit - use + _stat(folder / "memory.stat", cache)))
    return min(rooms) if rooms else None


def _cgroup_folders(root: Path, own: Path) -> list[Path]:
    """Folders of this process's memory control group, from the innermost up to the mount."""
    folders = [root, root / "memory"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "memory" if controllers else root
        inner = mount / path.lstrip("/")
        folders += [inner, *(p for p in inner.parents if p.is_relative_to(mount))]
    return list(dict.fromkeys(folders))


def _number(path: Path) -> int | None:
    """The whole number in a file; None where missing or a word ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(path: Path, field: str) -> int:
    """A field of memory.stat; page cache that the kernel gives back on demand. 0 where missing."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == field), 0)
