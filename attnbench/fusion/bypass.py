"""What may keep an attention from being fused, one change at a time: each makes the region without it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.fusion import groups, retype
from attnbench.fusion.cut import MAIN
from attnbench.fusion.model_edits import drop_unused, has_scalar, reached_from, take_out
from attnbench.fusion.operators import ATTENTION, PRODUCTS, QUANTIZERS
from attnbench.fusion.sized_graph import shapes_of
from attnbench.fusion.written_out import as_one, written_out

FUSED_HEAD_DIM = 128  # a kernel takes heads of this size wherever it takes any
_NEEDED = ("Softmax", "Exp", "Cast", "Identity")  # of attention itself, or an island's
_OPTIONS = {"softcap": "`softcap`", "softmax_precision": "`softmax_precision`", "is_causal": "`is_causal`"}
_MASK_INPUT = 3  # of Attention


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that can be left out of a region."""

    key: str  # equal in regions that are equal but for their names
    words: str  # without `Tanh` (softcap)
    node: str = ""  # in the cut; empty: none of its own

    def as_dict(self) -> dict[str, str]:
        """As JSON can hold it."""
        return asdict(self)


def changes_of(model: Any) -> list[Change]:
    """All that can be left out of a region, operators first, then what is returned, head_dim and dtype.

    Args:
        model: of `cut.cut`.
    """
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    shapes = shapes_of(inferred)
    is_operator = len(model.graph.node) == 1 and model.graph.node[0].op_type in ATTENTION
    inside = _options(model.graph.node[0]) if is_operator else _operators(model, shapes)
    dtypes = [Change(key=f"type:{island.key}", words=island.words, node=island.node)
              for island in retype.islands(model, shapes)]  # fmt: skip
    return [
        *inside,
        *_extra_columns(model, shapes),
        *_quantizers(model),
        *_softmaxes(model),
        *_returned(model),
        *_head_dim(model, shapes),
        *dtypes,
    ]


def without(model: Any, keys: Sequence[str]) -> Any:
    """The region with these changes made.

    Args:
        model: of `cut.cut`; it is not changed.
        keys: of `changes_of`.
    """
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(model)
    islands = [key.removeprefix("type:") for key in keys if key.startswith("type:")]
    if islands:
        shapes = shapes_of(onnx.shape_inference.infer_shapes(model, data_prop=True))
        retype.narrow(made, shapes, islands)
    for kind, _, value in (key.partition(":") for key in keys):
        if kind == "node":
            _take_out_group(made, value.split(","))
        elif kind == "softmax":
            as_one(made, value)
        elif kind == "column":
            _take_out_column(made, value.split(","))
        elif kind == "quantized":
            _take_out_quantizers(made)
        elif kind == "option":
            _take_out_option(made.graph.node[0], value)
        elif kind == "returned":
            _return_only(made, MAIN)
        elif kind == "head_dim":
            _resize_heads(made, *map(int, value.split("->")))
    drop_unused(made)
    return made


def _operators(model: Any, shapes: Mapping[str, Any]) -> list[Change]:
    """Nodes between the scores and V that hand on a tensor of the same shape and dtype."""
    scores = next(node for node in model.graph.node if node.op_type in PRODUCTS)
    data = reached_from(model, scores.output[0])
    found: list[Change] = []
    grouped: set[str] = set()
    softmax = {name for node in model.graph.node if node.op_type == "Exp" and (one := written_out(model, node))
               for name in (*node.input, one.divide.name)} - {scores.output[0]}  # fmt: skip
    for node in model.graph.node:
        if (
            {node.name, *node.output} & softmax
            or node.name in grouped
            or data_input(node, data, shapes) is None
            or MAIN in node.output
        ):
            continue
        if node.op_type in _NEEDED or is_scale(model, node, data):
            continue
        group = _group(model, node, data, shapes)
        grouped.update(group)
        words = f"without `{node.op_type}`{_role(model, node, data)}"
        found.append(Change(key=f"node:{','.join(group)}", words=words, node=node.name))
    return found


def _group(model: Any, node: Any, data: set[str], shapes: Mapping[str, Any]) -> list[str]:
    """The nodes that are left out with this one, by name."""
    if node.op_type in PRODUCTS:
        return groups.linear(model, node, shapes)
    if node.op_type == "Tanh":
        return groups.softcap(model, node, data)
    return [guard.name for guard in groups.guards(model, node, data)] or [node.name]


def is_scale(model: Any, node: Any, data: set[str]) -> bool:
    """Is it a multiplication by a constant number? Attention has one, which nobody can leave out."""
    stored = {tensor.name for tensor in model.graph.initializer}
    others = [name for name in node.input if name and name not in data]
    return (
        node.op_type in ("Mul", "Div") and bool(others) and stored.issuperset(others) and has_scalar(model, node, data)
    )


def data_input(node: Any, data: set[str], shapes: Mapping[str, Any]) -> str | None:
    """The input of a node that it hands on with the same shape and dtype; the last, as in `Where(guard, 0, x)`."""
    out = shapes.get(node.output[0])
    same = [name for name in node.input if name in data and out is not None and shapes.get(name) == out]
    return same[-1] if same else None


def _role(model: Any, node: Any, data: set[str]) -> str:
    if node.op_type == "Tanh":
        return " (softcap)"
    if node.op_type in PRODUCTS:
        return " (mixes heads)"
    if node.op_type == "Where":
        guards = groups.guards(model, node, data)
        return groups.guard_words(model, guards) if guards else " (mask)"
    if node.op_type in ("Add", "Sub") and not has_scalar(model, node, data):
        return " (mask or bias)"
    if node.op_type in ("Mul", "Div") and has_scalar(model, node, data):
        return " (scale)"
    return ""


def _extra_columns(model: Any, shapes: Mapping[str, Any]) -> list[Change]:
    """Those that are added to the scores and taken off the weights."""
    scores = next((node for node in model.graph.node if node.op_type in PRODUCTS), None)
    if scores is None:
        return []
    data = reached_from(model, scores.output[0])
    words = "without the extra column of scores (`Concat` and `Slice`)"
    return [Change(key=f"column:{concat.name},{cut.name}", words=words, node=concat.name)
            for concat, cut in groups.extra_columns(model, data, shapes)]  # fmt: skip


def _take_out_column(model: Any, names: Sequence[str]) -> None:
    scores = next(node for node in model.graph.node if node.op_type in PRODUCTS)
    data = reached_from(model, scores.output[0])
    for name in names:
        node = next(node for node in model.graph.node if node.name == name)
        take_out(model, node, next(source for source in node.input if source in data))


def _quantizers(model: Any) -> list[Change]:
    """All of a region together: products of int8 have them on both sides."""
    first = next((node for node in model.graph.node if node.op_type in QUANTIZERS), None)
    words = "without `QuantizeLinear` and `DequantizeLinear`"
    return [] if first is None else [Change(key="quantized:", words=words, node=first.name)]


def _take_out_quantizers(model: Any) -> None:
    """Those whose values come from outside as they are, in pairs; what comes in quantized stays so."""
    producers = {name: node for node in model.graph.node for name in node.output}
    for node in [node for node in model.graph.node if node.op_type == "DequantizeLinear"]:
        quantize = producers.get(node.input[0])
        if quantize is not None and quantize.op_type == "QuantizeLinear":
            take_out(model, node, quantize.input[0])


def _softmaxes(model: Any) -> list[Change]:
    """Those that are written out."""
    words = "with one `Softmax` instead of `Exp`, `ReduceSum` and `Div`"
    exps = [node for node in model.graph.node if node.op_type == "Exp" and written_out(model, node) is not None]
    return [Change(key=f"softmax:{node.name}", words=words, node=node.name) for node in exps]


def _options(node: Any) -> list[Change]:
    """What an `Attention` node may do without."""
    if node.domain not in ("", "ai.onnx"):
        return []
    given = {attribute.name for attribute in node.attribute if attribute.i or attribute.f}
    found = [Change(key=f"option:{name}", words=f"without {words}", node=node.name)
             for name, words in _OPTIONS.items() if name in given]  # fmt: skip
    if len(node.input) > _MASK_INPUT and node.input[_MASK_INPUT]:
        found.append(Change(key="option:mask", words="without its mask", node=node.name))
    return found


def _take_out_option(node: Any, name: str) -> None:
    if name == "mask":
        node.input[_MASK_INPUT] = ""
        return
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)


def _returned(model: Any) -> list[Change]:
    extra = [value.name for value in model.graph.output if value.name != MAIN]
    if not extra:
        return []
    by = next(node for node in model.graph.node if extra[-1] in node.output)
    is_weights = any(extra[-1] in reached_from(model, node.output[0]) for node in model.graph.node
                     if node.op_type in ("Softmax", "Exp"))  # fmt: skip
    what = "returned weights" if is_weights else "returned scores"
    words = f"without the {what} (`{by.op_type}` is used outside too)"
    return [Change(key="returned:", words=words, node=by.name)]


def _return_only(model: Any, name: str) -> None:
    kept = [value for value in model.graph.output if value.name == name]
    del model.graph.output[:]
    model.graph.output.extend(kept)


def _take_out_group(model: Any, names: Sequence[str]) -> None:
    import onnx

    for name in names:
        shapes = shapes_of(onnx.shape_inference.infer_shapes(model, data_prop=True))
        scores = next(node for node in model.graph.node if node.op_type in PRODUCTS)
        node = next(node for node in model.graph.node if node.name == name)
        source = data_input(node, reached_from(model, scores.output[0]), shapes)
        if source is not None:
            take_out(model, node, source)


def _head_dim(model: Any, shapes: Mapping[str, Any]) -> list[Change]:
    """Only where heads are larger than what kernels are made for; not for Einsum, whose axes are its own."""
    node = model.graph.node[0] if len(model.graph.node) == 1 else next(
        (n for n in model.graph.node if n.op_type in ("MatMul", "Gemm")), None
    )  # fmt: skip
    if node is None or node.input[0] not in shapes:
        return []
    dims = shapes[node.input[0]][1]
    heads = next((a.i for a in node.attribute if a.name == "q_num_heads"), 0)
    size = dims[-1] // heads if heads and len(dims) == 3 else dims[-1]
    if size <= FUSED_HEAD_DIM:
        return []
    return [Change(key=f"head_dim:{size}->{FUSED_HEAD_DIM}", words=f"with head_dim {FUSED_HEAD_DIM} instead of {size}")]


def _resize_heads(model: Any, old: int, new: int) -> None:
    node = model.graph.node[0]
    counts = {a.i for a in node.attribute if a.name in ("q_num_heads", "kv_num_heads")}
    sizes = {old: new} | {count * old: count * new for count in counts}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            is_head = axis >= min(2, len(dims) - 1)  # not the batch, nor the heads
            if is_head and dim.dim_value in sizes:
                dim.dim_value = sizes[dim.dim_value]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
