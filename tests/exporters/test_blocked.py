"""onnx-blocked: right at every edge of its blocks, for every mask, and in any graph that has an Attention node."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from attnbench.errors import UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Array, Settings
from attnbench.measure.numerics import compare
from attnbench.plugins import load_runtime
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters import query_blocks
from attnbench_exporters.blocked import OnnxBlocked
from attnbench_exporters.query_blocks import block_queries

HEADS = {"num_heads": 4, "head_dim": 16}
FORMS = [
    Problem.make(seq_len=8, **HEADS),
    Problem.make(variant="causal", seq_len=8, num_kv_heads=2, **HEADS),
    Problem.make(variant="causal", seq_len=8, mask="sliding_window_5+bool_1hqk", v_head_dim=8, **HEADS),
    Problem.make(part="core", variant="causal", seq_len=8, kv_len=6, **HEADS),
    Problem.make(part="core", variant="causal", seq_len=8, kv_len=6, mask="causal_bottom_right+alibi", **HEADS),
    Problem.make(part="core", variant="causal", seq_len=8, kv_len=6, mask="sliding_window_3", **HEADS),
    Problem.make(variant="cross", seq_len=8, mask="bool_b1qk", num_kv_heads=1, **HEADS),
    Problem.make(seq_len=8, mask="key_padding", bias=True, scale=0.3, value_map="low_rank", **HEADS),
    Problem.make(variant="decode", seq_len=8, q_len=2, num_kv_heads=2, **HEADS),
]
# Blocks of 3 to 8 rows: around one block, two, many; more and fewer keys than queries.
SIZES = [(1, 5), (3, 3), (4, 9), (5, 2), (7, 7), (16, 40), (33, 17), (100, 101)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SHORT", 3), ("SMALL", 9), ("LEAST_ROWS", 3), ("MOST_ROWS", 8)):
        monkeypatch.setattr(query_blocks, name, value)


def session_of(model: bytes | Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def at_size(problem: Problem, q_len: int, kv_len: int) -> Problem:
    if problem.variant == "decode":
        return problem.at(q_len=q_len, kv_len=q_len + kv_len, batch_size=2)
    free = problem.q_len != problem.kv_len
    return problem.at(q_len=q_len, kv_len=kv_len if free else q_len, batch_size=2)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("problem", FORMS, ids=Problem.label)
def test_every_form_is_right_around_the_edges_of_blocks(problem: Problem, tmp_path: Path) -> None:
    artifact = OnnxBlocked().export(problem, 20, tmp_path / "m.onnx", seed=0)
    session = session_of(artifact.path)
    for size in SIZES:
        sized = at_size(problem, *size)
        inputs = make_inputs(sized, seed=1)
        expected = reference_output(sized, inputs, make_weights(sized))
        assert compare(session.run(None, inputs)[0], expected).worst_row_rel_err < 5e-6, sized.label()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("runtime", ["openvino", "onnx-reference"])
@pytest.mark.parametrize("problem", [FORMS[1], FORMS[2], FORMS[4], FORMS[6]], ids=Problem.label)
def test_other_runtimes_run_the_loops_right(problem: Problem, runtime: str, tmp_path: Path) -> None:
    artifact = OnnxBlocked().export(problem, 20, tmp_path / "m.onnx", seed=0)
    with load_runtime(runtime).load(problem, artifact, Settings()) as session:
        for size in ((7, 7), (33, 17)):
            sized = at_size(problem, *size)
            inputs = make_inputs(sized, seed=1)
            session.bind(inputs)()
            expected = reference_output(sized, make_inputs(sized, seed=1), make_weights(sized))
            assert compare(session.outputs(), expected).worst_row_rel_err < 5e-6, sized.label()


@pytest.mark.parametrize("q_len", [127, 128, 129, 257, 1025])
def test_the_usual_blocks_are_right_at_their_edges(q_len: int, tmp_path: Path) -> None:
    problem = Problem.make(variant="causal", seq_len=8, **HEADS)
    artifact = OnnxBlocked().export(problem, 18, tmp_path / "m.onnx", seed=0)
    inputs = make_inputs(sized := problem.at(q_len=q_len))
    expected = reference_output(sized, inputs, make_weights(sized))
    assert compare(session_of(artifact.path).run(None, inputs)[0], expected).worst_row_rel_err < 5e-6


def test_no_product_of_all_queries_and_keys_is_outside_of_the_branches(tmp_path: Path) -> None:
    """What stays outside are four projections; scores are inside the If, for long T inside its Loop."""
    artifact = OnnxBlocked().export(FORMS[1], 20, tmp_path / "m.onnx", seed=0)
    graph = onnx.load(artifact.path).graph
    assert [n.op_type for n in graph.node].count("MatMul") == 4
    assert not {"Softmax", "Attention", "Range"} & {n.op_type for n in graph.node}
    branches = {a.name: [n.op_type for n in a.g.node] for n in graph.node if n.op_type == "If" for a in n.attribute}
    assert branches["then_branch"].count("Softmax") == 1
    assert "Loop" in branches["else_branch"]
    assert "Softmax" not in branches["else_branch"]


def innermost(graph: onnx.GraphProto) -> onnx.GraphProto:
    """The body of the loop in the loop in the branch for long sequences."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("else_branch", "body"):
                return innermost(attribute.g)
    return graph


@pytest.mark.parametrize(
    ("variant", "mask", "added_to"),
    [("causal", "causal_top_left", "MatMul_own"), ("causal", "sliding_window_3", "MatMul_all"), ("self", "none", "")],
)
def test_a_causal_block_masks_its_own_keys_alone(variant: str, mask: str, added_to: str, tmp_path: Path) -> None:
    """Adding to all keys costs as much as reading them; a window hides keys in front of the block too."""
    problem = Problem.make(variant=variant, seq_len=8, mask=mask, **HEADS)
    artifact = OnnxBlocked().export(problem, 20, tmp_path / "m.onnx", seed=0)
    body = innermost(onnx.load(artifact.path).graph)
    makers = {output: node for node in body.node for output in node.output}
    products = [node.output[0] for node in body.node if node.op_type == "MatMul"]
    masked = [makers[n.input[0]] for n in body.node if n.op_type == "Add" and n.input[0] in products]
    names = {"MatMul_all": products[:1], "MatMul_own": products[1:2], "": []}
    assert [node.output[0] for node in masked] == names[added_to]
    assert len(products) == (3 if added_to == "MatMul_own" else 2)


@pytest.mark.parametrize(
    ("problem", "lengths"),
    [
        (FORMS[0], {(512, 512): True, (513, 513): False, (128, 128): True}),
        (Problem.make(variant="causal", seq_len=8, **HEADS), {(128, 128): True, (129, 129): False}),
        (Problem.make(variant="cross", seq_len=8, **HEADS), {(1024, 256): True, (1024, 257): False, (128, 9999): True}),
    ],
    ids=["self", "causal", "cross"],
)
def test_the_loop_begins_where_it_saves_more_than_it_costs(
    problem: Problem, lengths: dict[tuple[int, int], bool], tmp_path: Path
) -> None:
    """Asked of the condition itself, which becomes the only output."""
    artifact = OnnxBlocked().export(problem, 20, tmp_path / "m.onnx", seed=0)
    model = onnx.load(artifact.path)
    condition = next(node.input[0] for node in model.graph.node if node.op_type == "If")
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, []))
    session = session_of(model.SerializeToString())
    for (q_len, kv_len), is_whole in lengths.items():
        inputs = make_inputs(problem.at(q_len=q_len, kv_len=kv_len))
        assert bool(session.run(None, dict(inputs))[0]) is is_whole, (q_len, kv_len)


def attention_model(mask_shape: list[str | int] | None, kind: int, **attributes: float) -> onnx.ModelProto:
    """One Attention node on heads that were split before."""
    shapes = {"q": ["b", 4, "t", 16], "k": ["b", 2, "s", 16], "v": ["b", 2, "s", 16]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    names = list(shapes)
    if mask_shape is not None:
        inputs.append(helper.make_tensor_value_info("mask", kind, mask_shape))
        names.append("mask")
    node = helper.make_node("Attention", names, ["y"], **attributes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 4, "t", 16])
    graph = helper.make_graph([node], "g", inputs, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def naive(arrays: dict[str, Array], *, is_causal: bool) -> Array:
    """Attention by the definition, in float64."""
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(x, 2, axis=1) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) / 4.0
    if (mask := arrays.get("mask")) is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    best = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(best), 0.0, best))
    total = weights.sum(-1, keepdims=True)
    return np.asarray(weights / np.where(total == 0.0, 1.0, total) @ v)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", [TensorProto.BOOL, TensorProto.FLOAT])
@pytest.mark.parametrize(
    "dims",
    [["t", "s"], [1, "s"], ["t", 1], [4, "t", "s"], ["b", 1, 1, "s"], ["b", 4, "t", "s"], ["m0", "m1", "m2", "m3"]],
    ids=str,
)
def test_any_mask_that_broadcasts_is_cut_right(dims: list[str | int], kind: int, is_causal: bool) -> None:
    sizes = {"b": 2, "t": 13, "s": 9, "m0": 1, "m1": 4, "m2": 1, "m3": 9}
    shape = [sizes[d] if isinstance(d, str) else d for d in dims]
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal((2, h, t, 16)).astype(np.float32)
              for name, h, t in (("q", 4, 13), ("k", 2, 9), ("v", 2, 9))}  # fmt: skip
    allowed = random.random(shape) < 0.6
    if kind == TensorProto.FLOAT:
        mask = np.where(allowed, random.standard_normal(shape), -np.inf).astype(np.float32)
    arrays["mask"] = allowed if kind == TensorProto.BOOL else mask
    model = attention_model(dims, kind, is_causal=int(is_causal))
    assert block_queries(model) == 1
    found = session_of(model.SerializeToString()).run(None, arrays)[0]
    assert compare(found, naive(arrays, is_causal=is_causal)).worst_row_rel_err < 5e-6


@pytest.mark.parametrize(
    ("attributes", "words"), [({"softcap": 5.0}, "softcap 5"), ({"q_num_heads": 4, "kv_num_heads": 2}, "kv_num_heads")]
)
def test_what_the_loop_does_not_write_is_refused_with_its_name(attributes: dict[str, float], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        block_queries(attention_model(None, 0, **attributes))
