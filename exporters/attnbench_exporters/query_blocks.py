"""Attention in blocks: every standard `Attention` node becomes a Loop over heads, in it one over blocks of queries.

A graph that writes attention out needs (B, H, q_len, kv_len) scores at once. Looped over heads and blocks of queries it
needs (B, H / H_kv, rows, kv_len), which stays in a core's cache, and a causal block reads only the keys up to its end:
half the products. All of it is standard operators, valid from opset 18 on, at any length.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnbench.errors import UnsupportedError
from attnbench.masks import Mask, parse_mask
from attnbench_exporters.nested_graph import Graph, Operand

FIRST_OPSET = 18  # ReduceMax as written here
_KNOWN_ATTRIBUTES = {"is_causal", "scale", "softcap", "qk_matmul_output_mode", "softmax_precision"}
_END = 2**62  # of a Slice: all there is
# As measured on ONNX Runtime's CPU at T = 128 to 4096 (`make perf-recipes`).
SHORT = 128  # queries that are answered without a loop: it would cost more than it saves
SMALL = 512 * 512  # scores of a head for which that holds too where every key is read, so that no product is saved
PARTS, LEAST_ROWS, MOST_ROWS = 8, 64, 128  # a block has q_len / 8 rows, from 64 to 128

Range = tuple[str, str]  # from, to (not included): each a list of one number


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
    is_square: bool  # as many queries as keys, whatever their number
    rule: Mask

    @property
    def is_causal_alone(self) -> bool:
        """Query i sees the keys up to i: what is in front of a block is seen by all of it."""
        return self.is_square and self.rule.position != "" and self.rule.window is None and not self.mask


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """How the queries are cut; names of lists of one number, but for the table."""

    q_len: str
    kv_len: str
    count: str
    rows: str  # of every block
    last: str  # where the last block begins
    shift: str = ""  # of the queries' positions among the keys; empty: none
    position: str = ""  # of the last block among the keys, at least 0
    table: str = ""  # (rows, ..): which key a row sees, or the bias that says so; see `_cut`


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
        is_square=q[2] == k[2] and bool(q[2].dim_param),
        rule=rule or parse_mask("causal_top_left" if is_causal else "none"),
    )  # fmt: skip


def write_attention(graph: Graph, node: Node) -> None:
    """Without a loop up to `SHORT` queries, and up to `SMALL` scores where all are needed; by the loops beyond."""
    whole, loop = graph.inner("whole"), graph.inner("loop")
    write_whole(whole, node)
    write_heads(loop, node)
    branches = {f"{name}_branch": _subgraph(g, (), node) for name, g in (("then", whole), ("else", loop))}
    q_len = graph.size(node.q, 2)
    is_short = graph.LessOrEqual(q_len, [SHORT])
    if not node.rule.position:
        scores = graph.Mul(q_len, graph.size(node.k, 2))
        is_short = graph.Or(is_short, graph.LessOrEqual(scores, [SMALL]))
    graph.If(graph.Squeeze(is_short), output=node.output, **branches)


def _subgraph(graph: Graph, inputs: tuple[tuple[str, int], ...], node: Node, more: tuple[str, ...] = ()) -> Any:
    """The nodes as a graph whose last output is `graph.output`, after conditions of the names `more`."""
    from onnx import TensorProto, helper

    element = helper.np_dtype_to_tensor_dtype(node.dtype)
    given = [helper.make_tensor_value_info(name, kind, []) for name, kind in inputs]
    made = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in more]
    made.append(helper.make_tensor_value_info(graph.output, element, [None] * 4))
    return helper.make_graph(graph.nodes, "attention", given, made)


def _loop(graph: Graph, count: str, body: Graph, node: Node, shape: tuple[Operand, Operand]) -> str:
    """The body for every `body.number` below count; its outputs (B, *shape, D_v), stacked: (count, B, *shape, D_v).

    onnx's own evaluator joins them along B instead, which the Reshape undoes.
    """
    from onnx import TensorProto

    going, go_on = f"{body.prefix}going", f"{body.prefix}go_on"
    body.Identity(going, output=go_on)
    inputs = ((body.number, TensorProto.INT64), (going, TensorProto.BOOL))
    stacked = graph.Loop(graph.Squeeze(count), np.array(True), body=_subgraph(body, inputs, node, (go_on,)))
    return graph.Reshape(stacked, graph.Concat(count, [-1], *shape, graph.size(node.v, 3), axis=0))


def write_whole(graph: Graph, node: Node) -> None:
    """Every query at once: (B, H, q_len, kv_len) scores."""
    visible = ""
    if node.rule.position:
        q_len, kv_len = graph.size(node.q, 2), graph.size(node.k, 2)
        visible = _visible(graph, node.rule, _shift(graph, node.rule, q_len, kv_len), q_len, kv_len)
    _attend(graph, node, (node.q, node.k, node.v), _bias(graph, node, node.mask, visible), output=graph.output)


def write_heads(graph: Graph, node: Node) -> None:
    """The loop over heads of keys, each with the query heads that share it, and the heads beside each other again."""
    blocks, heads = _cut(graph, node), graph.size(node.k, 1)
    group: Operand = graph.Div(graph.size(node.q, 1), heads) if node.is_grouped else [1]
    body = graph.inner("head")
    number = body.Unsqueeze(body.number, [0])
    one: Range = number, body.Add(number, [1])
    several: Range = (body.Mul(one[0], group), body.Mul(one[1], group)) if node.is_grouped else one
    q, k, v = (body.Slice(source, *part, [1]) for source, part in ((node.q, several), (node.k, one), (node.v, one)))
    _write_blocks(body, replace(node, q=q, k=k, v=v, mask=_part_of_mask(body, node, -3, several)), blocks, group)
    stacked = _loop(graph, heads, body, node, (group, blocks.q_len))  # (H_kv, B, H / H_kv, q_len, D_v)
    joined = graph.Transpose(stacked, perm=[1, 0, 2, 3, 4])
    shape = graph.Concat([0], graph.size(node.q, 1), blocks.q_len, graph.size(node.v, 3), axis=0)
    graph.Reshape(joined, shape, output=graph.output)


def _cut(graph: Graph, node: Node) -> Blocks:
    """Blocks of rows = ceil(q_len / count) queries, count = ceil(q_len / size), size = q_len / 8 within its limits.

    Which keys the rows of a block see depends on where the block stands only by a shift: one table serves them all,
    (rows, position + rows + 1). Of causal attention alone it needs the block's own keys: (rows, rows + 1).
    """
    q_len, kv_len = graph.size(node.q, 2), graph.size(node.k, 2)
    size = graph.Min(graph.Max(graph.Div(q_len, [PARTS]), [LEAST_ROWS]), [MOST_ROWS])
    before_last = graph.Div(graph.Sub(q_len, [1]), size)
    count = graph.Add(before_last, [1])
    rows = graph.Div(graph.Add(q_len, before_last), count)
    last = graph.Sub(q_len, rows)
    blocks = Blocks(q_len=q_len, kv_len=kv_len, count=count, rows=rows, last=last)
    if not node.rule.position:
        return blocks
    if node.is_causal_alone:
        table = _bias(graph, node, "", _visible(graph, node.rule, "", rows, graph.Add(rows, [1])))
        return replace(blocks, table=table)
    shift = _shift(graph, node.rule, q_len, kv_len)
    position = graph.Max(graph.Add(last, shift), [0]) if shift else last
    columns = graph.Add(graph.Add(position, rows), [1])  # the last one is seen by no row
    table = _visible(graph, node.rule, position, rows, columns)
    table = table if node.mask else _bias(graph, node, "", table)
    return replace(blocks, shift=shift, position=position, table=table)


def _write_blocks(graph: Graph, node: Node, blocks: Blocks, group: Operand) -> None:
    """The loop over blocks of one head of keys, and its blocks behind each other: (B, H / H_kv, q_len, D_v)."""
    body = graph.inner("block")
    _write_block(body, node, blocks)
    stacked = _loop(graph, blocks.count, body, node, (group, blocks.rows))
    joined = graph.Transpose(stacked, perm=[1, 2, 0, 3, 4])  # (count, B, G, rows, D_v) -> (B, G, count, rows, D_v)
    flat = graph.Reshape(joined, graph.Concat([0, 0, -1], graph.size(node.v, 3), axis=0))  # (B, H, count * rows, D_v)
    # The last block begins before the end of the one in front of it where blocks do not come out even.
    before_last = graph.Mul(graph.Sub(blocks.count, [1]), blocks.rows)
    front = graph.Slice(flat, [0], before_last, [2])
    rest = graph.Slice(flat, graph.Sub(before_last, blocks.q_len), [_END], [2])
    graph.Concat(front, rest, axis=2, output=graph.output)


def _write_block(body: Graph, node: Node, blocks: Blocks) -> None:
    """One block: queries first <= i < end, the keys that positions let them see, softmax, sum of values."""
    first = body.Min(body.Mul(body.Unsqueeze(body.number, [0]), blocks.rows), blocks.last)
    rows: Range = first, body.Add(first, blocks.rows)
    query = body.Slice(node.q, *rows, [2])  # (B, H, rows, D)
    if node.is_causal_alone:
        _write_causal_block(body, node, query, rows, blocks)
        return
    keys, values, visible = node.k, node.v, ""
    mask = _part_of_mask(body, node, -2, rows)
    if node.rule.position:
        seen, columns = _seen_keys(body, node.rule, rows, blocks)
        keys = body.Slice(keys, *seen, [2])  # (B, H_kv, keys, D)
        values = body.Slice(values, *seen, [2])  # (B, H_kv, keys, D_v)
        visible = body.Slice(blocks.table, *columns, [1])  # (rows, keys)
        mask = _part_of_mask(body, replace(node, mask=mask), -1, seen)
    bias = _bias(body, node, mask, visible) if node.mask else visible
    _attend(body, node, (query, keys, values), bias, output=body.output)


def _write_causal_block(body: Graph, node: Node, query: str, rows: Range, blocks: Blocks) -> None:
    """A block whose own keys alone are masked; key 0 counts as in front of the first block: no operand is empty."""
    first, end = rows
    split = body.Max(first, [1])
    triangle = body.Slice(blocks.table, body.Sub(split, first), blocks.rows, [1])  # (rows, rows or rows - 1)
    before = _scores(body, node, query, body.Slice(node.k, [0], split, [2]))
    own = body.Add(_scores(body, node, query, body.Slice(node.k, split, end, [2])), triangle)
    weights = body.Softmax(body.Concat(before, own, axis=-1), axis=-1)
    _by_heads(body, node, weights, body.Slice(node.v, [0], end, [2]), body.output)


def _scores(graph: Graph, node: Node, query: str, keys: str) -> str:
    """Query keys: (B, H, R, D), (B, H_kv, X, D) -> (B, H, R, X)."""
    scaled = graph.Mul(query, np.array(node.scale, node.dtype))
    return _by_heads(graph, node, scaled, graph.Transpose(keys, perm=[0, 1, 3, 2]))


def _attend(graph: Graph, node: Node, operands: tuple[str, str, str], bias: str, output: str = "") -> str:
    """softmax(query keys + bias) values: (B, H, R, D), (B, H_kv, D, X), (B, H_kv, X, D_v) -> (B, H, R, D_v)."""
    query, keys, values = operands
    scores = _scores(graph, node, query, keys)
    weights = graph.Softmax(graph.Add(scores, bias) if bias else scores, axis=-1)
    if not (node.mask or node.rule.may_mask_rows):
        return _by_heads(graph, node, weights, values, output)
    attended = _by_heads(graph, node, weights, values)
    # The softmax of no key is NaN, its sum must be zero.
    return graph.Where(_sees_any(graph, node, bias), attended, np.array(0, node.dtype), output=output)


def _sees_any(graph: Graph, node: Node, bias: str) -> str:
    """Which rows see a key, (.., R, 1). OpenVINO's ReduceMax of -inf is the least finite number: it is not compared."""
    if node.mask and not node.mask_is_bool:
        zero, never = np.array(0, node.dtype), np.array(-np.inf, node.dtype)
        bias = graph.Where(graph.Greater(bias, never), zero, never)
    return graph.Greater(graph.ReduceMax(bias, [-1]), np.array(-1, node.dtype))


def _shift(graph: Graph, rule: Mask, q_len: str, kv_len: str) -> str:
    """By how much the position of a query among the keys differs from its number; empty: not at all."""
    return graph.Sub(kv_len, q_len) if rule.position == "causal_bottom_right" else ""


def _seen_keys(body: Graph, rule: Mask, rows: Range, blocks: Blocks) -> tuple[Range, Range]:
    """The keys low <= j < high that some query sees, at least one, and the columns of the table that say which."""
    first, high = rows
    if blocks.shift:
        first, high = body.Add(first, blocks.shift), body.Max(body.Add(high, blocks.shift), [1])
    high = body.Min(high, blocks.kv_len)
    if rule.window is None:
        low, count = body.Sub(high, high), high  # [0]
    else:
        low = body.Max(body.Min(body.Sub(first, [rule.window - 1]), body.Sub(high, [1])), [0])
        count = body.Sub(high, low)
    column = body.Add(body.Sub(low, first), blocks.position)
    if blocks.shift:  # a block in front of all keys: the column that nobody sees
        column = body.Min(column, body.Add(blocks.position, blocks.rows))
    return (low, high), (column, body.Add(column, count))


def _visible(graph: Graph, rule: Mask, position: str, rows: str, keys: str) -> str:
    """Which query sees which key, where the first query stands at `position` (empty: 0): (rows, keys)."""
    key, query = (graph.Range(np.array(0), graph.Squeeze(n), np.array(1)) for n in (keys, rows))
    query = graph.Unsqueeze(graph.Add(query, position) if position else query, [1])  # (rows, 1)
    visible = graph.LessOrEqual(key, query)  # (rows, keys)
    if rule.window is None:
        return visible
    return graph.And(visible, graph.Greater(key, graph.Sub(query, [rule.window])))


def _bias(graph: Graph, node: Node, mask: str, visible: str) -> str:
    """What is added to scores: 0 and -inf for what may be seen and not, or the mask itself; empty: nothing."""
    zero, never = np.array(0, node.dtype), np.array(-np.inf, node.dtype)
    if not mask:
        return graph.Where(visible, zero, never) if visible else ""
    if not node.mask_is_bool:
        return graph.Where(visible, mask, never) if visible else mask
    return graph.Where(graph.And(mask, visible) if visible else mask, zero, never)


def _part_of_mask(body: Graph, node: Node, axis: int, part: Range) -> str:
    """A part of the mask, if there is one; an axis of size 1 stays: its start is times min(size - 1, 1)."""
    if not node.mask or node.mask_rank + axis < 0:
        return node.mask
    start, end = part
    size = body.size(node.mask, node.mask_rank + axis)
    return body.Slice(node.mask, body.Mul(start, body.Min(body.Sub(size, [1]), [1])), end, [axis])


def _by_heads(graph: Graph, node: Node, left: str, right: str, output: str = "") -> str:
    """Left @ right; query heads that share a key head are rows of one product. (B, H, R, X) @ (B, H_kv, X, Y)."""
    if not node.is_grouped:
        return graph.MatMul(left, right, output=output)
    grouped = graph.Concat([0], graph.size(right, 1), [-1], graph.size(right, 2), axis=0)
    product = graph.MatMul(graph.Reshape(left, grouped), right)  # (B, H_kv, H / H_kv * R, Y)
    shape = graph.Concat([0], graph.size(node.q, 1), [-1], graph.size(right, 3), axis=0)
    return graph.Reshape(product, shape, output=output)
