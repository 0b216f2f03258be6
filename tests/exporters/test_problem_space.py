"""Masks, grouped heads, other value sizes and decode: exported once, right at other lengths in every runtime here."""

from pathlib import Path

import numpy as np
import pytest

from attnbench.errors import UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact, Settings
from attnbench.measure.numerics import compare
from attnbench.plugins import load_exporter, load_runtime
from attnbench.problem import Problem
from attnbench.reference import reference_output

HEADS = {"num_heads": 4, "head_dim": 16}
FORMS = {
    "padding": Problem.make(seq_len=8, mask="key_padding", **HEADS),
    "boolean by head, one key head": Problem.make(seq_len=8, mask="bool_1hqk", num_kv_heads=1, **HEADS),
    "alibi, bias, own value size and scale": Problem.make(
        seq_len=8, mask="alibi", bias=True, v_head_dim=8, scale=0.3, **HEADS
    ),
    "cross, boolean by batch": Problem.make(variant="cross", seq_len=8, mask="bool_b1qk", num_kv_heads=2, **HEADS),
    "window and padding": Problem.make(variant="causal", seq_len=8, mask="sliding_window_3+key_padding", **HEADS),
    "core, bottom right": Problem.make(
        part="core", variant="causal", seq_len=8, kv_len=6, mask="causal_bottom_right", **HEADS
    ),
    "decode, grouped": Problem.make(variant="decode", seq_len=8, q_len=2, num_kv_heads=2, v_head_dim=8, **HEADS),
    "low-rank value map": Problem.make(seq_len=8, value_map="low_rank", bias=True, num_kv_heads=2, **HEADS),
}
SIZES = ((7, 5, 2), (1, 4, 1), (3, 33, 3))  # q_len, kv_len (of decode: in the cache), batch_size


def at_size(problem: Problem, q_len: int, kv_len: int, batch_size: int) -> Problem:
    if problem.variant == "decode":
        return problem.at(q_len=q_len, kv_len=q_len + kv_len, batch_size=batch_size)
    free = problem.q_len != problem.kv_len
    return problem.at(q_len=q_len, kv_len=kv_len if free else q_len, batch_size=batch_size)


@pytest.fixture(scope="module", params=["onnx-decomposed", "onnx-attention", "onnx-blocked"])
def exporter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", FORMS)
def test_one_file_is_right_at_every_length_in_every_runtime(exporter: str, name: str, tmp_path: Path) -> None:
    problem = FORMS[name]
    plugin = load_exporter(exporter)
    artifact = plugin.export(problem, plugin.opsets[0], tmp_path / "model.onnx", seed=0)
    for runtime in ("ort-cpu", "openvino"):
        with load_runtime(runtime).load(problem, artifact, Settings()) as session:
            for size in SIZES:
                sized = at_size(problem, *size)
                inputs = make_inputs(sized)
                session.bind(inputs)()
                expected = reference_output(sized, inputs, make_weights(sized))
                assert compare(session.outputs(), expected).worst_row_rel_err < 5e-6, (runtime, sized.label())
    if problem.variant == "decode":
        assert_the_cache_grows_by_the_new_tokens(problem, artifact)


def assert_the_cache_grows_by_the_new_tokens(problem: Problem, artifact: Artifact) -> None:
    """present = past and behind it the new tokens' projections."""
    import onnxruntime

    sized = at_size(problem, 3, 5, 2)
    inputs, weights = make_inputs(sized), make_weights(sized)
    session = onnxruntime.InferenceSession(artifact.path, providers=["CPUExecutionProvider"])
    outputs = dict(zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True))
    for kind, width in (("key", sized.head_dim), ("value", sized.v_head_dim)):
        new = inputs["x"].astype(np.float64) @ weights[f"w_{kind[0]}"]
        new = new.reshape(2, 3, sized.num_kv_heads, width).swapaxes(1, 2)  # (B, H_kv, 3, D)
        present = outputs[f"present_{kind}"]
        np.testing.assert_array_equal(present[:, :, :5], inputs[f"past_{kind}"])
        np.testing.assert_allclose(present[:, :, 5:], new, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precisions_are_right_or_refused_in_words(exporter: str, dtype: str, tmp_path: Path) -> None:
    problem = Problem.make(
        variant="causal", seq_len=12, dtype=dtype, mask="causal_top_left+key_padding", num_kv_heads=2, **HEADS
    )  # fmt: skip
    plugin = load_exporter(exporter)
    artifact = plugin.export(problem, plugin.opsets[0], tmp_path / "model.onnx", seed=0)
    inputs = make_inputs(problem)
    expected = reference_output(problem, inputs, make_weights(problem))
    ran, refused = [], {}
    for runtime in ("ort-cpu", "openvino"):
        try:
            with load_runtime(runtime).load(problem, artifact, Settings()) as session:
                session.bind(inputs)()
                assert compare(session.outputs(), expected).worst_row_rel_err < {"fp16": 5e-3, "bf16": 4e-2}[dtype]
                ran.append(runtime)
        except UnsupportedError as err:
            refused[runtime] = str(err)
    assert "openvino" in ran
    assert all("has no kernel for" in words for words in refused.values())
    assert len(ran) + len(refused) == 2
