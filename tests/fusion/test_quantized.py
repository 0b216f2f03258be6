"""Models of int8: quantizers before and inside attention."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnbench import trt_compiler
from attnbench.fusion.bypass import changes_of, without
from attnbench.fusion.cut import cut
from attnbench.fusion.linter import lint
from attnbench.fusion.regions import find_regions
from tests.fusion.test_regions import graph_of

T, HEADS, DIM, EMBED_DIM = 1024, 8, 64, 256
WORDS = "without `QuantizeLinear` and `DequantizeLinear`"


class _Writer:
    """Projections with weights of int8, then attention with quantizers where they are asked."""

    def __init__(self, quantized: str) -> None:
        self.quantized = quantized
        self.nodes: list[onnx.NodeProto] = []
        one = np.ones((EMBED_DIM, HEADS * DIM), np.int8)
        self.tensors = [
            numpy_helper.from_array(np.array(0.01, np.float16), "step"),
            numpy_helper.from_array(np.array(0, np.int8), "zero"),
            numpy_helper.from_array(np.array(0.125, np.float16), "scale"),
            numpy_helper.from_array(np.array([0, 0, HEADS, DIM]), "split"),
            *(numpy_helper.from_array(one, f"w_{name}") for name in "qkv"),
        ]

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        out = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=f"{out}.node", **attributes))
        return out

    def maybe_quantized(self, tensor: str, name: str) -> str:
        if name not in self.quantized:
            return tensor
        return self.add("DequantizeLinear", self.add("QuantizeLinear", tensor, "step", "zero"), "step", "zero")

    def heads(self, name: str) -> str:
        """As PyTorch's quantizers write it: after the projection, before heads are split."""
        weight = self.add("DequantizeLinear", f"w_{name}", "step", "zero")
        flat = self.maybe_quantized(self.add("MatMul", "x", weight), name)
        return self.add("Transpose", self.add("Reshape", flat, "split"), perm=[0, 2, 1, 3])


def quantized_model(quantized: str) -> onnx.ModelProto:
    """Which of q, k, v, s (scores) and p (weights) are quantized."""
    writer = _Writer(quantized)
    q, k, v = map(writer.heads, "qkv")
    scores = writer.add("MatMul", q, writer.add("Transpose", k, perm=[0, 1, 3, 2]))
    scaled = writer.add("Mul", writer.maybe_quantized(scores, "s"), "scale")
    weights = writer.maybe_quantized(writer.add("Softmax", scaled, axis=-1), "p")
    y = writer.add("MatMul", weights, v)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", "seq", EMBED_DIM])
    out = helper.make_tensor_value_info(y, TensorProto.FLOAT16, None)
    graph = helper.make_graph(writer.nodes, "g", [x], [out], writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def matrices_of(model: onnx.ModelProto) -> float:
    """Matrices of scores that the whole model plans, asked without the linter."""
    planned = []
    for seq in (T, 2 * T):
        made = trt_compiler.compile_onnx(model.SerializeToString(), shapes={"x": (1, seq, EMBED_DIM)})
        assert made.planned_activation_bytes is not None, made.words
        planned.append(made.planned_activation_bytes)
    return (planned[1] - 2 * planned[0]) / (2 * HEADS * T * T * 2)


@pytest.mark.parametrize("quantized", ["", "qk", "p", "qkpv"])
def test_quantizers_are_named_where_they_keep_attention_from_being_fused(tmp_path: Path, quantized: str) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    model = quantized_model(quantized)
    assert (matrices_of(model) > 0.5) is bool(quantized)  # and without any it is fused
    onnx.save(model, tmp_path / "m.onnx")
    report = lint(tmp_path / "m.onnx")
    (region,) = report.regions
    assert region.verdict == ("unfused" if quantized else "fused")
    assert [culprit.words for culprit in region.culprits] == ([WORDS] if quantized else [])
    assert [whole.verdict for whole in report.whole] == [region.verdict]


def test_without_quantizers_plain_attention_is_left(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, quantized_model("qksvp"))
    (region,) = find_regions(graph)
    made = cut(graph, region)
    assert made is not None
    (change,) = changes_of(made.model)
    assert change.words == WORDS
    left = without(made.model, [change.key])
    onnx.checker.check_model(left, full_check=True)
    plain = {"Reshape", "Transpose", "MatMul", "Mul", "Softmax"}
    assert {node.op_type for node in left.graph.node} == plain
    assert [node.op_type for node in left.graph.node].count("MatMul") == 2


def test_a_projection_by_weights_of_int8_is_no_product_of_q_and_k(tmp_path: Path) -> None:
    """A router of experts: its softmax lies between two projections."""
    weights = numpy_helper.from_array(np.ones((EMBED_DIM, EMBED_DIM), np.int8), "w")
    step = numpy_helper.from_array(np.array(0.01, np.float16), "step")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "step"], ["w1"]), helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"]), helper.make_node("DequantizeLinear", ["w", "step"], ["w2"]),
        helper.make_node("MatMul", ["p", "w2"], ["y"]),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["batch", "seq", EMBED_DIM]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [weights, step])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    assert find_regions(graph_of(tmp_path, model)) == []
