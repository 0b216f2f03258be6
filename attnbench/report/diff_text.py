"""A comparison of two runs in words: for a terminal, for a pull request (Markdown), for a script (JSON)."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import median
from typing import Any

from attnbench.analysis.diff import CATEGORIES, Apart, Compared, Diff, Finding, Side
from attnbench.analysis.groups import judge_of
from attnbench.measure.statistics import MIN_EXACT_ROUNDS
from attnbench.records import Record
from attnbench.report.findings import flat_text, machine_facts
from attnbench.report.judged import judge_change_text, judges_text
from attnbench.report.markdown import plain
from attnbench.report.text import fmt_bytes, fmt_count, fmt_error, fmt_list, fmt_ms, fmt_number, fmt_percent, printable

MAX_LINES = 40  # of a section in the terminal
MAX_CHARACTERS = 60_000  # of Markdown: a comment on a pull request holds 65,536
MAX_VALUE = 160  # characters of a placement or reason
ALL_IN_JSON = "--json has all"

_LABELS = {
    ("slower", "worse"): "slower", ("slower", "better"): "faster", ("memory", "worse"): "more memory",
    ("memory", "better"): "less memory", ("mismatch", "worse"): "wrong answer", ("mismatch", "better"): "right again",
    ("status", "worse"): "runs no more", ("status", "better"): "runs again", ("status", "changed"): "other status",
    ("kernel", "changed"): "other kernel", ("kernel", "better"): "kernel now known",
    ("numeric", "worse"): "larger error", ("numeric", "better"): "smaller error",
}  # fmt: skip
_UNJUDGED = {
    "not_timed": "not timed in both",
    "contended": "contended",
    "beats_roofline": "faster than the machine can be",
    "few_rounds": f"fewer than {MIN_EXACT_ROUNDS} rounds",
    "noise_unknown": "noise not measured",
}
_CONDITIONS = {
    "machine": "another processor", "device": "another device", "device_name": "another processor or device",
    "threads": "another number of threads", "latency_scope": "another latency scope",
    "compute_precision": "another precision", "judge": "compared with another arm",
    "gpu_workers": "workers that shared the GPU in another way",
    "memory_limit_bytes": "another memory limit", "skipped": "not measured in one of the runs",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Line:
    """One difference, ready to be laid out."""

    label: str
    category: str
    is_adverse: bool
    direction: str
    arm: str
    where: str
    old: str
    new: str
    note: str


def lines_of(diff: Diff) -> list[Line]:
    """Every difference of the compared cases: by category, then as the cases come; alike ones at several T are one."""
    varying = _varying(case.new for case in diff.compared)
    found: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for case in diff.compared:
        for finding in case.findings:
            found.setdefault(_words(case, finding), []).append(_where(case.new, varying))
    lines = [Line(**dict(zip(_FIELDS, key, strict=True)), where=_joined(places)) for key, places in found.items()]
    return sorted(lines, key=lambda line: CATEGORIES.index(line.category))


_FIELDS = ("label", "category", "is_adverse", "direction", "arm", "old", "new", "note")


def _words(case: Compared, finding: Finding) -> tuple[Any, ...]:
    """The fields of a line but for its place."""
    old, new = _values(finding)
    label = _LABELS[finding.category, finding.direction]
    if finding.category == "mismatch" and judge_of([case.old, case.new]) is not None:
        label = "differs now" if finding.direction == "worse" else "agrees again"
    if finding.column.startswith("facts."):
        label = f"other {printable(finding.column.removeprefix('facts.'))}"
    return (label, finding.category, finding.is_adverse, finding.direction, printable(case.new.arm), old, new,
            _note(case, finding))  # fmt: skip


def _values(finding: Finding) -> tuple[str, str]:
    formats = {"slower": fmt_ms, "memory": fmt_bytes, "numeric": fmt_error}
    if finding.category in formats:
        return formats[finding.category](finding.old), formats[finding.category](finding.new)
    old, new = _changed_part(finding.old, finding.new)
    return _value(old), _value(new)


def _value(value: Any) -> str:
    text = printable(flat_text("none" if value in (None, "", {}, []) else value))
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."


def _changed_part(old: Any, new: Any) -> tuple[Any, Any]:
    """Of two mappings only what differs."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return old, new
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    parts = {key: _changed_part(old.get(key), new.get(key)) for key in keys}
    return {key: "none" if a is None else a for key, (a, _) in parts.items()}, {
        key: "none" if b is None else b for key, (_, b) in parts.items()
    }


def _note(case: Compared, finding: Finding) -> str:
    if finding.category == "slower" and case.shift is not None:
        return f"{_signed(math.expm1(case.shift.change))}, needs {fmt_percent(math.expm1(case.shift.needed))}"
    if finding.category in ("memory", "numeric") and finding.old:
        ratio = finding.new / finding.old
        return _signed(ratio - 1) if finding.category == "memory" else f"{fmt_number(ratio)}x"
    if finding.category in ("status", "mismatch") and case.new.reason:
        return _cut(printable(case.new.reason))
    return ""


def _signed(fraction: float) -> str:
    return ("+" if fraction >= 0 else "-") + fmt_percent(abs(fraction))


def _varying(records: Iterable[Record]) -> list[str]:
    """The sizes that are not the same everywhere and have to be named."""
    rows = list(records)
    columns = ("part", "dtype", "batch_size", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "scale", "bias",
               "value_map")  # fmt: skip
    varying = [column for column in columns if len({getattr(r, column) for r in rows}) > 1]
    masks = {(r.variant, r.mask) for r in rows}
    varying += ["model"] if len({r.model for r in rows}) > 1 else []
    return varying + (["mask"] if len(masks) > len({variant for variant, _ in masks}) else [])


def _where(r: Record, varying: Sequence[str]) -> tuple[str, str]:
    """`core, fp16, batch_size 8, causal` with only what differs within the comparison, and the length."""
    words = [f"{name} {value}" if not isinstance(value := getattr(r, name), str) else value for name in varying]
    if r.model is not None:
        others = [f"{dim}={size}" for dim, size in r.sizes.items() if dim != r.bound]
        return printable(", ".join([r.model, *others])), "-" if r.q_len is None else f"{r.q_len}"
    length = f"{r.q_len}" if r.kv_len == r.q_len else f"{r.q_len} (kv_len {r.kv_len})"
    return printable(", ".join([*words, r.variant])), length


def _joined(places: Sequence[tuple[str, str]]) -> str:
    """`self T = 128, 512; causal T = 128`."""
    groups: dict[str, list[str]] = {}
    for name, length in places:
        groups.setdefault(name, []).append(length)
    return "; ".join(f"{name} T = {fmt_list(lengths, 8)}" for name, lengths in groups.items())


def headline(diff: Diff) -> str:
    """What came out, in a sentence."""
    if not diff.compared:
        return "Nothing could be compared."
    counts = {category: n for category in CATEGORIES if (n := diff.adverse(category))}
    if not counts:
        is_blind = all(case.shift is None for case in diff.compared)
        return "No regression was found" + (", but no latency could be judged." if is_blind else ".")
    return "Regressions: " + ", ".join(f"{category} {n}" for category, n in counts.items()) + "."


def coverage(diff: Diff) -> str:
    """How many cases were compared, judged, set apart, or are in one run only."""
    unjudged = Counter(case.unjudged for case in diff.compared if case.unjudged)
    judged = len(diff.compared) - unjudged.total()
    text = f"{fmt_count(len(diff.compared), 'case')} compared, latency judged in {judged:,}"
    if unjudged:
        text += f" ({', '.join(f'{n:,} {_UNJUDGED[why]}' for why, n in sorted(unjudged.items()))})"
    return f"{text}; {len(diff.apart):,} set apart, {len(diff.only_old):,} only in OLD, {len(diff.only_new):,} in NEW."


def sensitivity(diff: Diff) -> str:
    """How large a change of latency has to be to be shown, and what was taken out."""
    shifts = [case.shift for case in diff.compared if case.shift is not None]
    if not shifts:
        return ""
    alone, repeated = (
        fmt_percent(math.expm1(median(bars)))
        for bars in ([s.needed_alone for s in shifts], [s.needed_repeated for s in shifts])
    )
    floors = " and ".join(fmt_percent(floor) or "unknown" for floor in (diff.noise.floor_old, diff.noise.floor_new))
    text = (
        f"To be shown here, a change of latency must exceed {alone} at one case, or {repeated} each at several cases "
        f"of an arm (medians); noise floors {floors}. Changes are against what the other runtimes did."
    )
    if all(shift.drift is None for shift in shifts):
        text = text.rpartition(" Changes")[0] + " There is no other runtime that would tell drift of the machine."
    unclear = sum(shift.verdict == "unclear" for shift in shifts)
    if unclear:
        verb = "differs" if unclear == 1 else "differ"
        text += f" {fmt_count(unclear, 'case')} {verb} only against the other runtimes, not in time: no verdict."
    return text


def common_shift(diff: Diff) -> str:
    """The warning that most runtimes moved together; empty when they did not."""
    common = diff.common
    if common is None or not common.is_notable:
        return ""
    word = "slower" if common.shift > 0 else "faster"
    names = fmt_list([printable(name) for name in common.runtimes])
    text = (
        f"Together: {len(common.runtimes)} of {common.of} runtimes are at least "
        f"{fmt_percent(math.expm1(abs(common.shift)))} {word} in NEW ({names}). That is taken out of the figures: it "
        "may be another clock, a busy machine, or a library that they share."
    )
    peaks = [_peak(side) for side in (diff.old, diff.new)]
    if all(peaks):
        text += f" The machine's own peak went from {fmt_number(peaks[0])} to {fmt_number(peaks[1])} GFLOP/s."
    return text


def _peak(side: Side) -> float | None:
    """The fp32 matrix product that the run measured of its machine."""
    found = ((side.manifest.get("machine_peak") or {}).get("fp32") or {}).get("gflops_per_s")
    return float(found) if found else None


def run_facts(diff: Diff) -> list[tuple[str, str, str]]:
    """(name, in OLD, in NEW): run, machine, and every version that differs."""

    def told(side: Side) -> dict[str, str]:
        manifest = side.manifest
        return {
            "run": printable(side.name),
            "date": str(manifest.get("started_at_utc", "unknown")),
            "machine": printable(dict(machine_facts(manifest))["machine"]),
            "noise floor": fmt_percent(manifest.get("noise_floor")) or "unknown",
            "attnbench": str(manifest.get("attnbench_version", "unknown")),
        }

    old, new = told(diff.old), told(diff.new)
    facts = [(name, old[name], new[name]) for name in old]
    if any(r.model is not None for side in (diff.old, diff.new) for r in side.rows):
        facts.append(("judged by", judges_text(diff.old.rows), judges_text(diff.new.rows)))
    versions = [{k: str(v) for k, v in (side.manifest.get("versions") or {}).items()} for side in (diff.old, diff.new)]
    for name in sorted({*versions[0], *versions[1]} - {"attnbench"}):
        before, after = (v.get(name, "none") for v in versions)
        if before != after:
            facts.append((name, before, after))
    return facts


def apart_lines(diff: Diff) -> list[str]:
    """Why cases were set apart: condition with both values, and how many; then what only one run has."""
    groups: Counter[tuple[str, str, str]] = Counter()
    for apart in diff.apart:
        old, new = _changed_part(apart.old_value, apart.new_value)
        groups[_condition(apart), _value(old), _value(new)] += 1
    lines = [f"{fmt_count(n, 'case')}: {what}: {old} -> {new}" for (what, old, new), n in groups.items()]
    for name, rows in (("OLD", diff.only_old), ("NEW", diff.only_new)):
        arms = Counter(printable(r.arm) for r in rows)
        if rows:
            named = fmt_list([f"{arm} ({n})" for arm, n in sorted(arms.items())])
            lines.append(f"{fmt_count(len(rows), 'case')} only in {name}: {named}")
    return lines


def _condition(apart: Apart) -> str:
    return _CONDITIONS[apart.condition]


def terminal_text(diff: Diff, *, width: int = 80) -> str:
    """For people: what came out, what it rests on, then worse, better, changed, set apart."""

    def wrapped(text: str, indent: int = 0, hang: int = 2) -> list[str]:
        return textwrap.wrap(
            text, width, initial_indent=" " * indent, subsequent_indent=" " * (indent + hang), break_on_hyphens=False
        )

    out = [line for name, old, new in run_facts(diff) for line in _fact(name, old, new, wrapped)]
    out.append("")
    for sentence in _sentences(diff):
        out += wrapped(sentence, hang=0) if sentence else []
    for title, lines in _sections(diff):
        out += ["", title]
        for line in lines[:MAX_LINES]:
            out += wrapped(f"{line.label}: {line.arm}, {line.where}", 2)
            out += wrapped(f"{line.old} -> {line.new}" + (f"  ({line.note})" if line.note else ""), 6)
        if len(lines) > MAX_LINES:
            out.append(f"  and {len(lines) - MAX_LINES:,} more; {ALL_IN_JSON}")
    if apart := apart_lines(diff):
        out += ["", "Set apart"]
        for text in apart[:MAX_LINES]:
            out += wrapped(text, 2)
    return "\n".join(out)


def _fact(name: str, old: str, new: str, wrapped: Any) -> Iterator[str]:
    """One line where both are alike or short, else one for each run."""
    if old == new:
        yield from wrapped(f"{name:12} {old}", hang=13)
    elif len(old) + len(new) < 58:
        yield from wrapped(f"{name:12} {old} -> {new}", hang=13)
    else:
        yield from wrapped(f"{name:12} OLD {old}", hang=13)
        yield from wrapped(f"NEW {new}", indent=13, hang=0)


def _sentences(diff: Diff) -> tuple[str, ...]:
    """The headline first; those that have nothing to say are empty."""
    return (headline(diff), judge_change_text(diff.judge_changes), common_shift(diff), coverage(diff),
            sensitivity(diff), _artifacts(diff))  # fmt: skip


def _artifacts(diff: Diff) -> str:
    if not diff.artifact_changes:
        return ""
    return f"The exported file is another one in {fmt_count(diff.artifact_changes, 'case')}."


def _sections(diff: Diff) -> list[tuple[str, list[Line]]]:
    lines = lines_of(diff)
    split = [
        ("Worse", [line for line in lines if line.is_adverse]),
        ("Better", [line for line in lines if line.direction == "better"]),
        ("Changed", [line for line in lines if not line.is_adverse and line.direction == "changed"]),
    ]
    return [(title, found) for title, found in split if found]


def markdown(diff: Diff) -> str:
    """For a pull request: the sentence, what got worse, then what got better; the rest is folded away."""
    sentences = _sentences(diff)
    head = ["### attnbench diff", "", f"**{plain(sentences[0])}**", ""]
    head += [plain(sentence) + "\n" for sentence in sentences[1:] if sentence]
    apart = apart_lines(diff)
    summary = "Runs and versions" + (f"; {fmt_count(len(diff.apart), 'case')} set apart" if diff.apart else "")
    tail = ["<details>", f"<summary>{summary}</summary>", "", *_table(("", "OLD", "NEW"), run_facts(diff))]
    tail += [*(f"- {plain(text)}" for text in apart[:MAX_LINES]), *([""] if apart else []), "</details>"]
    room = MAX_CHARACTERS - sum(len(line) + 1 for line in [*head, *tail])
    body: list[str] = []
    for title, lines in _sections(diff):
        rows = [(line.label, line.arm, line.where, line.old, line.new, line.note) for line in lines]
        table = [f"#### {title}", "", *_table(("what", "arm", "where", "OLD", "NEW", ""), rows)]
        ends = accumulate(len(line) + 1 for line in table)
        shown = [line for line, end in zip(table, ends, strict=True) if end < room]
        room -= sum(map(len, shown)) + len(shown)
        body += shown if len(shown) == len(table) else [*shown, "", f"and {len(table) - len(shown):,} more", ""]
    return "\n".join([*head, *body, *tail]) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows), ""]


def as_dict(diff: Diff, fail_on: Sequence[str]) -> dict[str, Any]:
    """For scripts: every number, every case that has something to say, and the exit code."""
    return {
        "old": _side(diff.old),
        "new": _side(diff.new),
        "exit_code": diff.exit_code(fail_on),
        "adverse": {category: diff.adverse(category) for category in CATEGORIES},
        "noise": asdict(diff.noise),
        "common": None if diff.common is None else asdict(diff.common),
        "artifact_changes": diff.artifact_changes,
        "judge_changes": [{"old": a, "new": b, "cases": n} for (a, b), n in diff.judge_changes.items()],
        "cases": [_case(case) for case in diff.compared],
        "apart": [
            {**_identity(a.new), "condition": a.condition, "old": a.old_value, "new": a.new_value} for a in diff.apart
        ],
        "only_old": [_identity(r) for r in diff.only_old],
        "only_new": [_identity(r) for r in diff.only_new],
    }


def _side(side: Side) -> dict[str, Any]:
    keys = ("run_id", "started_at_utc", "attnbench_version", "versions", "noise_floor")
    return {"name": side.name, **{key: side.manifest.get(key) for key in keys}}


def _identity(r: Record) -> dict[str, Any]:
    keys = ("case_id", "arm", "part", "variant", "mask", "dtype", "batch_size", "num_heads", "num_kv_heads",
            "head_dim", "q_len", "kv_len", "model", "sizes")  # fmt: skip
    return {key: getattr(r, key) for key in keys}


def _case(case: Compared) -> dict[str, Any]:
    return {
        **_identity(case.new),
        "latency_ms": [case.old.latency_ms_median, case.new.latency_ms_median],
        "latency": None if case.shift is None else asdict(case.shift),
        "latency_unjudged": case.unjudged or None,
        "findings": [asdict(finding) | {"is_adverse": finding.is_adverse} for finding in case.findings],
    }
