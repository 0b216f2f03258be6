from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from attnbench.errors import UntrustedModelError
from attnbench_runtimes import onnx_fields, ort_graph


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """x -> Cast to fp16 -> MatMul with an initializer -> Relu, and a MatMul in fp32."""
    weights = helper.make_tensor("w", TensorProto.FLOAT16, [4, 4], b"\0" * 32, raw=True)
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["half", "w"], ["y"]),
        helper.make_node("MatMul", ["x", "x"], ["z"]),
        helper.make_node("FusedMatMul", ["y", "y"], ["u"], domain="com.microsoft", alpha=0.5),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4])
    graph = helper.make_graph(nodes, "g", [x], [z], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_graph_is_read_as_onnx_reads_it(path: Path) -> None:
    expected = ort_graph.read_graph(onnx.load(path))
    assert ort_graph.read_graph(onnx_fields.read_model(path)) == expected
    assert expected.precisions == {
        "::MatMul": {"fp16": 1, "fp32": 1}, "com.microsoft::FusedMatMul": {"fp16": 1},
    }  # fmt: skip
    assert expected.casts == 1


def test_what_is_not_in_the_file_is_empty_and_what_is_not_read_is_an_error(path: Path) -> None:
    model = onnx_fields.read_model(path)
    node = model.graph.node[1]
    assert (node.name, list(node.attribute)) == ("", [])
    assert model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type == 0
    for message, name in ((model.graph.initializer[0], "raw_data"), (model, "no_such_field")):
        with pytest.raises(AttributeError, match=name):
            getattr(message, name)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model", encoding="utf-8")
    with pytest.raises(UntrustedModelError):
        onnx_fields.read_model(tmp_path / "text")
