"""The linter on models as people export them: what was planted is named, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from attnbench import trt_compiler
from attnbench.fusion.lint_report import LintReport
from attnbench.fusion.linter import lint
from tests.fusion.planted_torch import MODELS, script
from tests.fusion.torch_models import NUM_HEADS, Model, export, inputs_of

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

T = 1024
Exported = Callable[[Model], Path]
Witness = Callable[[Model], bool | None]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Every model is exported once."""
    folder, known = tmp_path_factory.mktemp("models"), dict[str, Path]()

    def path_of(model: Model) -> Path:
        path = known.setdefault(repr(model), folder / f"{len(known)}.onnx")
        if not path.exists():
            export(model, path)
        return path

    return path_of


@pytest.fixture(scope="module")
def holds_scores(exported: Exported) -> Witness:
    """Every model is asked once: many are the same when what was planted in them is bypassed."""
    known: dict[Model, bool | None] = {}

    def ask(model: Model) -> bool | None:
        if model not in known:
            known[model] = _holds_scores(exported(model), model)
        return known[model]

    return ask


def _holds_scores(path: Path, model: Model) -> bool | None:
    """Does a whole model plan memory that grows with T x T by a matrix of scores or more? None: it is refused.

    Asked of the compiler with none of the linter's code: neither regions nor cuts nor its verdicts.
    """
    args, free, names = inputs_of(model)
    planned = []
    for seq in (T, 2 * T):
        sizes = {"batch": 1, "seq": seq, "source": seq}
        shapes = {
            name: [sizes[dims[axis]] if axis in dims else size for axis, size in enumerate(arg.shape)]
            for arg, dims, name in zip(args, free, names, strict=True)
        }
        made = trt_compiler.compile_onnx(path, shapes=shapes, strict=False)
        if made.planned_activation_bytes is None:
            return None
        planned.append(made.planned_activation_bytes)
    matrix = NUM_HEADS * T * T * model.dtype.itemsize
    return (planned[1] - 2 * planned[0]) / (2 * matrix) > 0.5


def linted(path: Path) -> LintReport:
    return lint(path, {"batch": 1}, bind={"seq": "T"} | ({"source": "T"} if b"source" in path.read_bytes() else {}))


def test_there_are_models_enough() -> None:
    assert len(MODELS) >= 20
    assert len({case.model for case in MODELS.values()}) == len(MODELS)
    assert sum(case.bypassed is None for case in MODELS.values()) >= 8


@pytest.mark.parametrize("name", MODELS)
def test_the_compiler_agrees(holds_scores: Witness, name: str) -> None:
    case = MODELS[name]
    assert holds_scores(case.model) is (None if name == "training" else case.bypassed is not None)
    assert case.bypassed is None or holds_scores(case.bypassed) is False


@pytest.mark.parametrize("name", MODELS)
def test_what_was_planted_is_named_and_nothing_else(exported: Exported, name: str) -> None:
    case = MODELS[name]
    report = linted(exported(case.model))
    bad = "refused" if name == "training" else "unfused"
    assert [region.verdict for region in report.regions] == [bad if due else "fused" for due in case.due]
    assert [whole.verdict for whole in report.whole] == [bad if any(case.due) else "fused"]
    for region, due in zip(report.regions, case.due, strict=True):
        assert [culprit.words[: len(words)] for culprit, words in zip(region.culprits, due, strict=True)] == list(due)
        if due and case.model.is_script and region.culprits[0].node:  # that exporter names nodes after modules
            assert region.culprits[0].node.startswith(f"/attentions.{region.layer}/")
    assert [note for note in report.notes if "disagreement" in note or "not looked at" in note] == []


def test_a_bias_that_the_model_makes_is_no_fault_of_its_attentions(exported: Exported, holds_scores: Witness) -> None:
    """T5 makes one of (1, H, T, T) for all layers: the model holds a matrix of scores, no attention in it does."""
    model = script("t5", "t5", "t5")
    assert holds_scores(model) is True
    assert holds_scores(replace(model, family="none")) is False
    report = linted(exported(model))
    assert [region.verdict for region in report.regions] == ["fused", "fused"]
    assert [whole.verdict for whole in report.whole] == ["unfused"]
    assert "look for masks or scores that it makes elsewhere" in report.notes[-1]


def contrib(operator: str, kv_width: int, *more: str, **attributes: object) -> onnx.ModelProto:
    """Projections and one operator of onnxruntime."""
    rng = np.random.default_rng(0)
    widths = {"q": 512, "k": kv_width, "v": kv_width}
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.05, (512, w)).astype(np.float16), f"w_{n}") for n, w in widths.items()
    ]
    nodes = [helper.make_node("MatMul", ["x", f"w_{n}"], [n]) for n in widths]
    nodes.append(
        helper.make_node(operator, [*widths, *more], ["y"], "attn", domain="com.microsoft", num_heads=8, **attributes)
    )
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["batch", "seq", 512]) for n in "xy")
    ints = [helper.make_tensor_value_info(n, TensorProto.INT32, d) for n, d in (("lens", ["batch"]), ("total", [1]))]
    graph = helper.make_graph(nodes, "g", [x, *(ints if more else [])], [y], weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_contrib_operator_with_q_k_and_v_of_its_own_is_fused(tmp_path: Path) -> None:
    onnx.save(contrib("MultiHeadAttention", 512), path := tmp_path / "m.onnx")
    planned = [trt_compiler.compile_onnx(path, shapes={"x": (1, n, 512)}).planned_activation_bytes for n in (T, 2 * T)]
    assert planned[0] is not None
    assert planned[1] is not None
    assert planned[1] <= 2 * planned[0]  # no matrix of scores
    (region,) = lint(path).regions
    assert (region.verdict, region.operator) == ("fused", "com.microsoft::MultiHeadAttention")


def test_a_contrib_operator_that_the_parser_does_not_take_is_refused_in_its_words(tmp_path: Path) -> None:
    model = contrib("GroupQueryAttention", 128, "", "", "lens", "total", kv_num_heads=2)
    onnx.save(model, path := tmp_path / "m.onnx")
    made = trt_compiler.compile_onnx(path, shapes={"x": (1, T, 512), "lens": (1,)})
    assert made.stage == "parser"
    assert "past_key is required" in made.words
    (region,) = lint(path).regions
    assert (region.verdict, region.culprits) == ("refused", ())
    assert "past_key is required" in region.words
    assert "'attn'" in region.words


def test_training_left_in_the_export_has_dropout_in_the_file(exported: Exported) -> None:
    model = MODELS["training"].model
    assert [node.op_type for node in onnx.load(exported(model)).graph.node].count("Dropout") == 2
    assert model.dtype == torch.float16
