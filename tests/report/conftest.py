"""Makes run directories that look like real ones: latencies that grow with T, failures, samples, a manifest."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnbench.problem import Problem, digest
from attnbench.records import Record, append_records

# arm: (exporter, runtime, time factor at short T, at long T, score matrices at the peak, load_ms)
ARMS: dict[str, tuple[str, str, float, float, float, float]] = {
    "torch-sdpa": ("torch", "torch-sdpa", 1.0, 1.0, 0.05, 30.0),
    "torch-eager": ("torch", "torch-eager", 1.05, 2.9, 2.05, 28.0),
    "onnx-decomposed@ort-cpu": ("onnx-decomposed", "ort-cpu", 0.82, 1.65, 1.1, 55.0),
    "onnx-attention@ort-cpu": ("onnx-attention", "ort-cpu", 0.80, 1.42, 1.08, 48.0),
    "onnx-contrib@ort-cpu": ("onnx-contrib", "ort-cpu", 0.78, 1.07, 0.21, 47.0),
    "onnx-decomposed@openvino": ("onnx-decomposed", "openvino", 0.9, 0.86, 0.11, 310.0),
    "onnx-attention@openvino": ("onnx-attention", "openvino", 0.92, 0.865, 0.12, 330.0),
    "torch-compile": ("torch", "torch-compile", 1.1, 0.98, 0.06, 2100.0),
    "onnx-decomposed@ort-cuda": ("onnx-decomposed", "ort-cuda", 0.4, 0.2, 1.1, 900.0),
    "onnx-attention@ort-cuda": ("onnx-attention", "ort-cuda", 0.35, 0.08, 0.02, 910.0),
    "onnx-attention@tensorrt": ("onnx-attention", "tensorrt", 0.3, 0.07, 0.02, 4200.0),
    "onnx-contrib@openvino": ("onnx-contrib", "openvino", 0.91, 0.88, 0.11, 320.0),
}
DEFAULT_ARMS = tuple(ARMS)[:7]
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096)
BASELINE = "torch-sdpa"
FLOOR = {"fp32": 4e-8, "fp16": 3e-4, "bf16": 2.5e-3}


def make_record(problem: Problem, arm: str, /, **changes: Any) -> Record:
    """One plausible `ok` record; `changes` replace any field."""
    exporter, runtime, short, long, matrices, load = ARMS.get(arm, ("torch", arm, 1.0, 1.0, 0.1, 20.0))
    flops = 4 * problem.batch_size * problem.q_len * problem.kv_len * problem.embed_dim
    flops += 4 * problem.batch_size * (problem.q_len + problem.kv_len) * problem.embed_dim**2
    weight = min(1.0, max(0.0, math.log2(problem.q_len / 128) / 5))
    factor = short * (1 - weight) + long * weight
    latency = flops / 90e9 * 1e3 * factor
    floor = FLOOR[problem.dtype]
    fields: dict[str, Any] = {
        "run_id": "20261129-120000-abcd", "started_at_utc": "2026-11-29T12:00:00Z",
        "case_id": digest([problem.problem_id, arm]), "problem_id": problem.problem_id, "arm": arm,
        **_sizes(problem), "embed_dim": problem.embed_dim, "exporter": exporter, "runtime": runtime,
        "opset": None if exporter == "torch" else {"onnx-attention": 23}.get(exporter, 20), "runtime_version": "2.13.0",
        "device": "cpu", "device_name": "AMD EPYC 9R45", "threads": 1, "compute_precision": problem.dtype,
        "attention_kernel": "flash" if runtime == "torch-sdpa" else "unknown" if runtime == "openvino" else "unfused",
        "kernel_evidence": "profile" if runtime == "torch-sdpa" else "graph", "status": "ok",
        "latency_ms_median": latency, "latency_ms_ci_low": latency * 0.995, "latency_ms_ci_high": latency * 1.006,
        "latency_ms_p90": latency * 1.04, "sample_count": 700, "round_count": 35, "stopped_by": "precision",
        "latency_scope": "host", "baseline_arm": BASELINE, "speedup_vs_baseline": 1 / factor,
        "speedup_ci_low": 0.993 / factor, "speedup_ci_high": 1.007 / factor,
        "verdict": "faster" if 1 / factor > 1.02 else "slower" if 1 / factor < 0.98 else "same",
        "first_call_ms": latency * 3 + 2, "load_ms": load, "build_ms": load * 0.8 if runtime == "openvino" else None,
        "export_ms": None if exporter == "torch" else 640.0,
        "peak_host_bytes": int(problem.score_bytes() * matrices + problem.q_len * problem.embed_dim * 16),
        "kept_host_bytes": 65536, "artifact_bytes": None if exporter == "torch" else 4_200_000,
        "artifact_sha256": None if exporter == "torch" else digest(exporter) * 5 + "abcd",
        "worst_row_rel_err": floor * 9 * (1 + weight), "worst_row_limit": floor * 40, "rel_fro_err": floor * 5,
        "max_abs_err": floor * 20, "gain_err": floor, "gain_limit": floor * 5, "nan_count": 0,
        "err_vs_floor": 9 * (1 + weight), "err_vs_eager": 1.02, "flops": flops, "gflops_per_s": flops / latency / 1e6,
        "peak_fraction": 90 / 234 / factor, "bytes_min": 10_000_000, "gbytes_per_s": 5.0,
        "tokens_per_s": problem.q_len / latency * 1e3, "seed": 0, "attnbench_version": "0.1.0",
        "artifact_verified": None if exporter == "torch" else "ort-cpu at T = 17, 64, 200",
        "error_rows": min(256, problem.q_len), "output_rows": problem.q_len,
        "facts": {"providers": ["CPUExecutionProvider"], "nodes": 31},
    }  # fmt: skip
    return Record(**{**fields, **changes})


def without_figures(record: Record, status: str, reason: str) -> Record:
    """The same case when it did not run."""
    keep = (
        "run_id started_at_utc case_id problem_id arm part variant mask batch_size q_len kv_len num_heads "
        "num_kv_heads head_dim embed_dim dtype exporter opset runtime seed attnbench_version baseline_arm"
    )
    fields = {name: getattr(record, name) for name in keep.split()}
    empty = {"latency_ms_median": reason, "peak_host_bytes": reason}
    return Record(**fields, status=status, reason=reason, empty_reasons=empty)


def mark_fastest(records: Iterable[Record]) -> list[Record]:
    """Set `fastest`: every right arm within 1 % of the lowest median of its problem."""
    records = list(records)
    best: dict[str, float] = {}
    for r in records:
        if r.status == "ok" and r.latency_ms_median:
            best[r.problem_id] = min(r.latency_ms_median, best.get(r.problem_id, math.inf))
    for r in records:
        if r.status == "ok" and r.latency_ms_median:
            r.ratio_to_fastest = r.latency_ms_median / best[r.problem_id]
            r.fastest = r.ratio_to_fastest < 1.01
    return records


def _sizes(problem: Problem) -> dict[str, Any]:
    """As a record has them: a scale that was given is the scale."""
    fields = problem.as_dict()
    given = fields.pop("given_scale", None)
    return fields if given is None else {**fields, "scale": given}


def make_problems(
    variants: Sequence[str] = ("self", "cross", "causal"), seq_lens: Sequence[int] = SEQ_LENS, **fixed: Any
) -> list[Problem]:
    return [Problem.make(variant=v, seq_len=t, **fixed) for v in variants for t in seq_lens]  # type: ignore[arg-type]


def make_manifest(records: Sequence[Record], **changes: Any) -> dict[str, Any]:
    manifest = {
        "schema_version": 1, "run_id": "20261129-120000-abcd", "attnbench_version": "0.1.0",
        "command": "attnbench bench default --threads 1", "started_at_utc": "2026-11-29T12:00:00Z",
        "finished_at_utc": "2026-11-29T12:04:41Z", "interrupted": False, "sweep": {"name": "default"}, "threads": 1,
        "seed": 0, "baseline_arm": BASELINE, "time_budget_s": 300.0, "elapsed_s": 281.0,
        "environment": {"machine": {"cpu_model": "AMD EPYC 9R45", "architecture": "x86_64", "logical_cpus": 2},
                        "os": {"system": "Linux", "kernel": "6.1.0"},
                        "memory": {"total_bytes": 8 << 30}, "blas": {"OPENBLAS_CORETYPE": ""}},
        "versions": {"torch": "2.13.0", "onnxruntime": "1.32.0", "openvino": "2026.4.1", "numpy": "2.4.6"},
        "noise_floor": 0.008, "noise_pairs": 18, "delta": 0.01, "harness_ns": 84.0, "visits": 5012,
        "contended_visits": 23, "cases_planned": len(records),
        "machine_peak": {"fp32": {"gflops_per_s": 234.0, "by": "oneDNN", "threads": 1}},
        "runtimes": {"ort-cuda": {"available": False, "version": "", "reason": "libcuda.so.1 is missing",
                                  "fix": "install the NVIDIA driver"}},
        "plan": {"timing": 180.0, "memory": 60.0}, "notices": [],
    }  # fmt: skip
    return {**manifest, **changes}


def write_samples(folder: Path, records: Sequence[Record], rounds: int = 20, calls: int = 12) -> None:
    """samples/<problem_id>.parquet of every problem with an ok record, the baseline twice."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    groups: dict[str, list[Record]] = {}
    for r in records:
        if r.status == "ok" and r.latency_ms_median and math.isfinite(r.latency_ms_median):
            groups.setdefault(r.problem_id, []).append(r)
    for problem_id, members in groups.items():
        parts = []
        for r in members:
            for replica in (0, 1) if r.arm == BASELINE else (0,):
                n = rounds * calls
                drift = 1 + 0.02 * np.sin(np.arange(n) / 40)
                noise = 1 + 0.01 * rng.standard_normal(n) + 0.4 * (rng.random(n) > 0.995)
                parts.append(pa.table({
                    "case_id": pa.array([r.case_id] * n), "replica": pa.array([replica] * n, pa.int8()),
                    "round": pa.array(np.arange(n) // calls, pa.int16()),
                    "sample": pa.array(np.arange(n) % calls, pa.int32()),
                    "latency_ns": pa.array(((r.latency_ms_median or 1) * 1e6 * drift * noise).astype(np.int64)),
                }))  # fmt: skip
        pq.write_table(pa.concat_tables(parts), folder / f"{problem_id}.parquet")


def write_run(folder: Path, records: Sequence[Record], *, samples: bool = True, **manifest: Any) -> dict[str, Any]:
    """A run directory as the engine leaves it; gives its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    append_records(folder / "records.jsonl", records)
    content = make_manifest(records, **manifest)
    (folder / "manifest.json").write_text(json.dumps(content))
    if samples:
        write_samples(folder / "samples", records)
    return content


def default_records(arms: Sequence[str] = DEFAULT_ARMS, **problems: Any) -> list[Record]:
    """The default sweep, everything right."""
    return mark_fastest(make_record(p, arm) for p in make_problems(**problems) for arm in arms)


def troubled_records(arms: Sequence[str] = tuple(ARMS)) -> list[Record]:
    """Twelve arms with one of each trouble."""
    records = []
    for p in make_problems():
        for arm in arms:
            r = make_record(p, arm)
            if "cuda" in arm or "tensorrt" in arm:
                r = without_figures(r, "unavailable", "libcuda.so.1 is missing: no NVIDIA driver on this machine")
            elif arm == "torch-eager" and p.q_len >= 2048:
                status = "oom" if p.q_len == 2048 else "skipped"
                r = without_figures(
                    r, status, "the worker could not get 2.1 GiB under a limit of 2 GiB (oom at T = 2048)"
                )
            elif arm == "onnx-contrib@ort-cpu" and p.variant == "causal" and p.q_len == 512:
                r = make_record(
                    p, arm, status="mismatch", worst_row_rel_err=3.1e-2, speedup_vs_baseline=None, verdict=None,
                    reason="worst row error 3.1e-02 is above the limit 1.6e-06",
                )  # fmt: skip
            elif arm == "torch-compile" and p.q_len == 1024:
                r = without_figures(r, "crashed", "the worker was killed by signal 11 (SIGSEGV) in its first call")
            elif arm == "onnx-contrib@openvino" and p.variant == "causal":
                r = without_figures(r, "unsupported", "contrib MultiHeadAttention with unidirectional is not supported")
            records.append(r)
    return mark_fastest(records)


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The makers above, for tests."""
    return SimpleNamespace(
        ARMS=ARMS, make_record=make_record, without_figures=without_figures, mark_fastest=mark_fastest,
        make_problems=make_problems, make_manifest=make_manifest, write_samples=write_samples, write_run=write_run,
        default_records=default_records, troubled_records=troubled_records,
    )  # fmt: skip
