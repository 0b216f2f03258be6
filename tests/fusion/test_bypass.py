from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from attnbench.fusion.bypass import changes_of, without
from attnbench.fusion.cut import cut
from attnbench.fusion.regions import find_regions
from tests.fusion.planted import Layer, encoder
from tests.fusion.test_regions import graph_of


def region_of(tmp_path: Path, layer: Layer, dtype: str = "fp16", seq: int = 16) -> onnx.ModelProto:
    graph = graph_of(tmp_path, encoder([layer], dtype=dtype, num_heads=2), seq)
    (region,) = find_regions(graph)
    made = cut(graph, region)
    assert made is not None
    return made.model


def words_of(model: onnx.ModelProto) -> list[str]:
    return [change.words for change in changes_of(model)]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Layer(), []),
        (Layer(scores="mul"), []),
        (Layer(inside=("softcap",)), ["without `Tanh` (softcap)"]),
        (Layer(inside=("add_mask",)), ["without `Add` (mask or bias)"]),
        (Layer(inside=("where_mask",)), ["without `Where` (mask)"]),
        (Layer(inside=("nan_guard",)), ["without `Where` (NaN guard)"]),
        (Layer(inside=("dropout",)), ["without `Dropout`"]),
        (Layer(inside=("island_softmax",)), ["without the fp32 island (`Softmax` between `Cast`)"]),
        (Layer(inside=("island_qk",)), ["without the fp32 island (`MatMul`, `Div` between `Cast`)"]),
        (Layer(inside=("written_out",)), ["with one `Softmax` instead of `Exp`, `ReduceSum` and `Div`"]),
        (Layer(returned=True), ["without the returned weights (`Softmax` is used outside too)"]),
        (Layer(head_dim=320), ["with head_dim 128 instead of 320"]),
        (Layer(scores="operator", inside=("softcap", "add_mask")), ["without `softcap`", "without its mask"]),
    ],
    ids=str,
)  # fmt: skip
def test_all_that_can_be_left_out_is_offered_and_nothing_else(tmp_path: Path, layer: Layer, words: list[str]) -> None:
    assert words_of(region_of(tmp_path, layer)) == words


def test_scores_that_are_returned_are_no_weights(tmp_path: Path) -> None:
    model = encoder([Layer()])
    scores = next(name for node in model.graph.node for name in node.output if ".Div." in name)
    model.graph.output.append(onnx.helper.make_tensor_value_info(scores, TensorProto.FLOAT16, None))
    (region,) = find_regions(graph := graph_of(tmp_path, model))
    made = cut(graph, region)
    assert made is not None
    assert words_of(made.model) == ["without the returned scores (`Div` is used outside too)"]


def test_a_mask_made_of_the_scores_is_no_mask_of_the_user(tmp_path: Path) -> None:
    """Only the largest scores of each row, as sparse attention keeps them."""
    model = region_of(tmp_path, Layer(inside=("where_mask",)))
    where = next(node for node in model.graph.node if node.op_type == "Where")
    limit = onnx.numpy_helper.from_array(np.array(0.5, np.float16), "limit")
    model.graph.initializer.append(limit)
    test = onnx.helper.make_node("Less", [where.input[1], "limit"], ["is_small"], name="n90")
    model.graph.node.insert(list(model.graph.node).index(where), test)
    where.input[0] = "is_small"
    assert words_of(model) == ["without `Where` (mask made of the scores)"]


def test_a_region_of_fp32_is_offered_in_fp16(tmp_path: Path) -> None:
    model = region_of(tmp_path, Layer(inside=("softcap",)), "fp32")
    assert words_of(model) == ["without `Tanh` (softcap)", "in fp16 instead of fp32"]
    made = without(model, [changes_of(model)[-1].key])
    kinds = {value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)}
    assert kinds == {TensorProto.FLOAT16}
    assert {tensor.data_type for tensor in made.graph.initializer} == {TensorProto.FLOAT16}


@pytest.mark.parametrize("planted", ["softcap", "nan_guard", "dropout", "island_softmax", "island_qk", "written_out"])
def test_what_is_left_computes_plain_attention(tmp_path: Path, planted: str) -> None:
    model = region_of(tmp_path, Layer(inside=(planted,)))
    made = without(model, [change.key for change in changes_of(model)])
    onnx.checker.check_model(made, full_check=True)
    plain = region_of(tmp_path, Layer())
    assert [node.op_type for node in made.graph.node] == [node.op_type for node in plain.graph.node]
    rng = np.random.default_rng(0)
    arrays = [
        rng.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float16)
        for value in plain.graph.input
    ]
    outputs = [
        ReferenceEvaluator(one).run(
            None, {value.name: array for value, array in zip(one.graph.input, arrays, strict=True)}
        )[0]
        for one in (made, plain)
    ]  # fmt: skip
    assert np.isfinite(outputs[1]).all()
    np.testing.assert_array_equal(*outputs)


def test_the_region_itself_is_not_changed(tmp_path: Path) -> None:
    model = region_of(tmp_path, Layer(inside=("softcap", "island_qk"), returned=True))
    before = model.SerializeToString(deterministic=True)
    without(model, [change.key for change in changes_of(model)])
    assert model.SerializeToString(deterministic=True) == before


def test_smaller_heads_are_smaller_in_q_k_and_v_only(tmp_path: Path) -> None:
    model = region_of(tmp_path, Layer(head_dim=320, inside=("add_mask",)))
    made = without(model, ["head_dim:320->128"])
    shapes = sorted([dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in made.graph.input)
    assert shapes == [[2, 1, 16, 16], [2, 16, 2, 128], [2, 16, 2, 128], [2, 16, 2, 128]]
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made, strict_mode=True), full_check=True)
