"""A softmax written out in other operators: found, and put back as one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.fusion.model_edits import data_users


@dataclass(frozen=True)
class WrittenOut:
    """`Div(e, ReduceSum(e))` of `e = Exp(x)`, or of `Exp(Sub(x, ReduceMax(x)))`."""

    exp: Any
    divide: Any
    source: str  # x
    axis: int


def written_out(model: Any, exp: Any) -> WrittenOut | None:
    """The softmax that an Exp is part of; None: it is no softmax in this form."""
    producers = {name: node for node in model.graph.node for name in node.output}
    divide = next(
        (n for n in data_users(model, exp.output[0]) if n.op_type == "Div" and n.input[0] == exp.output[0]), None
    )
    total = None if divide is None else producers.get(_before_cast(producers, divide.input[1]))
    if divide is None or total is None or total.op_type != "ReduceSum":
        return None
    axis = _axis(model, total)
    if axis is None or _before_cast(producers, total.input[0]) != exp.output[0]:
        return None
    source, sub = exp.input[0], producers.get(exp.input[0])
    if sub is not None and sub.op_type == "Sub":
        most = producers.get(_before_cast(producers, sub.input[1]))
        if most is not None and most.op_type == "ReduceMax":
            is_same = _before_cast(producers, most.input[0]) == sub.input[0]
            source = sub.input[0] if is_same else source
    return WrittenOut(exp, divide, source, axis)


def _before_cast(producers: Mapping[str, Any], name: str) -> str:
    """The tensor that a cast, or none, makes this one of."""
    node = producers.get(name)
    return str(node.input[0]) if node is not None and node.op_type == "Cast" else name


def as_one(model: Any, name: str) -> None:
    """Put `Softmax` for what the Exp of this name is part of; what is no longer used stays."""
    from onnx import helper

    exp = next(node for node in model.graph.node if node.name == name)
    found = written_out(model, exp)
    assert found is not None, name
    place = list(model.graph.node).index(found.divide)
    node = helper.make_node(
        "Softmax", [found.source], [found.divide.output[0]], name=found.divide.name, axis=found.axis
    )
    model.graph.node.remove(found.divide)
    model.graph.node.insert(place, node)


def _axis(model: Any, reduce: Any) -> int | None:
    """The one axis that is summed and kept, from the attribute or, from opset 13 on, the input; None: another form."""
    from onnx import numpy_helper

    given = {attribute.name: attribute for attribute in reduce.attribute}
    axes = list(given["axes"].ints) if "axes" in given else []
    if len(reduce.input) > 1:
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        tensor = stored.get(reduce.input[1])
        axes = [] if tensor is None else numpy_helper.to_array(tensor).flatten().tolist()
    is_kept = "keepdims" not in given or given["keepdims"].i == 1
    return int(axes[0]) if len(axes) == 1 and is_kept else None
