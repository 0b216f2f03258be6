"""A mask of keys alone, one row for all queries, as torch writes it into files of users' modules."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from attnbench_exporters.attention import widen_masks

B, H, Q, KV, D = 2, 3, 5, 7, 4


def model(mask_rows: int | str, *, packed: bool) -> onnx.ModelProto:
    """One Attention node with a boolean mask of `mask_rows` rows; packed: (B, length, H x D) instead of four dims."""
    dims = {name: ["b", n, H * D] if packed else ["b", H, n, D] for name, n in (("q", "q"), ("k", "kv"), ("v", "kv"))}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, d) for name, d in dims.items()]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, ["b", 1, mask_rows, "kv"]))
    heads = {"q_num_heads": H, "kv_num_heads": H} if packed else {}
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"], **heads)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, dims["q"])
    graph = helper.make_graph([node], "one", inputs, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def feeds(*, packed: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lens = {"q": Q, "k": KV, "v": KV}
    shapes = {name: (B, n, H * D) if packed else (B, H, n, D) for name, n in lens.items()}
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "mask": rng.random((B, 1, 1, KV)) < 0.7}


def run(made: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, given)
    return np.asarray(found)


@pytest.mark.parametrize("packed", [False, True])
def test_a_mask_of_keys_alone_runs_in_onnxruntime_and_means_what_it_meant(packed: bool) -> None:
    made, given = model(1, packed=packed), feeds(packed=packed)
    widen_masks(made)
    onnx.checker.check_model(made, full_check=True)
    whole = {**given, "mask": np.broadcast_to(given["mask"], (B, 1, Q, KV)).copy()}
    np.testing.assert_array_equal(run(made, given), run(model("q", packed=packed), whole))


def test_a_mask_with_a_row_for_each_query_is_left_alone() -> None:
    made = model("q", packed=False)
    before = made.SerializeToString()
    widen_masks(made)
    assert made.SerializeToString() == before
