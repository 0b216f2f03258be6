"""report.html: one file that opens offline, in the order in which people ask."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.analysis.groups import Facet, Panel, latency_ms, peak_bytes
from attnbench.records import COMPILES_ONLY, FAILED, Record
from attnbench.report import advice, findings, text
from attnbench.report.figures import inline_svg, palette_css
from attnbench.report.judged import how_judged, words_for
from attnbench.report.merged import run_names, runs_of
from attnbench.report.page_data import Explorer
from attnbench.report.pictures import SECTIONS, Pictures, styles_for
from attnbench.report.sections import Section

HERE = Path(__file__).parent
MAX_TABLE_ROWS = 10_000
MAX_LIST_ROWS = 60
MAX_FACT_ROWS = 120
OPEN_FACETS = 3  # the others fold away

SCRIPTS = (
    "report",
    "swatch",
    "filter",
    "chart",
    "points",
    "legend",
    "panel",
    "explorer",
    "detail",
    "start",
)  # in this order
_SECTION_NAMES = (
    ("machine", "Machine"), ("wrong", "Wrong"), ("not-run", "Not run"), ("latency", "Latency"), ("memory", "Memory"),
    ("heat", "Speed-up"), ("cold", "Cold start"), ("ship", "Ship"), ("error", "Error"), ("roofline", "Peak"),
    ("table", "All cases"), ("ran", "What ran"), ("rounds", "Rounds"), ("environment", "Environment"),
)  # fmt: skip
_VERDICT_MARKS = {"faster": "▲ faster", "slower": "▼ slower", "same": "= same", "ambiguous": "? ambiguous"}
_TABLE_HEAD = (
    "arm", "part", "variant", "dtype", "batch", "heads", "q_len", "kv_len", "status", "ms", "interval", "speed-up",
    "verdict", "peak memory", "worst row error", "allowed", "kernel", "flags", "reason", "case",
)  # fmt: skip
_MODEL_HEAD = (*_TABLE_HEAD[:4], "sizes", *_TABLE_HEAD[8:])  # without batch, heads, q_len and kv_len


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """One cell of arm x T: what is written and how it is coloured."""

    css: str
    main: str
    latency: str = ""
    kernel: str = ""
    hint: str = ""


def render(
    run_name: str, records: Sequence[Record], manifest: Mapping[str, Any], panels: Sequence[Panel], pictures: Pictures,
    said: Sequence[str], decisions: Sequence[Section] = (), explorer: Explorer | None = None,
) -> str:  # fmt: skip
    """The page as text. Everything from the run is escaped; the same records give the same page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(text=text, figures=findings.figures)
    context = _context(run_name, records, manifest, panels, pictures, said)
    drawn = [replace(s, svg=_Raw(s.svg)) for s in decisions]
    context |= {"decisions": drawn, "explorer": explorer and _embedded(explorer)}
    return environment.get_template("report.html.j2").render(context)


def _context(
    run_name: str, records: Sequence[Record], manifest: Mapping[str, Any], panels: Sequence[Panel], pictures: Pictures,
    said: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """What the template shows, by name."""
    troubles = findings.did_not_run(panels, manifest, text.printable(run_name))
    wrong = findings.wrong_answers(panels)
    names = run_names(manifest)
    is_model = any(r.model is not None for r in records)
    hidden, words = _hidden(panels), words_for(records)
    return {
        "run_name": text.printable(run_name),
        "manifest": manifest,
        "records": records,
        "said": text.unique([*(manifest.get("notices") or []), *said]),
        "progress": findings.progress_note(records, manifest, text.printable(run_name)),
        "facets": _by_facet(panels),
        "open_facets": OPEN_FACETS,
        "headline": findings.headline,
        "trust": findings.trust_line(records, manifest),
        "machine": findings.machine_facts(manifest),
        "wrong": wrong[:MAX_LIST_ROWS],
        "wrong_count": len(wrong),
        "troubles": troubles[:MAX_LIST_ROWS],
        "trouble_count": len(troubles),
        "failed": FAILED,
        "is_model": is_model,
        "has_onnx_names": any(r.arm.startswith("onnx-") for r in records),
        "words": words,
        "how_judged": how_judged(records),
        "pictures": {section: list(_pictures(pictures, section)) for section in SECTIONS},
        "left_out": pictures.left_out,
        "heat_cell": heat_cell,
        "cold_starts": advice.cold_starts,
        "cold_ms": advice.cold_ms,
        "what_to_ship": advice.what_to_ship,
        "not_proved": advice.not_proved(records, manifest),
        "share_note": advice.share_note(panels),
        "table_head": (*(_MODEL_HEAD if is_model else _TABLE_HEAD), *(["run"] if names else [])),
        "table": [
            _table_row(r, is_model=is_model) + ([names[r.run_id]] if names else [])
            for r in by_interest(records)[:MAX_TABLE_ROWS]
        ],
        "ran": list(_what_ran(records))[:MAX_FACT_ROWS],
        "environment": list(_flat(_environment(manifest))),
        "palettes": palette_css(),
        "sections": [
            (id, words.wrong_link if id == "wrong" else name) for id, name in _SECTION_NAMES if id not in hidden
        ],
        "hidden": hidden,
        "arm_numbers": {arm: i for i, arm in enumerate(styles_for(panels))},
        "css": _Raw((HERE / "report.css").read_text(encoding="utf-8")),
    }


def _hidden(panels: Sequence[Panel]) -> set[str]:
    """Sections that these charts cannot have: against T where there is none, of the peak where no FLOPs are known."""
    found = {"roofline"} if panels and all(panel.facet.model is not None for panel in panels) else set()
    return found | ({"latency", "memory", "error"} if panels and not any(panel.has_x for panel in panels) else set())


def _embedded(explorer: Explorer) -> dict[str, "_Raw"]:
    """The packed parts, which are safe inside a script element, and the scripts that read them."""
    parts = {name: _Raw(getattr(explorer, name)) for name in ("meta", "data", "samples", "plotly")}
    return parts | {"js": _Raw("".join((HERE / "scripts" / f"{n}.js").read_text(encoding="utf-8") for n in SCRIPTS))}


class _Raw(str):
    """Text of our own that the template must not escape."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def _by_facet(panels: Sequence[Panel]) -> list[tuple[Facet, list[Panel]]]:
    groups: dict[Facet, list[Panel]] = defaultdict(list)
    for panel in panels:
        groups[panel.facet].append(panel)
    return list(groups.items())


def _pictures(pictures: Pictures, section: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(facet title, its pictures) in order."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for picture in pictures.of(section):
        groups[picture.panel.facet.title()].append(
            {
                "name": picture.name,
                "panel": picture.panel.number - 1,
                "alt": picture.alt,
                "svg": _Raw(inline_svg(picture.svg, picture.alt)),
            }
        )
    yield from groups.items()


def heat_cell(record: Record | None) -> HeatCell:
    """Speed-up, verdict and kernel; a status where there is no figure; never a ratio where there was none."""
    if record is None:
        return HeatCell(css="none", main="no record")
    latency = latency_ms(record)
    if latency is None:
        word = record.status if record.status != "ok" else "no latency"
        return HeatCell(css="bad" if record.status in FAILED else "none", main=f"✕ {word}", hint=record.reason)
    star = "★ " if record.fastest else ""
    kernel = record.attention_kernel or "unknown"
    if record.arm == record.baseline_arm:
        return HeatCell(css="base", main=f"{star}baseline", latency=text.fmt_ms(latency), kernel=kernel)
    if record.speedup_vs_baseline is None:
        why = record.empty_reasons.get("speedup_vs_baseline", "no ratio to the baseline here")
        return HeatCell(css="none", main=f"{star}no ratio", latency=text.fmt_ms(latency), kernel=kernel, hint=why)
    mark = _VERDICT_MARKS.get(record.verdict or "", "no verdict")
    hint = f"speed-up {text.fmt_interval(record.speedup_ci_low, record.speedup_ci_high)}"
    if record.flags:
        hint += f"; flags: {', '.join(record.flags)}"
    return HeatCell(
        css=_heat_class(record), main=f"{star}{text.fmt_ratio(record.speedup_vs_baseline)} {mark}",
        latency=text.fmt_ms(latency), kernel=kernel, hint=hint,
    )  # fmt: skip


def _heat_class(record: Record) -> str:
    """Colour by verdict, depth by ratio: f1..f3 faster, s1..s3 slower."""
    ratio = record.speedup_vs_baseline or 1.0
    if record.verdict not in ("faster", "slower"):
        return "even"
    size = max(ratio, 1 / ratio) if ratio > 0 else 9.0
    return ("f" if record.verdict == "faster" else "s") + ("1" if size < 1.1 else "2" if size < 1.5 else "3")


def by_interest(records: Sequence[Record]) -> list[Record]:
    """Wrong and failed cases first, the rest as it came: what is cut off at the limit is the unremarkable.

    Last what was only compiled: it is in no chart, and the page counts the cases of its charts from the first row on.
    """
    return sorted(records, key=lambda r: (COMPILES_ONLY in r.flags, r.status not in FAILED))


def _table_row(r: Record, *, is_model: bool) -> list[str]:
    number = text.fmt_number
    sizes = [_model_sizes(r)] if is_model else _sizes(r)
    return [
        r.arm, r.part, r.model or r.variant, r.dtype, *sizes, r.status, number(r.latency_ms_median),
        text.fmt_interval(r.latency_ms_ci_low, r.latency_ms_ci_high), text.fmt_ratio(r.speedup_vs_baseline),
        r.verdict or "", text.fmt_bytes(peak_bytes(r)), text.fmt_error(r.worst_row_rel_err),
        text.fmt_error(r.worst_row_limit), r.attention_kernel or "", ", ".join(r.flags), r.reason,
        r.case_id,
    ]  # fmt: skip


def _sizes(r: Record) -> tuple[str, ...]:
    """Batch, heads, q_len and kv_len."""
    return (str(r.batch_size), f"{r.num_heads} x {r.head_dim}", str(r.q_len), str(r.kv_len))


def _model_sizes(r: Record) -> str:
    """Of a page with models; rows of the built-in attention may stand beside them in a merged one."""
    if r.model is None:
        return f"batch={r.batch_size}, heads={r.num_heads}x{r.head_dim}, q_len={r.q_len}, kv_len={r.kv_len}"
    return ", ".join(f"{dim}={size}" for dim, size in r.sizes.items())


def _what_ran(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """What the runtimes told of themselves, one row for all cases with the same facts."""
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for r in records:
        if r.facts or r.runtime_version:
            told = (r.runtime_version, r.device, r.device_name, r.threads, r.compute_precision)
            kernel = (r.attention_kernel or "unknown") + (f" ({r.kernel_evidence})" if r.kernel_evidence else "")
            facts = json.dumps(r.facts, sort_keys=True, ensure_ascii=False)
            groups[(r.arm, *("" if v is None else str(v) for v in told), kernel, facts)].append(r)
    for (*cells, facts), members in groups.items():
        variants = text.fmt_list(text.unique(r.model or r.variant for r in members))
        lengths = [r.q_len for r in members if r.q_len is not None]
        where = f"{variants}, {members[0].bound or 'T'} = {findings.span(lengths)}" if lengths else variants
        yield {"cells": cells, "where": where, "facts": list(_flat(json.loads(facts)))}


def _environment(manifest: Mapping[str, Any]) -> dict[str, Any]:
    if runs := runs_of(manifest):
        return {run.name: _environment(run.manifest) for run in runs}
    names = ["environment", "versions", "machine_peak", "runtimes", "sweep", "plan", "seed", "time_budget_s", "run_id"]
    names += ["gpu_workers"] * bool(manifest.get("gpu_workers"))  # nothing on the CPU
    return {name: manifest[name] for name in names if name in manifest}


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as dotted names and one-line values."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, "not known" if value is None else findings.flat_text(value)
