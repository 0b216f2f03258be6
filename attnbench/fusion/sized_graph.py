"""An ONNX graph at given sizes: every shape that follows is a number, and what follows from shapes is a constant."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.errors import InputError
from attnbench.fusion.branches import write_out_branches
from attnbench.fusion.unused import drop_unused

_SMALL_BYTES = 1024  # of a constant that is kept; larger ones are weights, whose values no verdict depends on
_SMALL = 64  # elements of what is folded
_ASKED_SHAPES = {"ConstantOfShape": 0, "Expand": 1}  # the input that says how large a result becomes
_OTHER_FORMS = frozenset({"Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Transpose"})
_FORMS = 16  # one after the other, at most
_ROUNDS = 8  # shape inference and folding feed each other
_FOLDED = frozenset({
    "Abs", "Add", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor",
    "Gather", "Identity", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "ReduceProd", "Reshape", "Slice", "Sqrt",
    "Squeeze", "Sub", "Unsqueeze", "Where",
})  # fmt: skip
_FOLD_ERRORS = (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError, AttributeError, NotImplementedError)


@dataclass(frozen=True)
class SizedGraph:
    """The main graph of a model, its functions written out, at one set of sizes."""

    nodes: tuple[Any, ...]  # NodeProto, in the order of the file
    shapes: Mapping[str, tuple[int, tuple[int, ...]]]  # tensor -> element type, dims; only where all are known
    constants: Mapping[str, Any]  # small TensorProto by name
    weights: frozenset[str]  # large initializers, their values left behind
    outputs: frozenset[str]
    opset_import: tuple[Any, ...]
    ir_version: int
    producers: Mapping[str, Any]  # tensor -> node
    consumers: Mapping[str, tuple[Any, ...]]

    def is_stored(self, name: str) -> bool:
        """Is a tensor of the file, or one in another form, such as int8 weights after DequantizeLinear?"""
        for _ in range(_FORMS):
            if name in self.constants or name in self.weights:
                return True
            node = self.producers.get(name)
            if node is None or node.op_type not in _OTHER_FORMS:
                return False
            name = node.input[0]
        return False


def load_structure(path: Path) -> Any:
    """A model without the values of its large weights, which become inputs of the graph.

    Functions and branches of `If` with attention in them are written out; what no output needs is left out.

    Free dims of inputs without a name get `INPUT_dimAXIS`.
    """
    import onnx
    from onnx import inliner

    model = onnx.load(str(path), load_external_data=False)
    if len(model.functions):
        model = inliner.inline_local_functions(model)
    graph, kept = model.graph, []
    drop_unused(graph)
    branches = write_out_branches(graph)
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_param and dim.dim_value <= 0:
                dim.dim_param = f"{value.name}_dim{axis}"
    given = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= _SMALL:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.ByteSize() > _SMALL_BYTES:
            if tensor.name not in given:
                graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            kept.append(tensor)
    weights = {tensor.name for tensor in graph.initializer} - {tensor.name for tensor in kept}
    del graph.initializer[:]
    graph.initializer.extend(kept)
    del graph.value_info[:]
    model.metadata_props.add(key=_WEIGHTS, value="\n".join(sorted(weights)))
    model.metadata_props.add(key=BRANCHES, value=str(branches))
    return model


_WEIGHTS = "attnbench.weights"
BRANCHES = "attnbench.branches"  # how many `If` were written out


def sized_graph(structure: Any, sizes: Mapping[str, int]) -> SizedGraph:
    """A model at some sizes.

    Args:
        structure: from `load_structure`; it is not changed.
        sizes: of the free dims of its inputs, by name.

    Raises:
        InputError: shapes cannot follow, such as of an operator whose domain the file does not import.
    """
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(structure)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") and dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for _ in range(_ROUNDS):
        del model.graph.value_info[:]
        try:
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except onnx.shape_inference.InferenceError as err:
            words = " ".join(str(err).split())
            raise InputError(f"the model breaks a rule of ONNX: {words}; onnx.checker says more") from err
        if not _fold(model):
            break
    return _as_graph(model)


def _as_graph(model: Any) -> SizedGraph:
    graph = model.graph
    weights = next(entry.value for entry in model.metadata_props if entry.key == _WEIGHTS)
    consumers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            consumers.setdefault(name, []).append(node)
    return SizedGraph(
        nodes=tuple(graph.node), shapes=shapes_of(model), constants={t.name: t for t in graph.initializer},
        weights=frozenset(filter(None, weights.split("\n"))), outputs=frozenset(v.name for v in graph.output),
        opset_import=tuple(model.opset_import), ir_version=model.ir_version,
        producers={name: node for node in graph.node for name in node.output if name},
        consumers={name: tuple(nodes) for name, nodes in consumers.items()},
    )  # fmt: skip


def shapes_of(model: Any) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Element type and dims of every tensor of a model whose dims are all numbers."""
    found = {}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            found[value.name] = (kind.elem_type, tuple(dim.dim_value for dim in kind.shape.dim))
    for tensor in model.graph.initializer:
        found[tensor.name] = (tensor.data_type, tuple(tensor.dims))
    return found


def _fold(model: Any) -> bool:
    """Turn small results that follow from constants and known shapes into constants; False: there were none."""
    from onnx import numpy_helper

    shapes, outputs = shapes_of(model), {value.name for value in model.graph.output}
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    left = []
    for node in model.graph.node:
        made = None if outputs.intersection(node.output) else _value(node, known, shapes, model)
        if made is None:
            left.append(node)
            continue
        known[node.output[0]] = tensor = numpy_helper.from_array(made, node.output[0])
        model.graph.initializer.append(tensor)
    if len(left) == len(model.graph.node):
        return False
    del model.graph.node[:]
    model.graph.node.extend(left)
    return True


def _value(
    node: Any, known: Mapping[str, Any], shapes: Mapping[str, tuple[int, tuple[int, ...]]], model: Any
) -> Any | None:
    """What a node computes, as an array; None where that is not known or not small."""
    import numpy as np
    from onnx import numpy_helper

    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Shape":
        if node.input[0] not in shapes:
            return None
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        return np.array(shapes[node.input[0]][1][ends.get("start", 0) : ends.get("end")], np.int64)
    if node.op_type == "Constant":
        tensor = next((a.t for a in node.attribute if a.name == "value" and a.t.ByteSize() <= _SMALL_BYTES), None)
        return _evaluated(node, {}, model) if tensor is None else numpy_helper.to_array(tensor)
    inputs = {name: known.get(name) for name in node.input if name}
    if node.op_type not in _FOLDED or not inputs or len(node.output) != 1 or any(t is None for t in inputs.values()):
        return None
    return _evaluated(node, {name: numpy_helper.to_array(tensor) for name, tensor in inputs.items()}, model)


def _evaluated(node: Any, inputs: Mapping[str, Any], model: Any) -> Any | None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    if any(array.size > _SMALL for array in inputs.values()):
        return None
    place = _ASKED_SHAPES.get(node.op_type)
    if place is not None and math.prod(map(int, inputs[node.input[place]].flatten())) > _SMALL:
        return None
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    out = onnx.helper.make_empty_tensor_value_info(node.output[0])
    one = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one", values, [out]),
        opset_imports=model.opset_import, ir_version=model.ir_version,
    )  # fmt: skip
    try:
        made = ReferenceEvaluator(one).run(None, dict(inputs))[0]
    except _FOLD_ERRORS:  # a form that onnx's evaluator does not take stays a node
        return None
    return made if hasattr(made, "size") and made.size <= _SMALL else None
