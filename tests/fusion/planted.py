"""Small ONNX encoders with a known culprit in each layer, written node by node."""

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NUMPY = {"fp16": np.float16, "fp32": np.float32, "bf16": ml_dtypes.bfloat16}
ONNX = {"fp16": TensorProto.FLOAT16, "fp32": TensorProto.FLOAT, "bf16": TensorProto.BFLOAT16}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One attention."""

    scores: str = "div"  # how scores are scaled: div, mul, query (before the product), einsum; operator: one node
    # softcap, island_qk, island_softmax, add_mask, where_mask, nan_guard, nan_guard_full, dropout, clip, written_out,
    # relu (in place of the softmax)
    inside: tuple[str, ...] = ()
    returned: bool = False  # the weights are an output too
    head_dim: int = 64
    prefix: str = "layer"


class _Writer:
    def __init__(self, dtype: str, num_heads: int) -> None:
        self.dtype, self.num_heads = dtype, num_heads
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.prefix = ""

    def add(self, op: str, *inputs: str, name: str = "", **attributes: object) -> str:
        out = f"{self.prefix}.{name or op}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=f"{out}.node", **attributes))
        return out

    def const(self, values: object, dtype: object = None) -> str:
        name = f"{self.prefix}.const.{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(values, dtype or NUMPY[self.dtype]), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(np.random.default_rng(len(self.tensors)).normal(0, 0.05, shape))

    def heads(self, x: str, embed_dim: int, head_dim: int) -> str:
        flat = self.add("MatMul", x, self.weight(embed_dim, self.num_heads * head_dim))
        split = self.add("Reshape", flat, self.const([0, -1, self.num_heads, head_dim], np.int64))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])


def encoder(
    layers: Sequence[Layer], *, dtype: str = "fp16", num_heads: int = 8, embed_dim: int = 128, has_mask: bool = True
) -> onnx.ModelProto:
    """`x` (batch, seq, embed_dim) through the layers, one after the other; `mask` (batch, 1, seq, seq) is added."""
    writer, extra, x = _Writer(dtype, num_heads), [], "x"
    for number, layer in enumerate(layers):
        writer.prefix = f"{layer.prefix}{number}"
        y, weights = _attention(writer, x, layer, embed_dim)
        x = writer.add("Add", x, y, name="residual")
        extra += [weights] if layer.returned else []
    kind = ONNX[dtype]
    inputs = [helper.make_tensor_value_info("x", kind, ["batch", "seq", embed_dim])]
    if has_mask:
        inputs.append(helper.make_tensor_value_info("mask", kind, ["batch", 1, "seq", "seq"]))
        inputs.append(helper.make_tensor_value_info("keep", TensorProto.BOOL, ["batch", 1, "seq", "seq"]))
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in (x, *extra)]
    graph = helper.make_graph(writer.nodes, "encoder", inputs, outputs, writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def _attention(writer: _Writer, x: str, layer: Layer, embed_dim: int) -> tuple[str, str]:
    q, k, v = (writer.heads(x, embed_dim, layer.head_dim) for _ in "qkv")
    if layer.scores == "operator":
        return _operator(writer, q, k, v, layer, embed_dim)
    narrow, wide = ONNX[writer.dtype], TensorProto.FLOAT
    if "island_qk" in layer.inside:
        q, k = (writer.add("Cast", tensor, to=wide) for tensor in (q, k))
    is_wide = "island_qk" in layer.inside
    scores = _scores(writer, q, k, layer, np.float32 if is_wide else None)
    if is_wide:
        scores = writer.add("Cast", scores, to=narrow)
    weights = _weights(writer, scores, layer)
    y = writer.add("Einsum", weights, v, equation="bhqk,bhkd->bhqd") if layer.scores == "einsum" else (
        writer.add("MatMul", weights, v)
    )  # fmt: skip
    return _projected(writer, y, layer, embed_dim), weights


def _projected(writer: _Writer, y: str, layer: Layer, embed_dim: int) -> str:
    width = writer.num_heads * layer.head_dim
    merged = writer.add(
        "Reshape", writer.add("Transpose", y, perm=[0, 2, 1, 3]), writer.const([0, -1, width], np.int64)
    )
    return writer.add("MatMul", merged, writer.weight(width, embed_dim))


def _operator(writer: _Writer, q: str, k: str, v: str, layer: Layer, embed_dim: int) -> tuple[str, str]:
    mask = ["mask"] if "add_mask" in layer.inside else []
    y = writer.add("Attention", q, k, v, *mask, softcap=30.0 if "softcap" in layer.inside else 0.0)
    return _projected(writer, y, layer, embed_dim), ""


def _scores(writer: _Writer, q: str, k: str, layer: Layer, dtype: object) -> str:
    root = float(layer.head_dim) ** 0.5
    if layer.scores == "einsum":
        return writer.add("Div", writer.add("Einsum", q, k, equation="bhqd,bhkd->bhqk"), writer.const(root, dtype))
    keys = writer.add("Transpose", k, perm=[0, 1, 3, 2])
    if layer.scores == "query":
        return writer.add("MatMul", writer.add("Mul", q, writer.const(1 / root, dtype)), keys)
    product = writer.add("MatMul", q, keys)
    if layer.scores == "mul":
        return writer.add("Mul", product, writer.const([1 / root], dtype))
    return writer.add("Div", product, writer.const(root, dtype))


def _weights(writer: _Writer, x: str, layer: Layer) -> str:
    narrow, inside = ONNX[writer.dtype], layer.inside
    if "softcap" in inside:
        x = writer.add("Mul", writer.add("Tanh", writer.add("Div", x, writer.const(30.0))), writer.const(30.0))
    if "add_mask" in inside:
        x = writer.add("Add", x, "mask")
    if "where_mask" in inside:
        x = writer.add("Where", "keep", x, writer.const(-60000.0))
    if "island_softmax" in inside:
        x = writer.add("Cast", x, to=TensorProto.FLOAT)
    if "relu" in inside:  # no attention, and T x T all the same
        return writer.add("Relu", x)
    x = _written_out(writer, x) if "written_out" in inside else writer.add("Softmax", x, axis=-1)
    if "island_softmax" in inside:
        x = writer.add("Cast", x, to=narrow)
    if "nan_guard" in inside:
        x = writer.add("Where", writer.add("IsNaN", x), writer.const(0.0), x)
    if "nan_guard_full" in inside:  # as zeros_like writes it: of the size of the weights
        zeros = writer.add("Expand", writer.const(0.0), writer.add("Shape", x))
        x = writer.add("Where", writer.add("IsNaN", x), zeros, x)
    if "dropout" in inside:
        x = writer.add("Dropout", x)
    if "clip" in inside:
        x = writer.add("Clip", x, writer.const(0.0), writer.const(0.9))
    return x


def _written_out(writer: _Writer, x: str) -> str:
    last = writer.const([-1], np.int64)
    e = writer.add("Exp", writer.add("Sub", x, writer.add("ReduceMax", x, last, keepdims=1)))
    return writer.add("Div", e, writer.add("ReduceSum", e, last, keepdims=1))
