"""The laws of the arms of one chart: latency and peak memory against T."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.analysis.groups import Panel, latency_interval, latency_ms, peak_bytes, score_bytes
from attnbench.analysis.laws import Estimate, Law, Point, fit_law
from attnbench.analysis.least_squares import MIN_POINTS
from attnbench.errors import MeasurementError
from attnbench.records import Record

Z_RANK = 2.326  # normal quantile of the 98 % rank intervals that records hold
Z_FLOOR = 1.645  # normal quantile of the noise floor, a 90th percentile of |log ratio|
LEAST_RELATIVE_SD = 1e-3  # what no interval of few rounds may claim to be better than
MEMORY_RELATIVE_SD, MEMORY_SD_BYTES = 0.005, 100e3  # repeats agree within 0.5 % and 0.2 MiB (measurement.md)
WHOLE_MATRIX = 0.5  # an interval of score matrices on one side of this tells whether scores are materialised
_SAME_POWER = 0.02  # how far q_len x kv_len may be from x^2 and still count as it


@dataclass(frozen=True, kw_only=True)
class ArmLaws:
    """What one arm follows; a law that is None has its reason."""

    latency: Law | None  # ms
    latency_reason: str
    memory: Law | None  # bytes
    memory_reason: str
    matrices: Estimate | None  # score matrices (B, H, q_len, kv_len) that live at once, from the quadratic term


def arm_laws(panel: Panel, floor: float | None) -> dict[str, ArmLaws]:
    """The laws of every arm of a panel.

    Args:
        panel: one chart.
        floor: the noise floor of the run, a fraction: what two workers of the same code differ by; None: not known.
    """
    return {arm: _laws(panel, [r for r in panel.row(arm) if r is not None], floor) for arm in panel.arms}


def _laws(panel: Panel, records: Sequence[Record], floor: float | None) -> ArmLaws:
    if not panel.has_x:
        why = "the model was run without a free dim that follows T"
        return ArmLaws(latency=None, latency_reason=why, memory=None, memory_reason=why, matrices=None)
    timed = "was timed and right" if panel.judge is None else "was timed, and is within its limit,"
    latency, latency_reason = _fitted(latency_points(panel, records, floor), timed, panel.x_label)
    memory, memory_reason = _fitted(memory_points(panel, records), "has a measured or planned peak", panel.x_label)
    return ArmLaws(
        latency=latency, latency_reason=latency_reason, memory=memory, memory_reason=memory_reason,
        matrices=None if memory is None else score_matrices(panel, records, memory),
    )  # fmt: skip


def _fitted(points: Sequence[Point], what: str, x_label: str) -> tuple[Law | None, str]:
    if len(points) < MIN_POINTS:
        return None, f"{what} at {len(points)} of the at least {MIN_POINTS} {x_label} that a law needs"
    try:
        return fit_law(points), ""
    except MeasurementError as err:
        return None, str(err)


def latency_points(panel: Panel, records: Sequence[Record], floor: float | None) -> list[Point]:
    """x, median in ms and its deviation: of the rounds within a worker, and from worker to worker (the noise floor)."""
    worker_sd = math.log1p(floor or 0.0) / Z_FLOOR / math.sqrt(2.0)
    points = []
    for r in records:
        median = latency_ms(r)
        if median is not None:
            low, high = latency_interval(r) or (median, median)
            rounds_sd = (high - low) / (2.0 * Z_RANK) / median
            sd = max(LEAST_RELATIVE_SD, math.hypot(rounds_sd, worker_sd))
            points.append(Point(getattr(r, panel.x_name), median, sd * median))
    return points


def memory_points(panel: Panel, records: Sequence[Record]) -> list[Point]:
    """x, peak bytes and the deviation of repeats; what a compiler plans where nothing ran."""
    points = []
    for r in records:
        peak = memory_bytes(r)
        if peak is not None and peak > 0:
            sd = math.hypot(MEMORY_RELATIVE_SD * peak, MEMORY_SD_BYTES)
            points.append(Point(getattr(r, panel.x_name), float(peak), sd))
    return points


def memory_bytes(record: Record) -> int | None:
    """The peak of a right case, or what the compiler plans for one that was only compiled."""
    if record.status == "compiled":
        return record.planned_activation_bytes
    return peak_bytes(record) if record.status == "ok" else None


def score_matrices(panel: Panel, records: Sequence[Record], memory: Law) -> Estimate | None:
    """How many whole score matrices the quadratic term is; None where scores do not grow as x^2, or none are known."""
    if panel.facet.model is not None:
        return None
    per_pair = [score_bytes(r) / getattr(r, panel.x_name) ** 2 for r in records]
    if not per_pair or max(per_pair) > min(per_pair) * (1.0 + _SAME_POWER):
        return None
    return Estimate(*(term / per_pair[0] for term in memory.quadratic))
