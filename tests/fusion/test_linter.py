"""The linter with NVIDIA's own compiler on models whose culprits were planted."""

import json
from pathlib import Path

import onnx
import pytest

from attnbench.errors import InputError, UntrustedModelError
from attnbench.fusion.lint_report import LintReport
from attnbench.fusion.linter import lint
from attnbench.fusion.sarif import as_sarif
from tests.fusion.planted import Layer, encoder

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

SOFTCAP, RETURNED = "`Tanh` (softcap)", "returned weights"
ISLAND, HEADS, HALF = "without the fp32 island (", "head_dim 128 instead of 320", "in fp16 instead of fp32"
FUSED: tuple[str, ...] = ()
Planted = list[tuple[Layer, tuple[str, ...]]]

# Each layer and all that keeps it from being fused. Four models, 27 layers.
NARROW: Planted = [
    (Layer(), FUSED),
    (Layer(inside=("softcap",)), (SOFTCAP,)),
    (Layer(scores="mul", inside=("add_mask",)), FUSED),
    (Layer(returned=True), (RETURNED,)),
    (Layer(scores="query", inside=("island_softmax",)), FUSED),
    (Layer(inside=("island_qk",)), (ISLAND,)),
    (Layer(inside=("nan_guard", "where_mask")), FUSED),
    (Layer(head_dim=320), (HEADS,)),
    (Layer(scores="einsum", inside=("softcap", "nan_guard")), (SOFTCAP,)),
]
FEW_HEADS: Planted = [
    (Layer(prefix="decoder.block.", scores="mul", inside=("softcap", "add_mask")), (SOFTCAP,)),
    (Layer(prefix="decoder.block.", inside=("add_mask", "nan_guard", "dropout")), FUSED),
    (Layer(prefix="decoder.block.", scores="query", inside=("island_qk", "add_mask")), (ISLAND,)),
    (Layer(prefix="decoder.block.", returned=True, inside=("add_mask", "island_softmax")), (RETURNED,)),
    (Layer(prefix="decoder.block.", returned=True, inside=("softcap",)), (SOFTCAP, RETURNED)),
    (Layer(prefix="decoder.block.", inside=("written_out",)), ("with one `Softmax`",)),
    (Layer(prefix="decoder.block.", inside=("nan_guard_full",)), ("`Where` (NaN guard)",)),
]
WIDE: Planted = [
    (Layer(prefix="/enc/"), (HALF,)),
    (Layer(prefix="/enc/", scores="mul", inside=("add_mask",)), (HALF,)),
    (Layer(prefix="/enc/", scores="query", inside=("nan_guard",)), (HALF,)),
    (Layer(prefix="/enc/", inside=("softcap",)), (SOFTCAP, HALF)),
    (Layer(prefix="/enc/", scores="operator"), (HALF,)),
]
BFLOAT: Planted = [
    (Layer(prefix="h", scores="mul"), FUSED),
    (Layer(prefix="h", inside=("softcap", "where_mask")), (SOFTCAP,)),
    (Layer(prefix="h", head_dim=320, inside=("add_mask",)), (HEADS,)),
    (Layer(prefix="h", returned=True, scores="mul"), (RETURNED,)),
    (Layer(prefix="h", scores="operator"), FUSED),
    (Layer(prefix="h", inside=("island_qk",)), (ISLAND,)),
]
MODELS = {"fp16": (NARROW, "fp16", 8), "few-heads": (FEW_HEADS, "fp16", 4), "fp32": (WIDE, "fp32", 8),
          "bf16": (BFLOAT, "bf16", 12)}  # fmt: skip


def linted(tmp_path: Path, layers: list[Layer], **options: object) -> LintReport:
    onnx.save(encoder(layers, **options), tmp_path / "model.onnx")  # type: ignore[arg-type]
    return lint(tmp_path / "model.onnx", {"batch": 1}, bind={"seq": "T"})


@pytest.mark.parametrize("name", MODELS)
def test_the_planted_culprit_is_named_and_nothing_else(tmp_path: Path, name: str) -> None:
    planted, dtype, num_heads = MODELS[name]
    report = linted(tmp_path, [layer for layer, _ in planted], dtype=dtype, num_heads=num_heads)
    assert report.compiler.startswith("tensorrt-rtx 1.")
    assert len(report.regions) == len(planted)
    for region, (layer, culprits) in zip(report.regions, planted, strict=True):
        assert region.verdict == ("unfused" if culprits else "fused"), (layer, region)
        assert len(region.culprits) == len(culprits), (layer, region.sentence())
        for found, due in zip(region.culprits, culprits, strict=True):
            assert due in found.words, (layer, region.sentence())
        assert region.is_together == (len(culprits) > 1)
        if culprits and culprits[0] not in (HALF, HEADS):
            assert region.culprits[0].node.startswith(f"{layer.prefix}{region.layer}."), region
    assert [whole.verdict for whole in report.whole] == ["unfused"]


def test_a_fused_model_is_fused_by_both_witnesses(tmp_path: Path) -> None:
    report = linted(tmp_path, [Layer(), Layer(scores="mul"), Layer()])
    assert [region.verdict for region in report.regions] == ["fused"] * 3
    assert [whole.verdict for whole in report.whole] == ["fused"]
    assert report.exit_code("unfused") == 0
    assert report.notes == ()
    q, k, v, y = (8 * 2048 * 64 * 2 for _ in "qkvy")  # bytes of one of them: H x T x D in fp16
    first, second = report.regions[0].planned_activation_bytes
    assert first is not None
    assert first <= q + k + v + y
    assert second == 2 * first


def test_an_attention_that_is_not_fused_fails_only_where_that_is_asked(tmp_path: Path) -> None:
    report = linted(tmp_path, [Layer(), Layer(inside=("softcap",))])
    assert report.exit_code() == 0
    assert report.exit_code("unfused") == 1
    assert "layer 1 (layer1.Softmax." in report.text()
    assert "not fused; without `Tanh` (softcap) it is" in report.text()
    results = as_sarif(report)["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["attention-not-fused"]
    assert json.loads(json.dumps(report.as_dict()))["regions"][1]["culprits"][0]["words"] == "without `Tanh` (softcap)"


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "PackedMultiHeadAttention"])
def test_a_contrib_operator_is_refused_even_where_the_compiler_crashes(tmp_path: Path, operator: str) -> None:
    node = onnx.helper.make_node(operator, ["x"] * 3, ["y"], domain="com.microsoft", num_heads=8)
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT16, ["batch", "seq", 512]) for n in "xy")
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")
    report = lint(tmp_path / "model.onnx")
    assert [region.verdict for region in report.regions] == ["refused"]
    assert operator in report.regions[0].words or "the compiler ended: killed by signal" in report.regions[0].words
    assert report.regions[0].operator == f"com.microsoft::{operator}"
    assert report.exit_code("unfused") == 1
    assert "assumed: batch=1, seq=T" in report.text()


def test_what_makes_the_parser_refuse_an_operator_is_named(tmp_path: Path) -> None:
    report = linted(tmp_path, [Layer(scores="operator", inside=("softcap",))])
    (region,) = report.regions
    assert region.verdict == "refused"
    assert region.sentence().startswith("refused; without `softcap` it is fused: ")
    assert f"node Attention {region.node!r}" in region.words


def test_a_model_of_fixed_sizes_is_judged_by_one_matrix_of_scores(tmp_path: Path) -> None:
    model = encoder([Layer(), Layer(inside=("softcap",))], has_mask=False)
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (1, 2048), strict=False):
        dim.dim_value = size
    onnx.save(model, tmp_path / "model.onnx")
    report = lint(tmp_path / "model.onnx")
    assert [region.verdict for region in report.regions] == ["fused", "unfused"]
    assert "no size follows T" in report.text()


def test_where_the_whole_model_says_otherwise_it_is_told(tmp_path: Path) -> None:
    report = linted(tmp_path, [Layer(), Layer(inside=("relu",))])
    assert [region.verdict for region in report.regions] == ["fused"]
    assert [whole.verdict for whole in report.whole] == ["unfused"]
    (note,) = report.notes
    assert note.startswith("disagreement on sm89: every attention is fused by itself, but the whole model plans memory")


def test_a_model_without_attention_is_not_called_good(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT16, ["batch", "seq", 8]) for n in "xy")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), ir_version=10), tmp_path / "m.onnx")
    report = lint(tmp_path / "m.onnx")
    assert report.regions == ()
    assert report.exit_code("unfused") == 3
    assert "no attention found" in report.text()


def test_sizes_that_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    onnx.save(encoder([Layer()]), tmp_path / "model.onnx")
    with pytest.raises(InputError, match="no free dim 'sequence'; the model has batch, seq"):
        lint(tmp_path / "model.onnx", {"sequence": 8})


def test_a_file_from_elsewhere_is_looked_at_before_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x80\x04 not a model")
    with pytest.raises(UntrustedModelError, match=str(tmp_path / "model.onnx")):
        lint(tmp_path / "model.onnx")
