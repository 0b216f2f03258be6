"""Every exporter writes what was asked: opset, names, symbols, operators, and the right numbers at any size."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from attnbench import conformance
from attnbench.errors import FrozenDimError, OpsetError, UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact, Exporter
from attnbench.measure.numerics import compare
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters import onnx_files
from attnbench_exporters.attention import OnnxAttention
from attnbench_exporters.blocked import OnnxBlocked
from attnbench_exporters.contrib import OnnxContrib
from attnbench_exporters.contrib_graph import build_model
from attnbench_exporters.decomposed import OnnxDecomposed

Exported = Callable[..., Artifact]
NAMES = ("onnx-decomposed", "onnx-attention", "onnx-contrib", "onnx-blocked")
PARTS = ("block", "core")
VARIANTS = ("self", "cross", "causal")
ASKED_OPSETS = (13, 17, 18, 23, 25, 26, 99)  # public bug reports: requests that came out as another opset
WORST_ROW = {"fp32": 1e-5, "fp16": 5e-3}


def small(part: str = "block", variant: str = "self", dtype: str = "fp32") -> Problem:
    return Problem.make(part=part, variant=variant, seq_len=16, num_heads=4, head_dim=16, dtype=dtype)  # type: ignore[arg-type]


def run(artifact: Artifact, inputs: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(artifact.path, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def assert_right(artifact: Artifact, problem: Problem, input_class: str = "normal") -> None:
    inputs = make_inputs(problem, seed=1, input_class=input_class)
    expected = reference_output(problem, inputs, make_weights(problem, seed=0))
    error = compare(run(artifact, inputs), expected).worst_row_rel_err
    assert error <= WORST_ROW[problem.dtype], f"{artifact.exporter} {problem.label()}: {error}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("part", "variant"), list(itertools.product(PARTS, VARIANTS)))
def test_every_size_is_a_symbol_and_computes_right(exported: Exported, name: str, part: str, variant: str) -> None:
    problem = small(part, variant)
    artifact = exported(name, problem)
    model = onnx.load(artifact.path)
    dims = {
        value.name: tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
        for value in [*model.graph.input, *model.graph.output]
    }
    assert list(dims.items()) == list(problem.symbolic_dims().items())
    free_kv_len = variant == "cross" or (part, variant, name != "onnx-contrib") == ("core", "causal", True)
    for batch_size, q_len, kv_len in ((2, 7, 10), (3, 10, 4), (1, 1, 9), (5, 33, 17)):
        sized = problem.at(q_len=q_len, kv_len=kv_len if free_kv_len else q_len, batch_size=batch_size)
        assert_right(artifact, sized)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_fp16_weights_are_stored_as_fp16_and_compute_right(exported: Exported, name: str, variant: str) -> None:
    problem = small("block", variant, "fp16")
    artifact = exported(name, problem)
    stored = {t.data_type for t in onnx.load(artifact.path).graph.initializer if len(t.dims) == 2}
    assert stored == {onnx.TensorProto.FLOAT16}
    assert_right(artifact, problem.at(q_len=33))
    assert_right(artifact, problem.at(q_len=2, batch_size=3), "peaked")


@pytest.mark.parametrize("name", NAMES[:2])
def test_bf16_weights_are_stored_as_bf16(exported: Exported, name: str) -> None:
    artifact = exported(name, small(dtype="bf16"))
    model = onnx.load(artifact.path)
    assert {t.data_type for t in model.graph.initializer if len(t.dims) == 2} == {onnx.TensorProto.BFLOAT16}
    elements = {v.type.tensor_type.elem_type for v in [*model.graph.input, *model.graph.output]}
    assert elements == {onnx.TensorProto.BFLOAT16}


@pytest.mark.parametrize(("name", "opset"), list(itertools.product(NAMES, ASKED_OPSETS)))
def test_the_opset_is_the_one_asked_or_an_error_names_it(
    exported: Exported, name: str, opset: int, tmp_path: Path
) -> None:
    problem = small("block", "cross")
    exporter = {e.name: e for e in (OnnxDecomposed(), OnnxAttention(), OnnxContrib(), OnnxBlocked())}[name]
    if opset not in exporter.opsets:
        support = exporter.supports(problem, opset)
        assert not support.ok
        assert str(opset) in support.reason
        with pytest.raises(OpsetError, match=str(opset)):
            exporter.export(problem, opset, tmp_path / "m.onnx", seed=0)
        assert list(tmp_path.iterdir()) == []
        return
    artifact = exported(name, problem, opset)
    model = onnx.load(artifact.path)
    assert [e.version for e in model.opset_import if e.domain == ""] == [opset] == [artifact.opset]
    onnx.checker.check_model(model, full_check=True)
    assert_right(artifact, problem.at(q_len=5, kv_len=9))


@pytest.mark.parametrize(("kind", "opset"), [(OnnxDecomposed, 13), (OnnxDecomposed, 99), (OnnxAttention, 26)])
def test_a_torch_that_answers_with_another_opset_is_found_out(
    kind: type[OnnxDecomposed], opset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch writes 18 for each of these without an error; only reading the file shows it."""
    monkeypatch.setattr(kind, "opsets", (opset,))
    with pytest.raises(OpsetError, match=f"opset {opset} was asked, the exported file has 18"):
        kind().export(small(), opset, tmp_path / "m.onnx", seed=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("opset", [23, 24])
def test_the_attention_exporter_writes_one_standard_attention(exported: Exported, variant: str, opset: int) -> None:
    operators = exported("onnx-attention", small(variant=variant), opset).operators
    assert operators["::Attention"] == 1
    assert "::Softmax" not in operators
    assert operators["::MatMul"] == 4  # the projections


def test_the_decomposed_exporter_writes_no_attention_operator(exported: Exported) -> None:
    operators = exported("onnx-decomposed", small(variant="causal")).operators
    assert operators["::Softmax"] == 1
    assert operators["::MatMul"] == 6
    assert not any("Attention" in name for name in operators)


@pytest.mark.parametrize(
    ("part", "variant", "operator"),
    [
        ("block", "self", "MultiHeadAttention"), ("block", "cross", "MultiHeadAttention"),
        ("block", "causal", "Attention"),
        ("core", "self", "MultiHeadAttention"), ("core", "causal", "MultiHeadAttention"),
    ],
)  # fmt: skip
def test_the_contrib_exporter_picks_the_fused_operator(
    exported: Exported, part: str, variant: str, operator: str
) -> None:
    artifact = exported("onnx-contrib", small(part, variant))
    assert artifact.operators[f"com.microsoft::{operator}"] == 1
    assert "::Softmax" not in artifact.operators


def test_contrib_masks_hide_even_scores_of_minus_twenty_thousand(tmp_path: Path) -> None:
    """The operator's own mask value, -10000, would let such scores through: the first row must see itself alone."""
    problem = Problem.make(part="core", variant="causal", seq_len=6, num_heads=2, head_dim=16)
    artifact = OnnxContrib().export(problem, 20, tmp_path / "m.onnx", seed=0)
    inputs = make_inputs(problem)
    inputs["q"][...] = 1.0
    inputs["k"][...] = np.linspace(-5000.0, 0.0, 6, dtype=np.float32)[:, None]  # later keys score 4000 to 20000 more
    expected = reference_output(problem, inputs, {})
    np.testing.assert_allclose(expected[..., 0, :], inputs["v"][..., 0, :], atol=1e-6)  # by hand: row 0 is v[0]
    np.testing.assert_allclose(run(artifact, inputs), expected, atol=1e-5)


def test_contrib_refuses_what_it_cannot_express(tmp_path: Path) -> None:
    unequal = Problem.make(part="core", variant="causal", seq_len=3, kv_len=7)
    for problem, words in ((unequal, "q_len 3 and kv_len 7"), (small(dtype="bf16"), "bf16")):
        assert words in OnnxContrib().supports(problem, 20).reason
        with pytest.raises(UnsupportedError, match=words):
            OnnxContrib().export(problem, 20, tmp_path / "m.onnx", seed=0)


def test_a_causal_contrib_core_fails_rather_than_answers_at_unequal_lengths(exported: Exported) -> None:
    artifact = exported("onnx-contrib", small("core", "causal"))
    inputs = make_inputs(Problem.make(part="core", variant="causal", seq_len=3, kv_len=7, num_heads=4, head_dim=16))
    with pytest.raises(Exception, match="equal_lengths_only"):
        run(artifact, inputs)


@pytest.mark.parametrize("variant", ["self", "causal"])
def test_head_sizes_equal_to_the_example_lengths_stay_apart(variant: str, tmp_path: Path) -> None:
    """The traced example has 2 x 11 x 7 positions: heads of these sizes must not be mistaken for them."""
    problem = Problem.make(part="core", variant=variant, seq_len=11, num_heads=2, head_dim=7)  # type: ignore[arg-type]
    artifact = OnnxDecomposed().export(problem, 20, tmp_path / "m.onnx", seed=0)
    assert_right(artifact, problem.at(q_len=5, batch_size=3))


def test_a_numeric_dim_is_an_error_with_its_place(tmp_path: Path) -> None:
    model = build_model(small(), 20, make_weights(small()))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 16
    with pytest.raises(FrozenDimError, match="x, axis 1: seq_len is the number 16"):
        onnx_files.rename_dims(model, small())


def test_two_lengths_under_one_symbol_are_an_error(tmp_path: Path) -> None:
    model = build_model(small(variant="cross"), 20, make_weights(small()))
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "q_len"
    with pytest.raises(FrozenDimError, match="kv_len and q_len are one symbol"):
        onnx_files.rename_dims(model, small(variant="cross"))


def test_symbols_of_another_name_are_renamed() -> None:
    model = build_model(small(), 20, make_weights(small()))
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.shape.dim[1].dim_param = "s77"
    onnx_files.rename_dims(model, small())
    assert model.graph.output[0].type.tensor_type.shape.dim[1].dim_param == "seq_len"


def test_an_equal_request_gives_equal_bytes_in_another_process(exported: Exported, tmp_path: Path) -> None:
    """No stack trace, path, time or hash order gets into the file."""
    code = (
        "import sys, pathlib; from attnbench.problem import Problem; "
        "from attnbench_exporters.attention import OnnxAttention; "
        "p = Problem.make(variant='causal', seq_len=99, batch_size=3, num_heads=4, head_dim=16); "
        "print(OnnxAttention().export(p, 23, pathlib.Path(sys.argv[1]), seed=0).sha256)"
    )
    path = tmp_path / "elsewhere.onnx"
    done = subprocess.run([sys.executable, "-P", "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == exported("onnx-attention", small(variant="causal"), 23).sha256
    assert b"/attnbench/" not in path.read_bytes()
    assert done.stderr == ""


@pytest.mark.parametrize("exporter", [OnnxDecomposed(), OnnxAttention(), OnnxContrib(), OnnxBlocked()], ids=NAMES)
def test_the_exporter_keeps_the_contract(exporter: Exporter) -> None:
    problems = [small("block", "cross"), small("core", "causal")]
    conformance.check_exporter(exporter, problems)
