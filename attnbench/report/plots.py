"""Line charts against T: latency, memory, error, fraction of peak. A failed point is a cross, never part of a line."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.analysis.groups import Panel, latency_ms, peak_bytes, score_bytes
from attnbench.records import Record
from attnbench.report.style import GRID, LIGHT_PAGE, MUTED, ArmStyle
from attnbench.report.text import short_arm, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, PLOT_HEIGHT_IN, LANE_IN, LABEL_PT = 4.9, 2.75, 0.135, 7.4
LEFT, BOTTOM_IN, TOP_IN = 0.085, 0.43, 0.36
FACET_LINE_IN, FACET_CHARS = 0.12, 88
KEY_X, TEXT_X = 1.045, 1.075  # of the axes' width: the marker and the name beside a line's end
BELOW_AXIS = 1e-12  # stands for an interval's end that a log axis cannot show
NO_FIGURE = "no figure"
_HALO = {"facecolor": LIGHT_PAGE, "alpha": 0.75, "linewidth": 0, "pad": 0.6}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of chart: which figure of a record, and how its axis reads."""

    name: str
    title: str
    y_label: str
    value: Callable[[Record], float | None]
    interval: Callable[[Record], tuple[float | None, float | None]] = lambda _: (None, None)
    log_y: bool = True
    line: tuple[float, str] | None = None  # a horizontal line and its words
    shows_wrong: bool = False  # draw the figure of a `mismatch` too, with a cross


def _floor(record: Record) -> float | None:
    """The error of the oracle rounded once to the dtype: worst row error / err_vs_floor."""
    if not record.worst_row_rel_err or not record.err_vs_floor:
        return None
    return record.worst_row_rel_err / record.err_vs_floor


def _matrices(record: Record) -> float | None:
    peak = peak_bytes(record)
    return None if record.status != "ok" or peak is None else peak / score_bytes(record)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="latency", title="Latency", y_label="ms per call", value=latency_ms,
            interval=lambda r: (r.latency_ms_ci_low, r.latency_ms_ci_high),
        ),
        Kind(
            name="memory", title="Peak memory", y_label="peak memory in score matrices", value=_matrices,
            line=(1.0, "one score matrix"),
        ),
        Kind(
            name="error", title="Error", y_label="worst row error, relative",
            value=lambda r: r.worst_row_rel_err, shows_wrong=True,
        ),
        Kind(
            name="roofline", title="Fraction of peak", y_label="fraction of the measured peak", log_y=False,
            value=lambda r: r.peak_fraction if r.status == "ok" else None, line=(1.0, "machine peak"),
        ),
    )
}  # fmt: skip


_MODEL_MEMORY = Kind(
    name="memory", title="Peak memory", y_label="peak memory, MiB",
    value=lambda r: None if r.status != "ok" or (peak := peak_bytes(r)) is None else peak / 2**20,
)  # fmt: skip


def kind_of(name: str, panel: Panel) -> Kind | None:
    """The chart of this name for a panel; None where there is none: a model has no score matrix and no known FLOPs."""
    if not panel.has_x or (panel.facet.model is not None and name == "roofline"):
        return None
    return _MODEL_MEMORY if panel.facet.model is not None and name == "memory" else KINDS[name]


def drawable(value: float | None) -> float | None:
    """The value if an axis can show it: finite and above zero."""
    return value if value is not None and math.isfinite(value) and value > 0 else None


def missing_word(kind: Kind, record: Record) -> str:
    """Why a point is a cross: the status, or what kept the figure off the axis."""
    if record.status != "ok":
        return record.status
    value = kind.value(record) if kind.value is not latency_ms else record.latency_ms_median
    if value is None:
        return "not measured"
    return "below resolution" if math.isfinite(value) and value <= 0 else "not finite"


def draw(kind: Kind, panel: Panel, styles: Mapping[str, ArmStyle]) -> "Figure":
    """One chart. Call it inside `figures.plotting`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lanes = {arm: points for arm in panel.arms if (points := _missing(kind, panel, arm))}
    lane_in = LANE_IN * len(lanes)
    label_in = 0.135 * max(0, len(panel.arms) - 14)
    plot_in = PLOT_HEIGHT_IN + label_in
    facet = textwrap.wrap(panel.facet.title(), FACET_CHARS)[:2]
    facet_in = FACET_LINE_IN * len(facet)
    height = BOTTOM_IN + plot_in + (0.06 + lane_in) + facet_in + TOP_IN
    figure = Figure(figsize=(WIDTH_IN, height))
    FigureCanvasAgg(figure)
    width = 1 - LEFT - _label_width_in(panel, lanes) / WIDTH_IN
    axes = figure.add_axes((LEFT, BOTTOM_IN / height, width, plot_in / height))
    _frame(axes, kind, panel)
    ends = [end for arm in panel.arms if (end := _draw_arm(axes, kind, panel, arm, styles[arm])) is not None]
    _set_limits(axes, kind, panel)
    _reference_lines(axes, kind, panel)
    _end_labels(axes, ends, styles)
    if lanes:
        bottom = (BOTTOM_IN + plot_in + 0.06) / height
        _draw_lanes(figure.add_axes((LEFT, bottom, width, lane_in / height)), axes, lanes, styles)
    figure.text(0.01, 1 - 0.05 / height, f"{panel.title()}: {kind.y_label}", va="top", weight="bold", size=9)
    # A picture is passed on without the page, where two batch sizes have one title.
    figure.text(0.01, 1 - 0.25 / height, "\n".join(facet), va="top", size=7, color=MUTED)
    return figure


def _label_width_in(panel: Panel, lanes: Mapping[str, Mapping[int, str]]) -> float:
    """Inches that the names beside the lines need."""
    widths = [len(short_arm(arm)) for arm in panel.arms]
    widths += [len(_lane_words(arm, points)) for arm, points in lanes.items()]
    return min(2.15, 0.42 + 0.058 * max(widths))


def _lane_words(arm: str, points: Mapping[int, str]) -> str:
    return f"{short_arm(arm)}: {', '.join(unique(points.values()))}"


def _missing(kind: Kind, panel: Panel, arm: str) -> dict[int, str]:
    """Which x has no figure, and why: every record of the arm that has nothing to draw."""
    found = {}
    for x, r in zip(panel.xs, panel.row(arm), strict=True):
        if r is None or (drawable(kind.value(r)) is not None and (r.status == "ok" or kind.shows_wrong)):
            continue
        found[x] = "the reference" if kind.name == "error" and r.arm == panel.judge else missing_word(kind, r)
    return found


def _frame(axes: "Axes", kind: Kind, panel: Panel) -> None:
    """Axes with every T as a tick (thinned where they would touch)."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    xs = panel.xs
    step = max(1, math.ceil(len(xs) / 9))
    axes.set_xticks(xs[::-1][::step][::-1], [_short_x(x) for x in xs[::-1][::step][::-1]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(xs[0] / 1.15, xs[-1] * 1.15)
    axes.set_xlabel(panel.x_label + ("" if panel.facet.model is not None else " (tokens)"), labelpad=2)
    axes.tick_params(length=3, pad=2)
    axes.set_yscale("log" if kind.log_y else "linear")


def _log_ticks(axes: "Axes", low: float, high: float, *, powers: bool) -> None:
    """Labels at decades, and at 2 and 5 too where the axis spans few decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    few = high / low < 300
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if few else (1,), numticks=12))
    axes.yaxis.set_minor_formatter(NullFormatter())
    if powers:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0e}".replace("e-0", "e-")))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))


def _short_x(x: int) -> str:
    return f"{x // 1024}k" if x >= 1024 and x % 1024 == 0 else str(x)


def _draw_arm(axes: "Axes", kind: Kind, panel: Panel, arm: str, style: ArmStyle) -> tuple[str, float, float] | None:
    """Line, markers and interval of one arm; returns its last point for the label, None when nothing was drawn."""
    row = [None if r is None else (r, drawable(kind.value(r))) for r in panel.row(arm)]
    ys = [math.nan if cell is None or cell[1] is None or cell[0].status != "ok" else cell[1] for cell in row]
    axes.plot(
        panel.xs, ys, color=style.color, marker=style.marker, markersize=4, linewidth=1.5, markeredgewidth=0,
        dashes=style.dash or (None, None),
    )  # fmt: skip
    _draw_intervals(axes, kind, panel, arm, style)
    shown = [(x, y) for x, y in zip(panel.xs, ys, strict=True) if not math.isnan(y)]
    for x, cell in zip(panel.xs, row, strict=True):
        if kind.shows_wrong and cell is not None and cell[0].status == "mismatch" and cell[1] is not None:
            axes.plot(
                [x], [cell[1]], color=style.color, marker="x", markersize=6, markeredgewidth=1.6, linestyle="none"
            )
            axes.annotate("mismatch", (x, cell[1]), xytext=(4, 3), textcoords="offset points", size=6.5)
            shown.append((x, cell[1]))
    return (arm, *max(shown)) if shown else None


def _draw_intervals(axes: "Axes", kind: Kind, panel: Panel, arm: str, style: ArmStyle) -> None:
    """A band between neighbours and a bar at each point; a triangle where its low end is at or below zero."""
    xs: list[float] = []
    lows: list[float] = []
    highs: list[float] = []
    for x, r in zip(panel.xs, panel.row(arm), strict=True):
        low, high = kind.interval(r) if r is not None and drawable(kind.value(r)) else (None, None)
        known = low is not None and high is not None and math.isfinite(high)
        xs.append(x)
        lows.append(math.nan if low is None or not known else max(low, BELOW_AXIS))
        highs.append(math.nan if high is None or not known else high)
    cut = [x for x, low in zip(xs, lows, strict=True) if low <= BELOW_AXIS]
    axes.plot(
        cut, [0.015] * len(cut), marker="v", markersize=4, linestyle="none", color=style.color,
        transform=axes.get_xaxis_transform(), clip_on=False,
    )  # fmt: skip
    axes.fill_between(xs, lows, highs, color=style.color, alpha=0.18, linewidth=0)
    axes.vlines(xs, lows, highs, color=style.color, linewidth=1.0, alpha=0.6)


def _set_limits(axes: "Axes", kind: Kind, panel: Panel) -> None:
    """Limits from the points and their intervals, these cut where they reach further than three times the points."""
    values = [y for r in panel.records if (y := drawable(kind.value(r))) is not None]
    ends = [end for r in panel.records if r.status == "ok" for end in kind.interval(r) if drawable(end) and values]
    values += [min(max(end, min(values) / 3), max(values) * 3) for end in ends if end is not None]
    if kind.line is not None:
        values.append(kind.line[0])
    if kind.name == "error":
        values += [v for r in panel.records for v in (drawable(_floor(r)), drawable(r.worst_row_limit)) if v]
    if not kind.log_y:
        axes.set_ylim(0, max(1.08, *(1.05 * v for v in values)))
    elif values:
        axes.set_ylim(min(values) / 1.5, max(values) * 1.5)
        _log_ticks(axes, min(values), max(values), powers=kind.name == "error")
    else:
        axes.set_yticks([])
        axes.text(0.5, 0.5, NO_FIGURE, transform=axes.transAxes, ha="center", color=MUTED)


def _reference_lines(axes: "Axes", kind: Kind, panel: Panel) -> None:
    """The one-matrix line, the machine's peak, or the dtype's floor and the allowed error."""
    if kind.line is not None:
        axes.axhline(kind.line[0], color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        axes.annotate(
            kind.line[1], (0, kind.line[0]), xycoords=("axes fraction", "data"), xytext=(3, 2),
            textcoords="offset points", size=7, color=MUTED, bbox=_HALO,
        )  # fmt: skip
    if kind.name != "error":
        return
    for value, words in ((_floor, f"floor of {panel.facet.dtype}"), (lambda r: r.worst_row_limit, "allowed")):
        by_x = {x: [v for arm in panel.arms if (r := panel.cells.get((arm, x))) and (v := value(r))] for x in panel.xs}
        ys = [sorted(vs)[len(vs) // 2] if (vs := by_x[x]) else math.nan for x in panel.xs]
        first = next(((x, y) for x, y in zip(panel.xs, ys, strict=True) if not math.isnan(y)), None)
        if first is not None:
            axes.plot(panel.xs, ys, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), marker="_", markersize=5)
            axes.annotate(words, first, xytext=(0, 3), textcoords="offset points", size=7, color=MUTED, bbox=_HALO)


def _end_labels(axes: "Axes", ends: list[tuple[str, float, float]], styles: Mapping[str, ArmStyle]) -> None:
    """Marker and name beside the last points, pushed apart so that none covers another, each with a thin leader."""
    if not ends:
        return
    to_axes = axes.transData + axes.transAxes.inverted()
    height_pt = axes.bbox.height * 72 / axes.figure.dpi
    points = sorted((tuple(to_axes.transform((x, y)))[::-1], arm) for arm, x, y in ends)
    heights = spread([float(y) for (y, _), _ in points], (LABEL_PT + 1.8) / height_pt)
    beside: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "markeredgewidth": 0}
    for ((y_point, x_point), arm), y in zip(points, heights, strict=True):
        style = styles[arm]
        dots = "solid" if x_point > 0.9 else (0, (1, 2))  # not to be read as the line going on
        axes.plot([x_point, KEY_X], [y_point, y], color=style.color, linewidth=0.7, linestyle=dots, **beside)
        axes.plot([KEY_X], [y], color=style.color, marker=style.marker, markersize=4, **beside)
        axes.text(TEXT_X, y, short_arm(arm), transform=axes.transAxes, va="center", size=LABEL_PT)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending positions at least `gap` apart and as near to the wanted ones as can be, inside 0..1 while they fit.

    Pools neighbours that would overlap and centres each pool on its mean (isotonic regression).
    """
    pools: list[list[float]] = []  # [mean of wanted - i * gap, members]
    for i, y in enumerate(wanted):
        pools.append([y - i * gap, 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, n = pools.pop()
            before = pools[-1]
            before[0] = (before[0] * before[1] + mean * n) / (before[1] + n)
            before[1] += n
    top = 1.0 - gap * (len(wanted) - 1)
    means = [min(max(mean, 0.0), max(top, 0.0)) for mean, n in pools for _ in range(int(n))]
    return [mean + i * gap for i, mean in enumerate(means)]


def _draw_lanes(
    lanes_axes: "Axes", axes: "Axes", lanes: Mapping[str, Mapping[int, str]], styles: Mapping[str, ArmStyle]
) -> None:
    """Above the chart, a row per arm with a cross at every T where it has no figure, and the statuses beside it."""
    lanes_axes.set_xscale("log", base=2)
    lanes_axes.set_xlim(axes.get_xlim())
    lanes_axes.set_ylim(-0.5, len(lanes) - 0.5)
    lanes_axes.grid(visible=False)
    lanes_axes.patch.set_alpha(0)
    for side in lanes_axes.spines.values():
        side.set_visible(False)
    lanes_axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False, which="both")
    for row, (arm, points) in enumerate(reversed(list(lanes.items()))):
        lanes_axes.axhline(row, color=GRID, linewidth=0.7, zorder=0)
        lanes_axes.plot(
            list(points), [row] * len(points), color=styles[arm].color, marker="x", markersize=4.5,
            markeredgewidth=1.4, linestyle="none", clip_on=False,
        )  # fmt: skip
        words = _lane_words(arm, points)
        lanes_axes.text(TEXT_X, row, words, transform=lanes_axes.get_yaxis_transform(), va="center", size=LABEL_PT)


def describe(kind: Kind, panel: Panel) -> str:
    """The chart in words, for those who cannot see it."""
    parts: list[str] = []
    for arm in panel.arms:
        row: list[Any] = [(x, r) for x, r in zip(panel.xs, panel.row(arm), strict=True) if r is not None]
        seen = [(x, v) for x, r in row if (v := drawable(kind.value(r))) is not None]
        if seen:
            parts.append(f"{arm} {seen[0][1]:.3g} at {seen[0][0]} to {seen[-1][1]:.3g} at {seen[-1][0]}")
        else:
            parts.append(f"{arm} none")
    return f"{kind.title}, {panel.title()}, {kind.y_label}, against {panel.x_label}: " + "; ".join(parts)
