"""`onnx-torchscript`: the eager block through torch's older exporter, which traces; many people still ship its files.

A trace keeps as a number what was computed from a length outside of the graph, though the file declares the length
free. So the block is traced at two sizes, and two different graphs are an error.
"""

import io
from pathlib import Path
from typing import Any

from attnbench.errors import ArtifactError, ExportError, FrozenDimError
from attnbench.inputs import make_inputs
from attnbench.interfaces import Artifact, Probe, Support
from attnbench.problem import Problem
from attnbench_exporters import onnx_files, torch_export

# Sizes of the second trace (the first has torch_export's): no length and no batch is the same.
_OTHER_BATCH_SIZE, _OTHER_Q_LEN, _OTHER_KV_LEN = 3, 13, 5


class OnnxTorchscript:
    """Exports the eager attention by `torch.onnx.export(dynamo=False)`, which torch calls deprecated."""

    name = "onnx-torchscript"
    opsets = (17, 14, 15, 16, 18, 19, 20)
    preload = ("torch", "onnx", "torch.onnx")
    opt_in = True

    def probe(self) -> Probe:
        """Are torch and onnx there and new enough?"""
        return onnx_files.probe_packages(("onnx", "torch"), ("onnx",))

    def supports(self, problem: Problem, opset: int) -> Support:
        """Every problem, at the opsets that come out as asked."""
        return torch_export.opset_support(opset, self.opsets, self.name)

    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        """Write the eager block; see `attnbench.interfaces.Exporter.export`.

        Raises:
            FrozenDimError: a length or the batch size became a number in the graph.
            ExportError: what came out is not what was asked; nothing is written.
        """
        torch_export.require(self.supports(problem, opset), opset, self.opsets)
        from attnbench.torch_model import build_module

        module = build_module(problem, seed=seed, attention="eager")
        model = trace(module, problem, opset)
        refuse_frozen(model, trace(module, _other_example(problem), opset, as_given=True), problem)
        _name_sizes(model, problem)
        counts = onnx_files.operator_counts(model)
        if counts.get("::Softmax") != 1 or "::Attention" in counts:
            raise ArtifactError(f"a decomposed graph has one Softmax and no Attention, torch wrote {counts}")
        return onnx_files.write_artifact(model, path, exporter=self.name, problem=problem, opset=opset, seed=seed)


def trace(module: Any, problem: Problem, opset: int, *, as_given: bool = False) -> Any:
    """The onnx.ModelProto that torch makes of a module whose inputs and outputs are the problem's.

    Args:
        module: takes the problem's inputs in order.
        problem: gives the inputs; its lengths and batch size are declared free.
        opset: of the default domain.
        as_given: trace at the problem's own sizes, not at those of the example.

    Raises:
        ExportError: torch cannot export it; torch's words.
    """
    import onnx
    import torch

    from attnbench.torch_model import to_torch

    example = problem if as_given else torch_export.example_problem(problem)
    args = tuple(to_torch(array).contiguous() for array in make_inputs(example).values())
    free = {
        name: {axis: dim for axis, dim in enumerate(dims) if isinstance(dim, str)}
        for name, dims in problem.symbolic_dims().items()
    }
    buffer = io.BytesIO()
    with torch_export.tracing():
        torch.onnx.register_custom_op_symbolic("aten::mT", _swap_last_axes, 9)  # torch has none of its own
        try:
            torch.onnx.export(
                module, args, buffer, dynamo=False, opset_version=opset, input_names=list(problem.input_dims()),
                output_names=list(problem.output_dims()), dynamic_axes=free, verbose=False,
            )  # fmt: skip
        except (RuntimeError, torch.onnx.errors.OnnxExporterError) as err:  # what the tracer raises itself is neither
            first = str(err).strip().splitlines()[0]
            raise ExportError(f"torch.onnx cannot export {problem.label()} at opset {opset}: {first}") from err
    return onnx.load_from_string(buffer.getvalue())


def _name_sizes(model: Any, problem: Problem) -> None:
    """Write the sizes that are known into outputs where torch only made up a name; the checker holds them to it."""
    for value in model.graph.output:
        for dim, due in zip(value.type.tensor_type.shape.dim, problem.symbolic_dims()[value.name], strict=True):
            if isinstance(due, int) and dim.dim_param:
                dim.dim_value = due


def refuse_frozen(model: Any, other: Any, problem: Problem) -> None:
    """Two traces at different sizes must be the same graph.

    Raises:
        FrozenDimError: they are not; names the first node that differs.
    """
    nodes, others = list(model.graph.node), list(other.graph.node)
    weights, other_weights = (
        {t.name: t.SerializeToString(deterministic=True) for t in m.graph.initializer} for m in (model, other)
    )
    if weights == other_weights and len(nodes) == len(others):
        first = next((a for a, b in zip(nodes, others, strict=True) if _plain(a) != _plain(b)), None)
        if first is None:
            return
        where = f"node {first.name or first.op_type}"
    else:
        changed = sorted(set(weights) ^ set(other_weights)) or [n for n in weights if weights[n] != other_weights[n]]
        where = f"constant {changed[0]}" if changed else f"{len(nodes)} and {len(others)} nodes"
    raise FrozenDimError(
        f"{problem.label()}: traced at two sizes the graphs differ ({where}): a length or the batch size is a number "
        "in the file though it is declared free; use onnx-decomposed"
    )


def _plain(node: Any) -> bytes:
    """A node without its notes."""
    copy = type(node)()
    copy.CopyFrom(node)
    copy.doc_string = ""
    del copy.metadata_props[:]
    blob: bytes = copy.SerializeToString(deterministic=True)
    return blob


def _other_example(problem: Problem) -> Problem:
    separate = any("kv_len" in dims for dims in problem.symbolic_dims().values())
    kv_len = _OTHER_KV_LEN if separate else _OTHER_Q_LEN
    if problem.variant == "decode":
        kv_len = _OTHER_Q_LEN + _OTHER_KV_LEN
    return problem.at(q_len=_OTHER_Q_LEN, kv_len=kv_len, batch_size=_OTHER_BATCH_SIZE)


def _swap_last_axes(graph: Any, x: Any) -> Any:
    """`Tensor.mT` as a Transpose."""
    axes = list(range(x.type().dim()))
    return graph.op("Transpose", x, perm_i=[*axes[:-2], axes[-1], axes[-2]])
