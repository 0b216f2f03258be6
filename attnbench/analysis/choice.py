"""Which arm for which request, under limits: from what was measured, and the laws between.

At a length that was measured the figures are the measured ones; between lengths they are the law's, with the misfit of
single points in the interval; beyond the range they are marked as extrapolated. A length at or above one that failed is
no candidate. Arms whose order is not shown there by the paired rounds are a toss-up, and are said to be one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnbench.analysis.arm_laws import ArmLaws, arm_laws, memory_bytes
from attnbench.analysis.crossovers import Pair, Rounds, compare_series, series
from attnbench.analysis.groups import Facet, Panel, latency_interval, latency_ms
from attnbench.analysis.laws import Estimate, Law
from attnbench.analysis.profiles import Partition, partitions
from attnbench.analysis.workload import Requests
from attnbench.errors import InputError
from attnbench.records import Record, known_size


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an answer must keep to; None: no limit."""

    latency_ms: float | None = None
    memory_bytes: int | None = None
    error: float | None = None  # worst row, relative


@dataclass(frozen=True, kw_only=True)
class Option:
    """One arm for one request."""

    candidate: str
    latency_ms: Estimate | None
    memory_bytes: Estimate | None
    error: float | None  # the largest that was measured of this candidate
    by: str  # measured, law, extrapolated
    refused: str  # why it is out; empty: it may be chosen


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer for one batch size and length."""

    requests: Requests
    chosen: str | None
    toss_up: tuple[str, ...]  # others whose order to the chosen one is not shown
    options: tuple[Option, ...]
    reason: str  # where nothing is chosen

    def option(self, candidate: str) -> Option:
        """The option of one candidate."""
        return next(o for o in self.options if o.candidate == candidate)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One arm for the whole workload."""

    candidate: str
    latency_ms: Estimate  # mean of a request
    memory_bytes: float | None  # the largest of any request
    error: float | None
    is_optimal: bool  # no other policy is as good in latency, memory and error, and better in one


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The answer for one variant: panels of the same problem that differ in batch size and dtype only."""

    name: str
    decisions: tuple[Decision, ...]
    policies: tuple[Policy, ...]  # of the candidates that can serve every request, the fastest first
    mixed_ms: Estimate | None  # mean of a request when every request gets its chosen arm


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """An arm at one batch size: its cases, laws and largest error."""

    name: str
    panel: Panel
    arm: str
    laws: ArmLaws
    records: Mapping[int, Record]
    error: float | None

    def option(self, seq_len: int, limits: Limits) -> Option:
        """What it would take at this length, and whether the limits allow it."""
        record = self.records.get(seq_len)
        latency, memory, by = self._figures(seq_len, record)
        refused = self._failure(seq_len, record) or ("" if latency else self.laws.latency_reason)
        refused = refused or _broken_limit(latency, memory, self.error, limits)
        return Option(
            candidate=self.name, latency_ms=latency, memory_bytes=memory, error=self.error, by=by, refused=refused
        )

    def _figures(self, seq_len: int, record: Record | None) -> tuple[Estimate | None, Estimate | None, str]:
        if record is not None and latency_ms(record) is not None:
            median = record.latency_ms_median or 0.0
            low, high = latency_interval(record) or (median, median)
            measured = Estimate(low, median, high)
            peak = memory_bytes(record)
            return measured, None if peak is None else Estimate(peak, peak, peak), "measured"
        inside = self.laws.latency is not None and self.laws.latency.is_inside(seq_len)
        latency, memory = (_at(law, seq_len) for law in (self.laws.latency, self.laws.memory))
        return latency, memory, "law" if inside else "extrapolated"

    def _failure(self, seq_len: int, record: Record | None) -> str:
        if record is not None and latency_ms(record) is None:
            return f"{record.status} at this length" + (f": {record.reason}" if record.reason else "")
        if record is not None:
            return ""
        if self._first_failed is None or self._first_failed >= seq_len:
            return ""
        return f"{self.records[self._first_failed].status} already at {self.panel.x_label} = {self._first_failed}"

    @cached_property
    def _first_failed(self) -> int | None:
        return min((x for x, r in self.records.items() if r.status not in ("ok", "skipped")), default=None)


def _at(law: Law | None, seq_len: int) -> Estimate | None:
    return None if law is None else law.predict(seq_len)


def _broken_limit(latency: Estimate | None, memory: Estimate | None, error: float | None, limits: Limits) -> str:
    """Which limit the upper end of an estimate breaks; a figure that is not known breaks its limit."""
    for name, value, limit in (
        ("latency", latency and latency.high, limits.latency_ms),
        ("memory", memory and memory.high, limits.memory_bytes),
        ("error", error, limits.error),
    ):
        if limit is not None and (value is None or not value <= limit):
            return f"{name} may break the limit" if value is not None else f"{name} is not known"
    return ""


def advise(
    panels: Sequence[Panel],
    workload: Sequence[Requests] | None,
    limits: Limits,
    floor: float | None,
    rounds: Rounds | None = None,
    laws: Mapping[int, Mapping[str, ArmLaws]] | None = None,
) -> list[Advice]:
    """An answer per variant.

    Args:
        panels: of a run; of those with kv_len on their x axis only decode is answered: T is its cache after the step.
        workload: None: every measured batch size and length, once each.
        limits: for every single request.
        floor: the noise floor of the run, a fraction.
        rounds: block medians of the cases, for what is a toss-up.
        laws: panel number -> arm -> laws, where they were fitted already.
    """
    if (model := next((p.facet.model for p in panels if p.facet.model is not None), None)) is not None:
        raise InputError(
            f"advise answers for the built-in attention, and the run is of the model {model!r}; read its table of the "
            "fastest at every size in report.html"
        )
    families: dict[tuple[Facet, str], list[Panel]] = {}
    for panel in (p for p in panels if p.x_name == "q_len" or p.records[0].variant == "decode"):
        key = (replace(panel.facet, dtype="", batch_size=0), panel.title())
        families.setdefault(key, []).append(panel)
    fitted = laws or {panel.number: arm_laws(panel, floor) for members in families.values() for panel in members}
    orders = _Orders(floor, rounds or {})
    names = _family_names([members[0] for members in families.values()])
    return [
        _family_advice(name, members, workload, limits, fitted, orders)
        for name, members in zip(names, families.values(), strict=True)
    ]


def _family_advice(
    name: str,
    panels: Sequence[Panel],
    workload: Sequence[Requests] | None,
    limits: Limits,
    laws: Mapping[int, Mapping[str, ArmLaws]],
    orders: "_Orders",
) -> Advice:
    several = len({p.facet.dtype for p in panels}) > 1
    by_batch: dict[int, list[_Candidate]] = {}
    for panel in panels:
        by_batch.setdefault(known_size(panel.facet.batch_size), []).extend(
            _candidates(panel, laws[panel.number], several)
        )
    if workload is None:
        sizes = sorted({(known_size(p.facet.batch_size), x) for p in panels for x in p.xs})
        workload = [Requests(batch, x, 1.0) for batch, x in sizes]
    found = [_decide(r, by_batch, limits, orders) for r in workload]
    return Advice(
        name=name, decisions=tuple(found), policies=tuple(_policies(found)),
        mixed_ms=_mean((d, d.chosen) for d in found),
    )  # fmt: skip


def _family_names(panels: Sequence[Panel]) -> list[str]:
    """`block, self` for each; what is not usual of the problem is named too, and what differs between them."""
    facets = [panel.facet for panel in panels]
    several_heads = len({(f.num_heads, f.head_dim) for f in facets}) > 1
    several_ways = len({(f.device, f.threads, f.latency_scope) for f in facets}) > 1
    names = []
    for panel in panels:
        f = panel.facet
        heads = f"{f.num_heads} heads of {f.head_dim}" if several_heads else ""
        keys = f"{f.num_kv_heads} heads for keys" if f.num_kv_heads != f.num_heads else ""
        way = f"{f.device} with {f.threads} threads, {f.latency_scope} time" if several_ways else ""
        names.append(", ".join(word for word in (f.part, heads, keys, f.form, way, panel.title()) if word))
    return names


def _candidates(panel: Panel, laws: Mapping[str, ArmLaws], several: bool) -> list[_Candidate]:
    found = []
    for arm in panel.arms:
        records = {x: r for x, r in zip(panel.xs, panel.row(arm), strict=True) if r is not None}
        errors = [r.worst_row_rel_err for r in records.values() if latency_ms(r)]
        found.append(
            _Candidate(
                name=f"{arm} {panel.facet.dtype}" if several else arm, panel=panel, arm=arm, laws=laws[arm],
                records=records, error=_largest([e for e in errors if e is not None]),
            )
        )  # fmt: skip
    return found


def _decide(
    requests: Requests, by_batch: Mapping[int, Sequence[_Candidate]], limits: Limits, orders: "_Orders"
) -> Decision:
    """The fastest option that keeps to the limits, and those whose order to it is not shown."""
    candidates = by_batch.get(requests.batch_size, ())
    options = {c.name: c.option(requests.seq_len, limits) for c in candidates}
    allowed = [c for c in candidates if not options[c.name].refused]
    if not allowed:
        known = ", ".join(map(str, sorted(by_batch)))
        has_figures = any(option.latency_ms is not None for option in options.values())
        reason = "no arm is right there within the limits" if has_figures else "no arm has figures there"
        if not candidates:
            reason = f"batch size {requests.batch_size} was not measured (measured: {known})"
        return Decision(requests=requests, chosen=None, toss_up=(), options=tuple(options.values()), reason=reason)
    best = min(allowed, key=lambda c: _mid(options[c.name]))
    rivals = [c for c in allowed if c is not best]
    ties = [c.name for c in rivals if not orders.is_faster(best, c, options, requests.seq_len)]
    return Decision(
        requests=requests, chosen=best.name, toss_up=tuple(ties), options=tuple(options.values()), reason=""
    )


def _mid(option: Option) -> float:
    return option.latency_ms.mid if option.latency_ms is not None else math.inf


class _Orders:
    """Which of two candidates is shown to be faster where; every pair is compared once."""

    def __init__(self, floor: float | None, rounds: Rounds) -> None:
        self._floor, self._rounds = floor, rounds
        self._pairs: dict[tuple[int, int], Pair] = {}

    def is_faster(self, best: _Candidate, other: _Candidate, options: Mapping[str, Option], seq_len: int) -> bool:
        """Is the best shown to be faster than the other at this length?"""
        key = id(best), id(other)
        if key not in self._pairs:
            mine, theirs = series(best.panel, best.arm), series(other.panel, other.arm)
            self._pairs[key] = compare_series(best.name, mine, other.name, theirs, self._floor, self._rounds)
        if self._pairs[key].differences:
            return self._pairs[key].order_at(seq_len) < 0
        first, second = options[best.name].latency_ms, options[other.name].latency_ms
        return first is not None and second is not None and first.high < second.low


def _mean(chosen: Iterable[tuple[Decision, str | None]]) -> Estimate | None:
    """Mean latency of a request, every one by the candidate named beside it; None where one has none."""
    total, sums = 0.0, [0.0, 0.0, 0.0]
    for decision, candidate in chosen:
        latency = decision.option(candidate).latency_ms if candidate is not None else None
        if latency is None:
            return None
        total += decision.requests.number
        sums = [s + decision.requests.number * v for s, v in zip(sums, latency, strict=True)]
    return Estimate(*(s / total for s in sums)) if total else None


def _policies(decisions: Sequence[Decision]) -> list[Policy]:
    """Every candidate that can serve the whole workload, the fastest first, with the Pareto front marked."""
    names = dict.fromkeys(o.candidate for d in decisions for o in d.options)
    found = []
    for name in names:
        options = [next((o for o in d.options if o.candidate == name), None) for d in decisions]
        if any(o is None or o.refused for o in options):
            continue
        mean = _mean((d, name) for d in decisions)
        peaks = [o.memory_bytes.high if o is not None and o.memory_bytes is not None else None for o in options]
        errors = [o.error for o in options if o is not None]
        if mean is not None:
            found.append((name, mean, _largest(peaks), _largest(errors)))
    keys = [tuple(math.inf if v is None else v for v in (mean.mid, peak, error)) for _, mean, peak, error in found]
    return [
        Policy(
            candidate=name, latency_ms=mean, memory_bytes=peak, error=error,
            is_optimal=not any(dominates(other, key) for other in keys),
        )
        for (name, mean, peak, error), key in sorted(zip(found, keys, strict=True), key=lambda pair: pair[1])
    ]  # fmt: skip


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Is a at least as good (small) as b everywhere, and better somewhere?"""
    return all(x <= y for x, y in zip(a, b, strict=True)) and tuple(a) != tuple(b)


def _largest(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None and 0.0 <= v < math.inf]
    return max(known) if len(known) == len(values) and known else None


def profiles_of(advice: Advice, *, most: int, switch_ms: float) -> list[Partition]:
    """The best partitions of the workload's T into 1 to `most` profiles, by the time of the fastest single arm.

    Args:
        advice: of a workload; without an arm that serves all of it there are no partitions.
        most: the largest number of profiles.
        switch_ms: what a change of profile between two requests takes.
    """
    if not advice.policies:
        return []
    counts: dict[int, float] = {}
    spent: dict[int, float] = {}
    for decision in advice.decisions:
        latency = decision.option(advice.policies[0].candidate).latency_ms
        t, number = decision.requests.seq_len, decision.requests.number
        counts[t] = counts.get(t, 0.0) + number
        spent[t] = spent.get(t, 0.0) + number * (latency.mid if latency is not None else 0.0)
    cost, slowest = {}, 0.0
    for t in sorted(counts):  # padding to a longer T never saves time, whatever noise or another batch size says
        slowest = cost[t] = max(slowest, spent[t] / counts[t])
    return partitions(counts, cost.__getitem__, most=most, switch_cost=switch_ms)
