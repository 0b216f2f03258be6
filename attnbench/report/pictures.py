"""Which pictures a report holds: the most telling ones first, up to a limit; the rest are named."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.analysis.groups import Panel, make_panels
from attnbench.errors import InputError
from attnbench.records import Record
from attnbench.report import figures, plots, rounds
from attnbench.report.style import ArmStyle, arm_styles
from attnbench.report.text import fmt_count, fmt_list, unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_FIGURES = 24  # SVG and PNG of one take about 0.35 s; the page can draw the others itself
SECTIONS = ("latency", "memory", "error", "roofline", "rounds")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One drawn figure."""

    section: str  # of SECTIONS
    panel: Panel
    name: str  # file name without ending
    alt: str
    svg: str


@dataclass(kw_only=True)
class Pictures:
    """What was drawn, what was left out, and what went wrong."""

    drawn: list[Picture] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def of(self, section: str) -> list[Picture]:
        """The pictures of one section in the order of the panels."""
        return [p for p in self.drawn if p.section == section]


def styles_for(panels: Sequence[Panel]) -> dict[str, ArmStyle]:
    """One style per series name for the whole report."""
    arms = {arm: r for panel in panels for (arm, _), r in reversed(panel.cells.items())}
    order = {arm: i for i, arm in enumerate(dict.fromkeys(arm for panel in panels for arm in panel.arms))}
    return arm_styles([(arm, arms[arm].runtime, arms[arm].exporter) for arm in order])


def plot(
    records: Sequence[Record], kind: str = "latency", variant: str | None = None,
    run_names: Mapping[str, str] | None = None,
) -> "Figure":  # fmt: skip
    """One chart of the records as a matplotlib figure: of this variant, in the facet with the most rows.

    Raises:
        InputError: an unknown kind, or a variant that has no records.
        ImportError: matplotlib is missing.
    """
    if kind not in plots.KINDS:
        raise InputError(f"no chart {kind!r}; there are: {', '.join(plots.KINDS)}")
    panels = make_panels(records, run_names)
    chosen = [panel for panel in panels if variant in (None, panel.records[0].variant)]
    if not chosen:
        there = fmt_list(unique(r.variant for r in records)) or "none"
        raise InputError(f"no records of variant {variant!r}; there are: {there}")
    chart = plots.kind_of(kind, chosen[0])
    if chart is None:
        why = "has no known FLOPs" if chosen[0].has_x else "was run without a free dim that follows T (--bind NAME=T)"
        raise InputError(f"no chart {kind!r} of {chosen[0].title()}: the model {why}; records has its figures")
    with figures.plotting():
        return plots.draw(chart, chosen[0], styles_for(panels))


def draw_all(run_dir: Path, panels: Sequence[Panel], sources: rounds.Sources | None = None) -> Pictures:
    """Draw and save what fits under the limit into plots/; a failure costs one picture or says why there is none.

    Args:
        run_dir: where plots/ is written.
        panels: of the report.
        sources: where raw samples lie; None: in run_dir.
    """
    result = Pictures()
    folder = run_dir / "plots"
    styles = styles_for(panels)
    wanted = list(_order(panels))
    try:
        folder.mkdir(exist_ok=True)
        with figures.plotting():
            for section, panel in wanted[:MAX_FIGURES]:
                _draw_one(result, run_dir, section, panel, styles, run_dir if sources is None else sources)
        _remove_stale(folder, {p.name for p in result.drawn})
    except ImportError as err:
        result.problems.append(f"{err.name or 'matplotlib'} is not installed: no plots; pip install matplotlib")
    except OSError as err:
        result.problems.append(f"cannot write plots to {folder}: {err.strerror or err}; no (more) plots were drawn")
    result.left_out = _left_out(wanted[MAX_FIGURES:])
    return result


def _remove_stale(folder: Path, names: set[str]) -> None:
    """Delete pictures of an earlier report of this run that this one did not draw."""
    ours = re.compile(rf"({'|'.join(SECTIONS)})-\d+-.*\.(svg|png)")
    for path in folder.iterdir():
        if ours.fullmatch(path.name) and path.stem not in names:
            path.unlink()


def _order(panels: Sequence[Panel]) -> Iterator[tuple[str, Panel]]:
    """Everything of the first facet, then latency of the others, then memory, error and so on of the others."""
    facets = list(dict.fromkeys(panel.facet for panel in panels))
    for is_first in (True, False):
        for section in SECTIONS:
            for panel in panels:
                is_there = section == "rounds" or plots.kind_of(section, panel) is not None
                if is_there and (panel.facet == facets[0]) == is_first:
                    yield section, panel


def _draw_one(
    result: Pictures, run_dir: Path, section: str, panel: Panel, styles: Mapping[str, ArmStyle], sources: rounds.Sources
) -> None:
    """Add one picture, or a problem when matplotlib refuses it."""
    name = f"{section}-{panel.number:02d}-{panel.facet.part}-{panel.facet.dtype}-{panel.variant}"
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)[:100]
    try:
        if section == "rounds":
            drawn = _draw_rounds(result, sources, panel, styles)
            if drawn is None:
                return
            figure, alt = drawn
        else:
            kind = plots.kind_of(section, panel)
            assert kind is not None  # `_order` asks for nothing else
            figure, alt = plots.draw(kind, panel, styles), plots.describe(kind, panel)
        svg = figures.save(figure, run_dir / "plots", name)
    except (ValueError, RuntimeError, ArithmeticError) as err:
        result.problems.append(f"plot {name} could not be drawn: {err}")
        return
    result.drawn.append(Picture(section=section, panel=panel, name=name, alt=alt, svg=svg))


def _draw_rounds(
    result: Pictures, sources: rounds.Sources, panel: Panel, styles: Mapping[str, ArmStyle]
) -> "tuple[Figure, str] | None":
    """Samples at the middle of the T that have any; None when there are none."""
    timed = [x for x in panel.xs if panel.ok_at(x)]
    if not timed:
        return None
    x = timed[len(timed) // 2]
    cells = {arm: r for arm in panel.arms if (r := panel.cells.get((arm, x))) is not None}
    ids = {r.problem_id for r in cells.values()}
    path = rounds.samples_folder(sources, panel.records[0].run_id) / f"{min(ids)}.parquet"
    if not path.is_file():
        return None
    try:
        visits = rounds.read_visits(path, {r.case_id: arm for arm, r in cells.items()})
    except (OSError, ValueError, KeyError) as err:
        result.problems.append(f"{path.name}: cannot be read ({str(err).splitlines()[0]}); no picture of its samples")
        return None
    if not visits:
        return None
    title = f"{panel.title()}, {panel.at(x)}"
    return rounds.draw_rounds(visits, title, styles), f"{title}: samples of {fmt_count(len(visits), 'worker')} by round"


def _left_out(rest: Sequence[tuple[str, Panel]]) -> list[str]:
    """A line per facet that has no picture of a kind: what, and the filter that gives its rows."""
    by_facet: dict[str, list[str]] = {}
    for section, panel in rest:
        by_facet.setdefault(f"{panel.facet.title()}: {panel.facet.query()}", []).append(section)
    return [f"{', '.join(dict.fromkeys(sections))} of {facet}" for facet, sections in by_facet.items()]
