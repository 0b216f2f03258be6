"""A run as Markdown, for a job summary or a pull request: who is right, fast and small, what failed, how far to trust.

GitHub-flavoured; whatever comes from the run is escaped.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.analysis.groups import Panel, make_panels, peak_bytes
from attnbench.records import FAILED, Record
from attnbench.report import precisions
from attnbench.report.findings import (
    Trouble,
    did_not_run,
    machine_facts,
    pick_at,
    progress_note,
    trust_line,
    wrong_answers,
)
from attnbench.report.judged import count_at, how_judged, words_for, words_of
from attnbench.report.merged import runs_of
from attnbench.report.text import fmt_bytes, fmt_count, fmt_interval, fmt_number, fmt_ratio, printable

MAX_CHARACTERS = 60_000  # a comment on GitHub holds 65,536
MAX_TROUBLES = 20
MAX_PRECISIONS = 4
MAX_REASON = 300
_HEAD = (
    "| {x} | {right} | fastest | ms (98 % interval) | ratio (98 % interval) | smallest peak |\n"
    "| --: | --: | :-- | --: | --: | :-- |"
)


def markdown_summary(records: Sequence[Record], manifest: Mapping[str, Any], run_dir: str) -> str:
    """What failed, a table per variant with a row per T, what did not run, the trust line: at most 60,000 characters.

    Args:
        records: judged records.
        manifest: of the run; every key may be missing.
        run_dir: where the run lies, as a person would type it.
    """
    panels = make_panels(records)
    failures, others = _troubles(panels, manifest, run_dir)
    head = [f"### attnbench: {_counts(records)}"]
    if note := progress_note(records, manifest, run_dir):
        head.append(f"**{plain(note)}**")
    head += ["\n".join(failures)] if failures else []
    tail = _precisions(records, manifest)
    tail += ["\n".join(others)] if others else []
    tail += [plain(how_judged(records))] if any(r.model is not None for r in records) else []
    trust = trust_line(records, manifest)
    tail += [plain(text) for text in (trust if runs_of(manifest) else [" ".join(trust)])]
    facts = "\n".join(f"- {plain(name)}: {plain(value)}" for name, value in machine_facts(manifest))
    tail.append(f"<details><summary>machine and versions</summary>\n\n{facts}\n\n</details>")
    tail.append(f"Report: {code(f'{run_dir}/report.html')}")
    room = MAX_CHARACTERS - sum(len(part) + 2 for part in [*head, *tail])
    whole = "\n\n".join([*head, *_tables(panels, manifest, room), *tail]) + "\n"
    return whole if len(whole) <= MAX_CHARACTERS else whole[:MAX_CHARACTERS].rpartition("\n")[0] + "\n"


def plain(text: str) -> str:
    """Text whose Markdown and HTML characters stand for themselves, on one line."""
    text = re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", printable(" ".join(text.split())))
    # GitHub looks for @names and #numbers in the finished page, where a backslash is gone.
    return re.sub(r"(?<!\w)([@#])(?=\w)", r"\1<!-- -->", text)


def code(text: str) -> str:
    """A code span that may stand in a table; a backtick in the text gets a longer fence."""
    text = printable(text)
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " * bool(longest)
    return fence + space + text.replace("|", "\\|") + space + fence


def _counts(records: Sequence[Record]) -> str:
    counts = Counter[str](r.status for r in records)
    if counts["ok"] == len(records):
        return f"{fmt_count(len(records), 'case')}{', all ok' * bool(records)}"
    return f"{fmt_count(len(records), 'case')} ({', '.join(f'{n} {status}' for status, n in counts.items())})"


def _tables(panels: Sequence[Panel], manifest: Mapping[str, Any], room: int) -> list[str]:
    """Tables while there is room, then how many are left out."""
    parts: list[str] = []
    facet = None
    baseline = code(str(manifest.get("baseline_arm") or "the baseline"))
    legend = f"ms and ratio are of the arm named first; ratio: time of {baseline} over its time."
    room -= len(legend) + 100
    for i, panel in enumerate(panels):
        new = [] if panel.facet == facet else [plain(panel.facet.title())]
        new.append(f"**{plain(panel.title())}**")
        head = _HEAD.format(x=plain(panel.x_label), right=words_of(panel.judge).column)
        rows = [head, *(_row(panel, x) for x in panel.xs)]
        new.append("\n".join(rows))
        room -= sum(len(part) + 2 for part in new)
        if room < 0:
            parts.append(f"{fmt_count(len(panels) - i, 'more table')} in the report")
            break
        parts += new
        facet = panel.facet
    return [*parts, legend] if parts else []


def _precisions(records: Sequence[Record], manifest: Mapping[str, Any]) -> list[str]:
    """The tables of precisions, the first few, then how to read them."""
    found = precisions.tables(records, manifest)
    parts = []
    for table in found[:MAX_PRECISIONS]:
        rows = [precisions.HEAD, tuple(":--" for _ in precisions.HEAD)]
        rows += [tuple(plain(cell) for cell in precisions.cells(row)) for row in table.rows]
        parts += [f"**{plain(table.title)}**", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    if len(found) > MAX_PRECISIONS:
        parts.append(f"{fmt_count(len(found) - MAX_PRECISIONS, 'more table')} of precisions in the report")
    note = [plain(precisions.note(found[0]))] if found else []
    return [*parts, *note]


def _row(panel: Panel, x: int) -> str:
    pick = pick_at(panel, x)
    at, count = plain(panel.x_text(x)), count_at(panel, x)
    first = panel.cells.get((pick.arms[0], x)) if pick.arms else None
    if first is None:
        return f"| {at} | {count} | {plain(pick.text)} | | | |"
    arms = ", ".join(code(arm) for arm in pick.arms)
    words = {"toss-up": f"toss-up: {arms}", "unranked": f"not ranked; lowest median {arms}"}.get(pick.kind, arms)
    latency = _figure(fmt_number(first.latency_ms_median), first.latency_ms_ci_low, first.latency_ms_ci_high)
    ratio = ""
    if first.arm != first.baseline_arm and first.speedup_vs_baseline is not None:
        ratio = _figure(fmt_ratio(first.speedup_vs_baseline), first.speedup_ci_low, first.speedup_ci_high)
    return f"| {at} | {count} | {words} | {latency} | {ratio} | {_smallest(panel, x)} |"


def _figure(value: str, low: float | None, high: float | None) -> str:
    interval = fmt_interval(low, high)
    return f"{value} ({interval})" if interval else value


def _smallest(panel: Panel, x: int) -> str:
    names = {id(r): arm for arm in panel.arms if (r := panel.cells.get((arm, x))) is not None}
    known = [(peak, names[id(r)]) for r in panel.ok_at(x) if (peak := peak_bytes(r)) is not None]
    if not known:
        return ""
    peak, arm = min(known)
    return f"{code(arm)} {fmt_bytes(peak)}"


def _troubles(panels: Sequence[Panel], manifest: Mapping[str, Any], run_dir: str) -> tuple[list[str], list[str]]:
    """What failed, and what did not run: a line each, with reason and way out."""
    found = did_not_run(panels, manifest, run_dir)
    wrong = [
        f"- **mismatch** {code(row['arm'])}, {plain(row['where'])}, {plain(row['x'])}: {plain(_cut(row['gates']))}"
        for row in wrong_answers(panels)
    ]
    failed = [_line(trouble) for trouble in found if trouble.status in FAILED]
    others = [_line(trouble) for trouble in found if trouble.status not in FAILED]
    noun = words_for([r for panel in panels for r in panel.records]).wrong
    return _some(wrong, noun) + _some(failed, "reason"), _some(others, "reason")


def _line(trouble: Trouble) -> str:
    status = f"**{trouble.status}**" if trouble.status in FAILED else trouble.status
    way_out = f" Way out: {plain(_cut(trouble.way_out))}." if trouble.way_out else ""
    where = f"{fmt_count(trouble.count, 'case')}; {plain(trouble.where)}"
    return f"- {status} {code(trouble.arm)} ({where}): {plain(_cut(trouble.reason))}.{way_out}"


def _some(lines: list[str], noun: str) -> list[str]:
    """The first ones, and how many there are more."""
    more = len(lines) - MAX_TROUBLES
    return lines[:MAX_TROUBLES] + ([f"- {fmt_count(more, f'more {noun}')} in the report"] if more > 0 else [])


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 2] + ".."
