"""Attention of fixed sizes, as in models of images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnbench.fusion.cut import Cut, cut
from attnbench.fusion.linter import lint
from attnbench.fusion.regions import find_regions
from attnbench.fusion.sized_graph import load_structure, shapes_of, sized_graph
from attnbench.fusion.stretch import stretched

HEADS, DIM = 12, 64


def image_model(
    q_len: int = 197, kv_len: int = 197, softcap: bool = False, bias: Sequence[int] = ()
) -> onnx.ModelProto:
    """q, k and v of (1, H, T, D) as heads leave them, with a bias that is a weight where one is asked."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["x0"]),
        helper.make_node("Tanh" if softcap else "Identity", ["x0"], ["x1"]),
        helper.make_node("Add" if bias else "Identity", ["x1", *(["bias"] if bias else [])], ["x2"]),
        helper.make_node("Softmax", ["x2"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    tensors = [numpy_helper.from_array(np.array(0.125, np.float16), "scale")]
    tensors += [numpy_helper.from_array(np.zeros(bias, np.float16), "bias")] if bias else []
    lengths = {"q": q_len, "k": kv_len, "v": kv_len, "y": q_len}
    q, k, v, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, HEADS, length, DIM])
        for name, length in lengths.items()
    )
    graph = helper.make_graph(nodes, "g", [q, k, v], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def cut_of(tmp_path: Path, model: onnx.ModelProto) -> Cut:
    onnx.save(model, tmp_path / "m.onnx")
    graph = sized_graph(load_structure(tmp_path / "m.onnx"), {})
    (region,) = find_regions(graph)
    made = cut(graph, region)
    assert made is not None
    return made


@pytest.mark.parametrize("bias", [(), (1, HEADS, 197, 197)], ids=["plain", "relative bias"])
def test_lengths_grow_and_nothing_else_does(tmp_path: Path, bias: tuple[int, ...]) -> None:
    made = stretched(cut_of(tmp_path, image_model(bias=bias)), 2048)
    assert made is not None
    onnx.checker.check_model(made.model, full_check=True)
    shapes = sorted(
        shape[1] for name, shape in shapes_of(made.model).items() if name in {v.name for v in made.model.graph.input}
    )
    assert shapes == sorted([(1, HEADS, 2048, DIM)] * 3 + [(1, HEADS, 2048, 2048)] * bool(bias))
    assert made.score_bytes == HEADS * 2048 * 2048 * 2
    assert made.passed_bytes == 4 * HEADS * 2048 * DIM * 2 + bool(bias) * made.score_bytes


def test_queries_and_keys_of_other_lengths_are_as_many_afterwards(tmp_path: Path) -> None:
    made = stretched(cut_of(tmp_path, image_model(100, 950)), 2048)
    assert made is not None
    assert made.score_bytes == HEADS * 2048 * 2048 * 2


@pytest.mark.parametrize("length", [HEADS, DIM, 1])
def test_a_length_that_is_also_another_size_is_left_alone(tmp_path: Path, length: int) -> None:
    assert stretched(cut_of(tmp_path, image_model(length, length)), 2048) is None


def test_what_holds_a_mask_of_its_own_length_is_left_alone(tmp_path: Path) -> None:
    """A mask so small is kept as a constant, which has no other length."""
    assert stretched(cut_of(tmp_path, image_model(bias=(1, 1, 1, 197))), 2048) is None


def test_images_are_judged_at_a_longer_t_and_it_is_said(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    for softcap in (False, True):
        onnx.save(image_model(softcap=softcap), tmp_path / "m.onnx")
        report = lint(tmp_path / "m.onnx")
        (region,) = report.regions
        assert region.sentence() == ("not fused; without `Tanh` (softcap) it is" if softcap else "fused")
        assert [whole.verdict for whole in report.whole] == ["unknown"]
        assert (
            "of fixed sizes too small to tell: 1 attention regions, judged at T = 2048 and 4096 instead" in report.notes
        )
