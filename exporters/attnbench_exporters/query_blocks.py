"""Attention in blocks of queries: every standard `Attention` node becomes a Loop that holds one block's scores.

A graph that writes attention out needs (B, H, q_len, kv_len) scores at once. Looped over blocks of queries it needs
(B, H, rows, kv_len), and a causal block reads only the keys up to its end: half the products. All of it is standard
operators, valid from opset 18 on, at any length.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbench.errors import UnsupportedError
from attnbench.interfaces import Array
from attnbench.masks import Mask, parse_mask

FIRST_OPSET = 18  # Pad and ReduceMax as written here
_KNOWN_ATTRIBUTES = {"is_causal", "scale", "softcap", "qk_matmul_output_mode", "softmax_precision"}
SHORT = 64  # queries that are answered without a loop: it would cost more than it saves
PARTS, LEAST_ROWS, MOST_ROWS = 16, 64, 256  # a block has q_len / 16 rows, from 64 to 256

Operand = str | int | list[int] | Array  # a name, or a constant
Range = tuple[str, str]  # from, to (not included): each a list of one number


class Graph:
    """Nodes being written: `graph.MatMul(a, b)` adds one and gives the name of its output."""

    def __init__(self, prefix: str, constants: dict[str, Array] | None = None) -> None:
        self.prefix, self.nodes = prefix, list[Any]()
        self.constants: dict[str, Array] = {} if constants is None else constants

    @property
    def output(self) -> str:
        """What the nodes of an inner graph give."""
        return f"{self.prefix}output"

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
        return self.Shape(tensor, start=axis, **({} if axis == -1 else {"end": axis + 1}))


@dataclass(frozen=True, kw_only=True)
class Node:
    """An `Attention` node: q (B, H, q_len, D), k (B, H_kv, kv_len, D), v (B, H_kv, kv_len, D_v), its mask, if any."""

    q: str
    k: str
    v: str
    mask: str  # empty: none
    mask_rank: int
    mask_is_bool: bool
    output: str
    scale: float
    dtype: np.dtype[Any]
    is_grouped: bool
    rule: Mask


@dataclass(frozen=True, kw_only=True)
class Operands:
    """Names that both branches use."""

    q_len: str
    kv_len: str
    queries: str  # (B, H, q_len, D), scaled
    keys: str  # (B, H_kv, D, kv_len)


def block_queries(model: Any, *, rule: Mask | None = None) -> int:
    """Replace every `Attention` node of a model by its loop, in place; how many there were.

    Args:
        model: an onnx.ModelProto with the types of the nodes' inputs in it.
        rule: which keys positions allow, beside what the node says; None: only what it says.

    Raises:
        UnsupportedError: an Attention with a cache of its own, heads in one axis, softcap or more outputs.
    """
    from onnx import numpy_helper

    types = _types(model)
    made: list[Any] = []
    count = 0
    for node in model.graph.node:
        if node.op_type != "Attention" or node.domain not in ("", "ai.onnx"):
            made.append(node)
            continue
        graph = Graph(f"{node.name or f'attention_{count}'}/")
        write_attention(graph, read_node(node, types, rule))
        made += graph.nodes
        model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in graph.constants.items())
        count += 1
    del model.graph.node[:]
    model.graph.node.extend(made)
    return count


def _types(model: Any) -> Mapping[str, Any]:
    """Name -> tensor type of everything that has one."""
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    return {value.name: value.type.tensor_type for value in values}


def read_node(node: Any, types: Mapping[str, Any], rule: Mask | None) -> Node:
    """What a node of the standard `Attention` asks for.

    Raises:
        UnsupportedError: what the loop does not write.
    """
    from onnx import TensorProto, helper

    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [*node.input, "", "", "", ""][:7]
    mask = inputs[3]
    ranks = [len(types[name].shape.dim) if name in types else 0 for name in inputs[:3]]
    for refused, what in (
        (set(attributes) - _KNOWN_ATTRIBUTES, f"attributes {sorted(set(attributes) - _KNOWN_ATTRIBUTES)}"),
        (attributes.get("softcap"), f"softcap {attributes.get('softcap')}"),
        (any(inputs[4:]) or len(node.output) > 1, "a cache or a second output of the node"),
        (ranks != [4, 4, 4], f"inputs of rank {ranks}, not (B, H, T, D)"),
        (mask and mask not in types, "a mask of unknown type"),
    ):
        if refused:
            raise UnsupportedError(
                f"blocks of queries are not written for an Attention with {what}; use onnx-attention"
            )
    q, k = (types[name].shape.dim for name in inputs[:2])
    kind = types[mask].elem_type if mask else TensorProto.UNDEFINED
    is_causal = attributes.get("is_causal", 0)
    return Node(
        q=inputs[0], k=inputs[1], v=inputs[2], mask=mask, output=node.output[0],
        mask_rank=len(types[mask].shape.dim) if mask else 0, mask_is_bool=kind == TensorProto.BOOL,
        scale=attributes.get("scale") or 1.0 / float(np.sqrt(q[3].dim_value)),
        dtype=helper.tensor_dtype_to_np_dtype(types[inputs[0]].elem_type),
        is_grouped=not q[1].dim_value or q[1].dim_value != k[1].dim_value,
        rule=rule or parse_mask("causal_top_left" if is_causal else "none"),
    )  # fmt: skip


def write_attention(graph: Graph, node: Node) -> None:
    """Up to `SHORT` queries at once, as a graph without a loop does; more by the loop."""
    q_len, kv_len = (graph.Squeeze(graph.size(name, 2)) for name in (node.q, node.k))
    queries = graph.Mul(node.q, np.array(node.scale, node.dtype))
    keys = graph.Transpose(node.k, perm=[0, 1, 3, 2])  # (B, H_kv, D, kv_len)
    operands = Operands(q_len=q_len, kv_len=kv_len, queries=queries, keys=keys)
    whole, loop = graph.inner("whole"), graph.inner("loop")
    write_whole(whole, node, operands)
    write_loop(loop, node, operands)
    branches = {f"{name}_branch": _subgraph(g, (), node) for name, g in (("then", whole), ("else", loop))}
    graph.If(graph.LessOrEqual(q_len, SHORT), output=node.output, **branches)


def _subgraph(graph: Graph, inputs: tuple[tuple[str, int], ...], node: Node, more: tuple[str, ...] = ()) -> Any:
    """The nodes as a graph whose last output is `graph.output`, after conditions of the names `more`."""
    from onnx import TensorProto, helper

    element = helper.np_dtype_to_tensor_dtype(node.dtype)
    given = [helper.make_tensor_value_info(name, kind, []) for name, kind in inputs]
    made = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in more]
    made.append(helper.make_tensor_value_info(graph.output, element, [None] * 4))
    return helper.make_graph(graph.nodes, "attention", given, made)


def write_whole(graph: Graph, node: Node, given: Operands) -> None:
    """Every query at once: (B, H, q_len, kv_len) scores."""
    visible = ""
    if node.rule.position:
        first, end = _positions(graph, node.rule, "", given.q_len, given)
        visible = _visible(graph, node.rule, (first, end), (np.array(0), given.kv_len))
    bias = _bias(graph, node, node.mask, visible)
    _attend(graph, node, (given.queries, given.keys, node.v), bias, output=graph.output)


def write_loop(graph: Graph, node: Node, given: Operands) -> None:
    """The loop, its blocks stacked, and the heads in front again.

    rows = ceil(q_len / count) of count = ceil(q_len / size) blocks: the last one is short by fewer rows than there are
    blocks. size = q_len / 16 between 64 and 256: so measured on ONNX Runtime, T = 128 to 4096 (`make perf-recipes`).
    """
    from onnx import TensorProto

    size = graph.Min(graph.Max(graph.Div(given.q_len, PARTS), LEAST_ROWS), MOST_ROWS)
    before_last = graph.Div(graph.Sub(given.q_len, 1), size)
    count = graph.Add(before_last, 1)
    rows = graph.Div(graph.Add(given.q_len, before_last), count)
    body = graph.inner("block")
    number, going, go_on = (f"{body.prefix}{name}" for name in ("number", "going", "go_on"))
    _write_block(body, node, given, number, rows)
    body.Identity(going, output=go_on)
    inputs = ((number, TensorProto.INT64), (going, TensorProto.BOOL))
    blocks = graph.Loop(count, np.array(True), body=_subgraph(body, inputs, node, (go_on,)))
    joined = graph.Transpose(blocks, perm=[1, 2, 0, 3, 4])  # (count, B, H, rows, D_v) -> (B, H, count, rows, D_v)
    shape = graph.Concat([0, 0, -1], graph.size(node.v, 3), axis=0)
    flat = graph.Reshape(joined, shape)  # (B, H, count * rows, D_v)
    graph.Slice(flat, [0], graph.size(node.q, 2), [2], output=graph.output)  # (B, H, q_len, D_v)


def _write_block(body: Graph, node: Node, given: Operands, number: str, rows: str) -> None:
    """One block: queries first <= i < end, the keys that positions let them see, softmax, sum of values."""
    first = body.Mul(number, rows)
    full = body.Add(first, rows)
    end = body.Min(full, given.q_len)
    row_range: Range = body.Unsqueeze(first, [0]), body.Unsqueeze(end, [0])
    query = body.Slice(given.queries, *row_range, [2])  # (B, H, rows, D)
    keys, values, visible = given.keys, node.v, ""
    key_range: Range | None = None
    if node.rule.position:
        positions = _positions(body, node.rule, first, end, given)
        seen = _seen_keys(body, node.rule, positions, given.kv_len)
        key_range = body.Unsqueeze(seen[0], [0]), body.Unsqueeze(seen[1], [0])
        keys = body.Slice(keys, *key_range, [3])  # (B, H_kv, D, keys)
        values = body.Slice(values, *key_range, [2])  # (B, H_kv, keys, D_v)
        visible = _visible(body, node.rule, positions, seen)
    mask = _block_of_mask(body, node, row_range, key_range) if node.mask else ""
    attended = _attend(body, node, (query, keys, values), _bias(body, node, mask, visible))
    # The last block is filled up: what a loop stacks has one shape.
    missing = body.Unsqueeze(body.Sub(full, end), [0])
    body.Pad(attended, body.Concat([0] * 6, missing, [0], axis=0), output=body.output)


def _attend(graph: Graph, node: Node, operands: tuple[str, str, str], bias: str, output: str = "") -> str:
    """softmax(query keys + bias) values: (B, H, R, D), (B, H_kv, D, X), (B, H_kv, X, D_v) -> (B, H, R, D_v)."""
    query, keys, values = operands
    scores = _by_heads(graph, node, query, keys)  # (B, H, R, X)
    weights = graph.Softmax(graph.Add(scores, bias) if bias else scores, axis=-1)
    if not (node.mask or node.rule.may_mask_rows):
        return _by_heads(graph, node, weights, values, output)
    attended = _by_heads(graph, node, weights, values)
    best = graph.ReduceMax(bias, [-1])  # (.., R, 1): the softmax of no key is NaN, its sum must be zero
    seen = graph.Greater(best, np.array(-np.inf, node.dtype))
    return graph.Where(seen, attended, np.array(0, node.dtype), output=output)


def _positions(graph: Graph, rule: Mask, first: str, end: str, given: Operands) -> tuple[Operand, str]:
    """Where queries first <= i < end stand among the keys; `first` empty: 0."""
    if rule.position != "causal_bottom_right":
        return first or np.array(0), end
    shift = graph.Sub(given.kv_len, given.q_len)
    return graph.Add(first, shift) if first else shift, graph.Add(end, shift)


def _seen_keys(body: Graph, rule: Mask, positions: tuple[Operand, str], kv_len: str) -> tuple[str, str]:
    """The keys low <= j < high that some query at these positions sees; at least one, so that there is a softmax."""
    first, end = positions
    high = body.Min(body.Max(end, 1), kv_len)
    if rule.window is None:
        return body.Sub(high, high), high
    return body.Min(body.Max(body.Sub(first, rule.window - 1), 0), body.Sub(high, 1)), high


def _visible(graph: Graph, rule: Mask, positions: tuple[Operand, str], keys: tuple[Operand, str]) -> str:
    """Which query sees which key: (rows, keys)."""
    key = graph.Range(*keys, 1)  # (keys,)
    query = graph.Unsqueeze(graph.Range(*positions, 1), [1])  # (rows, 1)
    visible = graph.LessOrEqual(key, query)  # (rows, keys)
    if rule.window is None:
        return visible
    return graph.And(visible, graph.Greater(key, graph.Sub(query, rule.window)))


def _bias(graph: Graph, node: Node, mask: str, visible: str) -> str:
    """What is added to scores: 0 and -inf for what may be seen and not, or the mask itself; empty: nothing."""
    zero, never = np.array(0, node.dtype), np.array(-np.inf, node.dtype)
    if not mask:
        return graph.Where(visible, zero, never) if visible else ""
    if not node.mask_is_bool:
        return graph.Where(visible, mask, never) if visible else mask
    return graph.Where(graph.And(mask, visible) if visible else mask, zero, never)


def _block_of_mask(body: Graph, node: Node, rows: Range, keys: Range | None) -> str:
    """The block's part of a mask; an axis of size 1 stays: its start is times min(size - 1, 1)."""
    part = node.mask
    for axis, part_range in ((node.mask_rank - 2, rows), (node.mask_rank - 1, keys)):
        if axis < 0 or part_range is None:
            continue
        start, end = part_range
        is_long = body.Min(body.Sub(body.size(node.mask, axis), [1]), [1])
        part = body.Slice(part, body.Mul(start, is_long), end, [axis])
    return part


def _by_heads(graph: Graph, node: Node, left: str, right: str, output: str = "") -> str:
    """Left @ right; query heads that share a key head are rows of one product. (B, H, R, X) @ (B, H_kv, X, Y)."""
    if not node.is_grouped:
        return graph.MatMul(left, right, output=output)
    grouped = graph.Concat([0], graph.size(right, 1), [-1], graph.size(right, 2), axis=0)
    product = graph.MatMul(graph.Reshape(left, grouped), right)  # (B, H_kv, H / H_kv * R, Y)
    shape = graph.Concat([0], graph.size(node.q, 1), [-1], graph.size(right, 3), axis=0)
    return graph.Reshape(product, shape, output=output)
