"""Cold start, what to ship, and what the run does not prove."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.groups import Panel, attention_share, latency_ms, peak_bytes, x_of
from attnbench.records import Record, known_size
from attnbench.report.judged import how_judged, words_for, words_of
from attnbench.report.text import fmt_bytes, fmt_count, fmt_list, fmt_percent, unique


@dataclass(frozen=True, kw_only=True)
class ColdStart:
    """What one arm costs before its first steady call, at the longest x where it is right."""

    arm: str
    x: int
    record: Record
    break_even: str


def cold_starts(panel: Panel) -> list[ColdStart]:
    """A row per arm that is right somewhere."""
    rows = []
    for arm in panel.arms:
        right = [(x, r) for x, r in zip(panel.xs, panel.row(arm), strict=True) if r is not None and latency_ms(r)]
        if right:
            x, record = right[-1]
            baseline = panel.cells.get((str(record.baseline_arm), x))
            rows.append(ColdStart(arm=arm, x=x, record=record, break_even=break_even(record, baseline)))
    return rows


def cold_ms(record: Record) -> float | None:
    """Load plus first call; building an engine is inside load, exporting is done once elsewhere."""
    if record.load_ms is None or record.first_call_ms is None:
        return None
    return record.load_ms + record.first_call_ms


def break_even(record: Record, baseline: Record | None) -> str:
    """How many calls until the arm, started cold, is ahead of the baseline, started cold."""
    if baseline is None or record.arm == baseline.arm:
        return "is the baseline" if baseline is not None else "no baseline here"
    mine, theirs = latency_ms(record), latency_ms(baseline)
    my_cold, their_cold = cold_ms(record), cold_ms(baseline)
    if mine is None or theirs is None or my_cold is None or their_cold is None:
        return "not measured"
    if record.verdict == "faster":
        extra = my_cold - their_cold
        return "from the first call" if extra <= 0 else fmt_count(math.ceil(extra / (theirs - mine)) + 1, "call")
    if record.verdict == "slower":
        return "never: slower per call" if my_cold >= their_cold else "ahead only at first: slower per call"
    return "no difference per call" if record.verdict == "same" else "not decided: ambiguous per call"


def what_to_ship(panel: Panel) -> str:
    """One sentence: the arm to ship for this panel and the evidence, or why there is none."""
    candidates = [arm for arm in panel.arms if any(r is not None and latency_ms(r) for r in panel.row(arm))]
    if not candidates:
        return f"nothing: no arm {words_of(panel.judge).ran}."
    arm = min(candidates, key=lambda name: _preference(panel, name))
    rows = [r for r in panel.row(arm) if r is not None and latency_ms(r)]
    fastest = sum(bool(r.fastest) for r in rows)
    sentence = f"{arm}: {_held(panel, rows)}"
    ranked = any(r.fastest is not None for r in panel.records)
    sentence += f", among the fastest at {fastest}" if ranked else ", arms were not ranked"
    peak = peak_bytes(rows[-1])
    if peak is not None:
        sentence += f", peak memory {fmt_bytes(peak)} at {panel.at(x_of(rows[-1], panel.x_name))}"
    note = _file_note(rows[-1])
    return sentence + (note.replace("artifacts/", f"artifacts/ of {panel.facet.run}") if panel.facet.run else note)


def _held(panel: Panel, rows: Sequence[Record]) -> str:
    """`right at 5 of 6 T values`."""
    is_judge = rows[0].arm == panel.judge
    word = "what the others are compared with, it ran" if is_judge else words_of(panel.judge).holds
    if not panel.has_x:
        return f"{word} at {panel.at(panel.xs[0])}"
    return f"{word} at {len(rows)} of {fmt_count(len(panel.xs), panel.x_label + ' value')}"


def _preference(panel: Panel, arm: str) -> tuple[float, ...]:
    """Right at most T first, then fastest at most T, then nearest to the fastest, then the smaller peak."""
    rows = [r for r in panel.row(arm) if r is not None and latency_ms(r)]
    ratios = [math.log(r.ratio_to_fastest) for r in rows if r.ratio_to_fastest]
    mean_ratio = sum(ratios) / len(ratios) if ratios else math.inf
    return (-len(rows), -sum(bool(r.fastest) for r in rows), round(mean_ratio, 3), peak_bytes(rows[-1]) or math.inf)


def _file_note(record: Record) -> str:
    if record.artifact_sha256 is None:
        return ". No file to ship: it runs the PyTorch module." if record.exporter == "torch" else "."
    size = f", {fmt_bytes(record.artifact_bytes)}" if record.artifact_bytes else ""
    verified = f"; verified by {record.artifact_verified}" if record.artifact_verified else "; not verified"
    if record.artifact_verified and record.artifact_verified.startswith("unverified"):
        verified = f"; {record.artifact_verified}"
    return f". File in artifacts/: opset {record.opset}, sha256 {record.artifact_sha256[:12]}{size}{verified}."


def not_proved(records: Sequence[Record], manifest: Mapping[str, Any]) -> list[str]:
    """What a reader might take from the run and must not."""
    right = [r for r in records if latency_ms(r)]
    if not right:
        ran = words_for(records).ran
        return [f"Nothing: no case {ran}, so no statement about speed or memory is proved."]
    is_model = any(r.model is not None for r in right)
    sizes = _model_sizes(right) if is_model else _sizes(right)
    limits = [sizes, _devices(right, manifest), *([how_judged(right)] if is_model else []), _correctness(right)]
    limits.append(
        "Load: one caller on a quiet machine. Throughput with several callers, energy and tail latency under load "
        "were not measured."
    )
    limits.append(
        "Values: one set of inputs; others may be slower, or differ by more."
        if is_model
        else "Values: seeded random inputs and weights of two kinds (logits of spread 1 and 4), without the rest of a "
        "model."
    )
    ambiguous = sum(r.verdict == "ambiguous" for r in right)
    if ambiguous:
        limits.append(
            f"Order: {fmt_count(ambiguous, 'case')} of {len(right)} may be faster or slower than the baseline; "
            "a longer run (--time-budget) can decide."
        )
    unknown = unique(r.arm for r in right if r.model is None and r.attention_kernel in (None, "unknown"))
    if unknown:
        limits.append(f"Kernel: which attention kernel ran is unknown for {fmt_list(unknown)}.")
    return [text for text in limits if text]


def _sizes(right: Sequence[Record]) -> str:
    lengths = [known_size(r.q_len) for r in right]
    shapes = unique(f"{r.num_heads} x {r.head_dim}" for r in right)
    batches = unique(str(b) for b in sorted({known_size(r.batch_size) for r in right}))
    outside = f"T below {min(lengths)} or above {max(lengths)}"
    if len(set(lengths)) == 1:
        outside = f"T other than {lengths[0]}"
    return (
        f"Sizes: {outside}, batch sizes other than {fmt_list(batches)}, "
        f"heads other than {fmt_list(shapes)}, dtypes other than {fmt_list(unique(r.dtype for r in right))}."
    )


def _model_sizes(right: Sequence[Record]) -> str:
    seen: dict[str, set[int]] = {}
    for r in right:
        for dim, size in r.sizes.items():
            seen.setdefault(dim, set()).add(size)
    tried = [f"{dim} = {fmt_list([str(size) for size in sorted(sizes)], 8)}" for dim, sizes in seen.items()]
    return f"Sizes: any other than {'; '.join(tried)}." if tried else ""


def _devices(right: Sequence[Record], manifest: Mapping[str, Any]) -> str:
    devices = unique(r.device or "unknown" for r in right)
    threads = unique(str(r.threads) for r in right if r.threads is not None) or [
        str(manifest.get("threads", "unknown"))
    ]
    these = "these" if manifest.get("merged") else "this one"
    text = f"Machines: any other than {these}; threads other than {fmt_list(threads)}."
    return text + (" Nothing ran on a GPU." if all(d.startswith("cpu") for d in devices) else "")


def _correctness(right: Sequence[Record]) -> str:
    sampled = [r for r in right if r.error_rows and r.output_rows and r.error_rows < r.output_rows]
    unverified = unique(r.arm for r in right if (r.artifact_verified or "").startswith("unverified"))
    parts = []
    if sampled:
        least = min((r.error_rows or 0) / (r.output_rows or 1) for r in sampled)
        parts.append(
            f"in {fmt_count(len(sampled), 'case')} only sampled rows were compared with float64 (at least "
            f"{fmt_percent(least)} of the rows)"
        )
    if unverified:
        parts.append(f"the files of {fmt_list(unverified)} were not verified at other T")
    return f"Correctness: {'; '.join(parts)}." if parts else ""


def share_note(panels: Sequence[Panel]) -> str:
    """Where the block compares GEMM libraries: attention's share of the FLOPs at short, middle and long T."""
    blocks = [p for p in panels if p.facet.part == "block"]
    if not blocks:
        return ""
    panel = next((p for p in blocks if p.variant == "self"), blocks[0])
    by_x = {getattr(r, panel.x_name): r for r in panel.records}
    shares = [f"{fmt_percent(attention_share(by_x[x]))} at {panel.x_label} = {x}" for x in panel.xs]
    width = known_size(panel.records[0].embed_dim)
    half = {"self": 2 * width, "causal": 4 * width}.get(panel.variant)
    crossing = f" It is half at T = {half:,}: well below that the block compares GEMM libraries." if half else ""
    return (
        f"In the block ({panel.title()}, embed_dim {width}) attention is {fmt_list(shares, 8)} of the FLOPs; "
        f"the rest is projections.{crossing} To compare attention alone, run with --part core."
    )
