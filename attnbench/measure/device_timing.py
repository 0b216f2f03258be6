"""Visits of an arm on a GPU, timed by events on the stream that it works on (scopes `device` and `device_graph`).

A sample is the time between two events around the work of one call. Nothing waits for the host between them, so
copies to and from the host, Python and the launch of the next call are not in it. Where a call's kernels are shorter
than their launches, the gaps in which the device waits for the next launch are.

Tested without a GPU; not yet timed on one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from attnbench.errors import MeasurementError
from attnbench.measure import timing
from attnbench.measure.cuda_driver import Event, Gpu

# Writing as much as the L2 cache holds need not evict all of it: lines hash to slices, and it may have two halves.
FLUSH_FACTOR = 2
# Work that is still going on after the stream was done. Waiting itself takes 10 to 20 us.
MAX_LATE_SHARE = 0.2
MAX_LATE_NS = 50_000
PROOF_TRIES = 3  # a neighbour on the CPU may make a wait late, but not every time
_PROOF_NS = 5_000_000
_PROOF_CALLS = 1000


class Queued(Protocol):
    """The part of `attnbench.interfaces.DeviceSession` that timing needs."""

    stream: int
    replays_graph: bool

    def enqueue(self) -> object:
        """Queue the bound call's work on `stream`."""
        ...


class DeviceTimer:
    """Times a session's calls by events; holds the events and what is written to flush the L2 cache."""

    def __init__(self, gpu: Gpu, session: Queued, *, flushes_l2: bool = False) -> None:
        """flushes_l2: write over the L2 cache before every call, as if the inputs came from far."""
        gpu.join()
        self._gpu, self._session = gpu, session
        self._events: list[tuple[Event, Event]] = []
        self._flushed_bytes = FLUSH_FACTOR * gpu.l2_bytes() if flushes_l2 else 0
        if flushes_l2 and not self._flushed_bytes:
            raise MeasurementError("the driver does not tell the size of the L2 cache, so it cannot be flushed")
        self._written = gpu.allocate(self._flushed_bytes) if flushes_l2 else 0

    @property
    def scope(self) -> str:
        """`device`, or `device_graph` where calls replay a captured graph."""
        return "device_graph" if self._session.replays_graph else "device"

    def visit(self, *, drop: int, keep: int) -> timing.Visit:
        """Queue `drop` calls unseen, then `keep` between events; the counters of the host span all of it."""
        while len(self._events) < keep:
            self._events.append((self._gpu.event(), self._gpu.event()))
        events = self._events[:keep]

        def queue() -> None:
            for _ in range(drop):
                self._queue_one()
            for start, stop in events:
                self._queue_one(start, stop)
            self._gpu.wait(events[-1][1])

        of_host = timing.visit(queue, drop=0, keep=1)
        samples = [self._gpu.elapsed_ns(start, stop) for start, stop in events]
        return replace(of_host, samples_ns=samples, dropped=drop, waits_for_device=True)

    def _queue_one(self, start: Event | None = None, stop: Event | None = None) -> None:
        stream = self._session.stream
        if self._written:
            self._gpu.fill(self._written, self._flushed_bytes, stream)
        if start is not None:
            self._gpu.record(start, stream)
        self._session.enqueue()
        if stop is not None:
            self._gpu.record(stop, stream)


def refuse_wrong_stream(
    gpu: Gpu, session: Queued, *, call_ns: int, clock: Callable[[], int] = time.perf_counter_ns
) -> None:
    """Once the stream that a session names is done, nothing else may still run for it.

    Events on another stream than the work's measure how long queueing takes, not the work: 5 us for 250.

    Args:
        gpu: where the session works.
        session: bound and warm.
        call_ns: how long one call takes, waiting for its end.
        clock: nanoseconds.

    Raises:
        MeasurementError: the work runs on another stream.
    """
    event, count = gpu.event(), min(_PROOF_CALLS, math.ceil(_PROOF_NS / max(call_ns, 1)))
    for _ in range(PROOF_TRIES):
        late_ns, all_ns = _lateness(gpu, session, event, count, clock)
        if late_ns <= MAX_LATE_NS + MAX_LATE_SHARE * all_ns:
            return
    raise MeasurementError(
        f"the stream that the session names was done {late_ns / 1e6:.3g} of {all_ns / 1e6:.3g} ms before its work "
        "was: it works on another stream, so events on this one do not time it"
    )


def _lateness(gpu: Gpu, session: Queued, event: Event, count: int, clock: Callable[[], int]) -> tuple[int, int]:
    """Of so many calls: how long the device worked on after their stream was done, and how long all took; ns."""
    gpu.synchronize()
    begin = clock()
    for _ in range(count):
        session.enqueue()
    gpu.record(event, session.stream)
    gpu.wait(event)
    on_stream = clock()
    gpu.synchronize()
    end = clock()
    return end - on_stream, end - begin
