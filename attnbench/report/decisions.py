"""What the records say together, as sections of the page: laws over T, crossovers, longest T, bounds, errors."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnbench.analysis.arm_laws import WHOLE_MATRIX, ArmLaws, arm_laws
from attnbench.analysis.bounds import Bound, bounds
from attnbench.analysis.choice import Limits, advise
from attnbench.analysis.crossovers import Crossing, Pair, Rounds, pairs
from attnbench.analysis.frontier import Frontier, frontiers
from attnbench.analysis.groups import Panel
from attnbench.analysis.laws import Estimate, Law
from attnbench.analysis.rounds import block_medians
from attnbench.report.advise_text import advice_section
from attnbench.report.error_text import error_section
from attnbench.report.rounds import Sources, samples_folder
from attnbench.report.sections import Section, Table
from attnbench.report.stress_text import stress_section
from attnbench.report.text import fmt_bytes, fmt_count, fmt_list, fmt_number, fmt_percent, fmt_ratio

MAX_PANELS = 12  # the report shows the charts with the most rows; open_run(...).laws() has all
BUDGETS = (1 << 30, 8 << 30, 64 << 30)
ROUGH = 0.1  # a misfit from which the law is called rough
HALF = 0.5


def decisions(
    panels: Sequence[Panel], manifest: Mapping[str, Any], rounds: Rounds, budgets: Sequence[int] = ()
) -> list[Section]:
    """The sections, in the order in which people ask; none where there is nothing to say.

    Args:
        panels: of the report.
        manifest: of the run; every key may be missing.
        rounds: block medians of the cases.
        budgets: memory budgets in bytes; none: that of the sweep, else 1, 8 and 64 GiB.
    """
    shown = [panel for panel in panels if panel.has_x][:MAX_PANELS]
    attention = [panel for panel in shown if panel.facet.model is None]
    floor = manifest.get("noise_floor")
    laws = {panel.number: arm_laws(panel, floor) for panel in shown}
    hidden = sum(panel.has_x for panel in panels) - MAX_PANELS
    left_out = [f"{fmt_count(hidden, 'more chart')} not shown here."] * (hidden > 0)
    given = (manifest.get("sweep") or {}).get("memory_budget_bytes")
    budgets = budgets or ((given,) if given else BUDGETS)
    bandwidth = (manifest.get("machine_bandwidth") or {}).get("gbytes_per_s")
    several = len({panel.facet for panel in shown}) > 1
    sections = [
        advice_section(advise(attention, None, Limits(), floor, rounds, laws), Limits(), {}, has_workload=False),
        _crossovers_section(shown, floor, rounds, manifest, several),
        _laws_section(shown, laws, several),
        _frontier_section(shown, laws, manifest, budgets, several),
        _bounds_section(attention, laws, bandwidth, manifest, several),
        error_section(shown, lambda panel: panel_name(panel, several)),
        stress_section(shown, lambda panel: panel_name(panel, several)),
    ]
    return [
        Section(id=s.id, title=s.title, intro=s.intro, lines=[*s.lines, *left_out], tables=s.tables)
        for s in sections
        if s.lines or s.tables
    ]


def read_rounds(
    sources: Sources, panels: Sequence[Panel], *, most: int | None = MAX_PANELS
) -> tuple[Rounds, list[str]]:
    """Block medians of the problems of these panels (the first `most`), and what could not be read."""
    records = [r for panel in panels[:most] for r in panel.records if r.sample_count]
    found: dict[tuple[str, str], dict[int, float]] = {}
    problems: list[str] = []
    for run_id in dict.fromkeys(r.run_id for r in records):
        wanted = [r.problem_id for r in records if r.run_id == run_id]
        try:
            medians, unread = block_medians(samples_folder(sources, run_id), run_id, wanted)
        except ImportError as err:
            return {}, [f"{err.name} is not installed: crossovers use the intervals of records; pip install {err.name}"]
        found |= medians
        problems += unread
    return found, problems


def panel_name(panel: Panel, several: bool) -> str:
    """What a panel is called beside others."""
    return f"{panel.facet.title()}: {panel.title()}" if several else panel.title()


def _crossovers_section(
    panels: Sequence[Panel], floor: float | None, rounds: Rounds, manifest: Mapping[str, Any], several: bool
) -> Section:
    lines: list[str] = []
    tables: list[Table] = []
    for panel in panels:
        found = [pair for pair in pairs(panel, floor, rounds) if pair.differences]
        name = panel_name(panel, several)
        crossings = [sentence for pair in found for sentence in crossing_sentences(pair, panel.x_label)]
        lines += [f"{name}: {sentence}" for sentence in crossings or ["no crossing is shown."]] if found else []
        if found:
            head = ("A", "B", *(f"{panel.x_label} = {x}" for x in panel.xs))
            rows = [[pair.first, pair.second, *_order_cells(pair, panel.xs)] for pair in found]
            caption = f"{name}: is A or B faster, and by how much"
            tables.append(Table(caption=caption, head=head, rows=rows, panel=panel.number - 1))
    intro = (
        "Between arms that are among the fastest somewhere, and the baseline. A crossing is claimed only between two "
        "lengths with opposite order, each beyond what equal code would differ by at any of the lengths (more than "
        "one length needs to be called faster); its interval is at 95 %. ? means that no difference can be shown."
    )
    if refined := manifest.get("refined"):
        places = fmt_list([f"{p['variant']} T = {p['q_len']}" for p in refined], 12)
        lines.append(f"Lengths that --refine added: {places}; it ended because {manifest.get('refine_stopped_by')}.")
    return Section(id="crossovers", title="Who overtakes whom", intro=intro, lines=lines, tables=tables)


def crossing_sentences(pair: Pair, x_label: str) -> Iterator[str]:
    """`B overtakes A at T = 700 (95 % CI 610 to 790); no difference can be shown at T = 512.`, one per crossing."""
    for crossing in pair.crossings:
        unknown = fmt_list([f"{x:,}" for x in pair.undecided], 8) if crossing is pair.crossings[-1] else ""
        rest = f"; no difference can be shown at {x_label} = {unknown}." if unknown else "."
        yield _crossing_words(crossing, x_label) + rest


def _crossing_words(crossing: Crossing, x_label: str) -> str:
    low, mid, high = (fmt_number(round(v)) for v in crossing.at)
    if crossing.by == "law":
        return f"{crossing.after} overtakes {crossing.before} at {x_label} = {mid} (95 % CI {low} to {high})"
    return f"{crossing.after} overtakes {crossing.before} between {x_label} = {low} and {high}"


def _order_cells(pair: Pair, xs: Sequence[int]) -> Iterator[str]:
    """Per x the faster of two arms and by how much; ? where neither is shown to be."""
    by_x = {d.x: d for d in pair.differences}
    for x in xs:
        d = by_x.get(x)
        if d is None or d.sign == 0:
            yield "" if d is None else "?"
        else:
            yield f"{'A' if d.sign < 0 else 'B'} {fmt_ratio(math.exp(abs(d.mid)))}"


def _laws_section(panels: Sequence[Panel], laws: Mapping[int, Mapping[str, ArmLaws]], several: bool) -> Section:
    tables = []
    for panel in panels:
        rows = [_law_row(arm, found, panel.x_label) for arm, found in laws[panel.number].items()]
        if any(found.latency or found.memory for found in laws[panel.number].values()):
            x = panel.x_label
            head = [
                "arm",
                "fixed ms",
                f"ms per 1,000 {x}",
                f"ms per (1,000 {x})²",
                "misfit",
                "score matrices",
                "in words",
            ]
            if panel.facet.model is not None:  # whose scores nobody counts
                head, rows = [head[:5] + head[6:], [row[:5] + row[6:] for row in rows]]
            tables.append(Table(caption=panel_name(panel, several), head=head, rows=rows, panel=panel.number - 1))
    intro = (
        "Latency and peak memory as fixed + linear T + quadratic T², fitted to all lengths, with 95 % intervals: from "
        "the rounds, from how far two workers differ, and from how far the points lie from the law (misfit). A law "
        "says nothing outside the lengths that were measured."
    )
    return Section(id="laws", title="Laws over T", intro=intro, tables=tables)


def _law_row(arm: str, found: ArmLaws, x_label: str) -> list[str]:
    law = found.latency
    if law is None:
        cells = ["", "", "", ""]
    else:
        scaled = ((law.fixed, 1.0), (law.linear, 1e3), (law.quadratic, 1e6))
        cells = [_with_interval(estimate, scale) for estimate, scale in scaled]
        cells.append(fmt_percent(law.misfit) if law.misfit else "none shown")
    matrices = _with_interval(found.matrices, 1.0) if found.matrices is not None else ""
    return [arm, *cells, matrices, law_words(found, x_label)]


def _with_interval(estimate: Estimate, scale: float) -> str:
    low, mid, high = (fmt_number(v * scale, 2) for v in estimate)
    return f"{mid} ({low} to {high})"


def law_words(found: ArmLaws, x_label: str) -> str:
    """What the two laws mean, in a few words."""
    words = latency_words(found, x_label) + memory_words(found)
    return "; ".join(words)


def latency_words(found: ArmLaws, x_label: str) -> list[str]:
    """Which part of the latency dominates where."""
    law = found.latency
    if law is None:
        return [f"no law of latency: {found.latency_reason}"]
    words = _form_words(law, "latency", x_label)
    if not law.holds:
        return words  # nothing is said of parts that are not of its form
    fixed_until = _last(law, 0) if law.fixed.low > 0.0 else None
    if fixed_until is not None:
        words.append(f"below {x_label} = {fmt_number(fixed_until)} the fixed cost dominates")
    quadratic_from = _first(law, 2) if law.quadratic.low > 0.0 else None
    if quadratic_from is not None:
        words.append(f"above {x_label} = {fmt_number(quadratic_from)} the quadratic part dominates")
    return words


def memory_words(found: ArmLaws) -> list[str]:
    """Whether scores are materialised, and how many matrices live at once."""
    if found.memory is None:
        return [f"no law of memory: {found.memory_reason}"]
    words = _form_words(found.memory, "memory", "T")
    matrices = found.matrices
    if matrices is None:
        return words
    if matrices.high < WHOLE_MATRIX:
        words.append("linear memory: scores are not materialised")
    elif matrices.low > WHOLE_MATRIX:
        words.append(f"{matrices.mid:.1f} score matrices live at once")
    else:
        words.append("whether scores are materialised is not decided")
    return words


def _form_words(law: Law, what: str, x_label: str) -> list[str]:
    words = []
    if not law.holds:
        words.append(f"{what} has another form")
    elif law.misfit > ROUGH:
        words.append(f"{what} follows the law only roughly ({fmt_percent(law.misfit)})")
    if law.left_out is not None:
        off = law.residuals[law.xs.index(law.left_out)]
        side = "above" if off > 0 else "below"
        words.append(f"{what} at {x_label} = {law.left_out} is {fmt_percent(abs(off))} {side} the law and was left out")
    return words


def _last(law: Law, part: int) -> float | None:
    """The largest x within the range below which a part is more than half; None where it never is."""
    if law.shares(law.x_min)[part] <= HALF:
        return None
    low, high = float(law.x_min), float(law.x_max)
    if law.shares(high)[part] > HALF:
        return high
    return _bisect(law, part, low, high)


def _first(law: Law, part: int) -> float | None:
    """The smallest x within the range above which a part is more than half; None where it never is."""
    low, high = float(law.x_min), float(law.x_max)
    if law.shares(high)[part] <= HALF or law.shares(low)[part] > HALF:
        return None if law.shares(high)[part] <= HALF else low
    return _bisect(law, part, low, high)


def _bisect(law: Law, part: int, low: float, high: float) -> float:
    """Where a part's share passes a half, to one token."""
    starts_above = law.shares(low)[part] > HALF
    while high - low > 1.0:
        middle = (low + high) / 2.0
        low, high = (middle, high) if (law.shares(middle)[part] > HALF) == starts_above else (low, middle)
    return float(round(low))


def _frontier_section(
    panels: Sequence[Panel],
    laws: Mapping[int, Mapping[str, ArmLaws]],
    manifest: Mapping[str, Any],
    budgets: Sequence[int],
    several: bool,
) -> Section:
    tables = []
    for panel in panels:
        found = laws[panel.number]
        if not any(arm.memory for arm in found.values()):
            continue
        columns = [frontiers(panel, dict(found), budget) for budget in budgets]
        rows = [[arm, *(frontier_cell(column[i]) for column in columns)] for i, arm in enumerate(panel.arms)]
        head = ("arm", *(f"{fmt_bytes(budget)}" for budget in budgets))
        tables.append(Table(caption=panel_name(panel, several), head=head, rows=rows, panel=panel.number - 1))
    lines = [frontier_line(row) for row in manifest.get("frontier") or []]
    intro = (
        "The longest T whose peak, above the loaded and bound model, fits the budget: by the law of memory, with its "
        "95 % interval. * lies beyond the lengths that were measured, where the law is an extrapolation."
    )
    return Section(id="longest", title="Longest T that fits", intro=intro, lines=lines, tables=tables)


def frontier_cell(frontier: Frontier) -> str:
    """`46,000* (45,000 to 47,000)`."""
    if frontier.at is None:
        return f"no law: {frontier.reason}"
    low, mid, high = (_length(v) for v in frontier.at)
    interval = f"{low} to {high}"
    if math.isinf(frontier.at.high):
        interval = low if math.isinf(frontier.at.low) else f"{low} or more"
    cell = f"{mid}{'*' if frontier.is_extrapolated else ''} ({interval})"
    if frontier.fails is not None and frontier.fails <= frontier.at.mid:
        return f"{cell}; but T = {frontier.fails:,} does not fit"
    if frontier.fits is not None and frontier.fits > frontier.at.mid:
        return f"{cell}; but T = {frontier.fits:,} fits"
    return cell


def _length(x: float) -> str:
    """Three significant digits, rounded down: a T that is said to fit should."""
    if math.isinf(x):
        return "over 10\u2079"
    step = 10 ** max(0, math.floor(math.log10(max(1.0, x))) - 2)
    return f"{math.floor(x / step) * step:,}"


def frontier_line(row: Mapping[str, Any]) -> str:
    """One measured frontier of the manifest, as a sentence."""
    of_device = " of device memory" if row.get("memory") == "device" else ""
    where = f"{row['arm']}, {row['problem']}: measured, {fmt_bytes(row['budget_bytes'])}{of_device}"
    if row.get("fits") is None:
        return f"{where} do not suffice for T = {row.get('fails')} ({row['reason']})."
    beyond = f"; {row['fails']:,} does not ({row['reason']})" if row.get("fails") else f"; {row['reason']}"
    return f"{where} suffice for T = {row['fits']:,}{beyond}."


def _bounds_section(
    panels: Sequence[Panel],
    laws: Mapping[int, Mapping[str, ArmLaws]],
    bandwidth: float | None,
    manifest: Mapping[str, Any],
    several: bool,
) -> Section:
    tables = []
    for panel in panels:
        found = {(b.arm, b.x): b for b in bounds(panel, laws[panel.number], bandwidth)}
        if not found:
            continue
        rows = [[arm, *(_bound_cell(found.get((arm, x))) for x in panel.xs)] for arm in panel.arms]
        intensity = [next((b.flops_per_byte for b in found.values() if b.x == x), None) for x in panel.xs]
        rows.append(["FLOPs per least byte", *(fmt_number(value) for value in intensity)])
        head = ("arm", *(f"{panel.x_label} = {x}" for x in panel.xs))
        tables.append(Table(caption=panel_name(panel, several), head=head, rows=rows, panel=panel.number - 1))
    return Section(id="bounds", title="What bounds an arm", intro=_bounds_intro(manifest, bandwidth), tables=tables)


def _bound_cell(bound: Bound | None) -> str:
    if bound is None:
        return ""
    part = {"arithmetic": bound.arithmetic, "memory": bound.memory, "overhead": bound.overhead}.get(bound.by)
    if part is not None:
        return f"{bound.by} {fmt_percent(part)}"
    return f"none (arithmetic {fmt_percent(bound.arithmetic)})" if bound.arithmetic is not None else "not known"


def _bounds_intro(manifest: Mapping[str, Any], bandwidth: float | None) -> str:
    peaks = [
        f"{dtype} {fmt_number(peak.get('gflops_per_s'))} GFLOP/s ({peak.get('by', 'unknown')})"
        for dtype, peak in (manifest.get("machine_peak") or {}).items()
    ]
    text = f"Measured here: {fmt_list(peaks)}" if peaks else "The machine's peak was not measured"
    if bandwidth is None:
        text += "; memory bandwidth was not measured in this run, so nothing is called bound by memory"
    else:
        text += f"; copying {fmt_number(bandwidth)} GB/s"
    return text + (
        ". An arm is bound by what it uses to at least a half: the peak (arithmetic), the bandwidth by its least "
        "traffic (memory), or the fixed cost's share of its latency (overhead); none: its own code is the limit."
    )
