"""Attention inside `If`: both branches are written out in the graph, so that each is seen like any other part.

Merged decoders have all of theirs there: one branch for the first token, one with a cache. The graph is then no model
to run, for both branches are taken; of each attention it says what it is made of and its sizes.
"""

from collections.abc import Iterator
from typing import Any

from attnbench.fusion.operators import ATTENTION

_SOFTMAXES = frozenset({"Softmax", *ATTENTION})


def write_out_branches(graph: Any) -> int:
    """Put the nodes of both branches where an `If` with attention in it is; how many there were.

    Args:
        graph: GraphProto; changed.
    """
    count = 0
    nodes: list[Any] = []
    used = set(_names(graph))
    for node in graph.node:
        branches = sorted(bodies(node), key=_is_else) if node.op_type == "If" else []  # then before else
        if not any(inner_softmaxes(body) for _, body in branches):
            nodes.append(node)
            continue
        count += 1
        results: list[Any] = []
        for name, body in branches:
            count += write_out_branches(body)
            outputs = _moved(graph, body, f"{name} of {node.name or node.output[0]}", used)
            nodes += body.node
            if name == "then_branch":
                results = [_identity(made, out) for made, out in zip(outputs, node.output, strict=True) if out]
        nodes += results
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return count


def _is_else(branch: tuple[str, Any]) -> bool:
    return branch[0] == "else_branch"


def bodies(node: Any) -> Iterator[tuple[str, Any]]:
    """The graphs inside a node, by the names of their attributes."""
    for attribute in node.attribute:
        for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            yield attribute.name, body


def inner_softmaxes(graph: Any) -> int:
    """Softmax and attention nodes of a graph and of all inside it."""
    return sum(
        (node.op_type in _SOFTMAXES) + sum(inner_softmaxes(body) for _, body in bodies(node)) for node in graph.node
    )


def _moved(graph: Any, body: Any, where: str, used: set[str]) -> list[str]:
    """Give what a branch makes names of its own, hand its constants to the graph; the names of its outputs."""
    renamed = {name: _free(name, where, used) for name in _names(body)}
    used.update(renamed.values())
    _rename(body, renamed)
    for node in body.node:
        node.name = f"{node.name or node.output[0]} ({where})"
    for tensor in body.initializer:
        tensor.name = renamed[tensor.name]
    graph.initializer.extend(body.initializer)
    return [renamed.get(value.name, value.name) for value in body.output]


def _rename(graph: Any, renamed: dict[str, str]) -> None:
    """In the nodes of a graph, and where graphs inside them take something from outside."""
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = renamed.get(name, name)
        for _, body in bodies(node):
            own = set(_names(body)) | {value.name for value in body.input}
            outer = {old: new for old, new in renamed.items() if old not in own}
            _rename(body, outer)
            for value in body.output:
                value.name = outer.get(value.name, value.name)


def _free(name: str, where: str, used: set[str]) -> str:
    return name if name not in used else f"{name} ({where})"


def _names(graph: Any) -> Iterator[str]:
    """What a graph itself makes or stores."""
    yield from (tensor.name for tensor in graph.initializer)
    yield from (name for node in graph.node for name in node.output if name)


def _identity(source: str, result: str) -> Any:
    from onnx import helper

    return helper.make_node("Identity", [source], [result], name=f"{result} of then_branch")
