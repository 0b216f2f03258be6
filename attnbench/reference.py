"""The float64 oracle: what attention is, computed from the rounded inputs. The only judge of every arm.

It works through tiles of queries, head by head, so that a whole T x T matrix of scores never exists: a call at
T = 65536 holds one head's K and V and one tile. At long T only sampled rows of the output are computed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnbench.errors import ProblemError
from attnbench.inputs import named_generator, weight_shapes
from attnbench.interfaces import Array
from attnbench.masks import Mask, parse_mask
from attnbench.problem import MASK_NAME, Problem

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

# One tile of scores: 128 rows were the fastest of 32 to 512 at T = 4096 (4 MiB), 32 rows of 16 to 128 at T = 65536.
_TILE_ROWS = 128
_TILE_BYTES = 16 << 20


def reference_output(
    problem: Problem, inputs: Mapping[str, Array], weights: Mapping[str, Array], *, rows: Array | None = None
) -> Float64:
    """`y` of the problem in float64.

    Args:
        problem: what to compute.
        inputs: as from `make_inputs`, already rounded to the problem's dtype.
        weights: as from `make_weights`; empty for part `core`.
        rows: query positions to compute, any order; None: all of them.

    Returns:
        block (B, rows, E), core (B, H, rows, D).

    Raises:
        ProblemError: a missing name, a shape that is not the problem's, a row outside 0..q_len-1.
    """
    _check_shapes("input", inputs, problem.input_shapes())
    tensor = inputs.get(MASK_NAME)
    if problem.part == "core":
        q, k, v = (inputs[name] for name in ("q", "k", "v"))
        rule = problem.masking.rule
        return reference_attention(q, k, v, scale=problem.scale, mask=rule, mask_tensor=tensor, rows=rows)
    shapes: dict[str, tuple[int, ...]] = {**weight_shapes(problem)}
    _check_shapes("weight", weights, shapes | {f"b{n[1:]}": s[1:] for n, s in shapes.items() if problem.bias})
    query, context = (inputs["query"], inputs["context"]) if problem.variant == "cross" else (inputs["x"], inputs["x"])
    positions = _positions(rows, problem.q_len)
    y = np.empty((problem.batch_size, len(positions), problem.embed_dim))
    for sample in range(problem.batch_size):
        masks = _Masks(problem.masking, tensor, (problem.batch_size, problem.num_heads), problem.q_len, problem.kv_len)
        past = None
        if problem.variant == "decode":
            past = inputs["past_key"][sample], inputs["past_value"][sample]
        _block(problem, query[sample], context[sample], past, weights, positions, masks, sample, out=y[sample])
    return y


def reference_new_cache(
    problem: Problem, inputs: Mapping[str, Array], weights: Mapping[str, Array]
) -> dict[str, Float64]:
    """What a decode step puts behind the old tokens of its cache, in float64.

    Returns:
        present_key (B, H_kv, q_len, D) and present_value (B, H_kv, q_len, D_v), of the new tokens alone.
    """
    x, found = inputs["x"].astype(np.float64), {}
    for name, letter in (("present_key", "k"), ("present_value", "v")):
        new = x @ weights[f"w_{letter}"].astype(np.float64)  # (B, q_len, H_kv D)
        if f"b_{letter}" in weights:
            new += weights[f"b_{letter}"].astype(np.float64)
        found[name] = new.reshape(*x.shape[:2], problem.num_kv_heads, -1).swapaxes(1, 2)
    return found


def reference_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    mask: str = "none",
    mask_tensor: Array | None = None,
    rows: Array | None = None,
) -> Float64:
    """softmax(q k^T * scale + mask) v in float64; a row with every key masked is zero.

    Args:
        q: (..., H, q_len, D), or (q_len, D).
        k: (..., H_kv, kv_len, D): H_kv divides H, query head h attends with key head h // (H / H_kv).
        v: (..., H_kv, kv_len, D_v).
        scale: None: 1/sqrt(D).
        mask: a position rule of `masks`: `none`; `causal_top_left`: query i sees keys 0..i; `causal_bottom_right`: the
            last query sees every key; `sliding_window_N`.
        mask_tensor: bool (True means attend) or added to the scores; broadcast to (..., H, q_len, kv_len).
        rows: query positions to compute, any order; None: all of them.

    Returns:
        (..., rows, D_v).

    Raises:
        ProblemError: shapes that do not fit, an unknown mask, a row outside 0..q_len-1.
    """
    q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
    _check_attention_shapes(q, k, v)
    positions = _positions(rows, q.shape[-2])
    masks = _Masks(parse_mask(mask), mask_tensor, q.shape[:-2], q.shape[-2], k.shape[-2])
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    out = np.empty((*q.shape[:-2], len(positions), v.shape[-1]))
    for head in np.ndindex(q.shape[:-2]):
        kv_head = (*head[:-1], head[-1] // group) if head else head
        q_head = q[head][positions].astype(np.float64) * scale  # (rows, D)
        k_head = np.ascontiguousarray(k[kv_head].T, dtype=np.float64)  # (D, kv_len)
        _attend(q_head, k_head, v[kv_head].astype(np.float64), masks.of(head, positions), out=out[head])
    return out


def sample_rows(q_len: int, count: int = 256) -> Int64:
    """Query positions to check when all are too many: sorted, the same in every process, first and last included.

    One position is drawn from each of `count` equal stretches, so that no period of a kernel's tiles is followed.

    Raises:
        ProblemError: q_len below 1 or count below 2.
    """
    if q_len < 1 or count < 2:
        raise ProblemError(f"sample_rows needs q_len of at least 1 and count of at least 2, got {q_len} and {count}")
    if q_len <= count:
        return np.arange(q_len)
    edges = np.arange(count + 1) * q_len // count
    rows = named_generator(q_len, "sample_rows").integers(edges[:-1], edges[1:])
    rows[0], rows[-1] = 0, q_len - 1
    return rows


def _block(
    problem: Problem,
    query: Array,
    context: Array,
    past: tuple[Array, Array] | None,
    weights: Mapping[str, Array],
    positions: Int64,
    masks: "_Masks",
    sample: int,
    *,
    out: Float64,
) -> None:
    """One sample: query (q_len, E), context (kv_len, E), less what is past -> out (rows, E)."""
    p = problem
    old = 0 if past is None else past[0].shape[1]  # keys from the cache
    new_keys = np.arange(p.kv_len - old)
    q = np.empty((len(positions), p.head_dim))
    k = np.empty((p.head_dim, p.kv_len))  # transposed: what the product with q wants
    v = np.empty((p.kv_len, p.v_head_dim))
    heads = out if p.v_head_dim == p.head_dim else np.empty((len(positions), p.num_heads * p.v_head_dim))
    group = p.num_heads // p.num_kv_heads
    for head in range(p.num_heads):
        _project(query, positions, [(*_columns(weights, "q", head, p.head_dim, p.scale), q)])
        if head % group == 0:
            if past is not None:
                k[:, :old], v[:old] = past[0][head // group].T, past[1][head // group]
            pairs = [(*_columns(weights, "k", head // group, p.head_dim), k[:, old:].T)]
            _project(context, new_keys, [*pairs, (*_columns(weights, "v", head // group, p.v_head_dim), v[old:])])
        columns = slice(head * p.v_head_dim, (head + 1) * p.v_head_dim)
        _attend(q, k, v, masks.of((sample, head), positions), out=heads[:, columns])
    _project(heads, np.arange(len(out)), [(*_columns(weights, "o", 0, p.embed_dim), out)])


def _columns(
    weights: Mapping[str, Array], letter: str, head: int, width: int, factor: float = 1.0
) -> tuple[Float64, Float64]:
    """A head's columns of a projection's weight, and of its bias (zeros where there is none), times a factor."""
    columns = slice(head * width, (head + 1) * width)
    bias = weights.get(f"b_{letter}")
    b = np.zeros(width) if bias is None else bias[columns].astype(np.float64) * factor
    return weights[f"w_{letter}"][:, columns].astype(np.float64) * factor, b


def _project(x: Array, positions: Int64, triples: Sequence[tuple[Float64, Float64, Float64]]) -> None:
    """Compute out = x[positions] @ w + b for each (w, b, out), tile by tile; out may be x itself."""
    for start in range(0, len(positions), _TILE_ROWS):
        tile = slice(start, start + _TILE_ROWS)
        x_tile = x[positions[tile]].astype(np.float64)
        for w, b, out in triples:
            out[tile] = x_tile @ w + b


class _Masks:
    """The mask of every head: the keys that the position rule leaves, and the tensor's rows."""

    def __init__(self, mask: Mask, tensor: Array | None, heads: tuple[int, ...], q_len: int, kv_len: int) -> None:
        self._mask, self._q_len, self._kv_len = mask, q_len, kv_len
        self._tensor: Array | None = None
        if tensor is not None:
            try:
                self._tensor = np.broadcast_to(np.asarray(tensor), (*heads, q_len, kv_len))
            except ValueError as err:
                raise ProblemError(
                    f"the mask has shape {np.shape(tensor)}, which does not broadcast to {(*heads, q_len, kv_len)}"
                ) from err

    def of(self, head: tuple[int, ...], positions: Int64) -> "_HeadMask":
        """For one head and some query positions."""
        first, end = self._mask.visible(positions, self._q_len, self._kv_len)
        return _HeadMask(first, end, None if self._tensor is None else self._tensor[head], positions)


class _HeadMask(NamedTuple):
    """Query i sees keys first[i] to end[i] - 1, less what the tensor masks."""

    first: Int64
    end: Int64
    tensor: Array | None  # (q_len, kv_len)
    positions: Int64

    def apply(self, scores: Float64, tile: slice) -> None:
        """Set what is masked in scores (rows, keys from 0 on) to -inf, add what is to be added."""
        first, end, keys = self.first[tile], self.end[tile], scores.shape[1]
        if self.tensor is not None:
            rows = self.tensor[self.positions[tile], :keys]
            if rows.dtype == np.bool_:
                scores[~rows] = -np.inf
            else:
                scores += rows.astype(np.float64)
        least, most = int(end.min()), int(first.max())
        if least < keys:
            scores[:, least:][np.arange(least, keys) >= end[:, None]] = -np.inf
        if most > 0:
            scores[:, :most][np.arange(most) < first[:, None]] = -np.inf


def _attend(q: Float64, k: Float64, v: Float64, mask: _HeadMask, *, out: Float64) -> None:
    """One head: q (rows, D) already scaled, k (D, kv_len), v (kv_len, D_v) -> out (rows, D_v)."""
    kv_len = len(v)
    tile_rows = min(_TILE_ROWS, max(1, _TILE_BYTES // (8 * kv_len)))
    buffer = np.empty(min(tile_rows, len(q)) * kv_len)  # one for all tiles: fresh pages would cost more than the sums
    for start in range(0, len(q), tile_rows):
        tile = slice(start, start + tile_rows)
        ends = mask.end[tile]
        end = int(ends.max())  # keys beyond are masked for every row of the tile
        if end == 0:
            out[tile] = 0.0
            continue
        scores = buffer[: len(ends) * end].reshape(len(ends), end)
        np.matmul(q[tile], k[:, :end], out=scores)
        mask.apply(scores, tile)
        sums = _exponentiate(scores)
        out[tile] = scores @ v[:end] / sums


def _exponentiate(scores: Float64) -> Float64:
    """Replace scores by exp(scores - row maximum); return the row sums (rows, 1), 1 where every key is masked."""
    row_max = scores.max(axis=1, keepdims=True)
    row_max[np.isneginf(row_max)] = 0.0
    scores -= row_max
    np.exp(scores, out=scores)
    sums: Float64 = scores.sum(axis=1, keepdims=True)
    sums[sums == 0.0] = 1.0
    return sums


def _positions(rows: Array | None, q_len: int) -> Int64:
    if rows is None:
        return np.arange(q_len)
    rows = np.asarray(rows)
    if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        found = f"{rows.dtype} of shape {rows.shape}"
        raise ProblemError(f"rows must be a one-dimensional array of whole numbers, at least one; got {found}")
    if rows.min() < 0 or rows.max() >= q_len:
        raise ProblemError(f"rows must lie in 0..{q_len - 1}, got {rows.min()}..{rows.max()}")
    return rows.astype(np.int64)


def _check_shapes(kind: str, arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if name not in arrays:
            raise ProblemError(f"{kind} {name!r} is missing; needed: {', '.join(shapes)}; got: {', '.join(arrays)}")
        if arrays[name].shape != shape:
            raise ProblemError(f"{kind} {name!r} must have shape {shape}, got {arrays[name].shape}")


def _check_attention_shapes(q: Array, k: Array, v: Array) -> None:
    shapes = f"got q {q.shape}, k {k.shape}, v {v.shape}"
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ProblemError(f"q, k and v must have at least 2 dimensions (length, head_dim); {shapes}")
    if 0 in (*q.shape, *k.shape, *v.shape):
        raise ProblemError(f"q, k and v must not be empty; {shapes}")
    if k.shape[:-2] != v.shape[:-2] or q.ndim != k.ndim or q.shape[:-3] != k.shape[:-3]:
        raise ProblemError(f"q, k and v must agree in all but heads, length and head_dim, k and v in heads; {shapes}")
    if q.ndim > 2 and q.shape[-3] % k.shape[-3]:
        raise ProblemError(f"the heads of k and v must divide those of q; {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ProblemError(f"q and k must have the same head_dim; {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ProblemError(f"k and v must have the same length; {shapes}")
