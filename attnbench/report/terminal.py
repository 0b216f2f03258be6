"""The table at the end of a bench: who is right, fast and small at which T. Plain ASCII, so any terminal shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.analysis.groups import Panel, latency_ms, make_panels, peak_bytes
from attnbench.records import FAILED, Record
from attnbench.report import precisions
from attnbench.report.compiled_text import terminal_lines
from attnbench.report.findings import Trouble, did_not_run, progress_note, trust_line, wrong_answers
from attnbench.report.judged import count_at, how_judged, words_of
from attnbench.report.merged import run_names, runs_of
from attnbench.report.stress_text import stress_lines
from attnbench.report.text import fmt_bytes, fmt_count, fmt_number, fmt_ratio, printable, short_arm

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

MAX_PANELS = 6
MAX_TROUBLES = 8
MIN_WIDTH, MAX_WIDTH = 40, 110


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What `summary` gives: a rich renderable that keeps to `width` columns and to the encoding of its console."""

    records: Sequence[Record]
    manifest: Mapping[str, Any]
    width: int
    run_dir: str

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """One table per panel, then what is wrong, what did not run, and how far to trust it."""
        width = min(max(self.width, MIN_WIDTH), MAX_WIDTH)
        yield from _parts(self.records, self.manifest, self.run_dir, ascii_only=options.ascii_only, width=width)


def summary(records: Sequence[Record], manifest: Mapping[str, Any], width: int, run_dir: str = "RUN_DIR") -> Summary:
    """The end of a bench for people: one table per variant, then wrong and failed cases with reason and way out.

    Args:
        records: judged records.
        manifest: of the run; every key may be missing.
        width: columns to keep to (at least 40 are taken).
        run_dir: the run's folder, as it is typed in a command.
    """
    return Summary(records=records, manifest=manifest, width=width, run_dir=run_dir)


def _parts(
    records: Sequence[Record], manifest: Mapping[str, Any], run_dir: str, *, ascii_only: bool, width: int
) -> "list[RenderableType]":
    from rich.padding import Padding
    from rich.text import Text

    def line(text: str, style: str = "", indent: int = 0) -> "RenderableType":
        clean = printable(text)
        clean = clean.encode("ascii", "backslashreplace").decode() if ascii_only else clean
        words = clean.lstrip(" ")
        indent += len(clean) - len(words)  # lines that are wrapped keep the indent
        return Padding(Text(words, style=style, overflow="fold"), (0, 0, 0, indent), expand=False)

    panels = make_panels(records, run_names(manifest))
    parts: list[RenderableType] = []
    facet = None
    for panel in panels[:MAX_PANELS]:
        if panel.facet != facet:
            parts.append(line(panel.facet.title(), "dim"))
            facet = panel.facet
        parts.append(line(panel.title(), "bold"))
        parts.append(_panel_table(panel, ascii_only=ascii_only, width=width))
    if baseline := manifest.get("baseline_arm"):
        shortened = "; names leave out onnx-" if any(r.arm.startswith("onnx-") for r in records) else ""
        parts.append(line(f"ratio: time of {baseline} over time of the fastest{shortened}", "dim"))
    if len(panels) > MAX_PANELS:
        parts.append(line(f"{len(panels) - MAX_PANELS} more tables are in the report", "dim"))
    if any(panel.facet.model is not None for panel in panels):
        parts.append(line(how_judged(records), "dim"))
    parts += [line(text, "bold red") for text in _wrong_lines(panels)]
    parts += [line(text, "yellow") for text in stress_lines(panels)]
    for table in precisions.tables(records, manifest):
        parts += [line(text, "bold" if i == 0 else "") for i, text in enumerate(precisions.lines(table))]
    troubles = did_not_run(panels, manifest, run_dir)
    for trouble in troubles[:MAX_TROUBLES]:
        style = "red" if trouble.status in FAILED else "yellow"
        parts.append(
            line(f"{trouble.status}: {trouble.arm} ({fmt_count(trouble.count, 'case')}; {trouble.where})", style)
        )
        parts += [line(text, indent=2) for text in _why(trouble)]
    hidden = len(troubles) - MAX_TROUBLES
    if hidden > 0:
        parts.append(line(f"{fmt_count(hidden, 'more reason')} in the report", "dim"))
    parts += [line(text, "dim") for text in terminal_lines(records)]
    parts += [line(text, "bold yellow") for text in (progress_note(records, manifest, run_dir),) if text]
    trust = trust_line(records, manifest)
    parts += [line(text, "dim") for text in (trust if runs_of(manifest) else [" ".join(trust)])]
    return parts


def _panel_table(panel: Panel, *, ascii_only: bool, width: int) -> "Table":
    """A row per T: how many are right, the fastest set, its latency and speed-up, the smallest peak."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ASCII if ascii_only else box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, width=width)
    table.add_column(panel.x_label, justify="right", no_wrap=True)
    table.add_column(words_of(panel.judge).column, justify="right", no_wrap=True)
    table.add_column("fastest", ratio=1, overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("smallest", overflow="fold")
    table.add_column("peak", justify="right", no_wrap=True)
    for x in panel.xs:
        cells = [printable(cell) for cell in _row(panel, x)]
        if ascii_only:
            cells = [cell.encode("ascii", "backslashreplace").decode() for cell in cells]
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return table


def _row(panel: Panel, x: int) -> tuple[str, ...]:
    """Cells of one T; empty where nothing is known."""
    names = {id(r): arm for arm in panel.arms if (r := panel.cells.get((arm, x))) is not None}
    right = panel.ok_at(x)
    count = count_at(panel, x)
    if not right:
        return (panel.x_text(x), count, words_of(panel.judge).none if count else "none ran", "", "", "", "")
    fastest = [r for r in right if r.fastest]
    shown = fastest or right[:1]
    arms = ", ".join(_breakable(names[id(r)]) for r in shown)
    if len(fastest) > 1:
        arms = f"toss-up: {arms}"
    elif not fastest:
        arms = f"{arms} (not ranked)"
    ratio = "" if shown[0].arm == shown[0].baseline_arm else fmt_ratio(shown[0].speedup_vs_baseline)
    small = min((r for r in right if peak_bytes(r) is not None), key=lambda r: peak_bytes(r) or 0, default=None)
    smallest = ("", "") if small is None else (_breakable(names[id(small)]), fmt_bytes(peak_bytes(small)))
    return (panel.x_text(x), count, arms, fmt_number(latency_ms(shown[0])), ratio, *smallest)


def _breakable(arm: str) -> str:
    """`contrib@ort-cpu`; a longer name is whole, with a space before its bracket, where a narrow column breaks it."""
    short = short_arm(arm)
    whole = arm.removeprefix("onnx-")
    return short if short == whole or "[" not in whole else whole.replace("[", " [", 1)


def _wrong_lines(panels: Sequence[Panel]) -> list[str]:
    """A line per wrong answer, up to a limit."""
    rows = wrong_answers(panels)
    lines = [f"mismatch: {row['arm']}, {row['where']}, {row['x']}: {row['gates']}" for row in rows[:MAX_TROUBLES]]
    hidden = len(rows) - MAX_TROUBLES
    return lines + ([f"{fmt_count(hidden, 'more wrong answer')} in the report"] if hidden > 0 else [])


def _why(trouble: Trouble) -> list[str]:
    """Reason and way out, each once."""
    return [trouble.reason] + ([f"way out: {trouble.way_out}"] if trouble.way_out else [])
