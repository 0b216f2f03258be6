"""Raw samples by round: every visit of every arm of one problem, so that drift and outliers can be seen."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnbench.report.style import LIGHT_PAGE, MUTED, ArmStyle
from attnbench.report.text import fmt_ms, short_arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, ROW_IN = 4.9, 0.5
SPAN = 1.25  # the band shown around the arm's median; what lies outside sits at the edge as a triangle


Sources = Path | Mapping[str, Path]  # the run directory; of several runs each one's, by run_id


def samples_folder(sources: Sources, run_id: str) -> Path:
    """Where the raw samples of a run lie."""
    return (sources if isinstance(sources, Path) else sources[run_id]) / "samples"


@dataclass(frozen=True, kw_only=True)
class Visits:
    """One worker's visits: per round the median, fastest and slowest call in ms."""

    arm: str
    replica: int
    rounds: NDArray[np.int64]  # (R,)
    medians: NDArray[np.float64]  # (R,)
    lows: NDArray[np.float64]
    highs: NDArray[np.float64]


def read_visits(path: Path, arms: Mapping[str, str]) -> list[Visits]:
    """The visits in one samples file of the cases in `arms` (case_id to name), in that order.

    Raises:
        OSError, ValueError, KeyError: the file is missing, torn or of another shape.
        ImportError: pyarrow is missing.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    case_ids = np.asarray(table.column("case_id").to_pylist(), dtype=object)
    replicas, rounds, latency_ns = (table.column(c).to_numpy() for c in ("replica", "round", "latency_ns"))
    found = []
    for case_id, arm in arms.items():
        for replica in np.unique(replicas[case_ids == case_id]):
            mine = (case_ids == case_id) & (replicas == replica)
            found.append(_visits(arm, int(replica), rounds[mine], latency_ns[mine] / 1e6))
    return found


def _visits(arm: str, replica: int, rounds: NDArray[Any], latency_ms: NDArray[np.float64]) -> Visits:
    numbers = np.unique(rounds)
    blocks = [latency_ms[rounds == n] for n in numbers]
    medians, lows, highs = (np.array([f(b) for b in blocks]) for f in (np.median, np.min, np.max))
    return Visits(arm=arm, replica=replica, rounds=numbers.astype(np.int64), medians=medians, lows=lows, highs=highs)


def draw_rounds(visits: list[Visits], title: str, styles: Mapping[str, ArmStyle]) -> "Figure":
    """A row per worker: dot = the visit's median, bar = its fastest to slowest call. Call it inside `plotting`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    height = ROW_IN * len(visits) + 0.85
    figure = Figure(figsize=(WIDTH_IN, height))
    FigureCanvasAgg(figure)
    last_round = max((int(v.rounds.max()) for v in visits), default=0)
    for i, v in enumerate(visits):
        bottom = (0.42 + ROW_IN * (len(visits) - 1 - i)) / height
        axes = figure.add_axes((0.085, bottom, 0.585, (ROW_IN - 0.08) / height))
        _draw_worker(axes, v, styles[v.arm])
        axes.set_xlim(-0.5, last_round + 0.5)
        axes.tick_params(labelbottom=i == len(visits) - 1, bottom=i == len(visits) - 1, length=3, pad=2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if visits:
        axes.set_xlabel("round", labelpad=2)
    figure.text(0.01, 1 - 0.05 / height, f"{title}: samples by round", va="top", weight="bold", size=9)
    return figure


def _draw_worker(axes: "Axes", v: Visits, style: ArmStyle) -> None:
    center = float(np.median(v.medians))
    low, high = center / SPAN, center * SPAN
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(_fixed([center / 1.2, center, center * 1.2]))
    axes.yaxis.set_minor_locator(_fixed([]))
    axes.set_yticklabels(["-17 %", "", "+20 %"], fontsize=6.5)
    axes.vlines(v.rounds, np.clip(v.lows, low, high), np.clip(v.highs, low, high), color=style.color, lw=0.8, alpha=0.5)
    axes.plot(v.rounds, v.medians, color=style.color, marker="o", markersize=2.4, linestyle="none", markeredgewidth=0)
    for outside, marker, edge in ((v.highs > high, "^", high), (v.lows < low, "v", low)):
        axes.plot(
            v.rounds[outside], np.full(int(outside.sum()), edge), marker=marker, markersize=4, linestyle="none",
            color=style.color, markeredgecolor=LIGHT_PAGE, markeredgewidth=0.4, clip_on=False,
        )  # fmt: skip
    name = short_arm(v.arm) + (" (replica)" if v.replica else "")
    axes.text(1.02, 0.66, name, transform=axes.transAxes, va="center", size=7.4)
    axes.text(1.02, 0.26, f"median {fmt_ms(center)}", transform=axes.transAxes, va="center", size=7, color=MUTED)


def _fixed(positions: list[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(positions)
