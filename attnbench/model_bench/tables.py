"""In a worker: which integers a file can take, where it looks rows of a table up by them."""

from collections.abc import Iterable, Iterator
from typing import Any

_SAME_NUMBERS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")  # their first input, unchanged


def table_sizes(*, path: str) -> dict[str, Any]:
    """Inputs that choose rows of a stored table, such as token ids; {"sizes": input -> number of rows, the least}.

    Args:
        path: of an ONNX file that was inspected; its external data is not read.
    """
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    tables = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    sources = {value.name: value.name for value in graph.input if value.name not in tables}  # name -> input it equals
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in _SAME_NUMBERS and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
        for name, rows in _lookups(node, tables):
            if name in sources and rows > 0:
                found[sources[name]] = min(rows, found.get(sources[name], rows))
    return {"sizes": found}


def _lookups(node: Any, tables: dict[str, list[int]]) -> Iterator[tuple[str, int]]:
    """The name of the indices and the number of rows, where a node takes rows of a stored table."""
    if node.op_type == "Gather" and len(node.input) == 2 and node.input[0] in tables:
        dims, axis = tables[node.input[0]], _axis(node.attribute)
        if -len(dims) <= axis < len(dims):
            yield node.input[1], dims[axis]


def _axis(attributes: Iterable[Any]) -> int:
    return next((int(attribute.i) for attribute in attributes if attribute.name == "axis"), 0)
