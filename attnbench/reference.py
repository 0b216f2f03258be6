"""The float64 oracle: what attention is, computed from the rounded inputs. The only judge of every arm.

It works through tiles of queries, head by head, so that a whole T x T matrix of scores never exists: a call at
T = 65536 holds one head's K and V and one tile. At long T only sampled rows of the output are computed.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnbench.errors import ProblemError
from attnbench.inputs import WEIGHT_NAMES, named_generator
from attnbench.interfaces import Array
from attnbench.problem import Problem

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

MASKS = ("none", "causal_top_left", "causal_bottom_right")

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
    if problem.part == "core":
        q, k, v = (inputs[name] for name in ("q", "k", "v"))
        return reference_attention(q, k, v, scale=problem.scale, mask=problem.mask, rows=rows)
    square = (problem.embed_dim, problem.embed_dim)
    _check_shapes("weight", weights, dict.fromkeys(WEIGHT_NAMES, square))
    query, context = (inputs["query"], inputs["context"]) if problem.variant == "cross" else (inputs["x"], inputs["x"])
    positions = _positions(rows, problem.q_len)
    y = np.empty((problem.batch_size, len(positions), problem.embed_dim))
    for sample in range(problem.batch_size):
        _block(problem, query[sample], context[sample], weights, positions, out=y[sample])
    return y


def reference_attention(
    q: Array, k: Array, v: Array, *, scale: float | None = None, mask: str = "none", rows: Array | None = None
) -> Float64:
    """softmax(q k^T * scale) v in float64; a row with every key masked is zero.

    Args:
        q: (..., q_len, D).
        k: (..., kv_len, D).
        v: (..., kv_len, D_v).
        scale: None: 1/sqrt(D).
        mask: `none`; `causal_top_left`: query i sees keys 0..i; `causal_bottom_right`: the last query sees every key.
        rows: query positions to compute, any order; None: all of them.

    Returns:
        (..., rows, D_v).

    Raises:
        ProblemError: shapes that do not fit, an unknown mask, a row outside 0..q_len-1.
    """
    q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
    _check_attention_shapes(q, k, v)
    positions = _positions(rows, q.shape[-2])
    limits = _key_limits(mask, positions, q.shape[-2], k.shape[-2])
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    out = np.empty((*q.shape[:-2], len(positions), v.shape[-1]))
    for head in np.ndindex(q.shape[:-2]):
        q_head = q[head][positions].astype(np.float64) * scale  # (rows, D)
        k_head = np.ascontiguousarray(k[head].T, dtype=np.float64)  # (D, kv_len)
        _attend(q_head, k_head, v[head].astype(np.float64), limits, out=out[head])
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
    problem: Problem, query: Array, context: Array, weights: Mapping[str, Array], positions: Int64, *, out: Float64
) -> None:
    """One sample: query (q_len, E), context (kv_len, E) -> out (rows, E)."""
    kv_len, head_dim = problem.kv_len, problem.head_dim
    limits = _key_limits(problem.mask, positions, problem.q_len, kv_len)
    every_key = np.arange(kv_len)
    q = np.empty((len(positions), head_dim))
    k = np.empty((head_dim, kv_len))  # transposed: what the product with q wants
    v = np.empty((kv_len, head_dim))
    for head in range(problem.num_heads):
        columns = slice(head * head_dim, (head + 1) * head_dim)
        w_q, w_k, w_v = (weights[name][:, columns].astype(np.float64) for name in ("w_q", "w_k", "w_v"))
        _project(query, positions, [(w_q * problem.scale, q)])
        _project(context, every_key, [(w_k, k.T), (w_v, v)])
        _attend(q, k, v, limits, out=out[:, columns])
    _project(out, np.arange(len(out)), [(weights["w_o"].astype(np.float64), out)])


def _project(x: Array, positions: Int64, pairs: Sequence[tuple[Float64, Float64]]) -> None:
    """Compute out = x[positions] @ w for each pair (w, out), tile by tile; out may be x itself."""
    for start in range(0, len(positions), _TILE_ROWS):
        tile = slice(start, start + _TILE_ROWS)
        x_tile = x[positions[tile]].astype(np.float64)
        for w, out in pairs:
            out[tile] = x_tile @ w


def _attend(q: Float64, k: Float64, v: Float64, limits: Int64, *, out: Float64) -> None:
    """One head: q (rows, D) already scaled, k (D, kv_len), v (kv_len, D_v) -> out (rows, D_v).

    Row i sees the first limits[i] keys.
    """
    kv_len = len(v)
    tile_rows = min(_TILE_ROWS, max(1, _TILE_BYTES // (8 * kv_len)))
    buffer = np.empty(min(tile_rows, len(q)) * kv_len)  # one for all tiles: fresh pages would cost more than the sums
    for start in range(0, len(q), tile_rows):
        tile = slice(start, start + tile_rows)
        limit = limits[tile]
        end = int(limit.max())  # keys beyond are masked for every row of the tile
        if end == 0:
            out[tile] = 0.0
            continue
        scores = buffer[: len(limit) * end].reshape(len(limit), end)
        np.matmul(q[tile], k[:, :end], out=scores)
        _mask_keys(scores, limit)
        sums = _exponentiate(scores)
        out[tile] = scores @ v[:end] / sums


def _mask_keys(scores: Float64, limit: Int64) -> None:
    """Set scores[i, j] to -inf for j >= limit[i]; only the columns where rows differ are touched."""
    first = int(limit.min())
    end = scores.shape[1]
    if first < end:
        scores[:, first:][np.arange(first, end) >= limit[:, None]] = -np.inf


def _exponentiate(scores: Float64) -> Float64:
    """Replace scores by exp(scores - row maximum); return the row sums (rows, 1), 1 where every key is masked."""
    row_max = scores.max(axis=1, keepdims=True)
    row_max[np.isneginf(row_max)] = 0.0
    scores -= row_max
    np.exp(scores, out=scores)
    sums: Float64 = scores.sum(axis=1, keepdims=True)
    sums[sums == 0.0] = 1.0
    return sums


def _key_limits(mask: str, positions: Int64, q_len: int, kv_len: int) -> Int64:
    """How many keys, from the first on, each query position sees."""
    if mask not in MASKS:
        raise ProblemError(f"mask must be one of {', '.join(MASKS)}; got {mask!r}")
    if mask == "none":
        return np.full(len(positions), kv_len)
    offset = kv_len - q_len if mask == "causal_bottom_right" else 0
    return np.clip(positions + 1 + offset, 0, kv_len)


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
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise ProblemError(f"q, k and v must agree in all but the last two dimensions; {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ProblemError(f"q and k must have the same head_dim; {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ProblemError(f"k and v must have the same length; {shapes}")
