"""One row of a run in sentences: what ran, is it right and which limit decided, how fast, how sure, how much."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attnbench.analysis.groups import GIVEN, judge_of, peak_bytes
from attnbench.analysis.lookup import label_of, problem_of
from attnbench.records import Record
from attnbench.report import text
from attnbench.report.device_text import device_lines
from attnbench.report.stress_text import stress_sentence

_SCOPES = {
    "host": "wall time of a call, copies excluded", "host_with_copies": "wall time of a call, copies included",
    "device": "device events", "device_graph": "replay of a device graph",
}  # fmt: skip
_STOPPED = {
    "precision": "because the interval was narrow enough", "budget": "by the time budget", "rounds": "at the last look",
    "outlying": "because it was far from the baseline",
}  # fmt: skip
_VERDICTS = {
    "faster": "the interval lies above {above:.3f}: faster", "slower": "the interval lies below {below:.3f}: slower",
    "same": "the interval lies between {below:.3f} and {above:.3f}: the same",
    "ambiguous": "the interval reaches across a limit ({below:.3f} or {above:.3f}), so nobody wins: ambiguous",
}  # fmt: skip


class Gate(NamedTuple):
    """One thing that was measured, and what was allowed."""

    name: str
    measured: float
    allowed: float

    @property
    def used(self) -> float:
        """Share of what is allowed; infinite for what is not a number."""
        return math.inf if math.isnan(self.measured) else self.measured / self.allowed if self.allowed else math.inf


def gates(r: Record) -> list[Gate]:
    """The gates of a case that was checked, the one that decided first: nearest to its limit, or furthest beyond."""
    found = [
        Gate(name, measured, allowed)
        for name, measured, allowed in (
            ("worst row, normal inputs", r.worst_row_rel_err, r.worst_row_limit),
            ("worst row, peaked inputs", r.peaked_worst_row_rel_err, r.peaked_worst_row_limit),
            ("scale of the output", r.gain_err, r.gain_limit),
        )
        if measured is not None and allowed is not None
    ]
    return sorted(found, key=lambda gate: -gate.used)


def case_paragraphs(r: Record, manifest: Mapping[str, Any], run_name: str) -> list[tuple[str, str]]:
    """Heading and sentences, in the order in which people ask."""
    return [
        ("What ran", " ".join(_what_ran(r))), ("Status", " ".join(_status(r))),
        ("Right" if judge_of([r]) is None else "Agrees", " ".join(_right(r))),
        ("Latency", " ".join(_latency(r))), ("Verdict", " ".join(_verdict(r, manifest))),
        ("Memory", " ".join(_memory(r))), ("Empty cells", "; ".join(empty_cells(r)) or "None."),
        *([("Reproduce", f"attnbench repro {run_name} {r.case_id}")] if r.model is None else []),
    ]  # fmt: skip


def case_text(r: Record, manifest: Mapping[str, Any], run_name: str, *, width: int) -> str:
    """The paragraphs for a terminal."""
    import textwrap

    heads = f", {r.num_heads} heads of {r.head_dim}" if r.model is None else ""
    title = f"{text.printable(r.arm)}, {text.printable(label_of(r))}{heads}: case {r.case_id}"
    lines = textwrap.wrap(title, width, break_long_words=False, break_on_hyphens=False)
    for heading, words in case_paragraphs(r, manifest, text.printable(run_name)):
        filled = textwrap.fill(text.printable(words), width - 13, break_long_words=False, break_on_hyphens=False)
        lines += [f"{heading if i == 0 else '':11}  {line}" for i, line in enumerate(filled.split("\n"))]
    return "\n".join(lines)


def _what_ran(r: Record) -> Iterator[str]:
    version = f" {r.runtime_version}" if r.runtime_version else ""
    if r.exporter == "torch":
        what = "block" if r.model is None else "module"
        yield f"{r.runtime} of torch{version} ran the {what} itself, without a file."
    elif r.artifact_sha256 is None:
        yield f"{r.runtime}{version} was to take a file of {r.exporter}; there is none."
    else:
        opset = "" if r.opset is None else f", opset {r.opset}"
        kept = f"{text.fmt_bytes(r.artifact_bytes)}, sha256 {r.artifact_sha256[:12]}..."
        file = f"the {r.exporter} as it was given" if r.exporter in GIVEN else f"the file of {r.exporter}"
        yield f"{r.runtime}{version} took {file}{opset}, {kept}."
        if r.artifact_verified:
            yield f"The file itself was tried: {r.artifact_verified}."
    if r.device is None:
        yield f"Nothing was loaded: {r.reason or r.status}."
        return
    if r.status == "compiled":
        planned = text.fmt_bytes(r.planned_activation_bytes)
        yield f"Compiled for {r.device} and not run: {planned} of device memory beside weights, inputs and outputs."
        yield f"Attention kernel: {r.attention_kernel or 'unknown'}. {r.facts.get('attention', '')}".strip()
        return
    threads = "an unknown number of threads" if r.threads is None else text.fmt_count(r.threads, "thread")
    yield f"On {r.device} ({r.device_name}), {threads}, products in {r.compute_precision or 'unknown precision'}."
    yield from device_lines(r)
    if r.model is not None and r.attention_kernel in (None, "unknown"):
        return
    if r.attention_kernel in (None, "unknown"):
        yield "Which attention kernel ran is unknown: the runtime does not tell."
    else:
        yield f"Attention kernel: {r.attention_kernel}, known by {r.kernel_evidence or 'nothing that was kept'}."
    if "cache" in r.facts:
        yield f"Every step, the cache is {r.facts['cache']}."


def _status(r: Record) -> Iterator[str]:
    yield f"{r.status}: {r.reason}." if r.reason else f"{r.status}."
    if r.flags:
        yield f"Flags: {', '.join(r.flags)}."


def _right(r: Record) -> Iterator[str]:
    if r.status != "compiled" and (judge := judge_of([r])) not in (None, r.arm):
        yield f"Compared with {judge}, whose own answer was not judged."
    found = gates(r)
    if not found:
        yield f"Not checked: {r.empty_reasons.get('worst_row_rel_err') or r.reason or r.status}."
        return
    first = found[0]
    outcome = "is within its limit, as all others" if first.used <= 1.0 else "is beyond its limit"
    yield f"Decided by the {first.name}, which {outcome}."
    for gate in found:
        share = "not a number" if math.isnan(gate.measured) else text.fmt_percent(gate.used)
        measured, allowed = text.fmt_error(gate.measured), text.fmt_error(gate.allowed)
        yield f"{gate.name[0].upper()}{gate.name[1:]}: {measured} of {allowed} allowed ({share})."
    if r.worst_row_rel_err and r.worst_row_limit and r.err_vs_eager:
        eager = r.worst_row_rel_err / r.err_vs_eager
        times = text.fmt_number(r.worst_row_limit / eager, 2)
        yield f"The limit of normal inputs is {times} times what torch eager is off in {r.dtype} ({eager:.1e})."
    if r.err_vs_floor:
        yield f"Rounding the right answer once would be off {text.fmt_number(r.err_vs_floor, 2)} times less."
    if r.error_rows is not None and r.output_rows is not None and r.error_rows < r.output_rows:
        yield f"{r.error_rows:,} of {r.output_rows:,} rows were judged."
    if r.nan_count:
        yield f"{text.fmt_count(r.nan_count, 'NaN')} in the output."
    if r.stress:
        yield stress_sentence(r)


def _latency(r: Record) -> Iterator[str]:
    if r.latency_ms_median is None:
        yield f"Not timed: {r.empty_reasons.get('latency_ms_median') or r.reason or r.status}."
        return
    interval = text.fmt_interval(r.latency_ms_ci_low, r.latency_ms_ci_high)
    yield f"Median {text.fmt_ms(r.latency_ms_median)}" + (f", interval {interval}" if interval else "") + "."
    rounds = "" if r.round_count is None else f" in {text.fmt_count(r.round_count, 'round')}"
    stopped = f", stopped {_STOPPED.get(r.stopped_by, r.stopped_by)}" if r.stopped_by else ""
    if r.sample_count is not None:
        yield f"{text.fmt_count(r.sample_count, 'call')}{rounds}{stopped}."
    if r.latency_scope:
        yield f"Scope: {_SCOPES.get(r.latency_scope, r.latency_scope)}."
    if r.ratio_to_fastest is not None:
        among = {True: "It is among the fastest of its problem", False: "It is not among the fastest of its problem"}
        said = among.get(r.fastest) if r.fastest is not None else "Whether it is among the fastest is not known"
        yield f"{said}: {r.ratio_to_fastest:.3f} times the lowest median."
    if r.peak_fraction is not None:
        yield f"{text.fmt_percent(r.peak_fraction)} of the peak measured on this machine."


def _verdict(r: Record, manifest: Mapping[str, Any]) -> Iterator[str]:
    if r.arm == r.baseline_arm:
        yield "It is the baseline that others are compared with."
        if r.noise_log_ratio is not None:
            apart = text.fmt_percent(abs(math.expm1(r.noise_log_ratio)))
            yield f"Its two workers, which ran the same code, were {apart} apart."
    elif r.verdict is None or r.speedup_vs_baseline is None:
        yield f"None: {r.empty_reasons.get('verdict') or r.empty_reasons.get('speedup_vs_baseline') or r.reason}."
    else:
        delta = float(manifest.get("delta") or 0.0)
        interval = text.fmt_interval(r.speedup_ci_low, r.speedup_ci_high)
        yield f"{text.fmt_ratio(r.speedup_vs_baseline)} as fast as {r.baseline_arm}, interval {interval}:"
        if "contended" in r.flags and r.verdict == "ambiguous":
            yield "its visits were disturbed, so nothing is decided: ambiguous."
        else:
            yield _VERDICTS[r.verdict].format(above=1 + delta, below=1 / (1 + delta)) + "."
    floor, pairs = manifest.get("noise_floor"), manifest.get("noise_pairs")
    if floor is not None and pairs:
        rests = f"{text.fmt_percent(floor)} (of {text.fmt_count(pairs, 'pair')} of equal workers)"
        yield f"Noise floor of the run: {rests}; less than {text.fmt_percent(manifest.get('delta'))} is called nothing."
    else:
        yield "The noise of the run is unknown."


def _memory(r: Record) -> Iterator[str]:
    peak = peak_bytes(r)
    if peak is None:
        yield f"Not measured: {r.empty_reasons.get('peak_host_bytes') or r.reason or r.status}."
        return
    matrices = f", {text.fmt_number(peak / problem_of(r).score_bytes())} score matrices" if r.model is None else ""
    yield f"Peak {text.fmt_bytes(peak)} above the loaded and bound model{matrices}."
    if r.kept_host_bytes is not None:
        yield f"{text.fmt_bytes(r.kept_host_bytes)} of it stayed after the calls."
    if r.load_ms is not None and r.first_call_ms is not None:
        yield f"Loading took {text.fmt_ms(r.load_ms)}, the first call {text.fmt_ms(r.first_call_ms)}."


def empty_cells(r: Record) -> list[str]:
    """`reason: columns`, one entry per reason."""
    columns: dict[str, list[str]] = defaultdict(list)
    for column, reason in r.empty_reasons.items():
        columns[reason or "no reason was kept"].append(column)
    return [f"{', '.join(names)}: {reason}" for reason, names in columns.items()]


def as_dict(r: Record, manifest: Mapping[str, Any], run_name: str) -> dict[str, Any]:
    """The same for scripts."""
    sentences: Sequence[tuple[str, str]] = case_paragraphs(r, manifest, run_name)
    return {
        "case_id": r.case_id, "arm": r.arm, "status": r.status, "problem": _problem(r),
        "gates": [
            {"name": gate.name, "measured": _json_number(gate.measured), "allowed": gate.allowed,
             "used": _json_number(gate.used)}
            for gate in gates(r)
        ],
        "sentences": dict(sentences), "empty_reasons": r.empty_reasons,
    }  # fmt: skip


def _problem(r: Record) -> dict[str, Any]:
    if r.model is None:
        return problem_of(r).as_dict()
    return {"model": r.model, "sizes": r.sizes, "bound": r.bound, "dtype": r.dtype}


def _json_number(value: float) -> float | str:
    """JSON has no NaN and no infinity: they are spelt out."""
    return value if math.isfinite(value) else str(value)
