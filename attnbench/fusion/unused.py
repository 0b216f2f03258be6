"""What no output of a graph needs: compilers leave it out, so that it says nothing of what is fused.

Who takes outputs off a file, such as returned weights, often leaves the nodes that made them.
"""

from collections.abc import Iterator
from typing import Any

from attnbench.fusion.branches import bodies


def drop_unused(graph: Any) -> int:
    """Remove the nodes whose results no output needs; how many there were.

    Args:
        graph: GraphProto; changed. What is inside its nodes stays.
    """
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needed: set[int] = set()
    waiting = [value.name for value in graph.output]
    while waiting:
        index = producers.get(waiting.pop())
        if index is not None and index not in needed:
            needed.add(index)
            waiting += _taken(graph.node[index])
    kept = [node for index, node in enumerate(graph.node) if index in needed]
    count = len(graph.node) - len(kept)
    if count:
        copies = [type(node).FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)
    return count


def _taken(node: Any) -> Iterator[str]:
    """Tensors that a node takes, or that the graphs inside it take from outside; theirs of their own are among them."""
    yield from node.input
    for _, body in bodies(node):
        yield from (value.name for value in body.output)
        for inner in body.node:
            yield from _taken(inner)
