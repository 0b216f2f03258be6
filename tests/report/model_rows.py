"""Rows of models of the user, as the engine writes them: a file that an arm judges, or a module in float64."""

from collections.abc import Sequence
from typing import Any

from attnbench.problem import digest
from attnbench.records import Record

ARMS = {"file@ort-cpu": ("file", "ort-cpu", 1.0), "file@openvino": ("file", "openvino", 0.7)}
MODULE_ARMS = {
    "torch@torch-eager": ("torch", "torch-eager", 1.0),
    "onnx-decomposed@ort-cpu": ("onnx-decomposed", "ort-cpu", 0.8),
}
JUDGE = "file@ort-cpu"
NAME = "encoder.onnx"
NO_ATTENTION = ("mask", "batch_size", "num_heads", "num_kv_heads", "head_dim", "embed_dim", "flops", "peak_fraction")


def model_records(
    seq_lens: Sequence[int] = (128, 256, 512, 1024), *, bound: str | None = "seq", judge: str | None = JUDGE,
    batches: Sequence[int] = (8,), name: str = NAME, arms: dict[str, tuple[str, str, float]] = ARMS,
    **changes: Any,
) -> list[Record]:  # fmt: skip
    """Rows of every arm; `bound` None: one size, that of `batches`; none of those: a file without free dims."""
    rows = []
    for seq_len in seq_lens if bound else (None,):
        for batch in batches or (None,):
            sizes = {"batch": batch} if batch is not None else {}
            if bound is not None and seq_len is not None:
                sizes |= {bound: seq_len, "kv": seq_len // 2}
            best = min(factor for _, _, factor in arms.values())
            for arm, (exporter, runtime, factor) in arms.items():
                fields = _fields(arm, sizes, seq_len, factor, is_judge=arm == judge)
                fields |= {"exporter": exporter, "runtime": runtime, "bound": bound, "model": name}
                fields |= {"baseline_arm": next(iter(arms)), "fastest": factor == best}
                fields["flags"] = [f"judged_by_{judge}"] if judge not in (None, arm) else []
                rows.append(Record(**{**fields, **changes}))
    return rows


def _fields(arm: str, sizes: dict[str, int], seq_len: int | None, factor: float, *, is_judge: bool) -> dict[str, Any]:
    latency = (0.2 + (seq_len or 64) * 1e-2) * factor * sizes.get("batch", 1)
    error = {} if is_judge else {"worst_row_rel_err": 3e-7, "worst_row_limit": 2e-6, "max_abs_err": 1e-6, "output": "y"}
    reasons = dict.fromkeys(NO_ATTENTION, "a model, not the built-in attention")
    if is_judge:
        reasons |= {"worst_row_rel_err": "this arm is the reference", "worst_row_limit": "this arm is the reference"}
    return {
        "run_id": "20261129-120000-abcd", "started_at_utc": "2026-11-29T12:00:00Z", "case_id": digest([sizes, arm]),
        "problem_id": digest(sizes), "arm": arm, "part": "model", "variant": "model", "dtype": "fp32", "sizes": sizes,
        "q_len": seq_len, "kv_len": seq_len, "status": "ok", "device": "cpu", "device_name": "AMD EPYC 9R45",
        "threads": 1, "latency_ms_median": latency, "latency_ms_ci_low": latency * 0.995,
        "latency_ms_ci_high": latency * 1.005, "sample_count": 700, "round_count": 35, "stopped_by": "precision",
        "latency_scope": "host", "speedup_vs_baseline": 1 / factor, "speedup_ci_low": 0.99 / factor,
        "speedup_ci_high": 1.01 / factor, "verdict": "faster" if factor < 0.98 else "same", "first_call_ms": 9.0,
        "load_ms": 40.0, "peak_host_bytes": 1_000_000 + 4000 * (seq_len or 64), "kept_host_bytes": 0,
        "runtime_version": "1.2", "seed": 0, "attnbench_version": "0.1.0", "empty_reasons": reasons, **error,
    }  # fmt: skip
