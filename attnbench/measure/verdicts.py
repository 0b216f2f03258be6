"""Verdicts and the set of fastest arms, from finished records: the last step before anyone reads them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.measure import roofline
from attnbench.measure.statistics import MIN_DELTA, MIN_EXACT_ROUNDS, delta, noise_floor, verdict
from attnbench.records import Record

FASTEST_LEVEL = 0.05
_SPEEDUP = ("speedup_vs_baseline", "speedup_ci_low", "speedup_ci_high")


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """What identical code differed by in this run; floor and delta are None where no A/A pair was measured."""

    floor: float | None  # a fraction
    delta: float | None  # max(1 %, floor)
    pairs: int


def comparable_key(record: Record) -> tuple[str, str, str | None, str | None, int | None]:
    """Rows may share a ratio only where this is equal: run, problem, latency scope, device, threads."""
    return record.run_id, record.problem_id, record.latency_scope, record.device, record.threads


def run_noise_floor(records: Iterable[Record]) -> NoiseFloor:
    """The floor over all A/A pairs (`noise_log_ratio`) of the records of one run."""
    logs = [r.noise_log_ratio for r in records if r.noise_log_ratio is not None]
    floor = noise_floor(logs)
    return NoiseFloor(floor=floor, delta=None if floor is None else delta(floor), pairs=len(logs))


def judge(records: list[Record]) -> tuple[list[Record], NoiseFloor]:
    """Fill `verdict` and `fastest` of the records of one run; where there is none, `empty_reasons` says why.

    A ratio between rows of different scope, device or threads is taken out. Judging again changes nothing.

    Returns:
        New records in the same order, and the noise floor that was used.
    """
    noise = run_noise_floor(records)
    # A problem has one per way of timing: arms timed by a GPU's clock are compared with the baseline timed by it.
    baselines = {(r.run_id, r.problem_id, r.arm): r for r in records if r.arm == r.baseline_arm}
    found = [_judged(r, baselines.get((r.run_id, r.problem_id, str(r.baseline_arm))), noise) for r in records]
    return found, noise


def with_peak_fraction(records: Iterable[Record], machine_peak: Mapping[str, Mapping[str, Any]]) -> list[Record]:
    """Fill `peak_fraction` and the flag `beats_roofline` from the run's machine peak per dtype (GFLOP/s).

    The bound is the faster of the problem's dtype and fp32: a runtime may compute fp16 in fp32, which is legal and, on
    a CPU without fp16 arithmetic, far faster. Done on reading, since the peak is the best of the run's start and end.
    """
    found = []
    for record in records:
        known = [machine_peak[dtype]["gflops_per_s"] for dtype in (record.dtype, "fp32") if dtype in machine_peak]
        peak = max(known, default=None)
        fraction = None
        if record.gflops_per_s is not None and record.runtime != "null":
            fraction = roofline.peak_fraction(record.gflops_per_s, peak)
        flags = [flag for flag in record.flags if flag != "beats_roofline"]
        if roofline.beats_roofline(fraction):
            flags.append("beats_roofline")
        reasons = {k: v for k, v in record.empty_reasons.items() if k != "peak_fraction" or record.model is not None}
        if fraction is None and record.model is None:
            reasons["peak_fraction"] = "not timed" if record.gflops_per_s is None else "no machine peak of this dtype"
        found.append(record.model_copy(update={"peak_fraction": fraction, "flags": flags, "empty_reasons": reasons}))
    return found


def _judged(record: Record, baseline: Record | None, noise: NoiseFloor) -> Record:
    reasons = {k: v for k, v in record.empty_reasons.items() if k != "verdict"}
    update: dict[str, object] = {"verdict": None, "fastest": _is_fastest(record, noise), "empty_reasons": reasons}
    reason = _why_no_ratio(record, baseline)
    if reason and record is not baseline:
        update |= dict.fromkeys(_SPEEDUP)
        reasons |= dict.fromkeys(_SPEEDUP, reason)
    reason = reason or _why_no_verdict(record, noise)
    if reason:
        reasons["verdict"] = reason
    else:
        update["verdict"] = _verdict(record, baseline, noise)
    return record.model_copy(update=update)


def _why_no_ratio(record: Record, baseline: Record | None) -> str:
    """Why this row may not be compared with its baseline; empty where it may."""
    if record is baseline:
        return "this is the baseline"
    if record.speedup_vs_baseline is None:
        given = record.empty_reasons.get("speedup_vs_baseline")
        return given or record.reason or "there is no ratio to the baseline"
    if baseline is None:
        return "the baseline has no record for this problem"
    if baseline.status != "ok":
        return f"the baseline {baseline.arm} is {baseline.status}"
    for field in ("latency_scope", "device", "threads"):
        own, other = getattr(record, field), getattr(baseline, field)
        if own is not None and other is not None and own != other:
            return f"{field} is {own}, the baseline's is {other}: not comparable"
    return ""


def _why_no_verdict(record: Record, noise: NoiseFloor) -> str:
    if record.status != "ok":
        return f"status is {record.status}: only right answers are ranked"
    if "beats_roofline" in record.flags:
        return "beats the roofline: the harness is wrong or a computation was skipped"
    if noise.delta is None:
        return "no A/A pair was measured in this run, so its noise is unknown"
    if record.speedup_ci_low is None or record.speedup_ci_high is None:
        return "the ratio has no interval"
    return ""


def _verdict(record: Record, baseline: Record | None, noise: NoiseFloor) -> str:
    low, high = record.speedup_ci_low, record.speedup_ci_high
    if low is None or high is None or noise.delta is None or (record.round_count or 0) < MIN_EXACT_ROUNDS:
        return "ambiguous"
    contended = "contended" in record.flags or (baseline is not None and "contended" in baseline.flags)
    return verdict(low, high, noise.delta, contended=contended)


def _is_fastest(record: Record, noise: NoiseFloor) -> bool | None:
    """Is it in the problem's set of fastest arms? None where it was not timed beside them, or was disturbed."""
    if record.fastest_p is None or record.ratio_to_fastest is None or "contended" in record.flags:
        return None
    if record.status != "ok" or "beats_roofline" in record.flags:
        return False
    tolerated = 1.0 + (MIN_DELTA if noise.delta is None else noise.delta)
    return record.fastest_p >= FASTEST_LEVEL or record.ratio_to_fastest <= tolerated
