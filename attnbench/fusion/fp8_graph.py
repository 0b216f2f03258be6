"""Attention in fp8 as ONNX writes it: operands go through QuantizeLinear and DequantizeLinear (float8e4m3fn).

No exporter of ours writes fp8, so the graph is made here.
"""

from pathlib import Path
from typing import Any

import numpy as np

from attnbench.problem import Problem

OPSET = 21
_SCALES = {"q": 0.0625, "k": 0.0625, "p": 1.0 / 448.0, "v": 0.0625}  # P is within 0..1, 448 the largest number of fp8


def write(recipe: str, problem: Problem, path: Path) -> None:
    """Write y = P V with P = softmax(Q K^T * scale); q, k, v and y are (B, H, T, D) in fp16.

    Args:
        recipe: `fp8-qkpv` quantises Q, K, P and V, `fp8-qk` Q and K.
        problem: gives the heads, their size and the scale.
        path: of the file.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants = {"scale": np.array(problem.scale, np.float16)}

    def add(operator: str, *inputs: str, out: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [out], name=f"make_{out}", **attributes))
        return out

    def through_fp8(name: str) -> str:
        if name not in recipe.removeprefix("fp8-"):
            return name
        constants[f"{name}_scale"] = np.array(_SCALES[name], np.float16)
        small = add("QuantizeLinear", name, f"{name}_scale", f"{name}_zero", out=f"{name}_fp8")
        return add("DequantizeLinear", small, f"{name}_scale", f"{name}_zero", out=f"{name}_again")

    keys = add("Transpose", through_fp8("k"), out="keys", perm=[0, 1, 3, 2])  # (B, H, D, T)
    products = add("MatMul", through_fp8("q"), keys, out="products")  # (B, H, T, T)
    scores = add("Mul", products, "scale", out="scores")
    add("Softmax", scores, out="p", axis=-1)
    add("MatMul", through_fp8("p"), through_fp8("v"), out="y")
    zeros = [
        helper.make_tensor(f"{name}_zero", TensorProto.FLOAT8E4M3FN, [], [0.0])
        for name in _SCALES if f"{name}_scale" in constants
    ]  # fmt: skip
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT16, list(dims))
        for name, dims in problem.symbolic_dims().items()
    }
    graph = helper.make_graph(
        nodes, "attnbench", [values[name] for name in problem.input_shapes()], [values["y"]],
        [*(numpy_helper.from_array(array, name) for name, array in constants.items()), *zeros],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
