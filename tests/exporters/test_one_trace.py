"""One trace serves all opsets of a problem, and every file is what torch.onnx.export makes of the module itself."""

from pathlib import Path
from typing import Any

import pytest

from attnbench import torch_model
from attnbench.inputs import make_inputs
from attnbench.problem import Problem
from attnbench_exporters import onnx_files, torch_export
from attnbench_exporters.decomposed import OnnxDecomposed

CORE = Problem.make(
    part="core", variant="causal", seq_len=6, num_heads=4, head_dim=8, mask="causal_top_left+key_padding"
)
BLOCK = Problem.make(part="block", variant="cross", seq_len=6, num_heads=4, head_dim=8, num_kv_heads=2, bias=True)


def written(model: Any, problem: Problem, opset: int, path: Path) -> bytes:
    onnx_files.write_artifact(model, path, exporter="x", problem=problem, opset=opset, seed=0)
    return path.read_bytes()


def of_the_module_itself(problem: Problem, opset: int, attention: Any) -> Any:
    import torch

    from attnbench.torch_model import build_module, to_torch

    inputs = make_inputs(torch_export.example_problem(problem))
    module = build_module(problem, seed=0, attention=attention)
    with torch_export.tracing():
        return torch.onnx.export(
            module, tuple(to_torch(array).contiguous() for array in inputs.values()), dynamo=True, opset_version=opset,
            input_names=list(inputs), output_names=list(problem.output_dims()), verbose=False,
            dynamic_shapes=torch_export._dynamic_shapes(problem),
        ).model_proto  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "attention", "opsets"), [(CORE, "eager", (20, 25)), (BLOCK, "sdpa", (23, 24))], ids=["eager", "sdpa"]
)
def test_a_file_of_a_kept_trace_is_byte_for_byte_that_of_the_module(
    problem: Problem, attention: str, opsets: tuple[int, ...], tmp_path: Path
) -> None:
    for opset in opsets:
        made = torch_export.trace(problem, opset, attention=attention, seed=0)
        due = of_the_module_itself(problem, opset, attention)
        path = tmp_path / "model.onnx"
        assert written(made, problem, opset, path) == written(due, problem, opset, path)


def test_all_opsets_of_a_problem_are_one_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    traced: list[object] = []
    build = torch_model.build_module

    def counted(problem: Problem, **fields: Any) -> Any:
        traced.append(problem)
        return build(problem, **fields)

    monkeypatch.setattr(torch_model, "build_module", counted)
    monkeypatch.setattr(torch_export, "_LAST", torch_export._LastTrace())
    for opset in (20, 18, 23):
        OnnxDecomposed().export(CORE.at(q_len=opset), opset, tmp_path / "x.onnx", seed=0)
    assert len(traced) == 1
    OnnxDecomposed().export(CORE, 20, tmp_path / "x.onnx", seed=1)
    assert len(traced) == 2
