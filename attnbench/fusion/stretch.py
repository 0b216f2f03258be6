"""An attention of fixed sizes at a longer T: of one as short as images are, planned memory tells nothing."""

import math
from dataclasses import replace
from typing import Any

from attnbench.fusion.cut import MAIN, Cut, item_bytes
from attnbench.fusion.operators import ATTENTION, PRODUCTS
from attnbench.fusion.sized_graph import shapes_of

STRETCHED = (2048, 4096)  # T and 2T


def stretched(made: Cut, seq_len: int) -> Cut | None:
    """The same attention with as many queries and keys; its batch, heads and head_dim stay.

    Args:
        made: of a model whose sizes are all fixed.
        seq_len: the new q_len and kv_len.

    Returns:
        None where a length is also the size of something else, or where something in it is of the old length.
    """
    import onnx

    inferred = onnx.shape_inference.infer_shapes(made.model, data_prop=True)
    found = _lengths(inferred)
    if found is None or made.score_bytes is None:
        return None
    q_len, kv_len, others = found
    if not min(q_len, kv_len) or {q_len, kv_len} & others:
        return None
    model = _resized(made.model, {q_len, kv_len}, seq_len)
    try:
        checked = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return None
    if _lengths(checked) != (seq_len, seq_len, others) or MAIN not in shapes_of(checked):
        return None
    score_bytes, passed_bytes = made.score_bytes * seq_len * seq_len // (q_len * kv_len), _passed(checked)
    del checked.graph.value_info[:]
    return replace(made, model=checked, score_bytes=score_bytes, passed_bytes=passed_bytes)


def _lengths(model: Any) -> tuple[int, int, frozenset[int]] | None:
    """q_len, kv_len, and all other sizes of Q and K; None: not known."""
    shapes = shapes_of(model)
    node = next((n for n in model.graph.node if n.op_type in PRODUCTS or n.op_type in ATTENTION), None)
    operands = [shapes[name][1] for name in node.input[:2] if name in shapes] if node is not None else []
    if node is None or len(operands) < 2 or min(map(len, operands)) < 3:
        return None
    q, k = operands
    if node.op_type in ATTENTION:
        return q[-2], k[-2], frozenset((*q[:-2], *k[:-2], q[-1], k[-1]))
    scores = shapes.get(node.output[0], (0, ()))[1]
    if len(scores) < 3:
        return None
    inner = [size for size in (*q, *k) if size not in scores[-2:]]
    return scores[-2], scores[-1], frozenset((*scores[:-2], *inner, *(q[-1:] if node.op_type == "MatMul" else ())))


def _resized(model: Any, lengths: set[int], seq_len: int) -> Any:
    import numpy as np
    from onnx import ModelProto, TensorProto, numpy_helper

    made = ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value in lengths:
                dim.dim_value = seq_len
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.INT64 and len(tensor.dims) == 1:  # shapes
            array = numpy_helper.to_array(tensor)
            new = np.where(np.isin(array, list(lengths)), np.int64(seq_len), array)
            tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))
    return made


def _passed(model: Any) -> int:
    shapes = shapes_of(model)
    names = [*(value.name for value in model.graph.input), MAIN]
    return sum(math.prod(shapes[name][1]) * item_bytes(shapes[name][0]) for name in names if name in shapes)
