"""Attention inside `If`, as merged decoders have it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnbench.fusion.branches import write_out_branches
from attnbench.fusion.linter import lint
from attnbench.fusion.regions import find_regions
from tests.fusion.test_regions import graph_of

DIMS = ["batch", 8, "seq", 64]


def value(name: str, dims: object = DIMS, kind: int = TensorProto.FLOAT16) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def body(name: str, is_capped: bool) -> onnx.GraphProto:
    """Attention on q, k and v of the graph outside; both branches have the same names, and a constant each."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], name="keys", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"], name="scores"),
        helper.make_node("Mul", ["s", "scale"], ["scaled"], name="scaled"),
        helper.make_node("Tanh" if is_capped else "Identity", ["scaled"], ["capped"], name="cap"),
        helper.make_node("Softmax", ["capped"], ["p"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["out"], name="weighted"),
    ]
    scale = numpy_helper.from_array(np.array(0.25 if is_capped else 0.125, np.float16), "scale")
    return helper.make_graph(nodes, name, [], [value("out", None)], [scale])


def merged() -> onnx.ModelProto:
    node = helper.make_node("If", ["use_cache"], ["y"], name="branch",
                            then_branch=body("then", False), else_branch=body("else", True))  # fmt: skip
    inputs = [value("use_cache", [], TensorProto.BOOL), *map(value, "qkv")]
    graph = helper.make_graph([node], "g", inputs, [value("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_both_branches_are_written_out_under_names_of_their_own(tmp_path: Path) -> None:
    model = merged()
    assert write_out_branches(model.graph) == 1
    onnx.checker.check_model(model, full_check=True)
    made = [name for node in model.graph.node for name in node.output]
    assert len(set(made)) == len(made) == 13
    assert "y" in made
    assert [numpy_helper.to_array(t).item() for t in model.graph.initializer] == [0.125, 0.25]
    capped, uncapped = find_regions(graph_of(tmp_path, merged()))[::-1]
    assert [node.op_type for node in capped.nodes].count("Tanh") == 1
    assert [node.op_type for node in uncapped.nodes].count("Tanh") == 0
    assert capped.anchor.name == "softmax (else_branch of branch)"


def test_what_a_branch_inside_a_branch_takes_from_outside_follows_its_new_name(tmp_path: Path) -> None:
    inner = merged().graph.node[0]
    inner.output[0] = "inner"
    deep = helper.make_graph(
        [helper.make_node("Relu", ["q"], ["kt"]), helper.make_node("Mul", ["kt", "v"], ["v2"]), inner,
         helper.make_node("Add", ["inner", "v2"], ["sum"])], "deep", [], [value("sum", None)],
    )  # fmt: skip
    other = helper.make_graph([helper.make_node("Identity", ["q"], ["o"])], "other", [], [value("o", None)])
    node = helper.make_node("If", ["use_cache"], ["y"], name="outer", then_branch=deep, else_branch=other)
    model = merged()
    model.graph.node[0].CopyFrom(node)
    assert len(find_regions(graph_of(tmp_path, model))) == 2
    assert write_out_branches(model.graph) == 2
    onnx.checker.check_model(model, full_check=True)


def test_a_branch_without_attention_stays_as_it_is() -> None:
    """The older exporter of torch writes one for a squeeze, of which only one branch fits the shape."""
    branches = [helper.make_graph([helper.make_node(op, ["q"], [op])], op, [], [value(op, None)])
                for op in ("Identity", "Squeeze")]  # fmt: skip
    model = merged()
    node = helper.make_node("If", ["use_cache"], ["y"], then_branch=branches[0], else_branch=branches[1])
    model.graph.node[0].CopyFrom(node)
    before = model.SerializeToString(deterministic=True)
    assert write_out_branches(model.graph) == 0
    assert model.SerializeToString(deterministic=True) == before


def test_each_branch_is_judged(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    onnx.save(merged(), tmp_path / "m.onnx")
    report = lint(tmp_path / "m.onnx")
    assert [region.verdict for region in report.regions] == ["fused", "unfused"]
    assert report.regions[1].sentence() == "not fused; without `Tanh` (softcap) it is"
    assert report.regions[1].culprits[0].node == "cap (else_branch of branch)"
    assert "both branches of 1 If were looked at, each as if it were taken" in report.notes
    assert report.exit_code("unfused") == 1


def test_what_is_inside_a_loop_is_counted_and_not_called_good(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    inner = body("loop", True)
    inner.input.extend([value("i", [], TensorProto.INT64), value("go_on", [], TensorProto.BOOL), value("h", None)])
    inner.node.append(helper.make_node("Identity", ["go_on"], ["still"]))
    inner.output.insert(0, value("still", [], TensorProto.BOOL))
    node = helper.make_node("Loop", ["n", "use_cache", "q"], ["y"], body=inner)
    model = merged()
    model.graph.node[0].CopyFrom(node)
    model.graph.input.append(value("n", [], TensorProto.INT64))
    onnx.save(model, tmp_path / "m.onnx")
    report = lint(tmp_path / "m.onnx")
    assert report.regions == ()
    assert "not looked at: 1 softmax or Attention nodes inside Loop or Scan" in report.notes
    assert report.exit_code() == report.exit_code("unfused") == 3
