"""The section on hard inputs: how much of its band every arm uses, and the first scale and length that leave it."""

import math
from collections.abc import Callable, Sequence

from attnbench.analysis.groups import Panel
from attnbench.inputs import LOGIT_SCALES, STRESS_CLASSES
from attnbench.records import Record
from attnbench.report.sections import Section, Table
from attnbench.report.text import fmt_count, fmt_number

WORDS = {"near_ties": "near ties", "long_tail": "long tails", "masked_rows": "masked rows"}


def stress_section(panels: Sequence[Panel], name: Callable[[Panel], str]) -> Section:
    """A table per chart that has rows of `--stress`.

    Args:
        panels: the charts.
        name: what a chart is called.
    """
    tables, lines = [], []
    for panel in panels:
        asked = [(arm, [r for r in panel.row(arm) if r is not None and r.stress]) for arm in panel.arms]
        asked = [(arm, records) for arm, records in asked if records]
        classes = [c for c in STRESS_CLASSES if any(c in r.stress for _, records in asked for r in records)]
        if classes:
            head = ("arm", *(class_title(c) for c in classes), "first scale outside")
            rows = [
                [arm, *(_worst(panel, records, c) for c in classes), _first(panel, records)] for arm, records in asked
            ]
            tables.append(Table(caption=name(panel), head=head, rows=rows, panel=panel.number - 1))
            told = [_outside(panel, arm, records, classes) for arm, records in asked]
            lines += [f"{name(panel)}: {sentence}" for sentence in told if sentence]
    intro = (
        "Error of the worst row over what is allowed for logits of spread 4 (near ties and masked rows: 1), the "
        "largest over the lengths and where; above 1 is outside. Logits x N have spread N; x 1024 makes rows one-hot. "
        "Outside is told, not failed: a format with few digits leaves its band somewhere, torch eager too."
    )
    return Section(id="stress", title="Under stress", intro=intro, lines=lines, tables=tables)


def stress_lines(panels: Sequence[Panel]) -> list[str]:
    """For the terminal: which inputs lead how many arms out of their band, and the worst; none without stress."""
    asked = [(panel, arm, r) for panel in panels for arm in panel.arms for r in panel.row(arm) if r and r.stress]
    classes = [c for c in STRESS_CLASSES if any(c in r.stress for _, _, r in asked)]
    lines = []
    for name in classes:
        tried = dict.fromkeys(arm for _, arm, r in asked if name in r.stress)
        outside = [(panel, arm, r) for panel, arm, r in asked if not r.stress.get(name, 0.0) <= 1.0]
        if outside:
            arms = dict.fromkeys(arm for _, arm, _ in outside)
            panel, arm, worst = max(outside, key=lambda found: _size(found[2].stress[name]))
            where = f"{panel.title()}, {panel.x_label} = {getattr(worst, panel.x_name)}"
            lines.append(
                f"under stress, {class_title(name)}: {len(arms)} of {fmt_count(len(tried), 'arm')} outside the band; "
                f"most {arm}, {_times(worst.stress[name])} ({where})"
            )
    if classes and not lines:
        lines = [f"under stress ({', '.join(map(class_title, classes))}) every arm stays inside its band"]
    return lines


def stress_sentence(r: Record) -> str:
    """Of one row: which inputs lead it out of its band; empty without stress."""
    tried = [name for name in STRESS_CLASSES if name in r.stress]
    outside = [f"{class_title(name)} ({_times(r.stress[name])})" for name in tried if not r.stress[name] <= 1.0]
    where = f"leaves its band with {' and '.join(outside)}" if outside else "stays inside its band"
    return f"Under stress ({', '.join(map(class_title, tried))}) it {where}." if tried else ""


def _size(part: float) -> float:
    return part if math.isfinite(part) else math.inf


def class_title(input_class: str) -> str:
    """`logits x 64`, `near ties`."""
    scale = LOGIT_SCALES.get(input_class)
    return WORDS.get(input_class, input_class) if scale is None else f"logits x {scale}"


def _worst(panel: Panel, records: Sequence[Record], input_class: str) -> str:
    found = [(r.stress[input_class], int(getattr(r, panel.x_name))) for r in records if input_class in r.stress]
    if not found:
        return ""
    part, x = max(found, key=lambda pair: pair[0])  # of equal parts the first length
    return f"{_part(part)} at {panel.x_label} = {x}"


def _part(part: float) -> str:
    return fmt_number(part, 2) if math.isfinite(part) else "no number"


def _times(part: float) -> str:
    return f"{_part(part)} times what is allowed" if math.isfinite(part) else _part(part)


def _first(panel: Panel, records: Sequence[Record]) -> str:
    scales = ((r.first_logit_scale_outside, int(getattr(r, panel.x_name))) for r in records)
    scale, x = min(((scale, x) for scale, x in scales if scale is not None), default=(None, 0))
    return "none that was tried" if scale is None else f"x {scale} at {panel.x_label} = {x}"


def _outside(panel: Panel, arm: str, records: Sequence[Record], classes: Sequence[str]) -> str:
    """A sentence: with which inputs the arm leaves its band, and at which length first; empty if with none."""
    clauses = []
    for name in classes:
        parts = ((int(getattr(r, panel.x_name)), r.stress.get(name, 0.0)) for r in records)
        outside = [(x, part) for x, part in parts if not part <= 1.0]
        if outside:
            x, part = min(outside)
            clauses.append(f"with {class_title(name)} at {panel.x_label} = {x} ({_times(part)})")
    return f"{arm} first leaves its band {', '.join(clauses)}." if clauses else ""
