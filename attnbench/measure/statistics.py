"""Ratios of paired rounds: rank intervals, looks, the noise floor, verdicts, the set of fastest arms.

Everything that pairs takes `Mapping[int, float]`: round index -> block median (any time unit). An arm that left the
rotation early, or missed a round, simply lacks those keys; pairs are formed over the rounds that both sides have.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple, Protocol

from attnbench.errors import MeasurementError

LOOKS = (20, 35, 60, 100)  # rounds at which stopping may be decided; more looks inflate the miss rate
CONFIDENCE = 0.98
HALF_WIDTH = 0.005  # an arm is precise when its interval is within +-0.5 % of its middle
MIN_DELTA = 0.01
OUTLYING = (0.67, 1.5)  # an interval outside is decided: the arm may leave the rotation
MIN_EXACT_ROUNDS = 7  # 2 x 0.5^7 <= 2 %: the fewest independent rounds with an interval at 98 %
_TAIL_RISK = 0.01  # MLPerf early stopping: 99 % confidence that the percentile is not understated


class Bounds(Protocol):
    """What `is_precise` needs of an interval or ratio."""

    @property
    def low(self) -> float: ...  # noqa: D102
    @property
    def high(self) -> float: ...  # noqa: D102
    @property
    def exact(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median and its rank interval, in the unit of the values.

    `exact` is False where fewer than seven independent values cannot carry an interval at the asked confidence; then
    (low, high) is (min, max) and its coverage is lower than asked.
    """

    low: float
    mid: float
    high: float
    exact: bool
    count: int
    n_eff: float


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """time(baseline) / time(arm), median over rounds, and its interval. Above 1: the arm is faster."""

    ratio: float
    low: float
    high: float
    exact: bool
    count: int  # rounds that both have
    n_eff: float


class Standing(NamedTuple):
    """An arm beside the fastest of its problem; both None where no round is shared with it."""

    ratio_to_fastest: float | None  # time(arm) / time(fastest), median over shared rounds
    holm_p: float | None  # of "the arm is slower than the fastest", adjusted over the problem's arms


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """How many samples lie beyond Tukey's fences: mild at 1.5, severe at 3 interquartile ranges."""

    low_severe: int
    low_mild: int
    high_mild: int
    high_severe: int


def lag1(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation, negative ones counted as 0; 0 for fewer than three or equal values."""
    if len(values) < 3:
        return 0.0
    mean = math.fsum(values) / len(values)
    centred = [v - mean for v in values]
    variance = math.fsum(c * c for c in centred)
    if variance <= 0.0:
        return 0.0
    r = math.fsum(a * b for a, b in pairwise(centred)) / variance
    return min(max(r, 0.0), 1.0)


def effective_count(values: Sequence[float]) -> float:
    """How many independent values these are worth: n (1 - r)/(1 + r), at least 1."""
    r = lag1(values)
    return max(1.0, len(values) * (1.0 - r) / (1.0 + r)) if values else 0.0


def rank_interval(values: Sequence[float], *, confidence: float = CONFIDENCE, n_eff: float | None = None) -> Interval:
    """Median with its binomial order-statistic interval.

    Ranks are found for floor(n_eff) independent values and carried over to the n ordered ones by their quantile,
    rounded outwards, so that dependence only widens the interval.

    Args:
        values: in the order in which they were taken.
        confidence: two-sided.
        n_eff: of `values`; None: from their lag-1 autocorrelation.

    Raises:
        MeasurementError: no values, or one that is not finite.
    """
    if not values or not all(map(math.isfinite, values)):
        raise MeasurementError(f"an interval needs at least one value, all finite; got {len(values)} values")
    n = len(values)
    n_eff = effective_count(values) if n_eff is None else min(max(n_eff, 1.0), float(n))
    ordered = sorted(values)
    # A fraction of a value is no value; 1e-9 forgives rounding in n (1 - r)/(1 + r).
    independent = max(1, math.floor(n_eff + 1e-9))
    rank = _lower_rank(independent, confidence)
    at = max(1, rank * (n + 1) // (independent + 1))
    return Interval(
        low=ordered[at - 1], mid=median(ordered), high=ordered[n - at], exact=rank >= 1, count=n, n_eff=n_eff
    )


@lru_cache(maxsize=1024)
def _lower_rank(n: int, confidence: float) -> int:
    """Largest k with P(Bin(n, 1/2) < k) <= (1 - confidence)/2; 0 where even the minimum does not do."""
    tail, k = 0, 0
    allowed = (1.0 - confidence) / 2.0 * (1.0 + 1e-12)
    while k < n:
        tail += math.comb(n, k)
        if tail / 2**n > allowed:
            break
        k += 1
    return k


def latency(medians: Mapping[int, float]) -> Interval:
    """Median and interval over rounds of one arm's block medians, in their unit."""
    return rank_interval([medians[i] for i in sorted(medians)])


def log_ratios(baseline_medians: Mapping[int, float], arm_medians: Mapping[int, float]) -> list[float]:
    """log(time(baseline)/time(arm)) of every round that both have, in round order.

    Raises:
        MeasurementError: a block median that is not above 0.
    """
    rounds = sorted(baseline_medians.keys() & arm_medians.keys())
    for i in rounds:
        if not (baseline_medians[i] > 0.0 and arm_medians[i] > 0.0):
            raise MeasurementError(
                f"block medians must be above 0, got {baseline_medians[i]!r} and {arm_medians[i]!r} in round {i}; "
                "the clock is too coarse for this call"
            )
    return [math.log(baseline_medians[i] / arm_medians[i]) for i in rounds]


def ratio(
    baseline_medians: Mapping[int, float], arm_medians: Mapping[int, float], *, confidence: float = CONFIDENCE
) -> Ratio:
    """Speed-up of an arm over the baseline from paired rounds.

    Raises:
        MeasurementError: no round is shared, or a block median is not above 0.
    """
    logs = log_ratios(baseline_medians, arm_medians)
    if not logs:
        raise MeasurementError("the arm and the baseline share no round: there is no ratio")
    found = rank_interval(logs, confidence=confidence)
    return Ratio(
        ratio=math.exp(found.mid),
        low=math.exp(found.low),
        high=math.exp(found.high),
        exact=found.exact,
        count=found.count,
        n_eff=found.n_eff,
    )


def min_rounds(round_s: float) -> int:
    """Fewest rounds of a problem whose round takes `round_s` seconds: 20; 10 above 0.5 s; 7 above 3 s."""
    if round_s > 3.0:
        return MIN_EXACT_ROUNDS
    return 10 if round_s > 0.5 else LOOKS[0]


def looks_for(round_s: float) -> tuple[int, ...]:
    """The counts of rounds at which stopping may be decided; a slow problem may stop at its own minimum first."""
    first = min_rounds(round_s)
    return LOOKS if first == LOOKS[0] else (first, *LOOKS)


def is_precise(bounds: Iterable[Bounds], half_width: float = HALF_WIDTH) -> bool:
    """Is every interval exact and within +-half_width (a fraction)? False for none: nothing was shown."""
    given = list(bounds)
    return bool(given) and all(b.exact and b.low > 0.0 and math.log(b.high / b.low) / 2.0 <= half_width for b in given)


def is_outlying(ratio: Ratio) -> bool:
    """Does the interval lie wholly outside [0.67, 1.5]? More rounds would not change what is said of the arm.

    Seven rounds suffice, also dependent ones: differences this large are far beyond any interval's width.
    """
    return ratio.count >= MIN_EXACT_ROUNDS and (ratio.high < OUTLYING[0] or ratio.low > OUTLYING[1])


def noise_floor(log_ratios: Iterable[float]) -> float | None:
    """90th percentile of |log ratio| of identical pairs (A/A), as a fraction; None without a pair.

    The smallest observed value with at least 90 % of the pairs at or below it: the largest of fewer than ten.
    """
    ordered = sorted(abs(x) for x in log_ratios)
    if not ordered:
        return None
    return math.expm1(ordered[_rank(0.9, len(ordered)) - 1])


def _rank(q: float, n: int) -> int:
    """1-based nearest rank of quantile q among n; 1e-9 keeps 0.9 x 10 at 9."""
    return min(n, max(1, math.ceil(q * n - 1e-9)))


def delta(noise_floor: float) -> float:
    """The smallest difference that a verdict may name, as a fraction: the noise floor, at least 1 %."""
    return max(MIN_DELTA, noise_floor)


def verdict(low: float, high: float, delta: float, contended: bool = False) -> str:
    """`faster`, `slower`, `same` or `ambiguous` from an interval of time(baseline)/time(arm)."""
    if contended:
        return "ambiguous"
    if low > 1.0 + delta:
        return "faster"
    if high < 1.0 / (1.0 + delta):
        return "slower"
    if low >= 1.0 / (1.0 + delta) and high <= 1.0 + delta:
        return "same"
    return "ambiguous"


@lru_cache(maxsize=64)
def min_samples(q: float) -> int:
    """Fewest samples from which percentile q is reported: p90 64, p99 662 (MLPerf early stopping).

    The smallest n where at most one sample above the percentile would be seen with a chance of 1 % or less.
    """
    if not 0.0 < q < 1.0:
        raise MeasurementError(f"a percentile is a fraction between 0 and 1, got {q!r}; write 0.9 for p90")
    n = 1
    while q**n + n * (1.0 - q) * q ** (n - 1) > _TAIL_RISK:
        n += 1
    return n


def percentile(samples: Sequence[float], q: float) -> float | None:
    """The q-quantile (0.9: p90) by nearest rank; None where the samples are too few to tell."""
    if len(samples) < min_samples(q):
        return None
    return sorted(samples)[_rank(q, len(samples)) - 1]


def fastest_set(medians_by_arm: Mapping[str, Mapping[int, float]]) -> dict[str, Standing]:
    """Every arm beside the one with the lowest median: ratio, and Holm-adjusted exact sign test over shared rounds."""
    measured = {arm: medians for arm, medians in medians_by_arm.items() if medians}
    if not measured:
        return {arm: Standing(None, None) for arm in medians_by_arm}
    fastest = min(measured, key=lambda arm: median(measured[arm].values()))
    ratios: dict[str, float] = {}
    p_values: dict[str, float] = {}
    for arm, medians in measured.items():
        logs = log_ratios(medians, measured[fastest])
        if arm != fastest and logs:
            ratios[arm] = math.exp(median(logs))
            p_values[arm] = sign_test_p(logs)
    adjusted = holm(p_values)
    standings = {arm: Standing(ratios.get(arm), adjusted.get(arm)) for arm in medians_by_arm}
    standings[fastest] = Standing(1.0, 1.0)
    return standings


def sign_test_p(values: Iterable[float]) -> float:
    """One-sided exact sign test: how likely are so many values above 0 if the median were 0? Zeros are left out."""
    signs = [v > 0.0 for v in values if v != 0.0]
    n, above = len(signs), sum(signs)
    ways: int = sum(math.comb(n, k) for k in range(above, n + 1))
    return ways / 2.0**n


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjustment: the chance of one false claim in the family stays below the level."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for i, arm in enumerate(sorted(p_values, key=lambda a: p_values[a])):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[arm]))
        adjusted[arm] = largest
    return adjusted


def classify_outliers(samples: Sequence[float]) -> Outliers:
    """Count samples beyond Tukey's fences; nothing is dropped. Fewer than four samples have no outliers."""
    if len(samples) < 4:
        return Outliers(low_severe=0, low_mild=0, high_mild=0, high_severe=0)
    ordered = sorted(samples)
    q1, q3 = _quantile(ordered, 0.25), _quantile(ordered, 0.75)
    iqr = q3 - q1
    low_severe = sum(x < q1 - 3.0 * iqr for x in ordered)
    high_severe = sum(x > q3 + 3.0 * iqr for x in ordered)
    return Outliers(
        low_severe=low_severe,
        low_mild=sum(x < q1 - 1.5 * iqr for x in ordered) - low_severe,
        high_mild=sum(x > q3 + 1.5 * iqr for x in ordered) - high_severe,
        high_severe=high_severe,
    )


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics."""
    at = q * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])
