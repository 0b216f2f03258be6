"""Where a graph has attention: a product of two computed tensors, a softmax, a second product; or one operator."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.fusion.operators import ATTENTION, PRODUCTS, QUANTIZERS
from attnbench.fusion.sized_graph import SizedGraph

_SOFTMAXES = frozenset({"Softmax", "Exp"})  # written out, it is an Exp between two products
_SHAPE_ONLY = frozenset({"Shape", "Size"})
_BETWEEN = 24  # nodes on the way from a product to a softmax
_ENTRIES = frozenset({"Cast", "Transpose", "Identity"})  # of Q, K and V: what a compiler may fold into the product
_SCALES = frozenset({"Mul", "Div"})
_MOVES = frozenset({*_ENTRIES, "Reshape", "Squeeze", "Unsqueeze"})  # what may lie between a product and a quantizer


@dataclass(frozen=True)
class Region:
    """One attention of a graph."""

    nodes: tuple[Any, ...]  # in the order of the file
    anchor: Any  # the softmax, or the operator
    scores: Any | None  # the product of Q and K; None: an operator
    last: Any  # the product with V, or the operator

    @property
    def is_operator(self) -> bool:
        """Is it one `Attention` node or a contrib operator?"""
        return self.scores is None


def find_regions(graph: SizedGraph) -> list[Region]:
    """Every attention, in the order of the file."""
    found: list[Region] = []
    seen: set[tuple[str, str]] = set()
    for node in graph.nodes:
        if node.op_type in ATTENTION:
            found.append(Region(nodes=(node,), anchor=node, scores=None, last=node))
        if node.op_type not in _SOFTMAXES:
            continue
        scores, last = _product_above(graph, node.input[0]), _product_below(graph, node.output[0])
        if scores is None or last is None or (scores.output[0], last.output[0]) in seen:
            continue
        seen.add((scores.output[0], last.output[0]))
        found.append(_region(graph, node, scores, last))
    return found


def is_data(node: Any) -> bool:
    """Does a node hand on what it is given, rather than only its shape?"""
    return node.op_type not in _SHAPE_ONLY


def _product_above(graph: SizedGraph, tensor: str) -> Any | None:
    """The nearest product of two computed tensors above a tensor, without another softmax or layer between."""
    level, seen = [tensor], {tensor}
    for _ in range(_BETWEEN):
        above = [node for node in map(graph.producers.get, level) if node is not None and is_data(node)]
        for node in above:
            operands = node.input[:2]
            if node.op_type in PRODUCTS and len(operands) == 2 and not any(map(graph.is_stored, operands)):
                return node
        passed = [node for node in above if not _ends_search(node) or mixes_heads(graph, node)]
        level = [name for name in dict.fromkeys(n for node in passed for n in node.input if n) if name not in seen]
        seen.update(level)
    return None


def mixes_heads(graph: SizedGraph, node: Any) -> bool:
    """Is it a product of scores and a small square matrix, as talking heads have? Projections take (B, T, E)."""
    stored = [graph.shapes[name][1] for name in node.input[:2] if graph.is_stored(name) and name in graph.shapes]
    sizes = [graph.shapes[name][1] for name in (*node.input[:2], node.output[0]) if name in graph.shapes]
    if node.op_type not in PRODUCTS or len(stored) != 1 or len(sizes) != 3:
        return False
    return len(stored[0]) == 2 and stored[0][0] == stored[0][1] and all(len(s) == 4 for s in sizes if s != stored[0])


def _ends_search(node: Any) -> bool:
    return node.op_type in PRODUCTS or node.op_type in _SOFTMAXES or node.op_type.endswith("Normalization")


def _product_below(graph: SizedGraph, tensor: str) -> Any | None:
    """The nearest product that takes a tensor or what becomes of it; a stored operand is no V."""
    level = [tensor]
    for _ in range(_BETWEEN):
        below = [node for name in level for node in graph.consumers.get(name, ()) if is_data(node)]
        for node in below:
            if node.op_type not in PRODUCTS or mixes_heads(graph, node):
                continue
            return node if not any(map(graph.is_stored, node.input[:2])) else None
        level = list(dict.fromkeys(name for node in below for name in node.output if name))
    return None


def _region(graph: SizedGraph, anchor: Any, scores: Any, last: Any) -> Region:
    """The products, all between them, and what Q, K and V pass just before."""
    inside = {node.output[0] for node in _between(graph, scores, last)} | {scores.output[0], last.output[0]}
    entries = [name for product in (scores, last) for name in product.input[:2]]
    while entries:
        node = graph.producers.get(entries.pop())
        if node is None or node.output[0] in inside or not _is_entry(graph, node):
            continue
        inside.add(node.output[0])
        entries += [name for name in node.input if not graph.is_stored(name)]
    nodes = tuple(node for node in graph.nodes if node.output and node.output[0] in inside)
    return Region(nodes=nodes, anchor=anchor, scores=scores, last=last)


def _is_entry(graph: SizedGraph, node: Any) -> bool:
    if node.op_type in _ENTRIES or node.op_type in QUANTIZERS or _is_quantized(graph, node):
        return True
    stored = [name for name in node.input if name in graph.constants]
    is_scalar = all(len(graph.constants[name].dims) == 0 or list(graph.constants[name].dims) == [1] for name in stored)
    return node.op_type in _SCALES and len(stored) == 1 and is_scalar


def _is_quantized(graph: SizedGraph, node: Any | None) -> bool:
    """Does a node only move what a quantizer made?"""
    for _ in range(_BETWEEN):
        if node is None or node.op_type not in _MOVES:
            break
        node = graph.producers.get(node.input[0])
    return node is not None and node.op_type in QUANTIZERS


def _between(graph: SizedGraph, scores: Any, last: Any) -> Iterator[Any]:
    """Nodes that the scores reach and that reach the last product."""
    below = _reached(scores.output, lambda name: graph.consumers.get(name, ()), lambda node: node.output, last)
    above = _reached(last.input, lambda name: _one(graph.producers.get(name)), lambda node: node.input, scores)
    return (node for key, node in below.items() if key in above)


def _one(node: Any | None) -> Sequence[Any]:
    return () if node is None else (node,)


def _reached(start: Sequence[str], nodes_of: Any, names_of: Any, stop: Any) -> dict[str, Any]:
    """Nodes by their first output; the walk does not pass `stop`."""
    found: dict[str, Any] = {}
    names = list(start)
    while names:
        for node in nodes_of(names.pop()):
            if node.output[0] not in found and node.output[0] != stop.output[0]:
                found[node.output[0]] = node
                names += [name for name in names_of(node) if name]
    return found
