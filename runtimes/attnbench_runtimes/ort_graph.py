"""What ONNX Runtime made of a graph: which attention operator is left, and in which precision nodes compute."""

import importlib.util
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.interfaces import UNKNOWN
from attnbench_runtimes import onnx_fields

# Operators that are attention as a whole.
FUSED_OPERATORS = frozenset(
    {
        "::Attention", "com.microsoft::Attention", "com.microsoft::MultiHeadAttention",
        "com.microsoft::GroupQueryAttention", "com.microsoft::PackedAttention",
        "com.microsoft::PackedMultiHeadAttention",
    }
)  # fmt: skip
_PRODUCTS = FUSED_OPERATORS | {"::MatMul", "::Gemm", "com.microsoft::FusedMatMul", "com.microsoft::FusedGemm"}
_PRECISIONS = {1: "fp32", 10: "fp16", 16: "bf16", 11: "fp64"}  # onnx.TensorProto.DataType
_INT64, _BOOL = 7, 9
_OWN_TYPE = {"::Shape": _INT64, "::Size": _INT64} | dict.fromkeys(
    ("::Equal", "::Less", "::LessOrEqual", "::Greater", "::GreaterOrEqual", "::IsNaN", "::IsInf"), _BOOL
)
_COARSEST_FIRST = ("bf16", "fp16", "fp32", "fp64")


@dataclass(frozen=True, kw_only=True)
class OptimisedGraph:
    """The graph that runs."""

    operators: dict[str, int]  # "domain::Op" -> nodes
    kernel: str  # fused, unfused, unknown
    precisions: dict[str, dict[str, int]]  # operator of a product -> precision -> nodes
    casts: int

    @property
    def compute_precision(self) -> str:
        """The coarsest precision that a product (MatMul, attention) computes in."""
        found = {precision for counts in self.precisions.values() for precision in counts}
        return next((p for p in _COARSEST_FIRST if p in found), UNKNOWN)


def optimised(options: Any, open_session: Callable[[], object]) -> OptimisedGraph:
    """Open a session once more with the optimised graph written to a scratch folder, and read it.

    Args:
        options: onnxruntime.SessionOptions; the path of the optimised model is set in it.
        open_session: opens a session with these options.
    """
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = os.fspath(path)
        session = open_session()
        model = _load(path)
        del session
    return read_graph(model)


def _load(path: Path) -> Any:
    """The file by the onnx package; another interpreter may have onnxruntime alone."""
    if importlib.util.find_spec("onnx") is None:
        return onnx_fields.read_model(path)
    import onnx

    return onnx.load(path, load_external_data=False)


def read_graph(model: Any) -> OptimisedGraph:
    """Operators, kernel and precisions of an onnx.ModelProto, or of the same read by `onnx_fields`."""
    names = [f"{'' if node.domain == 'ai.onnx' else node.domain}::{node.op_type}" for node in model.graph.node]
    operators = dict(sorted(Counter(names).items()))
    if FUSED_OPERATORS & operators.keys():
        kernel = "fused"
    else:
        kernel = "unfused" if any("MatMul" in name for name in names) else UNKNOWN
    return OptimisedGraph(
        operators=operators, kernel=kernel, precisions=_precisions(model, names), casts=operators.get("::Cast", 0)
    )


def _precisions(model: Any, names: list[str]) -> dict[str, dict[str, int]]:
    """Element type of the first input of every product.

    Types are followed through the graph: those that inputs, initializers and Casts declare; other nodes, where
    nothing is declared, give what they take.
    """
    graph = model.graph
    declared = [*graph.input, *graph.output, *graph.value_info]
    types = {value.name: value.type.tensor_type.elem_type for value in declared}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    found: dict[str, Counter[str]] = {}
    for node, name in zip(graph.node, names, strict=True):
        given = next((types[i] for i in node.input if types.get(i) in _PRECISIONS), 0)
        target = next((a.i for a in node.attribute if name == "::Cast" and a.name == "to"), _OWN_TYPE.get(name, given))
        for output in node.output:
            types.setdefault(output, target)
        if name in _PRODUCTS:
            found.setdefault(name, Counter())[_PRECISIONS.get(given, UNKNOWN)] += 1
    return {name: dict(counts) for name, counts in sorted(found.items())}
