from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from attnbench_exporters.weights import share_weights

W = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)


def model(**weights: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """y = x @ first @ second @ ..., x (B, 16)."""
    nodes, last = [], "x"
    for name in weights:
        nodes.append(helper.make_node("MatMul", [last, name], [f"after_{name}"]))
        last = f"after_{name}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", None])
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()]
    made = helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors))
    onnx.checker.check_model(made, full_check=True)
    return made


def assert_same_answer(made: onnx.ModelProto, *weights: np.ndarray[Any, Any]) -> None:
    onnx.checker.check_model(made, full_check=True)
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    expected = x.astype(np.float64)
    for weight in weights:
        expected = expected @ weight
    np.testing.assert_allclose(ReferenceEvaluator(made).run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-4)


def test_a_tied_weight_and_its_transpose_are_held_once() -> None:
    made = model(a=W, b=W.T, c=W, d=W.T)
    assert share_weights(made) == {"b": "a", "c": "a", "d": "a"}
    assert [tensor.name for tensor in made.graph.initializer] == ["a"]
    assert_same_answer(made, W, W.T, W, W.T)


def test_weights_that_differ_in_one_element_stay_two() -> None:
    other = W.T.copy()
    other[3, 4] += 0.5
    made = model(a=W, b=other)
    assert share_weights(made) == {}
    assert_same_answer(made, W, other)


def test_equal_bytes_of_another_shape_are_another_weight() -> None:
    zeros = np.zeros((16, 32), np.float32)
    made = model(a=zeros, b=zeros.reshape(32, 16))
    made.graph.initializer[1].raw_data = made.graph.initializer[0].raw_data
    assert share_weights(made) == {"b": "a"}  # as its transpose, which has that shape
    assert_same_answer(made, zeros, zeros.T)


def test_small_constants_are_left_alone() -> None:
    small = np.eye(16, dtype=np.float32)[:, :4]
    made = model(a=small, b=small.T)
    assert share_weights(made) == {}
