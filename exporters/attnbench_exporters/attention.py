"""`onnx-attention`: the block around one standard `Attention` operator (opset 23 on)."""

from pathlib import Path
from typing import Any

from attnbench.errors import ArtifactError
from attnbench.interfaces import Artifact
from attnbench.model_problem import ModelProblem
from attnbench.problem import Problem
from attnbench_exporters import onnx_files, torch_export


class OnnxAttention(torch_export.FromTorch):
    """Exports scaled_dot_product_attention as the operator that was made for it.

    Without a cache its `is_causal` is top-left at every q_len and kv_len, so that it can express every problem.
    Opset 25 is left out: its Attention has no kernel in onnxruntime 1.32, which expands it to some 90 nodes.
    """

    name = "onnx-attention"
    opsets = program_opsets = (23, 24)

    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        """Write the block with one Attention node; see `attnbench.interfaces.Exporter.export`.

        Raises:
            ExportError: what came out is not what was asked; nothing is written.
        """
        torch_export.require(self.supports(problem, opset), opset, self.opsets)
        model = torch_export.trace(problem, opset, attention="sdpa", seed=seed)
        counts = onnx_files.operator_counts(model)
        if counts.get("::Attention") != 1 or "::Softmax" in counts:
            raise ArtifactError(f"one Attention node and no Softmax were asked at opset {opset}, torch wrote {counts}")
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=seed)

    def export_program(self, program: Any, problem: ModelProblem, opset: int, path: Path) -> Artifact:
        """Write a module of the user; see `attnbench.interfaces.ProgramExporter`.

        Raises:
            UnsupportedError: the module writes its attention out.
            ExportError: what came out is not what was asked; nothing is written.
        """
        torch_export.require_opset(opset, self.program_opsets, self.name)
        model = torch_export.translate(program, problem, opset)
        torch_export.require_attention(onnx_files.operator_counts(model).get("::Attention", 0), problem)
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=0)
