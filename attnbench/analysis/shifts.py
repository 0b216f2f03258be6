"""Latency of the same cases in two runs: which changes are more than drift of the machine and noise of processes.

Two runs are minutes or days apart and use other processes. The intervals of a run hold neither what happened between
the runs nor what one process has and another has not (pages, layout). So a change has to pass four hurdles:

1. Drift. `change = log(new/old) - drift`; the drift of a case is the median, over the *other* runtimes of the same
   problem, of their arms' median log(new/old). Runtimes and not arms are the controls because the arms of one runtime
   share a library and slow down together. Without another runtime there is no control and drift is None.
2. Noise. How far identical code differs is taken from the A/A pairs of both runs that were not contended, pooled with
   how an arm's changes scatter over its problems around their own median (by the median absolute deviation, so that
   one real change at one T does not count as noise). What the cases' intervals explain is taken out of this common
   part and added to each case by its own two intervals, so that a case that was measured badly needs more;
   none needs less than the pooled noise.
3. Many cases, and tails: one process in a hundred is far off. The noise is taken to be Student's t with 4 degrees.
   A change at a single case must be so large that any of all cases shows one in at most one pair of runs in sixty.
   An arm that changes in the same direction in two or more cases needs less: chance seldom does that twice, so the
   bar is where two cases of any one arm pass it together in at most one pair of runs in sixty.
4. Size. The change exceeds the noise floor of both runs, and 1 %; and so does the raw log(new/old), in the same
   direction: nothing is called slower only because the others became faster.

A shift that most runtimes share is taken out by (1) and is reported as `Common`: nothing in the runs can tell another
clock from a slower shared library.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, median

from attnbench.analysis.least_squares import t_quantile
from attnbench.measure.statistics import MIN_EXACT_ROUNDS, delta, rank_interval
from attnbench.records import Record

LEVEL = 0.03  # aimed at: chance that two runs of the same code show any change; half by one case, half by two of an arm
TAIL_DEGREES = 4  # of Student's t: tails as heavy as what processes do
MAD_TO_SD = 1.4826
MAD_EFFICIENCY = 0.37  # a median absolute deviation of n values is worth a standard deviation of 0.37 n
MIN_SCATTER = 3  # problems of an arm from which its scatter is taken

Pair = tuple[Record, Record]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What the verdicts of a comparison rest on. Fractions and logs; None where it was not measured."""

    floor_old: float | None
    floor_new: float | None
    delta: float | None  # max(1 %, both floors): no smaller change is named
    sigma: float | None  # standard deviation of a log change of identical code, of a typical case
    between: float | None  # the part of `sigma` that the intervals of the runs do not explain
    degrees: int  # of freedom of `sigma`
    pairs: int  # A/A pairs of both runs that were not contended


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The change of one case's latency, in logs: 0.1 is about 10 % slower in the new run."""

    raw: float  # log(new median / old median)
    drift: float | None  # what the problem's other runtimes did; None: there is none to compare with
    change: float  # raw - drift
    needed_alone: float  # what |change| must exceed at a single case
    needed_repeated: float  # and where another case of the arm passes this lower bar in the same direction
    is_repeated: bool
    verdict: str  # slower, faster, unclear (only against the others, the time itself did not change), or within_noise

    @property
    def needed(self) -> float:
        """The bar that was applied."""
        return self.needed_repeated if self.is_repeated else self.needed_alone


@dataclass(frozen=True, kw_only=True)
class Common:
    """A shift that more than half of the runtimes share."""

    shift: float  # log; at least so much in each of `runtimes`
    runtimes: tuple[str, ...]
    of: int  # runtimes judged
    is_notable: bool  # beyond `delta`


def why_unjudged(old: Record, new: Record) -> str:
    """Why the latencies of a pair may not be compared; empty where they may."""
    for record in (old, new):
        if record.status != "ok" or not record.latency_ms_median or not math.isfinite(record.latency_ms_median):
            return "not_timed"
        if "contended" in record.flags:
            return "contended"
        if "beats_roofline" in record.flags:
            return "beats_roofline"
        if (record.round_count or 0) < MIN_EXACT_ROUNDS or not (record.latency_ms_ci_low and record.latency_ms_ci_high):
            return "few_rounds"
    return ""


def judge_shifts(
    pairs: Mapping[str, Pair], aa_log_ratios: Sequence[float], floor_old: float | None, floor_new: float | None
) -> tuple[dict[str, Shift], Noise, Common | None]:
    """Judge the latencies of comparable pairs (case_id -> old, new) for which `why_unjudged` is empty.

    Args:
        pairs: of all problems.
        aa_log_ratios: of the A/A pairs of both runs that were not contended.
        floor_old: the noise floor of the old run, a fraction; None: not measured, then nothing is judged.
        floor_new: of the new run.
    """
    raw = {key: math.log(_ms(new) / _ms(old)) for key, (old, new) in pairs.items()}
    drifts = _drifts(pairs, raw)
    changes = {key: raw[key] - (drifts[key] or 0.0) for key in pairs}
    errors = {key: _error(old, new, changes[key]) for key, (old, new) in pairs.items()}
    noise = _noise(pairs, changes, errors, aa_log_ratios, floor_old, floor_new)
    if noise.delta is None or noise.between is None or noise.sigma is None:
        return {}, noise, None
    least = math.log1p(noise.delta)
    single, double = _bars(pairs, noise.degrees)
    spread = {key: max(noise.sigma, math.hypot(noise.between, errors[key])) for key in pairs}
    low = {key: max(least, double[pairs[key][0].arm] * spread[key]) for key in pairs}
    repeated = _repeated(pairs, {key: _verdict(raw[key], changes[key], low[key], least) for key in pairs})
    found = {}
    for key in pairs:
        high = max(least, single * spread[key])
        found[key] = Shift(
            raw=raw[key], drift=drifts[key], change=changes[key],
            needed_alone=high, needed_repeated=low[key], is_repeated=key in repeated,
            verdict=_verdict(raw[key], changes[key], low[key] if key in repeated else high, least),
        )  # fmt: skip
    return found, noise, _common(pairs, raw, noise.delta)


def _bars(pairs: Mapping[str, Pair], degrees: int) -> tuple[float, dict[str, float]]:
    """How many standard deviations one case needs, and each of two or more cases of an arm (by arm)."""
    df = min(TAIL_DEGREES, degrees)
    unit = math.sqrt((df - 2) / df) if df > 2 else 1.0  # t with df degrees has variance df/(df - 2)
    counts = Counter(old.arm for old, _ in pairs.values())
    single = unit * t_quantile(1 - LEVEL / 2 / (2 * len(pairs)), df)
    double = {
        # arms x pairs of cases x 2 directions x p^2 = LEVEL / 2
        arm: unit * t_quantile(1 - math.sqrt(LEVEL / 2 / (len(counts) * n * (n - 1))), df) if n > 1 else math.inf
        for arm, n in counts.items()
    }
    return single, double


def _repeated(pairs: Mapping[str, Pair], verdicts: Mapping[str, str]) -> set[str]:
    """The cases that changed together with another case of their arm, in one direction."""
    together: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, verdict in verdicts.items():
        if verdict in ("slower", "faster"):
            together[pairs[key][0].arm, verdict].append(key)
    return {key for keys in together.values() if len(keys) > 1 for key in keys}


def _verdict(raw: float, change: float, needed: float, least: float) -> str:
    if abs(change) <= needed:
        return "within_noise"
    if abs(raw) <= least or (raw > 0) != (change > 0):
        return "unclear"
    return "slower" if change > 0 else "faster"


def _ms(record: Record) -> float:
    assert record.latency_ms_median is not None
    return record.latency_ms_median


def _error(old: Record, new: Record, change: float) -> float:
    """Standard error of the change, from the sides of both rank intervals that face each other."""

    def error(record: Record, upper: bool) -> float:
        end = record.latency_ms_ci_high if upper else record.latency_ms_ci_low
        assert end is not None
        return abs(math.log(end / _ms(record))) / errors_in_interval(record.round_count or MIN_EXACT_ROUNDS)

    return math.hypot(error(old, change > 0), error(new, change <= 0))


@lru_cache(maxsize=256)
def errors_in_interval(count: int) -> float:
    """How many standard errors of the median of `count` values its rank interval reaches to one side (normal values).

    2.9 for seven, where the interval is the whole range; 2.3 for many. Blom's approximation of order statistics.
    """
    rank = rank_interval(range(count), n_eff=count).low + 1
    return -NormalDist().inv_cdf((rank - 0.375) / (count + 0.25)) / math.sqrt(math.pi / 2 / count)


def _drifts(pairs: Mapping[str, Pair], raw: Mapping[str, float]) -> dict[str, float | None]:
    """Per case the median over the problem's other runtimes of what their arms did."""
    by_runtime: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, (old, _) in pairs.items():
        by_runtime[old.problem_id][old.runtime].append(raw[key])
    return {
        key: median(others)
        if (others := [median(v) for name, v in by_runtime[old.problem_id].items() if name != old.runtime])
        else None
        for key, (old, _) in pairs.items()
    }


def _noise(
    pairs: Mapping[str, Pair], changes: Mapping[str, float], errors: Mapping[str, float], aa: Sequence[float],
    floor_old: float | None, floor_new: float | None,
) -> Noise:  # fmt: skip
    """How far identical code differs, from A/A pairs and from how the arms' changes scatter over their problems."""
    by_arm: dict[str, list[float]] = defaultdict(list)
    for key, (old, _) in pairs.items():
        by_arm[old.arm].append(changes[key])
    scattered = [xs for xs in by_arm.values() if len(xs) >= MIN_SCATTER]
    pool = [(x - median(xs)) * math.sqrt(len(xs) / (len(xs) - 1)) for xs in scattered for x in xs]
    worth = MAD_EFFICIENCY * (len(pool) - len(scattered))
    degrees = int(len(aa) + worth)
    sigma = None
    if degrees >= 1:
        mad = MAD_TO_SD * median(map(abs, pool)) if pool else 0.0
        squares = math.fsum(x * x for x in aa) + worth * mad**2
        sigma = math.sqrt(squares / (len(aa) + worth))
    between = None
    if sigma is not None and errors:
        between = math.sqrt(max(0.0, sigma**2 - median(error**2 for error in errors.values())))
    known = floor_old is not None and floor_new is not None and sigma is not None and bool(pairs)
    return Noise(
        floor_old=floor_old, floor_new=floor_new,
        delta=delta(max(floor_old or 0.0, floor_new or 0.0)) if known else None,
        sigma=sigma, between=between, degrees=degrees, pairs=len(aa),
    )  # fmt: skip


def _common(pairs: Mapping[str, Pair], raw: Mapping[str, float], least: float) -> Common | None:
    """What more than half of the runtimes share, in the direction in which most went."""
    by_runtime: dict[str, list[float]] = defaultdict(list)
    for key, (old, _) in pairs.items():
        by_runtime[old.runtime].append(raw[key])
    middles = {name: median(values) for name, values in by_runtime.items()}
    majority = len(middles) // 2 + 1
    if len(middles) < 2:
        return None
    up, down = sorted(middles.values(), reverse=True)[majority - 1], sorted(middles.values())[majority - 1]
    shift = up if up > 0 else min(down, 0.0)
    sharing = tuple(sorted(name for name, x in middles.items() if (x >= shift if shift > 0 else x <= shift)))
    return Common(shift=shift, runtimes=sharing, of=len(middles), is_notable=abs(shift) > math.log1p(least))
