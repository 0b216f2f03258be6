"""`onnx-contrib` over the problem space: the fitting operator, right at other lengths, or a true refusal."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from attnbench.errors import UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact, Settings
from attnbench.measure.numerics import compare
from attnbench.plugins import load_runtime
from attnbench.probes import Fill, make_probe_inputs
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters.contrib import OnnxContrib

HEADS = {"num_heads": 4, "head_dim": 16}
GROUPED, MULTI_HEAD, PACKED = "GroupQueryAttention", "MultiHeadAttention", "Attention"


def core(variant: str, kv_len: int = 5, **fields: object) -> Problem:
    return Problem.make(part="core", variant=variant, seq_len=7, kv_len=kv_len, **HEADS, **fields)  # type: ignore[arg-type]


def block(variant: str, **fields: object) -> Problem:
    return Problem.make(variant=variant, seq_len=7, **HEADS, **fields)  # type: ignore[arg-type]


FORMS = {
    "biases, packed": (block("causal", bias=True), PACKED),
    "biases, cross": (block("cross", bias=True), MULTI_HEAD),
    "a scale": (block("self", scale=0.3), MULTI_HEAD),
    "own value size": (block("causal", v_head_dim=8), MULTI_HEAD),
    "no mask": (block("self"), MULTI_HEAD),
    "low-rank value map": (block("causal", value_map="low_rank", bias=True), PACKED),
    "padding": (block("self", mask="key_padding"), MULTI_HEAD),
    "causal and padding": (block("causal", mask="causal_top_left+key_padding"), MULTI_HEAD),
    "boolean by head, one key head": (block("self", mask="bool_1hqk", num_kv_heads=1), GROUPED),
    "padding, grouped": (block("self", mask="key_padding", num_kv_heads=2), GROUPED),
    "alibi, grouped, causal": (block("causal", mask="causal_top_left+alibi", num_kv_heads=2), GROUPED),
    "grouped, no mask": (block("self", num_kv_heads=2), GROUPED),
    "window": (block("causal", mask="sliding_window_3"), GROUPED),
    "window and padding, grouped": (block("causal", mask="sliding_window_3+key_padding", num_kv_heads=2), GROUPED),
    "window, head_dim 12": (
        Problem.make(variant="causal", seq_len=7, mask="sliding_window_3", head_dim=12), MULTI_HEAD,
    ),
    "core, window": (core("causal", mask="sliding_window_3"), MULTI_HEAD),
    "core, bottom right": (core("causal", mask="causal_bottom_right"), MULTI_HEAD),
    "core, bottom right, boolean": (core("causal", mask="causal_bottom_right+bool_b1qk", v_head_dim=8), MULTI_HEAD),
    "core, boolean for all": (core("cross", mask="bool_qk"), MULTI_HEAD),
    "core, boolean by head": (core("cross", mask="bool_1hqk"), MULTI_HEAD),
    "core, bias": (core("cross", mask="bias_1hqk"), MULTI_HEAD),
    "core, grouped": (core("causal", 7, num_kv_heads=2), GROUPED),
    "decode": (block("decode", q_len=2), GROUPED),
    "decode, grouped, padding": (
        block("decode", q_len=2, num_kv_heads=1, mask="causal_bottom_right+key_padding"), GROUPED,
    ),
}  # fmt: skip
SIZES = ((7, 5, 2), (1, 4, 1), (3, 33, 3))  # q_len, kv_len (of decode: in the cache), batch_size
WORST_ROW = {"fp32": 5e-6, "fp16": 5e-3}


def at_size(problem: Problem, q_len: int, kv_len: int, batch_size: int) -> Problem:
    if problem.variant == "decode":
        return problem.at(q_len=q_len, kv_len=q_len + kv_len, batch_size=batch_size)
    free = problem.q_len != problem.kv_len
    return problem.at(q_len=q_len, kv_len=kv_len if free else q_len, batch_size=batch_size)


def fills(problem: Problem) -> list[Fill]:
    form = problem.masking.form
    if form is None or not form.is_bool:
        return ["normal"]
    by_row: list[Fill] = ["no_key_row"] if "q_len" in form.dims else []
    by_sample: list[Fill] = ["no_key_sample"] if form.dims[0] == "batch_size" else []
    return ["normal", *by_row, *by_sample]


def assert_right_at_every_size(runtime: str, problem: Problem, artifact: Artifact) -> None:
    with load_runtime(runtime).load(problem, artifact, Settings()) as session:
        for sized in (at_size(problem, *size) for size in SIZES):
            for fill in fills(sized):
                inputs = make_probe_inputs(sized, fill, seed=0)
                session.bind({name: array.copy() for name, array in inputs.items()})()
                expected = reference_output(sized, inputs, make_weights(sized))
                error = compare(session.outputs(), expected).worst_row_rel_err
                assert error < WORST_ROW[problem.dtype], (runtime, sized.label(), fill)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", FORMS)
def test_one_file_with_the_fitting_operator_is_right_at_every_length(name: str, dtype: str, tmp_path: Path) -> None:
    """Queries that see no key give zero, which no operator does by itself."""
    form, operator = FORMS[name]
    problem = Problem.from_dict({**form.as_dict(), "dtype": dtype})
    artifact = OnnxContrib().export(problem, 20, tmp_path / "model.onnx", seed=0)
    fused = {op.split("::")[1]: count for op, count in artifact.operators.items() if op.startswith("com.microsoft")}
    assert fused == {operator: 1}
    assert_right_at_every_size("ort-cpu", problem, artifact)


@pytest.mark.parametrize("name", FORMS)
def test_openvino_is_right_too_or_refuses_grouped_attention_in_words(name: str, tmp_path: Path) -> None:
    """OpenVINO reads GroupQueryAttention only with a cache, and at batch size 2 it answers with nothing."""
    problem, operator = FORMS[name]
    artifact = OnnxContrib().export(problem, 20, tmp_path / "model.onnx", seed=0)
    if operator != GROUPED:
        assert_right_at_every_size("openvino", problem, artifact)
        return
    words = r"GroupQueryAttention(: past_key.* must be provided| expected .* inputs)"
    with (
        pytest.raises(UnsupportedError, match=words),
        load_runtime("openvino").load(problem, artifact, Settings()),
    ):
        pass


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (block("self", dtype="bf16"), "takes fp32 and fp16, not bf16"),
        (block("self", num_kv_heads=2, v_head_dim=8), "takes values of head_dim 16 only, not v_head_dim 8"),
        (block("cross", num_kv_heads=2), "takes one length for queries and keys, not q_len 7 and kv_len 3"),
        (Problem.make(variant="decode", seq_len=7, head_dim=12), "takes head_dim in multiples of 8, not 12"),
        (core("causal"), "no causal alignment for q_len 7 and kv_len 5"),
    ],
)
def test_what_the_operators_cannot_do_is_refused_with_a_true_reason(problem: Problem, words: str) -> None:
    support = OnnxContrib().supports(problem, 20)
    assert not support.ok
    assert words in support.reason
    assert support.reason.endswith("; use onnx-attention or onnx-decomposed")


@pytest.mark.parametrize("lengths", [(7, 3), (3, 7)])
def test_grouped_heads_of_two_lengths_fail_in_the_runtime_too(lengths: tuple[int, int], tmp_path: Path) -> None:
    """A file for one length must not answer for two."""
    problem = core("causal", 7, num_kv_heads=2)
    artifact = OnnxContrib().export(problem, 20, tmp_path / "model.onnx", seed=0)
    session = onnxruntime.InferenceSession(artifact.path, quiet(), providers=["CPUExecutionProvider"])
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="same"):
        session.run(None, make_inputs(problem.at(q_len=lengths[0], kv_len=lengths[1])))


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


@pytest.mark.parametrize("room", [0, 2])
def test_a_decode_file_takes_the_cache_with_or_without_room_for_the_new_tokens(room: int, tmp_path: Path) -> None:
    """With room the cache is as long as the present; what lies in the room does not matter."""
    problem = block("decode", q_len=2, num_kv_heads=2).at(q_len=2, kv_len=9, batch_size=2)
    artifact = OnnxContrib().export(problem, 20, tmp_path / "model.onnx", seed=0)
    assert [value.name for value in onnx.load(artifact.path).graph.input][-1] == "cache_room"
    inputs, weights = make_inputs(problem), make_weights(problem)
    given = dict(inputs)
    if room:
        rubbish = np.full((2, 2, room, 16), 1e6, np.float32)
        given |= {name: np.concatenate([inputs[name], rubbish], 2) for name in ("past_key", "past_value")}
        given["cache_room"] = np.array(room, np.int64)
    session = onnxruntime.InferenceSession(artifact.path, quiet(), providers=["CPUExecutionProvider"])
    y, present_key, present_value = session.run(["y", "present_key", "present_value"], given)
    assert compare(y, reference_output(problem, inputs, weights)).worst_row_rel_err < 5e-6
    for present, kind in ((present_key, "key"), (present_value, "value")):
        new = inputs["x"].astype(np.float64) @ weights[f"w_{kind[0]}"]
        assert present.shape == (2, 2, 9, 16)
        np.testing.assert_array_equal(present[:, :, :7], inputs[f"past_{kind}"])
        np.testing.assert_allclose(present[:, :, 7:], new.reshape(2, 2, 2, 16).swapaxes(1, 2), rtol=0, atol=1e-5)
