from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attnbench.errors import InputError
from attnbench.fusion.cut import cut
from attnbench.fusion.regions import find_regions
from attnbench.fusion.sized_graph import SizedGraph, load_structure, sized_graph
from attnbench.fusion.unused import drop_unused
from tests.fusion.planted import Layer, encoder


def graph_of(tmp_path: Path, model: onnx.ModelProto, seq: int = 256) -> SizedGraph:
    onnx.save(model, tmp_path / "model.onnx")
    return sized_graph(load_structure(tmp_path / "model.onnx"), {"batch": 2, "seq": seq})


FORMS = [
    Layer(), Layer(scores="mul"), Layer(scores="query"), Layer(scores="einsum"), Layer(scores="operator"),
    Layer(inside=("softcap", "add_mask", "island_softmax", "nan_guard")), Layer(inside=("written_out",)),
    Layer(inside=("island_qk", "where_mask", "dropout")), Layer(returned=True),
]  # fmt: skip


@pytest.mark.parametrize("layer", FORMS, ids=str)
def test_every_way_to_write_attention_is_one_region_that_is_a_model(tmp_path: Path, layer: Layer) -> None:
    graph = graph_of(tmp_path, encoder([layer]))
    (region,) = find_regions(graph)
    made = cut(graph, region)
    assert made is not None
    onnx.checker.check_model(made.model, full_check=True)
    assert made.score_bytes == 2 * 8 * 256 * 256 * 2  # batch, heads, T, T, fp16


def test_what_no_output_needs_is_not_taken_for_a_returned_weight(tmp_path: Path) -> None:
    plain, returned = encoder([Layer()]), encoder([Layer(returned=True)])
    del returned.graph.output[1:]  # taken off by hand: what made them stays
    (left,) = (n for n in returned.graph.node if n.op_type == "Softmax")
    returned.graph.node.append(helper.make_node("ReduceMax", [left.output[0]], ["peaks"], keepdims=0))
    graphs = [graph_of(tmp_path, model) for model in (plain, returned)]
    keys = [made.key for graph in graphs for region in find_regions(graph) if (made := cut(graph, region))]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_an_operator_of_a_domain_that_is_not_imported_is_bad_input(tmp_path: Path) -> None:
    model = encoder([Layer()])
    model.graph.node[0].domain = "my.domain"
    with pytest.raises(
        InputError, match=r"the model breaks a rule of ONNX: .*domain my\.domain .*onnx\.checker says more"
    ):
        graph_of(tmp_path, model)


def test_what_a_branch_takes_from_outside_is_needed() -> None:
    half = helper.make_graph(
        [helper.make_node("Relu", ["made outside"], ["z"])], "half", [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Neg", ["x"], ["made outside"]), helper.make_node("Exp", ["x"], ["for nobody"]),
        helper.make_node("If", ["c"], ["y"], then_branch=half, else_branch=half),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("c", TensorProto.BOOL, []), x], [y])
    assert drop_unused(graph) == 1
    assert [node.op_type for node in graph.node] == ["Neg", "If"]


def test_a_projection_is_no_attention(tmp_path: Path) -> None:
    weight = onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["p"]),
             helper.make_node("MatMul", ["p", "w"], ["y"])]  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "seq", 8]) for name in "xy")
    assert find_regions(graph_of(tmp_path, helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weight])))) == []


def test_equal_layers_are_equal_bytes_whatever_their_names_and_weights(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, encoder([Layer(), Layer(prefix="other"), Layer(scores="mul")]))
    keys = [made.key for region in find_regions(graph) if (made := cut(graph, region))]
    assert len(keys) == 3
    assert keys[0] == keys[1] != keys[2]


def test_masks_are_inputs_and_what_is_taken_outside_is_an_output(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, encoder([Layer(inside=("add_mask",), returned=True)]))
    (region,) = find_regions(graph)
    made = cut(graph, region)
    assert made is not None
    assert len(made.model.graph.input) == 4  # q, k, v, mask
    assert [len(value.type.tensor_type.shape.dim) for value in made.model.graph.output] == [4, 4]
    assert "layer0.Softmax" in made.names[-2]


def test_a_scale_that_is_computed_from_a_shape_is_a_constant(tmp_path: Path) -> None:
    """As the older exporter of torch writes 1 / sqrt(head_dim)."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Shape", ["q"], ["shape"], start=3), helper.make_node("Cast", ["shape"], ["d"], to=1),
        helper.make_node("Sqrt", ["d"], ["root"]), helper.make_node("Div", ["s", "root"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"]), helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    dims = ["batch", 4, "seq", 64]
    q, k, v, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "qkvy")
    graph = graph_of(tmp_path, helper.make_model(helper.make_graph(nodes, "g", [q, k, v], [y])))
    assert onnx.numpy_helper.to_array(graph.constants["root"]).tolist() == [8.0]
    (region,) = find_regions(graph)
    assert [node.op_type for node in region.nodes] == ["Transpose", "MatMul", "Div", "Softmax", "MatMul"]


def test_a_contrib_operator_is_a_region(tmp_path: Path) -> None:
    node = helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["y"], domain="com.microsoft", num_heads=8, name="m")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["batch", "seq", 512]) for name in "xy")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    (region,) = find_regions(graph_of(tmp_path, model))
    assert region.is_operator
    assert region.anchor.name == "m"


def test_small_numbers_beside_the_file_are_constants_too(tmp_path: Path) -> None:
    model = encoder([Layer(scores="mul")])
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    graph = sized_graph(load_structure(tmp_path / "m.onnx"), {"batch": 2, "seq": 256})
    (region,) = find_regions(graph)
    made = cut(graph, region)
    assert made is not None
    assert [onnx.numpy_helper.to_array(tensor).tolist() for tensor in made.model.graph.initializer] == [[0.125]]


def test_a_graph_of_many_ways_is_searched_once(tmp_path: Path) -> None:
    """Above this softmax are 3 ** 400 ways."""
    last, nodes = "x", []
    for number in range(400):
        nodes.append(helper.make_node("Max", [last] * 3, [f"a{number}"]))
        last = f"a{number}"
    nodes.append(helper.make_node("Softmax", [last], ["y"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "seq"]) for name in "xy")
    assert find_regions(graph_of(tmp_path, helper.make_model(helper.make_graph(nodes, "g", [x], [y])))) == []


def test_heads_that_talk_are_inside_the_attention_and_no_end_of_it(tmp_path: Path) -> None:
    """Scores (B, H, T, S) as (B, T, S, H) times a matrix of (H, H), as CaiT has before and after the softmax."""
    nodes = [
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Transpose", ["s"], ["st"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["st", "mix"], ["m"]),
        helper.make_node("Transpose", ["m"], ["mt"], perm=[0, 3, 1, 2]),
        helper.make_node("Softmax", ["mt"], ["p"]),
        helper.make_node("Transpose", ["p"], ["pt"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["pt", "mix"], ["pm"]),
        helper.make_node("Transpose", ["pm"], ["w"], perm=[0, 3, 1, 2]),
        helper.make_node("MatMul", ["w", "v"], ["y"]),
    ]
    mix = onnx.numpy_helper.from_array(np.ones((4, 4), np.float16), "mix")
    values = {"q": ["batch", 4, "seq", 64], "kt": ["batch", 4, 64, "seq"], "v": ["batch", 4, "seq", 64]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, dims) for name, dims in values.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, values["q"])
    (region,) = find_regions(graph_of(tmp_path, helper.make_model(helper.make_graph(nodes, "g", inputs, [y], [mix]))))
    assert len(region.nodes) == len(nodes)
    assert (region.scores.output[0], region.last.output[0]) == ("s", "y")


def test_a_size_that_the_older_exporter_computes_for_expand_is_a_number(tmp_path: Path) -> None:
    """`x.expand(n, -1)` is Where(Equal(shape, -1), ConstantOfShape, shape) there."""
    one = helper.make_tensor("v", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], start=0, end=1),
        helper.make_node("Concat", ["rows", "minus"], ["asked"], axis=0),
        helper.make_node("ConstantOfShape", ["two"], ["ones"], value=one),
        helper.make_node("Mul", ["ones", "minus"], ["keep"]),
        helper.make_node("Equal", ["asked", "keep"], ["is_keep"]),
        helper.make_node("Where", ["is_keep", "ones", "asked"], ["shape"]),
        helper.make_node("Expand", ["row", "shape"], ["y"]),
    ]
    tensors = [onnx.numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("minus", [-1]), ("two", [2]))]
    tensors.append(onnx.numpy_helper.from_array(np.ones((1, 8), np.float32), "row"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors))
    assert graph_of(tmp_path, model).shapes["y"] == (TensorProto.FLOAT, (2, 8))
