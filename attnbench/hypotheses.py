"""Why an output differs: the known ways to get attention wrong, tried one by one on the same inputs in float64."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnbench.interfaces import Array
from attnbench.masks import parse_mask
from attnbench.problem import MASK_NAME, Problem

Float64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Attention in parts, all float64, whole matrices: for small problems only."""

    q: Float64  # (B, H, q_len, D)
    k: Float64  # (B, H_kv, kv_len, D)
    v: Float64  # (B, H_kv, kv_len, D_v)
    by_position: NDArray[np.bool_]  # (q_len, kv_len)
    by_tensor: NDArray[np.bool_]  # (B, H, q_len, kv_len)
    added: Float64  # (B, H, q_len, kv_len)
    scale: float
    w_o: Float64 | None = None
    b_o: Float64 | None = None
    tiled: bool = False  # query head h attends with key head h % H_kv
    empty: str = "zero"  # a row without a key: zero, mean, unmasked

    def output(self) -> Float64:
        """`y` as these parts give it."""
        heads = self.q.shape[1]
        groups = heads // self.k.shape[1]
        order = np.arange(heads) % self.k.shape[1] if self.tiled else np.arange(heads) // groups
        k, v = self.k[:, order], self.v[:, order]
        scores = self.q @ k.swapaxes(-1, -2) * self.scale + self.added  # (B, H, q_len, kv_len)
        allowed = (self.by_position & self.by_tensor) & ~np.isneginf(scores)
        has_key = allowed.any(-1, keepdims=True)
        if self.empty == "mean":
            scores, allowed = np.where(has_key, scores, 0.0), allowed | ~has_key
        elif self.empty == "unmasked":
            scores, allowed = np.where(np.isneginf(scores), -1e30, scores), allowed | ~has_key
        scores = np.where(allowed, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
        sums = weights.sum(-1, keepdims=True)
        y: Float64 = weights / np.where(sums == 0.0, 1.0, sums) @ v  # (B, H, q_len, D_v)
        if self.w_o is None:
            return y
        merged = y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)
        return merged @ self.w_o + (0.0 if self.b_o is None else self.b_o)


def take_apart(problem: Problem, inputs: dict[str, Array], weights: dict[str, Array]) -> Pieces:
    """The parts of a problem as it should be computed."""
    p = problem
    arrays = {name: np.asarray(array).astype(np.float64) for name, array in {**inputs, **weights}.items()}
    if p.part == "core":
        q, k, v = arrays["q"], arrays["k"], arrays["v"]
    else:
        source = arrays["context" if p.variant == "cross" else "x"]
        query = arrays["query" if p.variant == "cross" else "x"]
        q, k, v = (
            (x @ arrays[f"w_{n}"] + arrays.get(f"b_{n}", 0.0)).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
            for x, n, heads in ((query, "q", p.num_heads), (source, "k", p.num_kv_heads), (source, "v", p.num_kv_heads))
        )
    if p.variant == "decode":
        k, v = np.concatenate([arrays["past_key"], k], 2), np.concatenate([arrays["past_value"], v], 2)
    shape = (p.batch_size, p.num_heads, p.q_len, p.kv_len)
    by_tensor, added = np.ones(shape, np.bool_), np.zeros(shape)
    mask = inputs.get(MASK_NAME)
    if mask is not None and mask.dtype == np.bool_:
        by_tensor = np.broadcast_to(mask, shape)
    elif mask is not None:
        added = np.broadcast_to(arrays[MASK_NAME], shape)
    return Pieces(
        q=q, k=k, v=v, by_position=visible(p, p.masking.rule), by_tensor=by_tensor, added=added, scale=p.scale,
        w_o=arrays.get("w_o"), b_o=arrays.get("b_o"),
    )  # fmt: skip


def visible(problem: Problem, rule: str) -> NDArray[np.bool_]:
    """True where a query sees a key by a position rule. (q_len, kv_len)."""
    first, end = parse_mask(rule).visible(np.arange(problem.q_len), problem.q_len, problem.kv_len)
    keys = np.arange(problem.kv_len)
    return (keys >= first[:, None]) & (keys < end[:, None])


def explain(
    problem: Problem,
    pieces: Pieces,
    output: Array,
    is_near: Callable[[Float64, Float64], bool],
) -> str:
    """What a finite output of the right shape is instead; empty where nothing known gives it.

    A fault that these inputs do not show (its output is the right one) is never named.

    Args:
        problem: what was asked.
        pieces: of its inputs.
        output: what came, in float64.
        is_near: whether two outputs agree.
    """
    right = pieces.output()
    for how, other in _hypotheses(problem, pieces):
        wrong = other()
        if wrong.shape != output.shape or not np.isfinite(wrong).all():
            continue
        if is_near(output, wrong) and not is_near(wrong, right):
            return how
    return _permuted(right, output, is_near)


_Hypotheses = Iterator[tuple[str, Callable[[], Float64]]]


def _hypotheses(problem: Problem, p: Pieces) -> _Hypotheses:
    yield "mean of V instead of zeros", replace(p, empty="mean").output
    yield "keys leak: a query without a key attends to all", replace(p, empty="unmasked").output
    yield from _alignments(problem, p)
    yield "zeros instead of values", lambda: np.zeros_like(p.output())
    if problem.masking.position:
        yield from _positions(problem, p)
    if problem.masking.form is not None:
        yield from _masks(problem, p)
    yield "heads tiled instead of repeated", replace(p, tiled=True).output
    usual = 1.0 / np.sqrt(p.q.shape[-1])
    for name, scale in (("1/sqrt(d) is used", usual), ("1 is used", 1.0), ("it is applied twice", p.scale**2)):
        if scale != p.scale:
            yield (
                f"scale ignored: {name}" if "twice" not in name else "scale is applied twice",
                replace(p, scale=scale).output,
            )
    yield "the first sample's answer is given for all", lambda: np.repeat(p.output()[:1], problem.batch_size, 0)
    for name, key in (("last", -1), ("first", 0)):
        without = p.by_position.copy()
        without[:, key] = False
        yield f"the {name} key is dropped", replace(p, by_position=without).output
    if p.b_o is not None:
        yield "the bias of the output projection is missing", replace(p, b_o=None).output


def _alignments(problem: Problem, p: Pieces) -> _Hypotheses:
    window = problem.masking.window
    is_right = problem.masking.position == "causal_bottom_right"
    if problem.masking.position:
        how = "top-left instead of bottom-right" if is_right else "bottom-right instead of top-left"
        other = _seen(problem, is_right=not is_right, window=window)
        for empty in ("zero", "mean"):
            yield how, replace(p, by_position=other, empty=empty).output


def _positions(problem: Problem, p: Pieces) -> _Hypotheses:
    yield "keys leak: the position rule is ignored", replace(p, by_position=np.ones_like(p.by_position)).output
    is_right, window = problem.masking.position == "causal_bottom_right", problem.masking.window
    for shift, how in ((1, "keys leak: a query sees the key behind its last"), (-1, "a query misses its last key")):
        yield how, replace(p, by_position=_seen(problem, is_right=is_right, window=window, shift=shift)).output
    if window is not None:
        for found in (window + 1, window - 1, None):
            how = "the window is ignored" if found is None else f"a window of {found} keys instead of {window}"
            yield how, replace(p, by_position=_seen(problem, is_right=is_right, window=found)).output


def _seen(problem: Problem, *, is_right: bool, window: int | None, shift: int = 0) -> NDArray[np.bool_]:
    """True where a query sees a key, `shift` keys further than a causal rule allows. (q_len, kv_len)."""
    offset = problem.kv_len - problem.q_len if is_right else 0
    back = np.arange(problem.q_len)[:, None] + offset - np.arange(problem.kv_len)  # 0: the query's own key
    seen: NDArray[np.bool_] = back >= -shift
    return seen if window is None else seen & (back < window)


def _masks(problem: Problem, p: Pieces) -> _Hypotheses:
    unmasked = replace(p, by_tensor=np.ones_like(p.by_tensor), added=np.zeros_like(p.added))
    yield "keys leak: the mask is ignored", unmasked.output
    if problem.masking.is_added:
        for how, factor in (("subtracted", -1.0), ("added twice", 2.0), ("multiplied by the scale", p.scale)):
            changed: Float64 = np.where(np.isneginf(p.added), -np.inf, p.added * factor)
            yield f"the mask is {how}", replace(p, added=changed).output
    else:
        for empty in ("zero", "mean"):
            yield "the mask is read inverted", replace(p, by_tensor=~p.by_tensor, empty=empty).output
        turned = p.by_tensor.swapaxes(-1, -2).reshape(p.by_tensor.shape)
        yield "queries and keys of the mask are mixed up", replace(p, by_tensor=turned).output
    for name, first in (("sample", np.s_[:1]), ("head", np.s_[:, :1])):
        tensor = np.broadcast_to(p.by_tensor[first], p.by_tensor.shape)
        added = np.broadcast_to(p.added[first], p.added.shape)
        yield f"the first {name}'s mask is used for all", replace(p, by_tensor=tensor, added=added).output


def _permuted(right: Float64, output: Array, is_near: Callable[[Float64, Float64], bool]) -> str:
    """Heads or axes in another order."""
    if right.ndim == 4:
        heads = range(right.shape[1])
        # Heads that are alike are in their own place.
        near = [sorted((g for g in heads if is_near(output[:, h], right[:, g])), key=lambda g: g != h) for h in heads]
        found = [found[0] for found in near if found]
        if len(found) == len(near) and found != list(heads):
            return f"heads permuted: {', '.join(map(str, found))}"
    swapped = right.swapaxes(-1, -2).reshape(right.shape)
    return "transposed" if is_near(output, swapped) and not is_near(swapped, right) else ""
