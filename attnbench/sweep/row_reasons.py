"""Why cells of a record are empty."""

from collections.abc import Mapping
from typing import Any

from attnbench.model_problem import AnyProblem, ModelProblem

TORCH_ONLY = "torch runs the block itself: there is no file"
WHY_EMPTY = {
    "opset": TORCH_ONLY,
    "runtime_version": "the runtime does not tell",
    "device": "not loaded",
    "device_name": "not loaded",
    "threads": "the runtime does not tell",
    "compute_precision": "not loaded",
    "attention_kernel": "not loaded",
    "kernel_evidence": "the kernel is unknown",
    "latency_ms_median": "not timed",
    "latency_ms_ci_low": "not timed",
    "latency_ms_ci_high": "not timed",
    "latency_ms_p90": "needs 64 samples",
    "latency_ms_p99": "needs 662 samples",
    "sample_count": "not timed",
    "round_count": "not timed",
    "stopped_by": "not timed",
    "latency_scope": "not timed",
    "speedup_vs_baseline": "",
    "speedup_ci_low": "",
    "speedup_ci_high": "",
    "first_call_ms": "not measured",
    "load_ms": "not measured",
    "build_ms": "nothing is compiled ahead of the first call",
    "export_ms": TORCH_ONLY,
    "peak_host_bytes": "not measured",
    "kept_host_bytes": "not measured",
    "peak_device_bytes": "runs on the CPU",
    "planned_activation_bytes": "nothing is compiled for a device",
    "artifact_bytes": TORCH_ONLY,
    "artifact_sha256": TORCH_ONLY,
    "worst_row_rel_err": "not checked",
    "worst_row_limit": "not checked",
    "rel_fro_err": "not checked",
    "max_abs_err": "not checked",
    "gain_err": "not checked",
    "nan_count": "not checked",
    "err_vs_floor": "not checked, or the floor is 0",
    "err_vs_eager": "not checked, or torch eager is exact",
    "bitwise_repeatable": "not checked",
    "batch_invariant": "not checked",
    "prefix_invariant": "not checked",
    "first_logit_scale_outside": "inside the band at every scale tried",
    "gflops_per_s": "not timed",
    "peak_fraction": "not timed, or the machine peak of this dtype is not known",
    "gbytes_per_s": "not timed",
    "tokens_per_s": "not timed",
}
NEEDS_OK = frozenset(c for c, why in WHY_EMPTY.items() if why not in (TORCH_ONLY,) and "device" not in c)
OF_DEVICE = frozenset({"device_name", "peak_device_bytes"})
NUMERICS = frozenset(c for c, why in WHY_EMPTY.items() if why.startswith("not checked"))
_OF_ATTENTION = "a model, not the built-in attention"
_NOT_OF_MODELS = {
    **dict.fromkeys(("mask", "num_heads", "num_kv_heads", "head_dim", "embed_dim"), _OF_ATTENTION),
    **dict.fromkeys(("bitwise_repeatable", "batch_invariant", "prefix_invariant", "first_logit_scale_outside"),
                    "asked of the built-in attention only"),
    "batch_size": "which dim of a model is the batch is not known; the column sizes has all",
    **dict.fromkeys(("q_len", "kv_len"), "no free dim of the model follows T"),
    **dict.fromkeys(("flops", "gflops_per_s", "peak_fraction"), "what a model computes is not counted"),
    **dict.fromkeys(("bytes_min", "gbytes_per_s"), "what a model reads and writes is not counted"),
    "opset": "this arm runs no ONNX file",
    "export_ms": "attnbench wrote no file for this arm",
    "tokens_per_s": "which dims of a model are tokens is not known",
}  # fmt: skip


def why_not_of_models(problem: AnyProblem, fields: Mapping[str, Any]) -> dict[str, str]:
    """Why columns of a model are empty that rows of attention fill; nothing for attention."""
    if not isinstance(problem, ModelProblem):
        return {}
    return {column: why for column, why in _NOT_OF_MODELS.items() if fields.get(column) is None}
