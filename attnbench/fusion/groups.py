"""Operators of a region that are one thing to whoever wrote them: left out together or not at all."""

from collections.abc import Iterator, Mapping
from typing import Any

from attnbench.fusion.model_edits import TESTS, data_users, has_scalar

_OF_TESTS = frozenset({*TESTS, "Cast"})


def softcap(model: Any, tanh: Any, data: set[str]) -> list[str]:
    """`Tanh` with the scaling just before and after it, by name."""
    before = next((n for n in model.graph.node if tanh.input[0] in n.output), None)
    after = data_users(model, tanh.output[0])
    around = [n for n in (before, *(after if len(after) == 1 else ())) if n is not None]
    scalings = [n.name for n in around if n.op_type in ("Mul", "Div") and has_scalar(model, n, data)]
    return sorted([tanh.name, *scalings], key=lambda name: int(name[1:]))


def linear(model: Any, product: Any, shapes: Mapping[str, Any]) -> list[str]:
    """A product of scores and a matrix of heads, and the bias that is added to it, by name."""
    users = data_users(model, product.output[0])
    if len(users) != 1 or users[0].op_type != "Add":
        return [product.name]
    others = [name for name in users[0].input if name != product.output[0]]
    is_bias = all(len(shapes[name][1]) == 1 for name in others if name in shapes)
    return [product.name, users[0].name] if is_bias else [product.name]


def guards(model: Any, first: Any, data: set[str]) -> list[Any]:
    """A `Where` by a test of the data itself, and those that follow it: `nan_to_num` writes three in a row.

    Returns:
        The nodes in order; none where the condition is no test of the data.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    found: list[Any] = []
    node: Any | None = first
    while node is not None and node.op_type == "Where" and _is_guard(producers, node, data):
        found.append(node)
        wheres = [user for user in data_users(model, node.output[0]) if user.op_type == "Where"]
        node = next((user for user in wheres if user.input[2] == node.output[0]), None)
    return found


def guard_words(model: Any, group: list[Any]) -> str:
    """What a group of guards is for: ` (NaN guard)`."""
    producers = {name: node for node in model.graph.node for name in node.output}
    tests = {test.op_type for node in group for test in _tests_above(producers, node.input[0])}
    if "IsNaN" in tests:
        return " (NaN guard)" if len(group) == 1 else f" (NaN and infinity guard of {len(group)})"
    return " (mask made of the scores)"


def _is_guard(producers: Mapping[str, Any], where: Any, data: set[str]) -> bool:
    return any(data.intersection(test.input) for test in _tests_above(producers, where.input[0]))


def _tests_above(producers: Mapping[str, Any], tensor: str) -> Iterator[Any]:
    """All that a condition is made of."""
    names = [tensor]
    while names:
        node = producers.get(names.pop())
        if node is not None and node.op_type in _OF_TESTS:
            yield node
            names += node.input


def extra_columns(model: Any, data: set[str], shapes: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """`Concat` that adds columns to the scores, and the `Slice` that takes them off again: an attention sink."""
    found = []
    for concat in model.graph.node:
        sources = [name for name in concat.input if name in data] if concat.op_type == "Concat" else []
        if len(sources) != 1 or concat.output[0] not in data:
            continue
        below = {concat.output[0]}
        for node in model.graph.node:
            if not below.intersection(node.input):
                continue
            if node.op_type == "Slice" and shapes.get(node.output[0], (0, 0))[1] == shapes.get(sources[0], (0, 1))[1]:
                found.append((concat, node))
                break
            below.update(node.output)
    return found
