"""One table of precisions: what fp16, bf16 or TF32 give against a baseline in its own precision, at one T.

Problems of two dtypes are two rotations of timing, so a ratio here has the bounds of both medians' intervals and is no
paired one: it holds what drifted between them too. The table says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.records import Record
from attnbench.report.merged import runs_of
from attnbench.report.sections import Section
from attnbench.report.sections import Table as Shown
from attnbench.report.text import fmt_bytes, fmt_error, fmt_ms, fmt_number, short_arm

_ORDER = ("fp32", "tf32", "fp16", "bf16")
HEAD = ("precision", "arm", "time", "speed-up", "error", "peak")
NOTE = (
    "speed-up: time of {baseline} in {precision} over this time, bounds from both intervals; precisions were not "
    "timed in turn, so it is no paired ratio. Error: of the worst row against float64"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """An arm in one precision beside the baseline."""

    record: Record
    is_baseline: bool  # in its own precision
    arm: str
    precision: str  # fp32, tf32, fp16, bf16: the problem's, or what ran of fp32
    computed_in: str  # as the runtime tells; the same in most
    latency_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    worst_row_rel_err: float | None
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """All arms and precisions of one problem apart from its dtype."""

    title: str
    baseline: str
    precision: str
    rows: tuple[Row, ...]


def tables(records: Sequence[Record], manifest: Mapping[str, Any]) -> list[Table]:
    """One table per problem apart from its dtype and T, at its longest T where the baseline and another dtype ran.

    Nothing where the run has no baseline in a precision of its own (`--baseline torch-sdpa:fp32`).
    """
    sweep = manifest.get("sweep") or {}
    precision, baseline = sweep.get("baseline_precision"), manifest.get("baseline_arm")
    if not precision or not baseline:
        return []
    by_problem: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record.status == "ok" and record.latency_ms_median is not None:
            by_problem.setdefault(_problem_key(record), []).append(record)
    found: dict[tuple[Any, ...], Table] = {}
    for key in sorted(by_problem, key=lambda key: key[-2:]):  # a longer T replaces a shorter one
        rows = by_problem[key]
        base = next((r for r in rows if r.arm == baseline and r.dtype == precision), None)
        if base is not None and len({label(r) for r in rows}) > 1:
            found[key[:-2]] = _table(base, rows, precision)
    return list(found.values())


def label(record: Record) -> str:
    """The precision that a row stands for: its problem's dtype, or TF32 where fp32 was computed in it."""
    return "tf32" if record.dtype == "fp32" and record.compute_precision == "tf32" else record.dtype


def lines(table: Table) -> list[str]:
    """The table in plain columns, then how to read it."""
    shown = [HEAD, *(cells(row) for row in table.rows)]
    widths = [max(len(row[i]) for row in shown) for i in range(len(HEAD))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    return [table.title, *text, note(table)]


def note(table: Table) -> str:
    """How to read a table."""
    return NOTE.format(baseline=table.baseline, precision=table.precision)


def sections(records: Sequence[Record], manifest: Mapping[str, Any]) -> list[Section]:
    """The tables as a section of the page; of several runs each run's own; nothing where there is no table."""
    runs = [(f"-{i}", f": {run.name}", run.manifest) for i, run in enumerate(runs_of(manifest), 1)]
    found = []
    for number, name, of_run in runs or [("", "", manifest)]:
        mine = [r for r in records if not runs or r.run_id == of_run["run_id"]]
        told = tables(mine, of_run)
        shown = [Shown(caption=t.title, head=HEAD, rows=[cells(row) for row in t.rows]) for t in told]
        if told:
            intro = note(told[0])
            intro = f"{intro[0].upper()}{intro[1:]}."
            found.append(Section(id=f"precisions{number}", title=f"Precisions{name}", intro=intro, tables=shown))
    return found


def figures(table: Table) -> dict[str, dict[str, float]]:
    """`precision_speedup` and its bounds of every row, by case_id."""
    return {
        row.record.case_id: {
            "precision_speedup": row.speedup, "precision_speedup_low": row.speedup_low,
            "precision_speedup_high": row.speedup_high,
        }
        for row in table.rows
    }  # fmt: skip


def _problem_key(r: Record) -> tuple[Any, ...]:
    """What makes a problem apart from its dtype; the lengths last."""
    return (
        r.part, r.variant, r.mask, r.batch_size, r.num_heads, r.num_kv_heads, r.head_dim, r.v_head_dim, r.scale, r.bias,
        r.value_map, r.model, r.latency_scope, r.q_len or 0, r.kv_len or 0,
    )  # fmt: skip


def _table(base: Record, rows: Sequence[Record], precision: str) -> Table:
    ordered = sorted(rows, key=lambda r: (_ORDER.index(label(r)), r.latency_ms_median))
    title = f"Precisions at T = {base.q_len}: {base.part} {base.variant}, batch {base.batch_size}"
    return Table(
        title=title, baseline=base.arm, precision=precision, rows=tuple(_row(base, record) for record in ordered)
    )


def _row(base: Record, record: Record) -> Row:
    assert base.latency_ms_median is not None
    assert record.latency_ms_median is not None
    low, high = _bounds(record)
    base_low, base_high = (high, low) if record is base else _bounds(base)  # the same figure, not two
    return Row(
        record=record, is_baseline=record is base, arm=record.arm, precision=label(record),
        computed_in=record.compute_precision or "unknown",
        latency_ms=record.latency_ms_median, speedup=base.latency_ms_median / record.latency_ms_median,
        speedup_low=base_low / high, speedup_high=base_high / low, worst_row_rel_err=record.worst_row_rel_err,
        peak_bytes=record.peak_host_bytes if record.peak_device_bytes is None else record.peak_device_bytes,
    )  # fmt: skip


def _bounds(record: Record) -> tuple[float, float]:
    assert record.latency_ms_median is not None
    mid = record.latency_ms_median
    return record.latency_ms_ci_low or mid, record.latency_ms_ci_high or mid


def cells(row: Row) -> tuple[str, ...]:
    """What a table says of a row, in the order of `HEAD`."""
    own = row.computed_in in (row.precision, "unknown")
    low, mid, high = (fmt_number(value, 2) for value in (row.speedup_low, row.speedup, row.speedup_high))
    speedup = "baseline" if row.is_baseline else f"{mid} ({low} to {high})"
    return (
        row.precision if own else f"{row.precision} in {row.computed_in}", short_arm(row.arm), fmt_ms(row.latency_ms),
        speedup, fmt_error(row.worst_row_rel_err), fmt_bytes(row.peak_bytes),
    )  # fmt: skip
