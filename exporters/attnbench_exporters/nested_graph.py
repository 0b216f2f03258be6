"""Graphs inside graphs: nodes are written as calls, and the bodies of loops and branches share one set of constants."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbench.interfaces import Array

Operand = str | int | list[int] | Array  # a name, or a constant


class Graph:
    """Nodes being written: `graph.MatMul(a, b)` adds one and gives the name of its output."""

    def __init__(self, prefix: str, constants: dict[str, Array] | None = None) -> None:
        self.prefix, self.nodes = prefix, list[Any]()
        self.constants: dict[str, Array] = {} if constants is None else constants

    @property
    def output(self) -> str:
        """What the nodes of an inner graph give."""
        return f"{self.prefix}output"

    @property
    def number(self) -> str:
        """Which turn of the loop it is, where the graph is a loop's body."""
        return f"{self.prefix}number"

    def inner(self, name: str) -> "Graph":
        """For the body of a loop; constants are shared with this graph."""
        return Graph(f"{self.prefix}{name}_", self.constants)

    def __getattr__(self, operator: str) -> Callable[..., str]:
        """Write a node of this operator."""

        def write(*inputs: Operand, output: str = "", **attributes: Any) -> str:
            from onnx import helper

            name = f"{self.prefix}{operator}_{len(self.nodes)}"
            operands = [self._operand(value) for value in inputs]
            self.nodes.append(helper.make_node(operator, operands, [output or name], name=name, **attributes))
            return output or name

        return write

    def _operand(self, value: Operand) -> str:
        if isinstance(value, str):
            return value
        array = value if isinstance(value, np.ndarray) else np.asarray(value, np.int64)
        name = f"{self.prefix.split('/')[0]}/{array.dtype}_{array.ndim}d_{array.tobytes().hex()}"
        self.constants[name] = array
        return name

    def size(self, tensor: str, axis: int) -> str:
        """The size of an axis as a list of one number."""
        return self.Shape(tensor, start=axis, end=axis + 1)
