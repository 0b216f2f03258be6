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
        widen_masks(model)
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=0)


def widen_masks(model: Any) -> None:
    """Give every query a row of the mask of an Attention node whose mask has one row for all, in place.

    The operator broadcasts such a mask, of keys only; onnxruntime 1.32 refuses it ("inconsistent q_sequence_length").
    """
    import onnx

    values = [*model.graph.value_info, *model.graph.input, *model.graph.initializer]
    one_row = {value.name for value in values if _row_count(value) == 1}
    nodes = list(model.graph.node)
    for node in nodes:
        if node.op_type != "Attention" or node.domain or len(node.input) < 4 or node.input[3] not in one_row:
            continue
        query, mask = node.input[0], node.input[3]
        made = {part: f"{node.output[0]}_mask_{part}" for part in ("rows", "shape", "one", "wide")}
        model.graph.initializer.append(onnx.helper.make_tensor(made["one"], onnx.TensorProto.INT64, [1], [1]))
        at = list(model.graph.node).index(node)
        for offset, new in enumerate((
            onnx.helper.make_node("Shape", [query], [made["rows"]], start=-2, end=-1),  # q_len: (B, H, q, D), (B, q, E)
            onnx.helper.make_node("Concat", [made["rows"], made["one"]], [made["shape"]], axis=0),
            onnx.helper.make_node("Expand", [mask, made["shape"]], [made["wide"]]),  # (..., q_len, kv_len)
        )):  # fmt: skip
            model.graph.node.insert(at + offset, new)
        node.input[3] = made["wide"]


def _row_count(value: Any) -> int | None:
    """The second last size of a tensor or of a declared value, where it is a number."""
    if hasattr(value, "dims"):
        return value.dims[-2] if len(value.dims) > 1 else 1
    dims = value.type.tensor_type.shape.dim
    return dims[-2].dim_value if len(dims) > 1 and dims[-2].HasField("dim_value") else None
