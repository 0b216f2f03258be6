"""What the page's scripts know: a small part that every filter needs at once, and columns of figures, packed."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.analysis.groups import Facet, Panel, latency_ms, peak_bytes, score_bytes, series_names, x_of
from attnbench.records import Record
from attnbench.report.merged import folder_of, manifest_of
from attnbench.report.page_laws import laws_of
from attnbench.report.page_pack import compact_json, packed, plotly_source, script_json
from attnbench.report.page_samples import PageSamples, read_samples
from attnbench.report.pictures import styles_for
from attnbench.report.rounds import Sources, samples_folder
from attnbench.report.style import ArmStyle
from attnbench.report.text import printable, short_arm, unique

DIGITS = 5  # significant ones of a figure in the page; records.csv has them all

# What can be drawn: name, figure of a record, and the column that says why there is none.
_FIGURES: tuple[tuple[str, Callable[[Record], float | None], str], ...] = (
    ("latency", latency_ms, "latency_ms_median"),
    ("speed", lambda r: r.speedup_vs_baseline if r.status == "ok" else None, "speedup_vs_baseline"),
    ("memory", lambda r: peak_bytes(r) if r.status == "ok" else None, "peak_host_bytes"),
    ("error", lambda r: r.worst_row_rel_err, "worst_row_rel_err"),
    ("fraction", lambda r: r.peak_fraction if r.status == "ok" else None, "peak_fraction"),
)
_BESIDE: tuple[tuple[str, Callable[[Record], float | None]], ...] = (
    ("latency_low", lambda r: r.latency_ms_ci_low),
    ("latency_high", lambda r: r.latency_ms_ci_high),
    ("speed_low", lambda r: r.speedup_ci_low),
    ("speed_high", lambda r: r.speedup_ci_high),
    ("p90", lambda r: r.latency_ms_p90),
    ("limit", lambda r: r.worst_row_limit),
    ("matrix", lambda r: None if r.model is not None else score_bytes(r)),
    ("rounds", lambda r: r.round_count),
    ("samples", lambda r: r.sample_count),
)
_TEXTS: tuple[tuple[str, Callable[[Record], str | None]], ...] = (
    ("status", lambda r: r.status),
    ("verdict", lambda r: r.verdict),
    ("kernel", lambda r: _kernel(r)),
    ("flags", lambda r: ", ".join(r.flags)),
    ("reason", lambda r: r.reason),
    ("stopped", lambda r: r.stopped_by),
)
_DIMENSIONS: tuple[tuple[str, str, Callable[[Facet], str]], ...] = (
    ("part", "part", lambda f: f.part),
    ("dtype", "dtype", lambda f: f.dtype),
    ("model", "model", lambda f: f.model or "built-in attention"),
    ("sizes", "sizes", lambda f: f.sizes or "none set"),
    ("batch", "batch", lambda f: "not known" if f.batch_size is None else str(f.batch_size)),
    ("heads", "heads", lambda f: _heads(f)),
    ("device", "device", lambda f: f.device or "unknown"),
    ("threads", "threads", lambda f: "unknown" if f.threads is None else str(f.threads)),
    ("scope", "timed", lambda f: f.latency_scope or "unknown"),
    ("run", "run", lambda f: f.run or ""),
    ("machine", "machine", lambda f: f.machine or ""),
)


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """What is embedded for the part of the page that answers."""

    meta: str  # JSON for a script element
    data: str  # the rest packed
    samples: str
    plotly: str  # empty: not installed
    arm_numbers: Mapping[str, int]  # series name to its number, which rows of tables carry
    problems: tuple[str, ...]


def make_explorer(
    sources: Sources, ordered: Sequence[Record], panels: Sequence[Panel], manifest: Mapping[str, Any]
) -> Explorer:
    """Collect and pack. What cannot be had is said in `problems`, and in the page where it is missed.

    Args:
        sources: the folder that holds samples/, or does not; of several runs each one's.
        ordered: all records in the order of the page's table.
        panels: of the same records.
        manifest: of the run; every key may be missing.
    """
    places = _places(panels)
    styles = styles_for(panels)
    arm_numbers = {arm: i for i, arm in enumerate(styles)}
    problems: list[str] = []
    try:
        samples = read_samples({r.run_id: samples_folder(sources, r.run_id) for r in ordered}, ordered)
    except ImportError as err:
        samples = PageSamples(absent={f"{err.name} is not installed": list(range(len(ordered)))})
    try:
        plotly = packed(plotly_source())
    except (ImportError, OSError) as err:
        plotly = ""
        problems.append(f"the page has no charts to explore ({err}); pip install plotly")
    laws = [laws_of(panel, manifest_of(manifest, panel.facet.run_id).get("noise_floor")) for panel in panels]
    data = _columns(ordered, places) | {
        "laws": [{arm_numbers[arm]: law for arm, law in of_panel.items()} for of_panel in laws],
        "delta": _rounded(manifest.get("delta")),
    }
    rows = {
        "panel": [places[id(r)].panel for r in ordered],
        "arm": [arm_numbers[places[id(r)].series] for r in ordered],
    }
    folders = [_folder(sources, manifest, panel.records[0].run_id) for panel in panels]
    return Explorer(
        meta=script_json({**_names(panels, styles, folders), "rows": rows}), data=packed(compact_json(data)),
        samples=packed(compact_json(samples.as_dict())), plotly=plotly, arm_numbers=arm_numbers,
        problems=(*samples.problems, *problems),
    )  # fmt: skip


def _folder(sources: Sources, manifest: Mapping[str, Any], run_id: str) -> str:
    """A run's folder as a command wants it, quoted: from where the results are."""
    if isinstance(sources, Path):
        place = sources.absolute()
        folder = f"results/{place.name}" if place.parent.name == "results" else place.name
    else:
        folder = folder_of(manifest, run_id, "RUN")
    return shlex.quote(folder)


def _names(panels: Sequence[Panel], styles: Mapping[str, ArmStyle], folders: Sequence[str]) -> dict[str, Any]:
    """What charts and arms are called and look like, and what filters can choose."""
    return {
        "dimensions": _dimensions(panels),
        "panels": [
            {"facet": p.facet.title(), "title": p.title(), "x": p.x_label, "folder": printable(folder)}
            for p, folder in zip(panels, folders, strict=True)
        ],
        "arms": [
            {"name": printable(arm), "short": printable(short_arm(arm)), "hue": style.hue, "dash": style.dash,
             "marker": style.marker}
            for arm, style in styles.items()
        ],
    }  # fmt: skip


class Place(NamedTuple):
    """Where a record is drawn."""

    panel: int
    series: str
    x_name: str


def _places(panels: Sequence[Panel]) -> dict[int, Place]:
    """Of each record, by identity."""
    return {
        id(record): Place(i, name, panel.x_name)
        for i, panel in enumerate(panels)
        for name, record in zip(series_names(panel.records, panel.x_name), panel.records, strict=True)
    }


def _kernel(record: Record) -> str:
    """`flash (profile)`."""
    kernel = record.attention_kernel or ""
    return f"{kernel} ({record.kernel_evidence})" if kernel and record.kernel_evidence else kernel


def _heads(facet: Facet) -> str:
    if facet.model is not None:
        return "not known"
    keys = "" if facet.num_kv_heads == facet.num_heads else f" ({facet.num_kv_heads} for keys)"
    form = f", {facet.form}" if facet.form else ""
    return f"{facet.num_heads} x {facet.head_dim}{keys}{form}"


def _dimensions(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """What panels can be told apart by: each with its values and, per panel, the number of its value."""
    found = []
    of_panels: list[tuple[str, str, list[str]]] = [
        (key, label, [value(p.facet) for p in panels]) for key, label, value in _DIMENSIONS
    ]
    of_panels.insert(1, ("variant", "variant", [p.variant for p in panels]))
    for key, label, values in of_panels:
        known = unique(values)
        if len(known) > 1:
            numbers = {value: i for i, value in enumerate(known)}
            found.append(
                {"key": key, "label": label, "values": [printable(v) for v in known],
                 "panels": [numbers[value] for value in values]}
            )  # fmt: skip
    return found


def _columns(ordered: Sequence[Record], places: Mapping[int, Place]) -> dict[str, Any]:
    """Figures rounded for the screen; texts by number."""
    pool: dict[str | None, int] = {}

    def number(value: str | None) -> int:
        return pool.setdefault(value, len(pool))

    columns: dict[str, Any] = {name: [_rounded(get(r)) for r in ordered] for name, get, _ in _FIGURES}
    columns |= {name: [_rounded(get(r)) for r in ordered] for name, get in _BESIDE}
    columns["x"] = [x_of(r, places[id(r)].x_name) for r in ordered]
    columns["case"] = [r.case_id for r in ordered]
    columns["base"] = [int(r.arm == r.baseline_arm) for r in ordered]
    columns["fastest"] = [int(r.fastest or False) for r in ordered]
    for name, get_text in _TEXTS:
        columns[name] = [number(get_text(r)) for r in ordered]
    columns["empty"] = {
        name: [[i, number(_why_empty(r, column))] for i, r in enumerate(ordered) if columns[name][i] is None]
        for name, _, column in _FIGURES
    }
    return columns | {"texts": [printable(text or "") for text in pool]}


def _rounded(value: float | None) -> float | None:
    """The figure with DIGITS digits; None where an axis cannot show it."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, int):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _why_empty(record: Record, column: str) -> str:
    if record.status != "ok":
        return record.reason or record.status
    return record.empty_reasons.get(column, "not measured")
