"""`onnx-blocked`: standard operators in a Loop over heads and blocks of queries; see `query_blocks`."""

from pathlib import Path
from typing import Any

from attnbench.errors import ArtifactError
from attnbench.interfaces import Artifact
from attnbench.masks import parse_mask
from attnbench.model_problem import ModelProblem
from attnbench.problem import Problem
from attnbench_exporters import onnx_files, torch_export
from attnbench_exporters.query_blocks import block_queries

_TRACE_OPSET = 23  # the first in which torch writes Attention, which the loop replaces


class OnnxBlocked(torch_export.FromTorch):
    """Exports scaled_dot_product_attention and writes its operator as a loop that never holds all scores."""

    name = "onnx-blocked"
    opsets = (20, 18, 19, 21, 22, 23, 24, 25)
    program_opsets = (23, 18, 19, 20, 21, 22, 24, 25)  # other operators of a module may be of opset 23

    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        """Write the block around its loops; see `attnbench.interfaces.Exporter.export`.

        Raises:
            ExportError: what came out is not what was asked; nothing is written.
        """
        torch_export.require(self.supports(problem, opset), opset, self.opsets)
        model = torch_export.trace(problem, _TRACE_OPSET, attention="sdpa_without_rule", seed=seed)
        found = block_queries(model, rule=parse_mask(problem.masking.rule))
        if found != 1:
            raise ArtifactError(f"one Attention node was expected at opset {_TRACE_OPSET}, torch wrote {found}")
        onnx_files.set_opset(model, opset)
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=seed)

    def export_program(self, program: Any, problem: ModelProblem, opset: int, path: Path) -> Artifact:
        """Write a module of the user, a loop for every attention; see `attnbench.interfaces.ProgramExporter`.

        Raises:
            UnsupportedError: the module writes its attention out, or asks for what the loop does not do.
            ExportError: what came out is not what was asked; nothing is written.
        """
        torch_export.require_opset(opset, self.program_opsets, self.name)
        model = torch_export.translate(program, problem, _TRACE_OPSET)
        torch_export.require_attention(block_queries(model), problem)
        onnx_files.set_opset(model, opset)
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=0)
