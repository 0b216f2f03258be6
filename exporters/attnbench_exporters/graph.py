"""A graph that is written node by node: what hand-made exporters share."""

from typing import Any

import numpy as np

from attnbench.interfaces import Array


class Graph:
    """Nodes and constants in the making; values are referred to by name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def add(self, operator: str, *inputs: str, out: str, domain: str = "", **attributes: Any) -> str:
        """One node with one output, named as its output; an input that is left out is an empty name."""
        self.add_many(operator, *inputs, outs=[out], domain=domain, **attributes)
        return out

    def add_many(self, operator: str, *inputs: str, outs: list[str], domain: str = "", **attributes: Any) -> None:
        """One node with several outputs."""
        from onnx import helper

        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        name = f"make_{outs[0]}"
        self.nodes.append(helper.make_node(operator, given, outs, name=name, domain=domain, **attributes))

    def constant(self, name: str, value: Array | int | list[int]) -> str:
        """A constant by name; numbers and lists are int64."""
        self.constants[name] = value if isinstance(value, np.ndarray) else np.array(value, np.int64)
        return name

    def size(self, source: str, axis: int, *, out: str) -> str:
        """How long a value is along an axis: an int64 scalar."""
        shape = self.add("Shape", source, out=f"{out}_shape")
        return self.add("Gather", shape, self.constant(f"axis_{axis}", axis), out=out)

    def reshape(self, source: str, dims: list[int], *, out: str) -> str:
        """Reshape to dims; 0 keeps a size."""
        return self.add("Reshape", source, self.constant(f"{out}_dims", dims), out=out)

    def initializers(self) -> list[Any]:
        """The constants as onnx.TensorProto."""
        from onnx import numpy_helper

        return [numpy_helper.from_array(np.asarray(a, order="C"), name) for name, a in self.constants.items()]
