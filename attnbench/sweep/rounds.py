"""Timing all arms of a problem in random-order rounds, so that drift hits them alike."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from attnbench.errors import AttnbenchError
from attnbench.measure import statistics as stats
from attnbench.measure import timing

MAX_REPEATS = 2  # of one contended visit
BUDGET_ROUNDS = stats.MIN_EXACT_ROUNDS
CONTENDED_SHARE = 0.1  # a case is flagged when more of its visits stayed contended
TURN_S, TURN_VISITS = 0.5, 10  # of a worker that is started for one round only
THROTTLED_SHARE = 0.1  # a case is flagged when a GPU held its clocks down after more of its visits


class Parked(Protocol):
    """An arm that waits in its worker process."""

    def visit(self, *, drop: int, keep: int) -> timing.Visit:
        """Time it once; raises WorkerError when the worker does not answer."""
        ...


@dataclass(kw_only=True)
class Lane:
    """One worker in the rotation and what was measured of it. The baseline has two lanes (replica 0 and 1)."""

    arm: str
    replica: int = 0
    parked: Parked
    call_s: float  # of the warm-up, then of the last visit
    medians: dict[int, float] = field(default_factory=dict)  # round -> block median, ns
    samples: dict[int, list[int]] = field(default_factory=dict)  # round -> ns
    visits: int = 0
    contended_visits: int = 0  # still contended after the repeats
    stopped_by: str = ""
    failure: AttnbenchError | None = None
    scope: str = "host"  # whose clock the samples are of: host, device, device_graph
    device_states: list[dict[str, Any]] = field(default_factory=list)  # of a GPU, after each visit that it tells of
    turn: Callable[[], AbstractContextManager[object]] = nullcontext  # entered around its visits of a round
    visits_per_turn: int = 1

    @property
    def is_throttled(self) -> bool:
        """Whether the GPU held its clocks down against its will after so many visits that the row must say so."""
        throttled = sum(bool(state["throttle"]) for state in self.device_states)
        return throttled > THROTTLED_SHARE * len(self.device_states)

    @property
    def is_contended(self) -> bool:
        """Whether so much of it was disturbed that no verdict may be given."""
        return self.contended_visits > CONTENDED_SHARE * len(self.medians) * self.visits_per_turn

    @property
    def is_active(self) -> bool:
        """Whether it is still visited."""
        return not self.stopped_by and self.failure is None


def run_rounds(
    lanes: Sequence[Lane],
    *,
    rng: random.Random,
    threads: int,
    budget_s: float,
    now: Callable[[], float] = time.monotonic,
    between: Callable[[int], None] = lambda _: None,
) -> None:
    """Visit every lane once a round until all are precise, the budget is spent, or 100 rounds are done.

    The first lane is the baseline when its replica is there. Each lane's `stopped_by` says what ended it: `precision`,
    `budget`, `rounds`, `outlying`. A lane whose worker fails keeps the failure and leaves. `between` is called after
    every round, while nothing is being timed.
    """
    start = now()
    done = 0
    round_s = 0.0
    while active := [lane for lane in lanes if lane.is_active]:
        for lane in rng.sample(active, len(active)):
            _take_turn(lane, done, threads)
        done += 1
        round_s = (now() - start) / done
        between(done)
        out_of_time = done >= least_rounds(round_s) and now() - start + round_s > budget_s
        if done in stats.looks_for(round_s) or out_of_time:
            _look(lanes, done, out_of_time)


def _take_turn(lane: Lane, number: int, threads: int) -> None:
    """A lane's visits of one round; what it took in them is one block."""
    try:
        with lane.turn():
            samples = [ns for _ in range(lane.visits_per_turn) for ns in _visit(lane, threads)]
            lane.samples[number] = samples
            lane.medians[number] = max(statistics.median(samples), 1.0)  # a clock tick is the least that can be told
    except AttnbenchError as err:
        lane.failure = err


def _visit(lane: Lane, threads: int) -> list[int]:
    """One visit, repeated while it is contended; its samples."""
    keep, drop = timing.calls_to_keep(lane.call_s), timing.calls_to_drop(lane.call_s)
    for attempt in range(MAX_REPEATS + 1):
        visit = lane.parked.visit(drop=drop, keep=keep)
        lane.visits += 1
        contended = timing.is_contended(visit, threads)
        if not contended or attempt == MAX_REPEATS:
            break
    lane.contended_visits += contended
    lane.device_states += [visit.device_state] if visit.device_state is not None else []
    lane.call_s = max(visit.median_ns, 1.0) / 1e9
    return visit.samples_ns


def _look(lanes: Sequence[Lane], done: int, out_of_time: bool) -> None:
    active = [lane for lane in lanes if lane.is_active]
    if stats.is_precise(bounds(lanes)):
        reason = "precision"
    elif out_of_time:
        reason = "budget"
    elif done >= stats.LOOKS[-1]:
        reason = "rounds"
    else:
        for lane in active:
            if lane.replica == 0 and lane is not lanes[0] and (found := ratio_of(lanes, lane)) is not None:
                lane.stopped_by = "outlying" if stats.is_outlying(found) else ""
        return
    for lane in active:
        lane.stopped_by = reason


def ratio_of(lanes: Sequence[Lane], lane: Lane) -> stats.Ratio | None:
    """Speed-up of a lane over the first lane; None where they share no round."""
    if not lanes[0].medians.keys() & lane.medians.keys():
        return None
    return stats.ratio(lanes[0].medians, lane.medians)


def bounds(lanes: Sequence[Lane]) -> list[stats.Bounds]:
    """The intervals that must be narrow: of every active lane's ratio to the first, or of its latency when alone."""
    others = [lane for lane in lanes[1:] if lane.is_active]
    if lanes and lanes[0].is_active and others:
        return [found for lane in others if (found := ratio_of(lanes, lane)) is not None]
    return [stats.latency(lane.medians) for lane in lanes if lane.is_active and lane.medians]


def noise_log_ratio(lanes: Sequence[Lane]) -> float | None:
    """Log ratio of the baseline's two replicas (A/A); None without both."""
    for first in lanes:
        for second in lanes:
            if first.arm == second.arm and (first.replica, second.replica) == (0, 1):
                logs = stats.log_ratios(first.medians, second.medians)
                return statistics.median(logs) if logs else None
    return None


def least_rounds(round_s: float) -> int:
    """Rounds that even a spent budget does not cut off: seven; fewer carry no interval."""
    return min(BUDGET_ROUNDS, stats.min_rounds(round_s))


def predicted_visit_s(call_s: float) -> float:
    """Seconds that one visit of a lane takes."""
    return call_s * (timing.calls_to_keep(call_s) + timing.calls_to_drop(call_s)) + 0.001


def predicted_turn_s(call_s: float) -> float:
    """Seconds that the visits of one turn take in a worker of its own."""
    return visits_in_turn(call_s) * predicted_visit_s(call_s)


def visits_in_turn(call_s: float) -> int:
    """How many visits repay the start of a worker that lives for one turn: half a second of them, ten at most."""
    return max(1, min(TURN_VISITS, round(TURN_S / predicted_visit_s(call_s))))


def rounds_wanted(round_s: float) -> int:
    """How many rounds a problem may use: 100 of quick ones, fewer where one round takes seconds."""
    return max(stats.min_rounds(round_s), min(stats.LOOKS[-1], math.ceil(40.0 / max(round_s, 1e-3))))
