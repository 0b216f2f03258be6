"""The section on the error against T: how it grows, how near it is to what is allowed, where it leaves that."""

import math
from collections.abc import Callable, Sequence

from attnbench.analysis.error_law import ErrorLaw, error_laws
from attnbench.analysis.groups import Panel
from attnbench.report.judged import how_judged
from attnbench.report.sections import Section, Table
from attnbench.report.text import fmt_error, fmt_number

MIN_XS = 3  # with fewer lengths the table of all cases says the same


def error_section(panels: Sequence[Panel], name: Callable[[Panel], str]) -> Section:
    """A table per chart with at least three lengths.

    Args:
        panels: the charts.
        name: what a chart is called.
    """
    tables, lines = [], []
    for panel in panels:
        laws = error_laws(panel)
        if len(panel.xs) < MIN_XS or not laws:
            continue
        x = panel.x_label
        head = (
            "arm",
            f"shortest {x}",
            f"longest {x}",
            "slope",
            "nearest to the limit",
            f"first {x} outside",
        )
        rows = [_row(law, x) for law in laws]
        tables.append(Table(caption=name(panel), head=head, rows=rows, panel=panel.number - 1))
        lines += [f"{name(panel)}: {_outside(law, x)}" for law in laws if law.first_outside is not None]
    records = [r for panel in panels for r in panel.records]
    against = ""
    if any(r.model is not None for r in records):
        against = f"{how_judged(records)} The output nearest to its limit counts. "
    intro = (
        f"Error of the worst row{'' if against else ' against the float64 oracle'}, over T. {against}The slope is that "
        "of log error over log T with its 95 % interval, from answers within their limit: 0 does not grow, 0.5 grows "
        "as a random walk, 1 in proportion to T. Nearest to the limit: the largest part of what is allowed (measured / "
        "allowed), and where."
    )
    return Section(id="errors", title="Error against T", intro=intro, lines=lines, tables=tables)


def _row(law: ErrorLaw, x_label: str) -> list[str]:
    slope = f"none: {law.reason}"
    if law.slope is not None:
        low, mid, high = (f"{value:+.2f}" for value in law.slope)
        slope = f"{mid} ({low} to {high})"
    outside = "none" if law.first_outside is None else str(law.first_outside)
    return [law.arm, _at(law.first, x_label), _at(law.last, x_label), slope, _nearest(law, x_label), outside]


def _at(point: tuple[int, float], x_label: str) -> str:
    return f"{_error(point[1])} at {x_label} = {point[0]}"


def _error(value: float) -> str:
    return fmt_error(value) if math.isfinite(value) else "no number"


def _nearest(law: ErrorLaw, x_label: str) -> str:
    x, part = law.closest
    return f"{fmt_number(part, 2) if math.isfinite(part) else 'no number'} at {x_label} = {x}"


def _outside(law: ErrorLaw, x_label: str) -> str:
    x, part = law.closest
    worst = f"{fmt_number(part, 2)} times what is allowed" if math.isfinite(part) else "no number"
    return f"{law.arm} leaves its band at {x_label} = {law.first_outside}; its worst is {worst}, at {x_label} = {x}."
