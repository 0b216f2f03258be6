"""What was only compiled: planned device memory against T, and whether attention is fused; a section and a chart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.problem import USUAL_MASK
from attnbench.records import COMPILES_ONLY, Record
from attnbench.report.sections import Section, Table
from attnbench.report.style import GRID
from attnbench.report.text import fmt_bytes, fmt_count, printable, short_arm, unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECTION = "compiled"
PICTURE = "planned-memory"
_REFUSED_CHARS = 420
_WHAT_IT_IS = (
    " It is what the compiler says of device memory beside weights, inputs and outputs, and whether attention is "
    "fused, judged by how that memory grows with T."
)
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_MARKERS = "os^Dv"
_DASHES = {"fused": "-", "unfused": "--"}


@dataclass(frozen=True, kw_only=True)
class Series:
    """Rows of one arm, dtype and kind of problem, by T."""

    compiler: str  # "tensorrt-rtx 1.7.1.116 for sm89"
    name: str  # "attention@tensorrt-rtx causal fp16"
    rows: tuple[Record, ...]  # ascending T

    @property
    def planned(self) -> dict[int, int]:
        """T to planned bytes."""
        return {r.q_len or 0: r.planned_activation_bytes for r in self.rows if r.planned_activation_bytes is not None}

    @property
    def kernel(self) -> str:
        """fused, unfused, unknown; several where they differ by T."""
        return "/".join(unique(r.attention_kernel or "unknown" for r in self.rows if r.status == "compiled"))


def series_of(records: Sequence[Record]) -> list[Series]:
    """The rows of arms that only compile here, in the order of the records."""
    found: dict[tuple[str, str], list[Record]] = {}
    compilers = {r.arm: f"{r.runtime} {r.runtime_version} for {r.device}" for r in records if r.status == "compiled"}
    for r in records:
        if COMPILES_ONLY in r.flags:
            compiler = compilers.get(r.arm, f"{r.runtime} {r.runtime_version or ''}".strip())
            found.setdefault((compiler, f"{_problem_words(r)} {short_arm(r.arm)}"), []).append(r)
    return [
        Series(compiler=compiler, name=name, rows=tuple(sorted(rows, key=lambda r: r.q_len or 0)))
        for (compiler, name), rows in found.items()
    ]


def _problem_words(r: Record) -> str:
    """`causal fp16`, with what is not usual; of a model its name and the sizes that do not follow T."""
    if r.model is not None:
        sizes = [f"{printable(dim)}={size}" for dim, size in r.sizes.items() if dim != r.bound]
        return " ".join([printable(r.model), *sizes, r.dtype])
    words = [r.variant, *([r.mask] if r.mask not in (None, USUAL_MASK.get(r.variant, "none")) else []), r.dtype]
    heads = f"H={r.num_heads}/{r.num_kv_heads} D={r.head_dim} B={r.batch_size}"
    return " ".join([*([r.part] if r.part != "block" else []), *words, *([heads] if heads != "H=8/8 D=64 B=1" else [])])


def growth_words(series: Series) -> str:
    """`linear: twice the T takes 1.6 x the memory`, from what is planned at two long T; empty where it is not known."""
    for r in reversed(series.rows):
        planned = r.facts.get("planned_bytes_at")
        if planned and len(planned) == 2:
            (short, small), (long, large) = planned.items()
            law = {"fused": "linear", "unfused": "quadratic"}.get(r.attention_kernel or "", "of unknown law")
            return f"{law}: from T = {short} to {long} x {large / small:.2f}"
    return ""


def compiled_section(records: Sequence[Record]) -> Section | None:
    """Planned memory by T of every file that was only compiled; None where there is none."""
    all_series = series_of(records)
    if not all_series:
        return None
    tables = []
    for compiler in unique(s.compiler for s in all_series):
        mine = [s for s in all_series if s.compiler == compiler and s.planned]
        lengths = sorted({length for s in mine for length in s.planned})
        if mine:
            tables.append(
                Table(
                    caption=f"Planned device memory, {compiler}",
                    head=["file", "attention", *map(_at, lengths), "growth"],
                    rows=[
                        [s.name, s.kernel, *(_bytes(s.planned.get(n)) for n in lengths), growth_words(s)] for s in mine
                    ],
                )
            )
    is_asked = any(r.status != "unavailable" for s in all_series for r in s.rows)  # an engine is compiled already
    what, told = ("Compiled, not run", _WHAT_IT_IS) if is_asked else ("Not run here", "")
    return Section(
        id=SECTION,
        title=f"{what}: {', '.join(unique(s.compiler for s in all_series))}",
        intro=f"Nothing here was run or timed: there is no GPU.{told}",
        lines=[*_law_lines(all_series), *_refused(all_series)],
        tables=tables,
    )


def _at(length: int) -> str:
    """`T = 128`; a model of which no size is swept has no T."""
    return f"T = {length}" if length else "its own sizes"


def _bytes(size: int | None) -> str:
    return "" if size is None else fmt_bytes(size)


def _law_lines(all_series: Sequence[Series]) -> list[str]:
    """A sentence per dtype and kernel, from the longest T."""
    lines = []
    for compiler in unique(s.compiler for s in all_series):
        for dtype in unique(r.dtype for s in all_series for r in s.rows):
            for kernel, law in (("fused", "grows linearly"), ("unfused", "grows as the square of T")):
                mine = [
                    s
                    for s in all_series
                    if s.compiler == compiler and s.kernel == kernel and s.rows[0].dtype == dtype and s.planned
                ]
                if mine:
                    most = max(mine, key=lambda s: max(s.planned.values()))
                    length = max(most.planned)
                    grows = f"planned memory {law}, at" if length else "planned memory at"
                    lines.append(
                        f"{compiler}, {dtype}: {kernel} in {fmt_count(len(mine), 'file')}; {grows} {_at(length)} up to "
                        f"{fmt_bytes(most.planned[length])}."
                    )
    return lines


def _refused(all_series: Sequence[Series]) -> list[str]:
    """What the compiler refuses, and engines, which are compiled already; each reason once."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for s in all_series:
        for r in s.rows:
            if r.status != "compiled":
                names = by_reason.setdefault(("run" if r.status == "unavailable" else "compiled", r.reason), [])
                names += [s.name] if s.name not in names else []
    return [
        f"Not {what}: {', '.join(names)}: {reason[:_REFUSED_CHARS]}{'...' if len(reason) > _REFUSED_CHARS else ''}"
        for (what, reason), names in by_reason.items()
    ]


def terminal_lines(records: Sequence[Record]) -> list[str]:
    """The sentences of the section for the end of a bench; none where nothing was only compiled."""
    section = compiled_section(records)
    return [] if section is None else [section.title, *(f"  {line}" for line in section.lines)]


def draw(records: Sequence[Record]) -> "Figure | None":
    """Planned memory against T, fused solid and unfused dashed; None without two points. Call it inside `plotting`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    shown = [s for s in series_of(records) if len(s.planned) > 1]
    if not shown:
        return None
    figure = Figure(figsize=(6.4, 3.4 + 0.13 * max(0, len(shown) - 12)))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.11, 0.14, 0.48, 0.74))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    colors, variants = _colors(shown), unique(s.rows[0].variant for s in shown)
    for s in shown:
        axes.plot(
            list(s.planned), [size / 2**20 for size in s.planned.values()], _DASHES.get(s.kernel, ":"),
            color=colors[s.name], marker=_MARKERS[variants.index(s.rows[0].variant) % len(_MARKERS)], markersize=3.5,
            linewidth=1.3, label=f"{s.name} ({s.kernel})",
        )  # fmt: skip
    lengths = sorted({length for s in shown for length in s.planned})
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.grid(visible=True, color=GRID)
    axes.set_xlabel("T")
    axes.set_ylabel("planned device memory, MiB")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=6.2)
    figure.text(0.01, 0.985, "; ".join(unique(s.compiler for s in shown)), va="top", weight="bold", size=9)
    return figure


def _colors(shown: Sequence[Series]) -> Mapping[str, str]:
    """One hue per dtype and arm, whatever the variant."""
    keys = unique(f"{s.rows[0].dtype} {s.rows[0].arm}" for s in shown)
    return {s.name: _COLORS[keys.index(f"{s.rows[0].dtype} {s.rows[0].arm}") % len(_COLORS)] for s in shown}
