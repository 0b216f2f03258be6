"""Which records may stand in one chart: facets (same conditions) and their panels (one variant each)."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnbench.analysis.model_dims import Models, following_note
from attnbench.problem import DTYPE_BYTES, USUAL_MASK
from attnbench.records import COMPILES_ONLY, Record, known_size

GIVEN = ("file", "engine")  # what an arm calls the exporter of what the user gave
FLOAT64 = "float64"  # what judges the built-in attention and modules
JUDGED_BY = "judged_by_"  # a flag of rows that an arm judged, its label behind it
Conditions = tuple[str | None, int | None, str | None]  # device, threads, latency_scope


@dataclass(frozen=True, kw_only=True)
class Facet:
    """What all rows of a chart have in common: sizes except T, dtype, and how the figures were taken."""

    part: str
    dtype: str
    batch_size: int | None  # None, as the next three: rows of a model
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    device: str | None
    threads: int | None
    latency_scope: str | None
    run_id: str | None = None  # this and the next two only where there are several runs
    run: str | None = None  # what the run is called
    machine: str | None = None  # only where there are several machines
    form: str = ""  # what else is not usual of the problem: `values of 32, scale 0.3, bias`
    model: str | None = None  # of the user: a file's name, package.module:Class; None: the built-in attention
    sizes: str = ""  # of its free dims that do not follow T: `batch=8, layers=2`

    def title(self) -> str:
        """`block, fp32, batch 1, 8 heads of 64, cpu, 1 thread, host time`; `model, fp32, batch=8, cpu, ...`."""
        heads = f"{self.num_heads} heads of {self.head_dim}"
        if self.num_kv_heads != self.num_heads:
            heads += f" ({self.num_kv_heads} for keys)"
        words = [self.part, self.dtype, f"batch {self.batch_size}", heads, *([self.form] if self.form else [])]
        if self.model is not None:
            words = [self.part, self.dtype, *([self.sizes] if self.sizes else [])]
        if self.device:
            words.append(self.device)
        if self.threads is not None:
            words.append(f"{self.threads} thread{'' if self.threads == 1 else 's'}")
        if self.latency_scope:
            words.append(f"{self.latency_scope} time")
        if self.run:
            words.append(f"{self.run} on {self.machine}" if self.machine else self.run)
        return ", ".join(words)

    def query(self) -> str:
        """The pandas query that picks these rows from records.csv."""
        if self.model is not None:
            return f"model == {self.model!r}" + (f" and run_id == {self.run_id!r}" if self.run_id else "")
        return (
            f"part == {self.part!r} and dtype == {self.dtype!r} and batch_size == {self.batch_size} "
            f"and num_heads == {self.num_heads} and num_kv_heads == {self.num_kv_heads} and head_dim == {self.head_dim}"
            + (f" and run_id == {self.run_id!r}" if self.run_id else "")
        )


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart: a facet and a variant, arms against T (or kv_len where only that changes)."""

    facet: Facet
    variant: str
    note: str  # `kv_len = T/2`; empty for square problems
    x_name: str  # q_len or kv_len
    number: int  # position in the report, from 1
    records: tuple[Record, ...]

    def title(self) -> str:
        """`cross (kv_len = T/2)`; of a model its name."""
        name = self.facet.model or self.variant
        return f"{name} ({self.note})" if self.note else name

    @property
    def x_label(self) -> str:
        """What the x values are called; of a model its free dim that is T."""
        if self.facet.model is not None:
            return self.records[0].bound or "sizes"
        return "T" if self.x_name == "q_len" else "kv_len"

    @property
    def has_x(self) -> bool:
        """Is there a T? A model may have none that is swept: it has a table and no chart against T."""
        return self.facet.model is None or self.records[0].bound is not None

    def x_text(self, x: int) -> str:
        """An x as a table's row is called."""
        return str(x) if self.has_x else self.facet.sizes or "fixed"

    def at(self, x: int) -> str:
        """An x within a sentence: `T = 128`; of a model without T `batch=8`."""
        return f"{self.x_label} = {x}" if self.has_x else self.facet.sizes or "fixed sizes"

    @property
    def judge(self) -> str | None:
        """The arm that the others are compared with for want of a truth; None: they are judged in float64."""
        return judge_of(self.records)

    @cached_property
    def cells(self) -> dict[tuple[str, int], Record]:
        """(series name, x) to record."""
        names = series_names(self.records, self.x_name)
        return {(name, x_of(r, self.x_name)): r for name, r in zip(names, self.records, strict=True)}

    @cached_property
    def xs(self) -> list[int]:
        """The x values of the panel, ascending."""
        return sorted({x for _, x in self.cells})

    @cached_property
    def arms(self) -> list[str]:
        """Series names: the baseline first, then as they came."""
        names = list(dict.fromkeys(name for name, _ in self.cells))
        baselines = {r.baseline_arm for r in self.records}
        return sorted(names, key=lambda name: name not in baselines)

    def row(self, arm: str) -> list[Record | None]:
        """The records of one arm along `xs`; None where the run has no record."""
        return [self.cells.get((arm, x)) for x in self.xs]

    def ok_at(self, x: int) -> list[Record]:
        """The records at one x that are right and have a latency, fastest median first."""
        found = [r for arm in self.arms if (r := self.cells.get((arm, x))) is not None and latency_ms(r) is not None]
        return sorted(found, key=lambda r: r.latency_ms_median or math.inf)

    def sample_xs(self) -> list[int]:
        """The short, middle and long x (fewer when there are not three)."""
        xs = self.xs
        return list(dict.fromkeys((xs[0], xs[len(xs) // 2] if len(xs) > 2 else xs[-1], xs[-1])))


def x_of(record: Record, x_name: str) -> int:
    """The x of a record; 0 for a model of which no size is swept."""
    return getattr(record, x_name) or 0


def judges_of(records: Iterable[Record]) -> list[str]:
    """The arms that rows were compared with for want of a truth, the usual one first; none: float64 judges.

    By the rows' flags; of a file that only one arm ran it is that arm, else whichever would have run first.
    """
    rows = list(records)
    flags = Counter(flag for r in rows for flag in r.flags if flag.startswith(JUDGED_BY))
    if flags or not any(r.model is not None and r.exporter in GIVEN for r in rows):
        return [flag.removeprefix(JUDGED_BY) for flag, _ in flags.most_common()]
    return [next((r.arm for r in rows if r.status == "ok"), "the first arm that runs")]


def judge_of(records: Iterable[Record]) -> str | None:
    """The usual one of `judges_of`; None: float64 judges."""
    return next(iter(judges_of(records)), None)


def judge_of_row(record: Record) -> str | None:
    """What one row was compared with: `FLOAT64`, or the label of an arm; None: with nothing."""
    if record.model is None or record.exporter not in GIVEN:
        return FLOAT64 if record.status in ("ok", "mismatch") else None
    return next((flag.removeprefix(JUDGED_BY) for flag in record.flags if flag.startswith(JUDGED_BY)), None)


def latency_ms(record: Record) -> float | None:
    """The median of an `ok` record when it is a figure that can be drawn: from a femtosecond to 30 years."""
    value = record.latency_ms_median
    return value if record.status == "ok" and value is not None and 1e-12 <= value <= 1e12 else None


def latency_interval(record: Record) -> tuple[float, float] | None:
    """The interval of `latency_ms`, where it is one: finite, above zero, around the median."""
    median, low, high = latency_ms(record), record.latency_ms_ci_low, record.latency_ms_ci_high
    if median is None or low is None or high is None or not 0.0 < low <= median <= high < math.inf:
        return None
    return low, high


def peak_bytes(record: Record) -> int | None:
    """The peak of the memory that the arm works in: device bytes on a device, else host bytes."""
    on_host = record.device is None or record.device.startswith("cpu")
    return record.peak_host_bytes if on_host else record.peak_device_bytes


def score_bytes(record: Record) -> int:
    """Bytes of one full score matrix (B, H, q_len, kv_len) in the record's dtype."""
    sizes = map(known_size, (record.batch_size, record.num_heads, record.q_len, record.kv_len))
    return math.prod(sizes) * DTYPE_BYTES.get(record.dtype, 4)


def attention_share(record: Record) -> float:
    """Attention's part of the FLOPs: 2 B H q kv (D + D_v), halved when causal, against the projections' too."""
    r = record
    sizes = map(known_size, (r.q_len, r.kv_len, r.num_heads, r.num_kv_heads, r.head_dim, r.embed_dim))
    q_len, kv_len, heads, kv_heads, head_dim, embed_dim = sizes
    v_head_dim = r.v_head_dim or head_dim
    attention = 2 * q_len * kv_len * heads * (head_dim + v_head_dim) / (2 if r.variant == "causal" else 1)
    if r.part != "block":
        return 1.0
    new_keys = q_len if r.variant == "decode" else kv_len
    queries = q_len * heads * (head_dim + v_head_dim)  # into heads, and out of them
    projections = 2 * embed_dim * (queries + new_keys * kv_heads * (head_dim + v_head_dim))
    return attention / (attention + projections)


def series_names(records: Sequence[Record], x_name: str) -> list[str]:
    """One name per record: its arm; where two share arm and x, the opset, run or number that tells them apart."""
    names = [r.arm for r in records]
    extras: tuple[Callable[[Record], str], ...] = (
        lambda r: f" opset {r.opset}",
        lambda r: f" run {r.run_id}",
        lambda r: f" {r.case_id}",
    )
    for extra in extras:
        places = defaultdict(set)
        for i, r in enumerate(records):
            places[names[i], getattr(r, x_name)].add(i)
        clashing = {name for (name, _), where in places.items() if len(where) > 1}
        if not clashing:
            return names
        if len({extra(r) for i, r in enumerate(records) if names[i] in clashing}) > 1:
            names = [name + extra(r) if name in clashing else name for name, r in zip(names, records, strict=True)]
    return [f"{name} #{i}" for i, name in enumerate(names)] if len(set(names)) < len(names) else names


def make_panels(records: Iterable[Record], run_names: Mapping[str, str] | None = None) -> list[Panel]:
    """All panels: the facet with the most rows first, within it in the order of the records.

    Runs never share a panel: each has its own noise, clock and set of fastest arms.

    Args:
        records: of one run or of several; those of arms that only compile here are left out.
        run_names: what runs are called, by run_id; without one the run_id is its name.
    """
    rows = [r for r in records if COMPILES_ONLY not in r.flags]
    facets: dict[Facet, list[Record]] = defaultdict(list)
    by_geometry: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    models = Models(rows)
    for record in rows:
        by_geometry[(record.run_id, *_geometry(record, models))].append(record)
    places = _Places(rows, run_names or {})
    for group in by_geometry.values():
        for record, conditions in zip(group, _conditions(group), strict=True):
            facets[places.of(record, _facet(record, conditions, models))].append(record)
    panels: list[Panel] = []
    for facet, rows in sorted(facets.items(), key=lambda item: -len(item[1])):
        for variant, note, x_name, members in _variants(rows):
            panels.append(
                Panel(
                    facet=facet, variant=variant, note=note, x_name=x_name, number=len(panels) + 1,
                    records=tuple(members),
                )
            )  # fmt: skip
    return panels


class _Places:
    """Run and machine of facets, named where there are several."""

    def __init__(self, records: Sequence[Record], names: Mapping[str, str]) -> None:
        self._names = names
        self._has_runs = len({r.run_id for r in records}) > 1
        seen: dict[tuple[str, str | None], Counter[str]] = defaultdict(Counter)
        for r in records:
            if r.device_name:
                seen[r.run_id, r.device][r.device_name] += 1
        self._machines = {place: counts.most_common(1)[0][0] for place, counts in seen.items()}
        self._has_machines = self._has_runs and len(set(self._machines.values())) > 1

    def of(self, record: Record, facet: Facet) -> Facet:
        """The facet with the record's run and machine; unchanged where there is one run."""
        if not self._has_runs:
            return facet
        machine = self._machines.get((record.run_id, facet.device)) if self._has_machines else None
        name = self._names.get(record.run_id, record.run_id)
        return replace(facet, run_id=record.run_id, run=name, machine=machine)


def _geometry(r: Record, models: Models) -> tuple[object, ...]:
    sizes = (r.batch_size, r.num_heads, r.num_kv_heads, r.head_dim)
    return (r.part, r.dtype, *sizes, form_of(r), r.model, models.sizes_of(r))


def form_of(r: Record) -> str:
    """Value head size, scale, bias and value map, where they are not the usual ones; rows of before have those."""
    usual_scale = r.scale is None or math.isclose(r.scale, 1.0 / math.sqrt(known_size(r.head_dim)), rel_tol=1e-9)
    words = [] if r.v_head_dim in (None, r.head_dim) else [f"values of {r.v_head_dim}"]
    words += [] if usual_scale else [f"scale {r.scale:g}"]
    words += ["bias"] if r.bias else []
    words += [] if r.value_map in (None, "joint") else [f"value map {r.value_map}"]
    return ", ".join(words)


def _facet(r: Record, conditions: Conditions, models: Models) -> Facet:
    device, threads, scope = conditions
    return Facet(
        part=r.part, dtype=r.dtype, batch_size=r.batch_size, num_heads=r.num_heads, num_kv_heads=r.num_kv_heads,
        head_dim=r.head_dim, device=device, threads=threads, latency_scope=scope, form=form_of(r),
        model=r.model, sizes=models.sizes_of(r),
    )  # fmt: skip


def _conditions(group: Sequence[Record]) -> list[Conditions]:
    """How each row was measured. What a row does not know is taken from its arm's others, else from the largest set."""
    known = [(r.device, r.threads, r.latency_scope) for r in group]
    whole = [r.latency_ms_median is not None and None not in c for r, c in zip(group, known, strict=True)]
    measured = Counter(c for c, is_whole in zip(known, whole, strict=True) if is_whole)
    by_arm: dict[str, Counter[Conditions]] = defaultdict(Counter)
    for record, conditions, is_whole in zip(group, known, whole, strict=True):
        if is_whole:
            by_arm[record.arm][conditions] += 1

    def resolved(record: Record, own: Conditions) -> Conditions:
        candidates = by_arm.get(record.arm) or measured
        if record.latency_ms_median is None:
            return max(candidates, key=lambda c: (_agreement(own, c), candidates[c]), default=(None, None, None))
        fitting = {c: n for c, n in candidates.items() if _agreement(own, c) == 3 - own.count(None)}
        return max(fitting, key=lambda c: fitting[c], default=own)

    return [c if w else resolved(r, c) for r, c, w in zip(group, known, whole, strict=True)]


def _agreement(own: Conditions, other: Conditions) -> int:
    """How many of the conditions that the row does know are the same."""
    return sum(a is not None and a == b for a, b in zip(own, other, strict=True))


def _variants(rows: Sequence[Record]) -> Iterable[tuple[str, str, str, list[Record]]]:
    """Split a facet by variant and mask, and by the length that does not change where both lengths vary."""
    groups: dict[tuple[str, str | None], list[Record]] = defaultdict(list)
    for r in rows:
        groups[r.variant, r.mask].append(r)
    masks = Counter(variant for variant, _ in groups)
    for (variant, mask), members in groups.items():
        is_usual = mask in (None, USUAL_MASK.get(variant, "none"))
        name = variant if is_usual and masks[variant] == 1 else f"{variant}, mask {mask!r}"
        lengths = {(r.q_len or 0, r.kv_len or 0) for r in members}
        one_step = variant == "decode" and _count(lengths, 0) == 1
        if _count(lengths, 0) == len(lengths) and not one_step:
            yield name, following_note(members) or _kv_note(lengths), "q_len", members
            continue
        # A decode step is asked as its cache grows.
        fixes_q_len = variant == "decode" or _count(lengths, 0) < _count(lengths, 1)
        fixed, x_name = ("q_len", "kv_len") if fixes_q_len else ("kv_len", "q_len")
        for value in sorted({getattr(r, fixed) for r in members}):
            yield name, f"{fixed} = {value}", x_name, [r for r in members if getattr(r, fixed) == value]


def _count(lengths: Iterable[tuple[int, int]], index: int) -> int:
    return len({pair[index] for pair in lengths})


def _kv_note(lengths: Iterable[tuple[int, int]]) -> str:
    pairs = sorted(lengths)
    if all(q == kv for q, kv in pairs):
        return ""
    if all(kv == max(1, q // 2) for q, kv in pairs):
        return "kv_len = T/2"
    if len({kv for _, kv in pairs}) == 1:
        return f"kv_len = {pairs[0][1]}"
    return "kv_len = " + ", ".join(str(kv) for _, kv in pairs)
