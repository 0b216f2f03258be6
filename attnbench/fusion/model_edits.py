"""Small edits of an ONNX model, and who uses what in it."""

from typing import Any

from attnbench.fusion.regions import is_data

TESTS = frozenset({"IsNaN", "IsInf", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Not", "And", "Or"})


def reached_from(model: Any, tensor: str) -> set[str]:
    """What becomes of a tensor: results that carry its values, not its shape or a test of it; itself included."""
    found = {tensor}
    for node in model.graph.node:  # in order, so that once is enough
        if is_data(node) and node.op_type not in TESTS and found.intersection(node.input):
            found.update(name for name in node.output if name)
    return found


def data_users(model: Any, tensor: str) -> list[Any]:
    """The nodes that take a tensor."""
    return [node for node in model.graph.node if tensor in node.input]


def has_scalar(model: Any, node: Any, data: set[str]) -> bool:
    """Is every other operand than the data one number?"""
    counts = {tensor.name: max(1, len(tensor.dims)) and _elements(tensor.dims) for tensor in model.graph.initializer}
    counts |= {
        value.name: _elements([dim.dim_value for dim in value.type.tensor_type.shape.dim])
        for value in model.graph.input
    }
    return all(counts.get(name, 0) == 1 for name in node.input if name and name not in data)


def _elements(dims: Any) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count


def take_out(model: Any, node: Any, source: str) -> None:
    """Remove a node; who took its result takes `source`, what it handed on."""
    result = node.output[0]
    for user in model.graph.node:
        for place, name in enumerate(user.input):
            if name == result:
                user.input[place] = source
    outputs = {value.name for value in model.graph.output}
    if result in outputs:
        kept = [value for value in model.graph.output if value.name != result or source not in outputs]
        for value in kept:
            value.name = source if value.name == result else value.name
        copies = [type(value).FromString(value.SerializeToString()) for value in kept]
        del model.graph.output[:]
        model.graph.output.extend(copies)
    model.graph.node.remove(node)


def drop_unused(model: Any) -> None:
    """Remove nodes, inputs and constants that no output needs."""
    needed = {value.name for value in model.graph.output}
    nodes = []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
    copies = [type(node).FromString(node.SerializeToString()) for node in reversed(nodes)]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    for field in (model.graph.input, model.graph.initializer):
        kept = [type(entry).FromString(entry.SerializeToString()) for entry in field if entry.name in needed]
        del field[:]
        field.extend(kept)
