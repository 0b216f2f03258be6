"""Parts of a region that compute in a wider float than the rest, and the region with one of them narrowed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.fusion.model_edits import TESTS, take_out

Shapes = Mapping[str, tuple[int, tuple[int, ...]]]
_FP32, _FP16, _FP64, _BF16 = 1, 10, 11, 16  # TensorProto.DataType
_WIDE, _NARROW = (_FP32, _FP64), (_FP16, _BF16)
_MOVES = ("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Identity")
NAMES = {_FP32: "fp32", _FP64: "fp64", _FP16: "fp16", _BF16: "bf16"}


@dataclass(frozen=True)
class Island:
    """Tensors of fp32 or fp64 that hang together through other operators than Cast."""

    key: str  # its first tensor
    tensors: frozenset[str]
    words: str
    node: str  # the first that computes in it


def islands(model: Any, shapes: Shapes) -> list[Island]:
    """The wide parts of a region, in order; where all of it is wide, that is its dtype.

    A test that is made in a wide dtype, such as `IsNaN` of a Cast, belongs to the guard that it is made for.
    """
    groups: dict[str, set[str]] = {}
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        wide = [name for name in (*node.input, *node.output) if name not in constants and _is_wide(name, shapes)]
        if node.op_type == "Cast" and len(wide) < 2:  # from wide to wide it is no border
            for name in wide:
                groups.setdefault(name, {name})
            continue
        merged = set(wide).union(*(groups.get(name, ()) for name in wide))
        groups.update(dict.fromkeys(merged, merged))
    narrow = _narrow_type(shapes)
    is_all = not any(shape[0] in _NARROW for shape in shapes.values())
    found: dict[str, Island] = {}
    for node in model.graph.node:
        for name in (*node.input, *node.output):
            tensors = frozenset(groups.get(name, ()))
            inside = [
                n for n in model.graph.node if n.op_type != "Cast" and tensors.intersection((*n.input, *n.output))
            ]
            if all(n.op_type in TESTS for n in inside) or min(tensors) in found:
                continue
            width = NAMES[shapes[name][0]]
            operators = dict.fromkeys(n.op_type for n in inside if n.op_type not in _MOVES)
            between = ", ".join(f"`{op}`" for op in operators) or "nothing"
            words = (f"in {NAMES[narrow]} instead of {width}" if is_all
                     else f"without the {width} island ({between} between `Cast`)")  # fmt: skip
            into = [n for n in model.graph.node if n.op_type == "Cast" and n.output[0] in tensors]
            first = (*into, *inside)[0]
            found[min(tensors)] = Island(min(tensors), tensors, words, "" if is_all else first.name)
    return list(found.values())


def narrow(model: Any, shapes: Shapes, keys: Sequence[str]) -> None:
    """Compute islands in the narrow dtype of the region, fp16 where it has none."""
    tensors = frozenset().union(*(island.tensors for island in islands(model, shapes) if island.key in keys))
    to = _narrow_type(shapes)
    for value in (*model.graph.input, *model.graph.output):
        if value.name in tensors:
            value.type.tensor_type.elem_type = to
    _convert_constants(model, tensors, to)
    for node in list(model.graph.node):
        if node.op_type != "Cast":
            continue
        target = next(attribute for attribute in node.attribute if attribute.name == "to")
        if node.output[0] in tensors:
            target.i = to
        source = to if node.input[0] in tensors else shapes.get(node.input[0], (0, ()))[0]
        if source == target.i and not _is_output(model, node.output[0]):
            take_out(model, node, node.input[0])
    for node in model.graph.node:
        _narrow_attributes(node, tensors, to)


def _convert_constants(model: Any, tensors: frozenset[str], to: int) -> None:
    """Every wide constant that an island uses, under a name of its own."""
    from onnx import TensorProto, helper, numpy_helper

    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Cast" or not tensors.intersection((*node.input, *node.output)):
            continue
        for place, name in enumerate(node.input):
            if name not in stored or stored[name].data_type not in _WIDE:
                continue
            new = f"{name}_{NAMES[to]}"
            if new not in stored:
                array = numpy_helper.to_array(stored[name])
                values = array.clip(-65504, 65504).flatten().tolist() if to == _FP16 else array.flatten().tolist()
                stored[new] = helper.make_tensor(new, to, array.shape, values)
                model.graph.initializer.append(stored[new])
            node.input[place] = new
    assert all(isinstance(tensor, TensorProto) for tensor in stored.values())


def _narrow_attributes(node: Any, tensors: frozenset[str], to: int) -> None:
    """What a node itself says of its dtype."""
    from onnx import helper, numpy_helper

    if not tensors.intersection(node.output):
        return
    for attribute in node.attribute:
        if attribute.name == "softmax_precision":
            attribute.i = to
        elif node.op_type in ("ConstantOfShape", "Constant") and attribute.name == "value":
            array = numpy_helper.to_array(attribute.t)
            attribute.t.CopyFrom(helper.make_tensor("value", to, array.shape, array.flatten().tolist()))


def _is_output(model: Any, name: str) -> bool:
    return any(value.name == name for value in model.graph.output)


def _is_wide(name: str, shapes: Shapes) -> bool:
    return name in shapes and shapes[name][0] in _WIDE


def _narrow_type(shapes: Shapes) -> int:
    return _BF16 if any(shape[0] == _BF16 for shape in shapes.values()) else _FP16
