"""One attention as a model of its own: names and weights left behind, so that equal regions are equal bytes."""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from attnbench.fusion.operators import ATTENTION
from attnbench.fusion.regions import Region
from attnbench.fusion.sized_graph import SizedGraph

MAIN = "y"  # the output of the last product
_SIZES = {1: 4, 10: 2, 11: 8, 16: 2}  # bytes of floats


@dataclass(frozen=True)
class Cut:
    """A region as a model."""

    model: Any  # ModelProto; its nodes are called n0, n1, ...
    names: tuple[str, ...]  # of the nodes in the file, in the same order
    score_bytes: int | None  # of one matrix of scores of all heads, in the region's narrowest dtype; None: not known
    passed_bytes: int  # of the inputs and the main output: what a fused kernel has to hold at most

    @property
    def key(self) -> str:
        """Equal for regions that compile alike."""
        return hashlib.sha256(self.model.SerializeToString(deterministic=True)).hexdigest()[:16]


def cut(graph: SizedGraph, region: Region) -> Cut | None:
    """The region with its masks and the like as inputs; small constants stay. None: a size of it is not known."""
    import onnx
    from onnx import helper

    renamed: dict[str, str] = {"": ""}
    inputs: dict[str, str] = {}
    constants: dict[str, Any] = {}
    made = {name for node in region.nodes for name in node.output if name}
    nodes, last = [], region.last.output[0]
    for number, node in enumerate(region.nodes):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name, copy.doc_string = f"n{number}", ""
        del copy.metadata_props[:]
        for place, name in enumerate(node.input):
            if name and name not in made and name not in renamed:
                kind, table = ("c", constants) if name in graph.constants else ("x", inputs)
                renamed[name] = f"{kind}{len(table)}"
                table[name] = renamed[name]
            copy.input[place] = renamed[name]
        for place, name in enumerate(node.output):
            renamed[name] = name and (MAIN if name == last else f"t{number}_{place}")
            copy.output[place] = renamed[name]
        nodes.append(copy)
    returned = _returned(graph, region, made)
    if any(name not in graph.shapes for name in inputs):
        return None
    first = graph.shapes[next(iter(inputs))][0] if inputs else 1  # contrib operators have no shape inference

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(renamed[name], *graph.shapes.get(name, (first, None)))

    tensors = []
    for name, new in constants.items():
        tensor = onnx.TensorProto()
        tensor.CopyFrom(graph.constants[name])
        tensor.name, tensor.doc_string = new, ""
        tensors.append(tensor)
    body = helper.make_graph(nodes, "region", list(map(value, inputs)), list(map(value, (last, *returned))), tensors)
    model = helper.make_model(body, opset_imports=graph.opset_import, ir_version=graph.ir_version)
    passed = sum(_bytes(graph, name) for name in (*inputs, last) if name in graph.shapes)
    names = tuple(node.name or node.output[0] for node in region.nodes)
    return Cut(model=model, names=names, score_bytes=_score_bytes(graph, region), passed_bytes=passed)


def _returned(graph: SizedGraph, region: Region, made: set[str]) -> list[str]:
    """Results on the way from the scores to V that something outside takes too."""
    inside = {node.output[0] for node in region.nodes}
    if region.is_operator:
        return [name for name in region.last.output[1:] if name and (name in graph.outputs or name in graph.consumers)]
    entries = _before_scores(region)
    return [
        name
        for node in region.nodes
        if node is not region.last and node.output[0] not in entries
        for name in node.output
        if name in graph.outputs or any(user.output[0] not in inside for user in graph.consumers.get(name, ()))
    ]


def _before_scores(region: Region) -> set[str]:
    """Nodes of the region that the scores do not reach, by their first output."""
    reached = {region.scores.output[0]} if region.scores is not None else set()
    before = set()
    for node in region.nodes:
        if reached.intersection((*node.input, *node.output)):
            reached.update(node.output)
        else:
            before.add(node.output[0])
    return before


def _score_bytes(graph: SizedGraph, region: Region) -> int | None:
    floats = [graph.shapes[name][0] for node in region.nodes for name in (*node.input, *node.output)
              if name in graph.shapes and graph.shapes[name][0] in _SIZES]  # fmt: skip
    size = min((_SIZES[kind] for kind in floats), default=2)
    if region.scores is not None:
        shape = graph.shapes.get(region.scores.output[0])
        return None if shape is None else math.prod(shape[1]) * size
    heads = next((a.i for a in region.last.attribute if a.name in ("q_num_heads", "num_heads")), 0)
    operands = [graph.shapes.get(name) for name in region.last.input[:2]]
    if region.last.op_type not in ATTENTION or len(operands) < 2 or None in operands:
        return None
    q, k = (list(operand[1]) for operand in operands if operand is not None)
    if len(q) == 4 and len(k) == 4:
        return q[0] * q[1] * q[2] * k[2] * size
    return q[0] * heads * q[1] * k[1] * size if len(q) == len(k) == 3 and heads else None


def _bytes(graph: SizedGraph, name: str) -> int:
    kind, dims = graph.shapes[name]
    return math.prod(dims) * item_bytes(kind)


def item_bytes(kind: int) -> int:
    """Of an element type of ONNX; those that are no floats count as masks, which are bytes."""
    return _SIZES.get(kind, 1)
