"""`onnx-contrib`: the fused attention operators of ONNX Runtime (domain com.microsoft), built by hand."""

from pathlib import Path

from attnbench.inputs import make_weights
from attnbench.interfaces import Artifact, Probe, Support
from attnbench.problem import Problem
from attnbench_exporters import contrib_graph, onnx_files
from attnbench_exporters.contrib_graph import DOMAIN, GROUPED, GROUPED_HEAD_DIM, MASKED
from attnbench_exporters.torch_export import opset_support, require


class OnnxContrib:
    """Writes com.microsoft Attention, MultiHeadAttention or GroupQueryAttention; needs no torch."""

    name = "onnx-contrib"
    opsets = (20, 17, 18, 19, 21, 22, 23, 24, 25)
    preload = ("onnx",)

    def probe(self) -> Probe:
        """Is onnx there and new enough?"""
        return onnx_files.probe_packages(("onnx",), ("onnx",))

    def supports(self, problem: Problem, opset: int) -> Support:
        """fp32 and fp16; grouped heads with one size of heads and one length; causal as the operator aligns it."""
        reason = _refusal(problem)
        if reason:
            return Support(ok=False, reason=f"{reason}; use onnx-attention or onnx-decomposed")
        return opset_support(opset, self.opsets, self.name)

    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        """Write the fused block; see `attnbench.interfaces.Exporter.export`.

        Raises:
            ExportError: what came out is not what was asked; nothing is written.
        """
        require(self.supports(problem, opset), opset, self.opsets)
        model = contrib_graph.build_model(problem, opset, make_weights(problem, seed=seed))
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=seed)


def _refusal(problem: Problem) -> str:
    """What the operators cannot do; empty where they can."""
    p, operator = problem, contrib_graph.operator_of(problem)
    if p.dtype not in MASKED:
        return f"{DOMAIN} attention takes fp32 and fp16, not {p.dtype}"
    if operator == GROUPED:
        name = f"{DOMAIN} {GROUPED}, which grouped heads and decode need,"
        if p.v_head_dim != p.head_dim:
            return f"{name} takes values of head_dim {p.head_dim} only, not v_head_dim {p.v_head_dim}"
        if p.head_dim % GROUPED_HEAD_DIM:
            return f"{name} takes head_dim in multiples of {GROUPED_HEAD_DIM}, not {p.head_dim}"
        if p.variant != "decode" and p.q_len != p.kv_len:
            return f"{name} takes one length for queries and keys, not q_len {p.q_len} and kv_len {p.kv_len}"
    elif p.masking.position and not contrib_graph.writes_positions(p) and p.q_len != p.kv_len:
        return (
            f"{DOMAIN} {operator} has no causal alignment for q_len {p.q_len} and kv_len {p.kv_len}: "
            "`unidirectional` means causal_top_left only where they are equal"
        )
    return ""
