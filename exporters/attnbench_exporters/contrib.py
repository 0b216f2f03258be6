"""`onnx-contrib`: the fused attention operators of ONNX Runtime (domain com.microsoft), built by hand.

Self and causal blocks take the packed `Attention` (one weight of shape (E, 3E), its bias of zeros: OpenVINO 2026.4
dies by a signal without one); cross blocks and the bare core take `MultiHeadAttention`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from attnbench.inputs import make_weights
from attnbench.interfaces import Array, Artifact, Probe, Support
from attnbench.problem import OUTPUT_NAME, Problem
from attnbench_exporters import onnx_files
from attnbench_exporters.torch_export import opset_support, require

DOMAIN = "com.microsoft"
_IR_VERSION = 10  # what torch.onnx writes too; readers since onnx 1.16 take it

# What masked scores are set to. The operators' own default, -10000, is no mask for large scores. fp32 and fp16.
_MASK_FILTER_VALUE = {"fp32": float(np.finfo(np.float32).min), "fp16": float(np.finfo(np.float16).min)}


class OnnxContrib:
    """Writes com.microsoft Attention or MultiHeadAttention; needs no torch."""

    name = "onnx-contrib"
    opsets = (20, 17, 18, 19, 21, 22, 23, 24, 25)
    preload = ("onnx",)

    def probe(self) -> Probe:
        """Is onnx there and new enough?"""
        return onnx_files.probe_packages(("onnx",), ("onnx",))

    def supports(self, problem: Problem, opset: int) -> Support:
        """fp32 and fp16, equal heads, no mask but top-left causal, and that only where q_len = kv_len."""
        if problem.dtype not in _MASK_FILTER_VALUE:
            reason = f"{DOMAIN} attention takes fp32 and fp16, not {problem.dtype}"
            return Support(ok=False, reason=f"{reason}; use onnx-attention or onnx-decomposed")
        for is_other, what in (
            (problem.num_kv_heads != problem.num_heads, f"grouped heads ({problem.num_kv_heads} for keys)"),
            (problem.variant == "decode", "decode with a cache"),
            (problem.value_map != "joint", f"value map {problem.value_map}"),
            (problem.v_head_dim != problem.head_dim, f"v_head_dim {problem.v_head_dim} beside {problem.head_dim}"),
            (problem.mask not in ("none", "causal_top_left"), f"mask {problem.mask!r}"),
        ):
            if is_other:
                reason = f"onnx-contrib does not write {what}; use onnx-attention or onnx-decomposed"
                return Support(ok=False, reason=reason)
        if problem.mask != "none" and problem.q_len != problem.kv_len:
            reason = (
                f"{DOMAIN} attention has no causal alignment for q_len {problem.q_len} and kv_len {problem.kv_len}: "
                "`unidirectional` means causal_top_left only where they are equal; use onnx-attention"
            )
            return Support(ok=False, reason=reason)
        return opset_support(opset, self.opsets, self.name)

    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        """Write the fused block; see `attnbench.interfaces.Exporter.export`.

        Raises:
            ExportError: what came out is not what was asked; nothing is written.
        """
        require(self.supports(problem, opset), opset, self.opsets)
        model = build_model(problem, opset, make_weights(problem, seed=seed))
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=seed)


def build_model(problem: Problem, opset: int, weights: dict[str, Array]) -> Any:
    """The onnx.ModelProto of the problem around one fused operator."""
    from onnx import helper

    if problem.part == "core":
        nodes, constants = _core_nodes(problem)
    elif problem.variant == "cross":
        nodes, constants = _cross_nodes(problem, weights)
    else:
        nodes, constants = _packed_nodes(problem, weights)
    values = [_value_info(name, dims, problem.dtype) for name, dims in problem.symbolic_dims().items()]
    graph = helper.make_graph(nodes, "attnbench", values[:-1], values[-1:], _initializers(constants))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="attnbench")


def _packed_nodes(problem: Problem, weights: dict[str, Array]) -> tuple[list[Any], dict[str, Array]]:
    """Pack the projections: x (B, T, E) -> Attention with weight (E, 3E) -> (B, T, E) -> output projection."""
    packed = np.concatenate([weights["w_q"], weights["w_k"], weights["w_v"]], axis=1)  # (E, 3E)
    biases = [weights.get(name, np.zeros(packed.shape[0], packed.dtype)) for name in ("b_q", "b_k", "b_v")]
    constants = {"w_qkv": packed, "b_qkv": np.concatenate(biases)}
    nodes = [_fused_node(problem, "Attention", ["x", "w_qkv", "b_qkv"], "attended")]
    projection, more = _projection("attended", "o", OUTPUT_NAME, weights)
    return nodes + projection, constants | more


def _projection(source: str, letter: str, output: str, weights: dict[str, Array]) -> tuple[list[Any], dict[str, Array]]:
    """Output = source @ w, plus b where there is one."""
    from onnx import helper

    w, b = f"w_{letter}", f"b_{letter}"
    if b not in weights:
        return [helper.make_node("MatMul", [source, w], [output], name=f"project_{letter}")], {w: weights[w]}
    nodes = [
        helper.make_node("MatMul", [source, w], [f"{output}_unbiased"], name=f"project_{letter}"),
        helper.make_node("Add", [f"{output}_unbiased", b], [output], name=f"bias_{letter}"),
    ]
    return nodes, {w: weights[w], b: weights[b]}


def _cross_nodes(problem: Problem, weights: dict[str, Array]) -> tuple[list[Any], dict[str, Array]]:
    """Three projections -> MultiHeadAttention on (B, T, E) -> output projection."""
    sources = {"q": "query", "k": "context", "v": "context"}
    nodes = [node for name, source in sources.items() for node in _projection(source, name, name, weights)[0]]
    nodes.append(_fused_node(problem, "MultiHeadAttention", list(sources), "attended"))
    return nodes + _projection("attended", "o", OUTPUT_NAME, weights)[0], dict(weights)


def _core_nodes(problem: Problem) -> tuple[list[Any], dict[str, Array]]:
    """Heads beside each other, MultiHeadAttention, heads apart again; k and v are taken as they are.

    Causal gives k the shape of q, which fails in the runtime where the lengths differ: the operator would answer
    there, with another alignment.
    """
    from onnx import helper

    key = "k_as_q" if problem.mask != "none" else "k"
    nodes = [
        helper.make_node("Transpose", ["q"], ["q_rows"], perm=[0, 2, 1, 3], name="q_rows"),  # (B, q_len, H, D)
        helper.make_node("Reshape", ["q_rows", "merged"], ["query"], name="q_merged"),  # (B, q_len, E)
    ]
    if key != "k":
        nodes += [
            helper.make_node("Shape", ["q"], ["q_shape"], name="q_shape"),
            helper.make_node("Reshape", ["k", "q_shape"], [key], name="equal_lengths_only"),
        ]
    nodes += [
        _fused_node(problem, "MultiHeadAttention", ["query", key, "v"], "attended"),  # (B, q_len, E)
        helper.make_node("Reshape", ["attended", "split"], ["y_rows"], name="y_split"),  # (B, q_len, H, D)
        helper.make_node("Transpose", ["y_rows"], [OUTPUT_NAME], perm=[0, 2, 1, 3], name="y_heads"),
    ]
    merged = np.array([0, 0, problem.embed_dim], np.int64)
    split = np.array([0, 0, problem.num_heads, problem.head_dim], np.int64)
    return nodes, {"merged": merged, "split": split}


def _fused_node(problem: Problem, operator: str, inputs: list[str], output: str) -> Any:
    from onnx import helper

    return helper.make_node(
        operator, inputs, [output], name="attention", domain=DOMAIN, num_heads=problem.num_heads, scale=problem.scale,
        unidirectional=int(problem.mask != "none"), mask_filter_value=_MASK_FILTER_VALUE[problem.dtype],
    )  # fmt: skip


def _value_info(name: str, dims: tuple[str | int, ...], dtype: str) -> Any:
    from onnx import TensorProto, helper

    element = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}[dtype]
    return helper.make_tensor_value_info(name, element, dims)


def _initializers(constants: dict[str, Array]) -> list[Any]:
    from onnx import numpy_helper

    return [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()]
