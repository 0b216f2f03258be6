"""Where one arm overtakes another as T grows, with an interval, and where no difference can be shown.

Two arms are compared at every T by their paired rounds. A crossing is claimed only between two T at which the order is
opposite and was shown beyond what workers of the same code differ by at any of the T looked at: equal arms are compared
at every T, and the noise floor is known from few pairs (`_claim_margin`). In between, the difference of
two laws a + bT + cT^2 is again one, so its zero and the interval of its zero (Fieller: all T where the difference may
be 0) come from a fit to the differences at all T; the two T themselves always bound it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from attnbench.analysis.arm_laws import LEAST_RELATIVE_SD, Z_FLOOR, Z_RANK
from attnbench.analysis.groups import Panel, latency_interval, latency_ms
from attnbench.analysis.laws import Estimate
from attnbench.analysis.least_squares import CONFIDENCE, MIN_POINTS, Fit, Vector, fit_terms, t_quantile
from attnbench.errors import MeasurementError
from attnbench.measure import statistics
from attnbench.records import Record

Rounds = Mapping[tuple[str, str], Mapping[int, float]]  # (run_id, case_id) -> round -> block median in ns
_GRID = 400  # places between two T at which the difference is looked at


class Difference(NamedTuple):
    """log(time of the first / time of the second) at one x with its 98 % interval; sign 0: not shown."""

    x: int
    low: float
    mid: float
    high: float
    sign: int  # -1: the first is faster, 1: the second is
    evidence: str  # paired rounds, ratio to the baseline, two intervals


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """`after` is faster above, `before` below."""

    before: str
    after: str
    at: Estimate  # x, with its 95 % interval
    between: tuple[int, int]  # the measured x at which the order was shown
    by: str  # law: zero of the fitted difference; interpolation: the fit has none there, the interval is `between`


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two arms of a panel along x."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    crossings: tuple[Crossing, ...]

    def order_at(self, x: float) -> int:
        """-1: the first is faster at x, 1: the second is, 0: not shown.

        Between two lengths the order holds if it was shown at both, outside a crossing's interval; beyond the measured
        lengths the last one speaks.
        """
        below = [d for d in self.differences if d.x <= x] or list(self.differences[:1])
        above = [d for d in self.differences if d.x >= x] or list(self.differences[-1:])
        if not below:
            return 0
        left, right = below[-1], above[0]
        for crossing in self.crossings:
            if left.x < x < right.x and crossing.between[0] <= left.x and right.x <= crossing.between[1]:
                side = -1 if crossing.before == self.first else 1
                return side if x < crossing.at.low else -side if x > crossing.at.high else 0
        return left.sign if left.sign == right.sign else 0

    @property
    def undecided(self) -> tuple[int, ...]:
        """The x at which no difference can be shown."""
        return tuple(d.x for d in self.differences if d.sign == 0)


def contenders(panel: Panel) -> list[str]:
    """The arms that are among the fastest at some x, and the baseline: the pairs that matter are theirs."""
    fast = [arm for arm in panel.arms if any(r is not None and r.fastest for r in panel.row(arm))]
    baselines = [arm for arm in panel.arms if any(r is not None and r.arm == r.baseline_arm for r in panel.row(arm))]
    return [arm for arm in panel.arms if arm in fast or arm in baselines]


def pairs(panel: Panel, floor: float | None, rounds: Rounds | None = None) -> list[Pair]:
    """Every two contenders of a panel, compared at every x where both are right; none without an x."""
    if not panel.has_x:
        return []
    return [compare(panel, a, b, floor, rounds) for a, b in combinations(contenders(panel), 2)]


def compare(panel: Panel, first: str, second: str, floor: float | None, rounds: Rounds | None = None) -> Pair:
    """Two arms of a panel: their difference at every x, and where their order changes."""
    return compare_series(first, series(panel, first), second, series(panel, second), floor, rounds)


def series(panel: Panel, arm: str) -> dict[int, Record]:
    """The right and timed cases of an arm by x."""
    cells = zip(panel.xs, panel.row(arm), strict=True)
    return {x: r for x, r in cells if r is not None and latency_ms(r) is not None}


def compare_series(
    first: str,
    first_records: Mapping[int, Record],
    second: str,
    second_records: Mapping[int, Record],
    floor: float | None,
    rounds: Rounds | None = None,
) -> Pair:
    """Two series of cases: their difference at every x that both have, and where their order changes.

    Args:
        first: what the first is called.
        first_records: x to a right and timed case.
        second: what the second is called.
        second_records: likewise.
        floor: the noise floor of the run, a fraction; None: not known, 1 % is used for what may be called different.
        rounds: block medians of the cases; where they lack, intervals of the records are used.
    """
    xs = sorted(first_records.keys() & second_records.keys())
    differences = [_difference(x, first_records[x], second_records[x], floor or 0.0, rounds or {}) for x in xs]
    times = {x: second_records[x].latency_ms_median or 0.0 for x in xs}
    return Pair(
        first=first, second=second, differences=tuple(differences),
        crossings=tuple(_crossings(first, second, differences, floor or 0.0, times)),
    )  # fmt: skip


def _difference(x: int, a: Record, b: Record, floor: float, rounds: Rounds) -> Difference:
    """log(time of a / time of b) and whether it can be told from 0."""
    low, mid, high, evidence = _log_ratio(a, b, rounds)
    margin = math.log1p(statistics.delta(floor))
    judged = min(a.round_count or 0, b.round_count or 0) >= statistics.MIN_EXACT_ROUNDS
    judged = judged and "contended" not in a.flags + b.flags
    sign = (low > margin) - (high < -margin) if judged else 0
    return Difference(x, low, mid, high, sign, evidence)


def _log_ratio(a: Record, b: Record, rounds: Rounds) -> tuple[float, float, float, str]:
    """Low, middle, high of log(time of a / time of b), by the best evidence there is."""
    mine, theirs = rounds.get((a.run_id, a.case_id)), rounds.get((b.run_id, b.case_id))
    if a.run_id == b.run_id and mine and theirs and mine.keys() & theirs.keys():
        found = statistics.ratio(mine, theirs)  # time(a) / time(b)
        return math.log(found.low), math.log(found.ratio), math.log(found.high), "paired rounds"
    for sign, arm, baseline in ((-1.0, a, b), (1.0, b, a)):
        speedup = (arm.speedup_ci_low, arm.speedup_vs_baseline, arm.speedup_ci_high)
        if (
            arm.baseline_arm == baseline.arm
            and arm.run_id == baseline.run_id
            and all(1e-24 <= (s or 0.0) <= 1e24 for s in speedup)
        ):
            low, mid, high = sorted(sign * math.log(s or 1.0) for s in speedup)
            return low, mid, high, "ratio to the baseline"
    sd = math.hypot(_relative_sd(a), _relative_sd(b))
    mid = math.log(latency_ms(a) or 1.0) - math.log(latency_ms(b) or 1.0)
    return mid - Z_RANK * sd, mid, mid + Z_RANK * sd, "two intervals"


def _relative_sd(record: Record) -> float:
    """Of the median of one arm, from its rank interval."""
    interval = latency_interval(record)
    if interval is None:
        return LEAST_RELATIVE_SD
    low, high = interval
    return (high - low) / (2.0 * Z_RANK) / (record.latency_ms_median or 1.0)


def _crossings(
    first: str, second: str, differences: Sequence[Difference], floor: float, times: Mapping[int, float]
) -> list[Crossing]:
    """A crossing for each two neighbouring x, among those whose order was shown, that are in opposite order."""
    margin = _claim_margin(len(differences), floor)
    shown = [d for d in differences if d.sign and max(d.low, -d.high) > margin]
    found = []
    for left, right in pairwise(shown):
        if left.sign != right.sign:
            before, after = (first, second) if left.sign < 0 else (second, first)
            at, by = _where(left, right, differences, floor, times)
            found.append(Crossing(before=before, after=after, at=at, between=(left.x, right.x), by=by))
    return found


def _claim_margin(x_count: int, floor: float) -> float:
    """|log ratio| that workers of the same code exceed the wrong way at any of the x in at most 5 % of pairs of arms.

    The floor comes from about one A/A pair per x, hence Student's t. A verdict looks at one T; a crossing at all.
    """
    level = 1.0 - (1.0 - CONFIDENCE) / max(2, x_count)
    return t_quantile(level, max(2, x_count)) * math.log1p(floor) / Z_FLOOR


def _where(
    left: Difference, right: Difference, differences: Sequence[Difference], floor: float, times: Mapping[int, float]
) -> tuple[Estimate, str]:
    """The zero between two x and its interval."""
    share = left.mid / (left.mid - right.mid)
    between = math.exp(math.log(left.x) + share * math.log(right.x / left.x))
    fallback = Estimate(float(left.x), between, float(right.x)), "interpolation"
    if len(differences) < MIN_POINTS:
        return fallback
    try:
        fit = _fit_difference(differences, floor, times)
    except MeasurementError:
        return fallback
    grid = np.exp(np.linspace(math.log(left.x), math.log(right.x), _GRID))
    places = _rows(grid, differences[-1].x)
    center = places @ fit.terms
    sd = np.sqrt(np.clip(np.einsum("ni,ij,nj->n", places, fit.covariance, places), 0.0, None))
    turns = np.nonzero(np.diff(np.sign(center)))[0]
    if not len(turns):
        return fallback
    maybe = grid[np.abs(center) <= fit.t_quantile * sd]
    i = int(turns[np.argmin(np.abs(np.log(grid[turns] / between)))])
    zero = float(grid[i] + (grid[i + 1] - grid[i]) * center[i] / (center[i] - center[i + 1]))
    low, high = (float(maybe.min()), float(maybe.max())) if len(maybe) else (zero, zero)
    return Estimate(min(low, float(grid[i])), zero, max(high, float(grid[i + 1]))), "law"


def _fit_difference(differences: Sequence[Difference], floor: float, times: Mapping[int, float]) -> Fit:
    """(time of the first - time of the second) as a law, fitted to their ratios, which the pairing makes precise."""
    rows = _rows(np.array([d.x for d in differences], dtype=np.float64), differences[-1].x)
    rows = rows / np.array([times[d.x] for d in differences])[:, None]
    ratios = np.array([math.exp(d.mid) for d in differences])
    worker_sd = math.log1p(floor) / Z_FLOOR
    sds = np.array([math.hypot((d.high - d.low) / (2.0 * Z_RANK), worker_sd) for d in differences]) * ratios
    return fit_terms(rows, ratios - 1.0, np.maximum(sds, LEAST_RELATIVE_SD), relative=False)


def _rows(xs: Vector, scale: float) -> Vector:
    """1, x, x^2 in units of the largest x."""
    return np.stack([np.ones(len(xs)), xs / scale, (xs / scale) ** 2], axis=1)
