"""Warm-ups and visits of one arm, in its worker process. Standard library only: imported beside any framework."""

import gc
import os
import resource
import statistics
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Clock = Callable[[], int]  # nanoseconds
Call = Callable[[], object]

WARM_UP_NS = 200_000_000
MIN_WARM_UP_CALLS = 2
MAX_KEEP = 1000
_VISIT_S = 0.010
_SINGLE_CALL_S = 0.020
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

# A quiet machine interrupts a busy thread a few times a second (kernel threads, timers); a neighbour on the same
# core takes turns of 3-4 ms, hundreds of times a second. 30/s lies an order of magnitude from both; two are free
# because a visit of 10 ms would otherwise be condemned by a single kernel thread.
FREE_SWITCHES = 2
SWITCHES_PER_S = 30.0
# One turn of a neighbour (3 ms) is 30 % of a visit of 10 ms; page faults and timer ticks stay below 2 %.
MAX_OFF_CPU_SHARE = 0.05
# Steal is counted in ticks of 10 ms: one tick condemns a short visit, a long one may lose 2 %.
MAX_STEAL_SHARE = 0.02


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """What the first calls of an arm at a shape told; none of them is a sample."""

    calls: int
    first_ns: int
    last_ns: int
    typical_ns: int  # median of the last five: plan visits with it
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class Visit:
    """The kept calls of one visit and what disturbed them (counters span the kept calls only)."""

    samples_ns: list[int]
    involuntary_switches: int  # of all threads of the process
    steal_ticks: int  # 10 ms each, over the CPUs that this process may use; 0 where the system does not count it
    wall_ns: int
    thread_cpu_ns: int  # of the calling thread
    process_cpu_ns: int  # of all threads
    dropped: int
    waits_for_device: bool = False  # the work is done elsewhere: being off the CPU is no sign of a neighbour
    device_state: dict[str, Any] | None = None  # of a GPU after the visit (`nvml.DeviceState`)

    @property
    def median_ns(self) -> float:
        """The block median."""
        return float(statistics.median(self.samples_ns))

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; `from_json` is the inverse."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Visit":
        """The inverse of `to_json`."""
        return cls(**fields)


def pin_to(cpus: Iterable[int]) -> None:
    """Keep every thread of this process on these CPUs. Nothing happens where the system cannot (not Linux)."""
    if hasattr(os, "sched_setaffinity"):
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cpus)


def calls_to_drop(call_s: float) -> int:
    """Calls at the start of a visit that pay for cold caches: 5 below 3 ms, 3 below 7 ms, 1 below 20 ms, else 0."""
    for limit_s, drop in ((0.003, 5), (0.007, 3), (0.020, 1)):
        if call_s < limit_s:
            return drop
    return 0


def calls_to_keep(call_s: float) -> int:
    """Calls per visit: about 10 ms worth (5 to 20 ms), one above 20 ms, never more than 1000."""
    if call_s >= _SINGLE_CALL_S:
        return 1
    if call_s * MAX_KEEP <= _VISIT_S:
        return MAX_KEEP
    return max(1, round(_VISIT_S / call_s))


def warm_up(call: Call, *, clock: Clock = time.perf_counter_ns) -> WarmUp:
    """Call until 0.2 s are spent beyond the first call, at least twice.

    The first call may compile for seconds, so its time does not count. Calls below 10 ms get 20 calls and more;
    calls above 0.2 s get two.
    """
    recent: list[int] = []
    first_ns = spent_ns = calls = 0
    while calls < MIN_WARM_UP_CALLS or spent_ns < WARM_UP_NS:
        start = clock()
        call()
        took = clock() - start
        calls += 1
        if calls == 1:
            first_ns = took
            continue
        spent_ns += max(took, 1)  # a clock that stands still must not hang the worker
        recent.append(took)
        del recent[:-5]
    return WarmUp(
        calls=calls,
        first_ns=first_ns,
        last_ns=recent[-1],
        typical_ns=int(statistics.median(recent)),
        total_ns=first_ns + spent_ns,
    )


def visit(call: Call, *, drop: int, keep: int, clock: Clock = time.perf_counter_ns) -> Visit:
    """Run `drop` calls unseen, then time `keep` calls one by one, with the garbage collector off and frozen.

    Between the two clock readings of a sample there is one Python call and nothing else.
    """
    samples = array("q", bytes(8 * keep))
    with _collector_off():
        for _ in range(drop):
            call()
        steal = _steal_ticks()
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        process_cpu, thread_cpu = time.process_time_ns(), time.thread_time_ns()
        begin = clock()
        for i in range(keep):
            start = clock()
            call()
            samples[i] = clock() - start
        wall = clock() - begin
        thread_cpu, process_cpu = time.thread_time_ns() - thread_cpu, time.process_time_ns() - process_cpu
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches
        steal = _steal_ticks() - steal
    return Visit(
        samples_ns=samples.tolist(),
        involuntary_switches=switches,
        steal_ticks=max(0, steal),
        wall_ns=wall,
        thread_cpu_ns=thread_cpu,
        process_cpu_ns=process_cpu,
        dropped=drop,
    )


@contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage collection inside, and nothing that exists now is looked at again until the end.

    A worker has it off for good; then there is nothing to do. Counting what is frozen walks all objects of the
    process: with torch imported that took 16 ms and emptied the caches before every visit.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def _steal_ticks() -> int:
    """Ticks that the hypervisor gave to others, over the CPUs of this process; 0 where not counted."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        mine = {f"cpu{i}" for i in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return 0
    fields = (line.split() for line in lines if line.startswith("cpu"))
    return sum(int(f[8]) for f in fields if f[0] in mine and len(f) > 8)


def off_cpu_share(visit: Visit) -> float:
    """Part of the wall time in which the one working thread did not run.

    A runtime may hand the work to a thread of its own and wait: where the calling thread was mostly idle and the
    process was not, the CPU time of the process counts.
    """
    if visit.wall_ns <= 0:
        return 0.0
    cpu = visit.thread_cpu_ns
    others = visit.process_cpu_ns - visit.thread_cpu_ns
    if cpu < visit.wall_ns / 2 and others > visit.wall_ns / 2:
        cpu = visit.process_cpu_ns
    return max(0.0, (visit.wall_ns - cpu) / visit.wall_ns)


def is_contended(visit: Visit, threads: int) -> bool:
    """Did something else use the CPUs of this visit? The thresholds and their reasons are at the top of the module.

    The off-CPU share is used for one thread only: with several, the caller waits for the others by design, and so it
    does for a device.
    """
    wall_s = visit.wall_ns / 1e9
    if visit.involuntary_switches > FREE_SWITCHES + SWITCHES_PER_S * wall_s * threads:
        return True
    if visit.steal_ticks * _TICK_NS > MAX_STEAL_SHARE * visit.wall_ns * threads:
        return True
    return threads == 1 and not visit.waits_for_device and off_cpu_share(visit) > MAX_OFF_CPU_SHARE
