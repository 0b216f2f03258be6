"""The section on hard inputs: how much of its band every arm uses, and the first scale of logits that leaves it."""

import math
from collections.abc import Callable, Sequence

from attnbench.analysis.groups import Panel
from attnbench.inputs import LOGIT_SCALES, STRESS_CLASSES
from attnbench.records import Record
from attnbench.report.sections import Section, Table
from attnbench.report.text import fmt_number

WORDS = {"near_ties": "near ties", "long_tail": "long tails", "masked_rows": "masked rows"}


def stress_section(panels: Sequence[Panel], name: Callable[[Panel], str]) -> Section:
    """A table per chart that has rows of `--stress`.

    Args:
        panels: the charts.
        name: what a chart is called.
    """
    tables = []
    for panel in panels:
        asked = [(arm, [r for r in panel.row(arm) if r is not None and r.stress]) for arm in panel.arms]
        asked = [(arm, records) for arm, records in asked if records]
        classes = [c for c in STRESS_CLASSES if any(c in r.stress for _, records in asked for r in records)]
        if classes:
            head = ("arm", *(_title(c) for c in classes), "first scale outside")
            rows = [[arm, *(_worst(panel, records, c) for c in classes), _first(records)] for arm, records in asked]
            tables.append(Table(caption=name(panel), head=head, rows=rows, panel=panel.number - 1))
    intro = (
        "Error of the worst row over what is allowed for logits of spread 4 (near ties and masked rows: 1), the "
        "largest over the lengths and where; above 1 is outside. Logits x N have spread N; x 1024 makes rows one-hot. "
        "Outside is told, not failed: a format with few digits leaves its band somewhere, torch eager too."
    )
    return Section(id="stress", title="Under stress", intro=intro, tables=tables)


def _title(input_class: str) -> str:
    scale = LOGIT_SCALES.get(input_class)
    return WORDS.get(input_class, input_class) if scale is None else f"logits x {scale}"


def _worst(panel: Panel, records: Sequence[Record], input_class: str) -> str:
    found = [(r.stress[input_class], int(getattr(r, panel.x_name))) for r in records if input_class in r.stress]
    if not found:
        return ""
    part, x = max(found)
    words = fmt_number(part, 2) if math.isfinite(part) else "no number"
    return f"{words} at {panel.x_label} = {x}"


def _first(records: Sequence[Record]) -> str:
    outside = [r.first_logit_scale_outside for r in records if r.first_logit_scale_outside is not None]
    return f"x {min(outside)}" if outside else "none that was tried"
