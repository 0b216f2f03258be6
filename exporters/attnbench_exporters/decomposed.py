"""`onnx-decomposed`: the eager block as MatMul, Softmax and MatMul, which every runtime can read."""

from pathlib import Path
from typing import Any

from attnbench.errors import ArtifactError
from attnbench.interfaces import Artifact
from attnbench.model_problem import ModelProblem
from attnbench.problem import Problem
from attnbench_exporters import onnx_files, torch_export


class OnnxDecomposed(torch_export.FromTorch):
    """Exports the eager attention: the scores are written out, no attention operator."""

    name = "onnx-decomposed"
    opsets = (20, 17, 18, 19, 21, 22, 23, 24, 25)  # 13, 26 and 99 come out of torch as 18
    program_opsets = (20, 17, 18, 19, 21, 22)  # from 23 on torch writes Attention

    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        """Write the eager block; see `attnbench.interfaces.Exporter.export`.

        Raises:
            ExportError: what came out is not what was asked; nothing is written.
        """
        torch_export.require(self.supports(problem, opset), opset, self.opsets)
        model = torch_export.trace(problem, opset, attention="eager", seed=seed)
        counts = onnx_files.operator_counts(model)
        if counts.get("::Softmax") != 1 or "::Attention" in counts:
            raise ArtifactError(f"a decomposed graph has one Softmax and no Attention, torch wrote {counts}")
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=seed)

    def export_program(self, program: Any, problem: ModelProblem, opset: int, path: Path) -> Artifact:
        """Write a module of the user; see `attnbench.interfaces.ProgramExporter`.

        Raises:
            ExportError: what came out is not what was asked; nothing is written.
        """
        torch_export.require_opset(opset, self.program_opsets, self.name)
        model = torch_export.translate(program, problem, opset)
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=0)
