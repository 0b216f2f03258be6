"""Two runs, case by case: what got slower, wrong, larger or different, and what may not be compared at all.

Cases match by `case_id` (problem and arm, not versions or machine). Rows of another processor or device, thread count,
latency scope or precision are set apart. Compared are: status; latency (see `shifts`); peak memory beyond 3 % and 2 MiB
(18 runs on one busy machine lay within 1.3 MiB of each other); the attention kernel and what the runtime told of
itself; the worst row's error where it more than doubled. Single readings (`load_ms`, `first_call_ms`,
`kept_host_bytes`) are not compared. Of a file that another arm judges now, only what needs no judge is compared: an
error against another answer is another error.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from attnbench.analysis.groups import judge_of_row
from attnbench.analysis.shifts import Common, Noise, Shift, judge_shifts, why_unjudged
from attnbench.problem import Variant
from attnbench.records import Record

CATEGORIES = ("mismatch", "status", "slower", "memory", "kernel", "numeric", "missing", "drift")
CONDITIONS = ("device", "device_name", "threads", "latency_scope", "compute_precision")
MACHINE = ("architecture", "cpu_model", "cpu_flags", "caches")  # of the manifest: what makes another processor
MEMORY_FRACTION, MEMORY_BYTES = 0.03, 2 << 20
VARIANTS = get_args(Variant)
ERROR_FACTOR = 2.0  # an error that grew by less may be another order of summation
ERROR_FLOOR = 3.0  # and below this many roundings of the exact result it is as good as the format allows
_UNTOLD = (None, "", "unknown")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two runs."""

    name: str
    rows: Sequence[Record]
    manifest: Mapping[str, Any]

    @property
    def machine(self) -> dict[str, Any]:
        """What of the processor decides whether figures can be compared."""
        machine = (self.manifest.get("environment") or {}).get("machine") or {}
        return {key: machine.get(key) for key in MACHINE}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is different. `direction`: worse, better, or changed (neither is better)."""

    category: str  # of CATEGORIES
    direction: str
    column: str  # of the records, or the key of `facts` as facts.KEY
    old: Any
    new: Any

    @property
    def is_adverse(self) -> bool:
        """Whether `--fail-on` this category fails: what got worse, and every change of what runs."""
        return self.direction == "worse" or (self.direction == "changed" and self.category == "kernel")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A case that both runs have, measured alike."""

    old: Record
    new: Record
    findings: tuple[Finding, ...]
    shift: Shift | None  # None: the latencies were not judged, `unjudged` says why
    unjudged: str  # not_timed, contended, beats_roofline, few_rounds, noise_unknown; empty when judged


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A case that both runs have, but measured so differently that nothing follows from a difference."""

    old: Record
    new: Record
    condition: str  # of CONDITIONS, `machine`, `memory_limit_bytes`, `judge`, or `skipped`
    old_value: Any
    new_value: Any


@dataclass(frozen=True, kw_only=True)
class Diff:
    """Everything that `attnbench diff` says, as numbers."""

    old: Side
    new: Side
    compared: tuple[Compared, ...]
    apart: tuple[Apart, ...]
    only_old: tuple[Record, ...]
    only_new: tuple[Record, ...]
    noise: Noise
    common: Common | None
    artifact_changes: int  # cases whose exported file has another checksum
    judge_changes: Mapping[tuple[str, str], int]  # (judge in OLD, judge in NEW), where they differ -> cases

    def adverse(self, category: str) -> int:
        """How many cases got worse in this way (`drift`: 1 when most runtimes are slower together)."""
        if category == "drift":
            return int(self.common is not None and self.common.is_notable and self.common.shift > 0)
        if category == "missing":
            return len(self.only_old) + sum(a.new.status == "skipped" != a.old.status for a in self.apart)
        return sum(any(f.category == category and f.is_adverse for f in case.findings) for case in self.compared)

    def exit_code(self, fail_on: Iterable[str]) -> int:
        """1: a named category has something adverse; 3: nothing, or no latency for `slower`, was judged; else 0."""
        asked = set(fail_on)
        if any(self.adverse(category) for category in asked):
            return 1
        is_blind = "slower" in asked and all(case.shift is None for case in self.compared)
        return 3 if is_blind or not self.compared else 0


def diff(old: Side, new: Side) -> Diff:
    """Compare two runs. The same run twice has no difference; the result does not depend on the order of rows."""
    olds, news = ({r.case_id: r for r in sorted(side.rows, key=_order)} for side in (old, new))
    conditions = [_Conditions(side) for side in (old, new)]
    apart, pairs = [], {}
    for key in olds.keys() & news.keys():
        pair = olds[key], news[key]
        found = _apart(*pair, *conditions)
        if found is None:
            pairs[key] = pair
        else:
            apart.append(found)
    pairs = dict(sorted(pairs.items(), key=lambda item: _order(item[1][1])))
    unjudged = {key: why_unjudged(*pair) for key, pair in pairs.items()}
    shifts, noise, common = judge_shifts(
        {key: pair for key, pair in pairs.items() if not unjudged[key]},
        _aa(old.rows) + _aa(new.rows), old.manifest.get("noise_floor"), new.manifest.get("noise_floor"),
    )  # fmt: skip
    return Diff(
        old=old, new=new, apart=tuple(sorted(apart, key=lambda a: _order(a.new))), noise=noise, common=common,
        compared=tuple(
            Compared(
                old=pair[0], new=pair[1], shift=shifts.get(key), findings=tuple(_findings(*pair, shifts.get(key))),
                unjudged=unjudged[key] or ("" if key in shifts else "noise_unknown"),
            )
            for key, pair in pairs.items()
        ),
        only_old=tuple(r for key, r in olds.items() if key not in news),
        only_new=tuple(r for key, r in news.items() if key not in olds),
        artifact_changes=sum(_differ(a.artifact_sha256, b.artifact_sha256) for a, b in pairs.values()),
        judge_changes=_judge_changes((olds[key], news[key]) for key in olds.keys() & news.keys()),
    )  # fmt: skip


def _order(r: Record) -> tuple[Any, ...]:
    variant = (VARIANTS.index(r.variant) if r.variant in VARIANTS else len(VARIANTS), r.variant)
    sizes = (r.batch_size or 0, r.num_heads or 0, r.head_dim or 0)
    lengths = (r.q_len or 0, r.kv_len or 0)
    return (r.part, r.model or "", r.dtype, sizes, variant, r.mask or "", lengths, r.arm, r.case_id)


def _aa(rows: Iterable[Record]) -> list[float]:
    """The A/A log ratios that were measured undisturbed."""
    return [r.noise_log_ratio for r in rows if r.noise_log_ratio is not None and "contended" not in r.flags]


def _differ(old: Any, new: Any) -> bool:
    """Both are known, and not the same."""
    return old not in _UNTOLD and new not in _UNTOLD and bool(old != new)


def _judge_changes(pairs: Iterable[tuple[Record, Record]]) -> dict[tuple[str, str], int]:
    """Which judges were replaced by which, and in how many cases that both runs have."""
    judges = ((judge_of_row(old), judge_of_row(new)) for old, new in pairs)
    return dict(sorted(Counter((old, new) for old, new in judges if old and new and old != new).items()))


class _Conditions:
    """How the rows of one run were measured; what a row that did not run does not know is its runtime's."""

    def __init__(self, side: Side) -> None:
        self.machine = side.machine
        self._usual: dict[tuple[str, str], Any] = {}
        seen: dict[tuple[str, str], Counter[Any]] = defaultdict(Counter)
        for record in side.rows:
            for field in CONDITIONS:
                if (value := getattr(record, field)) not in _UNTOLD:
                    seen[record.runtime, field][value] += 1
        self._usual = {key: max(counts.items(), key=lambda kv: (kv[1], str(kv[0])))[0] for key, counts in seen.items()}

    def of(self, record: Record, field: str) -> Any:
        value = getattr(record, field)
        if value in _UNTOLD and record.status != "ok" and field != "compute_precision":
            return self._usual.get((record.runtime, field))
        return value


def _apart(old: Record, new: Record, before: _Conditions, after: _Conditions) -> Apart | None:
    """Why the two rows cannot be compared; None where they can."""

    def apart(condition: str, old_value: Any, new_value: Any) -> Apart:
        return Apart(old=old, new=new, condition=condition, old_value=old_value, new_value=new_value)

    on_host = all((where.of(r, "device") or "cpu").startswith("cpu") for r, where in ((old, before), (new, after)))
    if on_host:
        for key, value in before.machine.items():
            if _differ(value, after.machine[key]):
                return apart("machine", {key: value}, {key: after.machine[key]})
    for field in CONDITIONS:
        values = before.of(old, field), after.of(new, field)
        if _differ(*values):
            return apart(field, *values)
    ways = old.facts.get("gpu_workers"), new.facts.get("gpu_workers")  # parked, or one at a time: another pairing
    if None not in ways and ways[0] != ways[1]:
        return apart("gpu_workers", *ways)
    if "skipped" in (old.status, new.status) and old.status != new.status:
        return apart("skipped", old.reason or old.status, new.reason or new.status)
    if old.status != new.status and "oom" in (old.status, new.status):
        limits = old.memory_limit_bytes, new.memory_limit_bytes
        if limits[0] != limits[1]:
            return apart("memory_limit_bytes", *limits)
    judges = judge_of_row(old), judge_of_row(new)
    if old.status != new.status and "mismatch" in (old.status, new.status) and _differ(*judges):
        return apart("judge", *judges)
    return None


def _findings(old: Record, new: Record, shift: Shift | None) -> list[Finding]:
    found = _status(old, new)
    if old.status != "ok" or new.status != "ok":
        return found
    if shift is not None and shift.verdict in ("slower", "faster"):
        direction = "worse" if shift.verdict == "slower" else "better"
        found.append(_finding("slower", direction, "latency_ms_median", old, new))
    return found + _memory(old, new) + _kernel(old, new) + _numeric(old, new)


def _finding(category: str, direction: str, column: str, old: Record, new: Record) -> Finding:
    return Finding(
        category=category, direction=direction, column=column, old=getattr(old, column), new=getattr(new, column)
    )


def _status(old: Record, new: Record) -> list[Finding]:
    """A new wrong answer is `mismatch`; `ok` lost or gained otherwise is `status`."""
    if old.status == new.status:
        return []
    direction = "worse" if old.status == "ok" else "better" if new.status == "ok" else "changed"
    if new.status == "mismatch":
        return [_finding("mismatch", "worse", "status", old, new)]
    category = "mismatch" if old.status == "mismatch" and new.status == "ok" else "status"
    return [_finding(category, direction, "status", old, new)]


def _memory(old: Record, new: Record) -> list[Finding]:
    found = []
    for column in ("peak_host_bytes", "peak_device_bytes"):
        before, after = getattr(old, column), getattr(new, column)
        if before is not None and after is not None:
            more = after - before
            if abs(more) > max(MEMORY_FRACTION * before, MEMORY_BYTES):
                found.append(_finding("memory", "worse" if more > 0 else "better", column, old, new))
    return found


def _kernel(old: Record, new: Record) -> list[Finding]:
    """Another kernel, or facts that are not what they were; figures with a decimal point are readings, not facts.

    A kernel that the law of memory told in one run and left open in the other is no change: the peaks were noisier.
    """
    found = []
    kernels = old.attention_kernel, new.attention_kernel
    is_left_open = "memory-law" in (old.kernel_evidence, new.kernel_evidence) and bool(set(kernels) & set(_UNTOLD))
    if kernels[0] != kernels[1] and not is_left_open:
        is_gain = kernels[0] in _UNTOLD and kernels[1] not in _UNTOLD
        found.append(_finding("kernel", "better" if is_gain else "changed", "attention_kernel", old, new))
    for key in sorted(old.facts.keys() | new.facts.keys()):
        before, after = old.facts.get(key), new.facts.get(key)
        if _without_readings(before) != _without_readings(after):
            column = f"facts.{key}"
            found.append(Finding(category="kernel", direction="changed", column=column, old=before, new=after))
    return found


def _without_readings(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_readings(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_readings(item) for item in value]
    return None if isinstance(value, float) else value


def _numeric(old: Record, new: Record) -> list[Finding]:
    """Errors that more than doubled (or halved) and are more than rounding; of the same inputs and judge only."""
    if old.seed != new.seed or _differ(judge_of_row(old), judge_of_row(new)):
        return []
    found = []
    for column in ("worst_row_rel_err", "peaked_worst_row_rel_err"):
        before, after = getattr(old, column), getattr(new, column)
        if before is None or after is None:
            continue
        for low, high, record, direction in ((before, after, new, "worse"), (after, before, old, "better")):
            rounding = _rounding(record)
            if high > ERROR_FACTOR * low and (rounding is None or high > ERROR_FLOOR * rounding):
                found.append(_finding("numeric", direction, column, old, new))
    return found


def _rounding(record: Record) -> float | None:
    """The error of the exact result rounded once; None where it was not told."""
    if not record.err_vs_floor or record.worst_row_rel_err is None:
        return None
    return record.worst_row_rel_err / record.err_vs_floor
