"""From a finished problem group to its records and raw samples."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnbench import __version__
from attnbench.inputs import LOGIT_SCALES
from attnbench.measure import nvml, roofline
from attnbench.measure import statistics as stats
from attnbench.model_problem import AnyProblem, ModelProblem
from attnbench.problem import Problem
from attnbench.records import COLUMNS, Record
from attnbench.sweep import device_arms, rounds
from attnbench.sweep.bench import Bench
from attnbench.sweep.cases import Case
from attnbench.sweep.grid import TORCH
from attnbench.sweep.row_reasons import NEEDS_OK, NUMERICS, OF_DEVICE, TORCH_ONLY, WHY_EMPTY, why_not_of_models
from attnbench.sweep.rundir import Samples

NS_PER_MS = 1e6


def latency_ns(lane: rounds.Lane) -> stats.Interval:
    """Median and rank interval over rounds of block medians."""
    return stats.latency(lane.medians)


def samples_of(cases: Sequence[Case], lanes: Sequence[rounds.Lane]) -> Samples:
    """case_id -> replica -> round -> nanoseconds, of everything that was timed."""
    ids = {case.arm.label: case.case_id for case in cases}
    found: dict[str, dict[int, Mapping[int, list[int]]]] = {}
    for lane in lanes:
        if lane.samples:
            found.setdefault(ids[lane.arm], {})[lane.replica] = lane.samples
    return found


def records_of(bench: Bench, cases: Sequence[Case], lanes: Sequence[rounds.Lane]) -> list[Record]:
    """One record per case, whatever happened to it."""
    by_label = {case.arm.label: case for case in cases}
    baselines = {case.arm.label: device_arms.baseline_of(case.arm, bench.arms, bench.sweep.baseline) for case in cases}
    standings = _standings(cases)
    records = []
    for case in cases:
        baseline = by_label.get(baselines[case.arm.label])
        fields = _identity(bench, case) | _artifact(case) | _facts(case) | _numerics(case) | _memory(case)
        fields |= _compiled(case)
        if case.lane is not None and case.lane.medians:
            fields |= _latency(case, case.lane) | _ratio(bench, case, baseline)
        if case.arm.label in standings:
            fields |= standings[case.arm.label]._asdict()
            fields["fastest_p"] = fields.pop("holm_p")
        if case is baseline and case.status == "ok":
            fields["noise_log_ratio"] = rounds.noise_log_ratio([lane for lane in lanes if lane.arm == case.arm.label])
        fields["baseline_arm"] = baselines[case.arm.label]
        fields["empty_reasons"] = empty_reasons(case, fields)
        records.append(Record.model_validate(fields))
    return records


def _standings(cases: Sequence[Case]) -> dict[str, stats.Standing]:
    """Who is fastest among those that may be compared: timed in the same way on the same device."""
    timed: dict[tuple[object, ...], dict[str, Mapping[int, float]]] = {}
    for case in cases:
        if case.status == "ok" and case.lane is not None:
            way = (case.facts.get("device"), case.lane.scope, device_arms.timing_of(case.arm))
            timed.setdefault(way, {})[case.arm.label] = case.lane.medians
    return {label: standing for group in timed.values() for label, standing in stats.fastest_set(group).items()}


def _identity(bench: Bench, case: Case) -> dict[str, Any]:
    return {
        "run_id": bench.run_id,
        "started_at_utc": case.started_at_utc,
        "case_id": case.case_id,
        "problem_id": case.problem.problem_id,
        "arm": case.arm.label,
        **_problem(case.problem),
        "exporter": case.arm.exporter,
        "opset": case.exported.artifact["opset"] or None if case.exported else case.arm.opset,
        "runtime": case.arm.runtime,
        "runtime_options": dict(case.arm.options),
        "runtime_version": bench.runtime_probes[case.arm.runtime].version or None,
        "threads": bench.threads,
        "status": case.status,
        "reason": case.reason,
        "seed": bench.sweep.seed,
        "attnbench_version": __version__,
        "memory_limit_bytes": bench.sweep.memory_limit_bytes,
        "flags": list(case.flags),
    }


def _problem(problem: AnyProblem) -> dict[str, Any]:
    """The columns that say what is computed, and what that takes at least; of a model the latter is not known."""
    p = problem
    if isinstance(p, ModelProblem):
        same = ("part", "variant", "batch_size", "q_len", "kv_len", "dtype", "bound")
        return {name: getattr(p, name) for name in same} | {"model": p.name, "sizes": dict(p.sizes)}
    return {
        **{name: value for name, value in p.as_dict().items() if name != "given_scale"},
        "embed_dim": p.embed_dim,
        "v_head_dim": p.v_head_dim,
        "scale": p.scale,
        "bias": p.bias,
        "value_map": p.value_map,
        "flops": roofline.flops(p),
        "bytes_min": roofline.bytes_min(p),
    }


def _artifact(case: Case) -> dict[str, Any]:
    if case.exported is None:
        return {}
    return {
        "export_ms": case.exported.export_ms,
        "artifact_bytes": case.exported.artifact["size_bytes"],
        "artifact_sha256": case.exported.artifact["sha256"],
        "artifact_verified": case.exported.verified,
    }


def _facts(case: Case) -> dict[str, Any]:
    facts = case.facts
    if not facts:
        return {}
    return {
        "runtime_version": facts["runtime_version"],
        "device": facts["device"],
        "device_name": facts["device_name"],
        "threads": facts["threads"],
        "compute_precision": facts["compute_precision"],
        "attention_kernel": facts["attention_kernel"],
        "kernel_evidence": facts["kernel_evidence"] or None,
        "facts": facts["detail"] | _watched(case),
    }


def _watched(case: Case) -> dict[str, Any]:
    """What was seen of a GPU: clocks over the visits, torch's own peak, neighbours; nothing on the CPU."""
    seen = nvml.summary(case.lane.device_states if case.lane is not None else ())
    found: dict[str, Any] = {"device_clocks": seen} if seen else {}
    for name in ("allocator_peak_bytes", "sharing"):
        if case.device_peak.get(name):
            found[f"device_{name}"] = case.device_peak[name]
    return found


def _compiled(case: Case) -> dict[str, Any]:
    if case.engine_bytes is None:
        return {}
    return {"planned_activation_bytes": case.planned_activation_bytes, "artifact_bytes": case.engine_bytes}


def _numerics(case: Case) -> dict[str, Any]:
    found = case.agreements.get("normal")
    peaked = case.agreements.get("peaked")
    fields: dict[str, Any] = {**case.determinism, **_stress(case)}
    if peaked is not None:
        fields |= {
            "peaked_worst_row_rel_err": peaked.worst_row_rel_err,
            "peaked_worst_row_limit": case.limits["peaked"].worst_row,
            "peaked_gain_err": peaked.gain_err,
        }
    if found is None:
        return fields
    error, limit = found.worst_row_rel_err, case.limits["normal"]
    return fields | {
        "worst_row_rel_err": error,
        "worst_row_limit": limit.worst_row,
        "gain_limit": limit.gain_of(found.rows),
        "rel_fro_err": found.rel_fro_err,
        "max_abs_err": found.max_abs_err,
        "gain_err": found.gain_err,
        "nan_count": found.nan_count,
        "err_vs_floor": error / case.floor if case.floor else None,
        "err_vs_eager": error / case.eager_error if case.eager_error else None,
        "error_rows": found.rows,
        "output_rows": _output_rows(case.problem),
        "output": case.output,
    }


def _output_rows(problem: AnyProblem) -> int | None:
    if isinstance(problem, ModelProblem):
        return None
    return problem.batch_size * problem.q_len * (problem.num_heads if problem.part == "core" else 1)


def _stress(case: Case) -> dict[str, Any]:
    outside = [scale for name, scale in LOGIT_SCALES.items() if not case.stress.get(name, 0.0) <= 1.0]
    return {"stress": case.stress, "first_logit_scale_outside": min(outside, default=None)}


def _memory(case: Case) -> dict[str, Any]:
    return {
        "peak_host_bytes": case.peak_host_bytes,
        "kept_host_bytes": case.kept_host_bytes,
        "peak_device_bytes": case.device_peak.get("peak_bytes"),
        "load_ms": case.load_ms,
        "first_call_ms": case.first_call_ms,
        "build_ms": case.build_ms,
    }


def _latency(case: Case, lane: rounds.Lane) -> dict[str, Any]:
    found = latency_ns(lane)
    samples = [ns for values in lane.samples.values() for ns in values]
    p90, p99 = stats.percentile(samples, 0.9), stats.percentile(samples, 0.99)
    seconds = found.mid / 1e9
    flags = [*case.flags, *(["contended"] if lane.is_contended else []), *(["throttled"] if lane.is_throttled else [])]
    flags += ["device_shared"] if case.device_peak.get("is_shared") else []
    return {
        "latency_ms_median": found.mid / NS_PER_MS,
        "latency_ms_ci_low": found.low / NS_PER_MS,
        "latency_ms_ci_high": found.high / NS_PER_MS,
        "latency_ms_p90": None if p90 is None else p90 / NS_PER_MS,
        "latency_ms_p99": None if p99 is None else p99 / NS_PER_MS,
        "sample_count": len(samples),
        "round_count": len(lane.medians),
        "stopped_by": lane.stopped_by or None,
        "latency_scope": lane.scope,
        "flags": flags,
        **(_rates(case.problem, seconds) if isinstance(case.problem, Problem) else {}),
    }


def _rates(problem: Problem, seconds: float) -> dict[str, float]:
    return {
        "gflops_per_s": roofline.flops(problem) / seconds / 1e9,
        "gbytes_per_s": roofline.bytes_min(problem) / seconds / 1e9,
        "tokens_per_s": problem.batch_size * problem.q_len / seconds,
    }


def _ratio(bench: Bench, case: Case, baseline: Case | None) -> dict[str, Any]:
    """Speed-up over the baseline, where both are right."""
    if baseline is None or baseline.lane is None or case is baseline or case.lane is None:
        return {}
    if baseline.status != "ok" or case.status != "ok":
        return {}
    found = rounds.ratio_of([baseline.lane], case.lane)
    if found is None:
        return {}
    return {"speedup_vs_baseline": found.ratio, "speedup_ci_low": found.low, "speedup_ci_high": found.high}


def empty_reasons(case: Case, fields: Mapping[str, Any]) -> dict[str, str]:
    """Why each empty cell of the promised columns is empty."""
    reasons = why_not_of_models(case.problem, fields)
    for column in COLUMNS:
        if (
            column in ("verdict", "fastest")
            or fields.get(column) is not None
            or column not in WHY_EMPTY
            or column in reasons
        ):
            continue
        reason = WHY_EMPTY[column]
        if case.status == "compiled" and (column in OF_DEVICE or column in NEEDS_OK):
            reason = "compiled only: there is no device here to run it on"
        elif case.status != "ok" and column in NEEDS_OK:
            reason = f"status {case.status}"
        elif column in ("peak_host_bytes", "kept_host_bytes") and case.memory_reason:
            reason = case.memory_reason
        elif column == "peak_device_bytes" and str(fields.get("device")).startswith("cuda"):
            reason = case.device_peak.get("reason") or case.memory_reason or "not measured"
        elif column.startswith("speedup"):
            reason = _why_no_ratio(case)
        elif reason == TORCH_ONLY and case.arm.exporter != TORCH:
            reason = "no file was written"
        elif column == "first_logit_scale_outside" and not case.stress:
            reason = case.stress_reason
        elif column in NUMERICS and case.numerics_reason:
            reason = case.numerics_reason
        reason = case.determinism_reasons.get(column, reason)
        reasons[column] = reason
    return reasons


def _why_no_ratio(case: Case) -> str:
    if case.arm.label == "" or case.lane is None:
        return "not timed"
    return "this is the baseline arm, or the baseline is not ok"
