"""Probes of attention: small problems whose answer is known by hand, or is checked in float64.

A probe is a problem and a way to fill its inputs. `uniform` scores give means of what a query may see, `poison` makes a
leak of a masked key show, `heads` tells by value which key head served a query head, `no_key_row` and `no_key_sample`
leave queries without a key (whose answer is zero), `long` sums very many keys, `normal` is compared in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from attnbench.errors import ProblemError
from attnbench.inputs import make_inputs
from attnbench.interfaces import Array
from attnbench.problem import MASK_NAME, Problem

Fill = Literal["normal", "uniform", "poison", "heads", "no_key_row", "no_key_sample", "long"]

# Worst row, relative to the row (an all-zero row: to the typical one). The smallest fault that a probe shows is 2 %.
LIMITS = {"fp32": 5e-5, "fp16": 5e-3, "bf16": 4e-2}
POISON = 1e4  # in the core's values
_BLOCK_POISON = 30.0  # times a token of a block: keys, scores and values of it are far off, and fp16 holds them
SIZES: dict[str, Any] = {"num_heads": 4, "head_dim": 8}


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One question to an arm."""

    name: str
    problem: Problem
    fill: Fill
    shows: str  # what goes wrong where it does not conform

    @property
    def fields(self) -> dict[str, Any]:
        """What a worker needs to know, as JSON."""
        return {"problem": self.problem.as_dict(), "fill": self.fill}


def poison_key(problem: Problem) -> int:
    """The key that nobody may see: the last under a position rule, else one amid the others."""
    return problem.kv_len - 1 if problem.masking.position else problem.kv_len // 2


def make_probe_inputs(problem: Problem, fill: str, *, seed: int) -> dict[str, Array]:
    """The inputs of a probe.

    Raises:
        ProblemError: a fill that does not fit the problem.
    """
    if fill not in get_args(Fill):
        raise ProblemError(f"fill must be one of {', '.join(get_args(Fill))}; got {fill!r}")
    inputs = make_inputs(problem, seed=seed)
    mask = inputs.get(MASK_NAME)
    if fill == "poison":
        _poison(problem, inputs, mask)
    elif fill in ("no_key_row", "no_key_sample"):
        if mask is None or mask.dtype != np.bool_ or (fill == "no_key_sample" and mask.shape[0] != problem.batch_size):
            raise ProblemError(f"fill {fill} needs a boolean mask of queries or samples, got mask {problem.mask!r}")
        mask[(-1,) if fill == "no_key_sample" else (..., 0, slice(None))] = False
    elif fill in ("uniform", "heads", "long"):
        _fill_core(problem, inputs, fill)
        if mask is not None and mask.dtype != np.bool_:
            mask[...] = np.log(1.0 + np.arange(problem.kv_len))  # weights in proportion to j + 1
    return inputs


def judged_rows(problem: Problem, fill: str) -> list[int] | None:
    """Query positions that are judged; None: all. A token that is poison itself has no answer worth a look."""
    if fill != "poison" or problem.part == "core" or problem.variant == "cross":
        return None
    key = poison_key(problem)
    return [row for row in range(problem.q_len) if (row < key if problem.masking.position else row != key)]


def _poison(problem: Problem, inputs: dict[str, Array], mask: Array | None) -> None:
    if mask is not None:
        mask[..., poison_key(problem)] = False if mask.dtype == np.bool_ else -np.inf
    if problem.part == "core":
        inputs["v"][...] = 1.0
        _poisoned(problem, inputs)[...] = POISON
    else:
        _poisoned(problem, inputs)[...] *= _BLOCK_POISON


def weaker_poison(problem: Problem, inputs: dict[str, Array]) -> dict[str, Array]:
    """The inputs of a poison probe with half the poison: whatever changes in a judged row has leaked."""
    weaker = {name: array.copy() for name, array in inputs.items()}
    _poisoned(problem, weaker)[...] *= 0.5
    return weaker


def _poisoned(problem: Problem, inputs: dict[str, Array]) -> Array:
    """The part of the inputs that nobody may see, as a view."""
    key = poison_key(problem)
    if problem.part == "core":
        return inputs["v"][..., key, :]
    if problem.variant == "decode":
        key -= problem.kv_len - problem.q_len
    return inputs["context" if problem.variant == "cross" else "x"][:, key]


def _fill_core(problem: Problem, inputs: dict[str, Array], fill: str) -> None:
    if problem.part != "core":
        raise ProblemError(f"fill {fill} is for part core, whose scores are inputs; got part {problem.part}")
    inputs["q"][...] = 0.0
    v = inputs["v"]  # (B, H_kv, kv_len, D_v)
    if fill == "uniform":
        v[...] = np.arange(problem.kv_len, dtype=np.float32)[:, None]
    elif fill == "heads":
        v[...] = np.arange(1, problem.num_kv_heads + 1, dtype=np.float32)[:, None, None]
    else:
        v[...] = 0.5
        v[..., 0] = np.arange(problem.kv_len) % 2


def _core(variant: Any, q_len: int, kv_len: int, **fields: Any) -> Problem:
    return Problem.make(part="core", variant=variant, seq_len=q_len, kv_len=kv_len, **SIZES, **fields)


def _block(variant: Any, seq_len: int, **fields: Any) -> Problem:
    return Problem.make(variant=variant, seq_len=seq_len, **SIZES, **fields)


_MEAN = "output i is the mean of the indices of the keys that query i sees"
_LEAK = "a masked key must not leak"
_ZERO = "a query without a key gives zero"
_FLOAT64 = "random normal inputs against float64"


def all_probes() -> list[Probe]:
    """Every probe, in a fixed order; names are unique."""
    rows = [*_alignment(), *_tensor_masks(), *_heads_and_types(), *_blocks()]
    return [Probe(name=name, problem=problem, fill=fill, shows=shows) for name, problem, fill, shows in rows]


_Row = tuple[str, Problem, Fill, str]


def _alignment() -> Iterator[_Row]:
    yield "uniform 3x7", _core("cross", 3, 7), "uniform", _MEAN
    yield "one token, one key", _core("cross", 1, 1), "normal", "softmax of one score is 1"
    yield "normal 5x9", _core("cross", 5, 9, batch_size=2), "normal", _FLOAT64
    yield "normal 70x150", _core("cross", 70, 150), "normal", f"{_FLOAT64}; the ends of a kernel's tiles"
    for q_len, kv_len in ((3, 7), (7, 3), (1, 5), (4, 4)):
        problem = _core("causal", q_len, kv_len)
        yield f"causal top-left {q_len}x{kv_len}", problem, "uniform", _MEAN
    yield "causal top-left poison", _core("causal", 6, 6, batch_size=2), "poison", _LEAK
    bottom = {"mask": "causal_bottom_right"}
    yield "causal bottom-right 3x7", _core("causal", 3, 7, **bottom), "uniform", _MEAN
    yield "causal bottom-right 1x5", _core("causal", 1, 5, **bottom), "uniform", _MEAN
    yield "causal bottom-right 7x3", _core("causal", 7, 3, **bottom), "uniform", f"{_MEAN}; {_ZERO}"
    yield "sliding window 2", _core("causal", 6, 6, mask="sliding_window_2"), "uniform", _MEAN
    yield "sliding window 2 3x7", _core("causal", 3, 7, mask="sliding_window_2"), "uniform", _MEAN


def _tensor_masks() -> Iterator[_Row]:
    for mask in ("key_padding", "bool_b1qk", "bool_1hqk", "bool_qk", "bias_1hqk"):
        problem = _core("cross", 4, 5, batch_size=2, mask=mask)
        yield f"{mask} uniform", problem, "uniform", _MEAN if mask != "bias_1hqk" else "weights in proportion to j + 1"
        yield f"{mask} poison", problem, "poison", _LEAK
        if mask in ("bool_b1qk", "bool_1hqk", "bool_qk"):
            yield f"{mask} no key for a row", problem, "no_key_row", _ZERO
        if mask in ("key_padding", "bool_b1qk"):
            yield f"{mask} no key for a sample", problem, "no_key_sample", _ZERO
    square = _core("self", 5, 5, batch_size=2, mask="bool_1hqk")
    yield "bool_1hqk 5x5", square, "normal", f"{_FLOAT64}; queries and keys of a mask not mixed up"
    yield "alibi normal", _core("cross", 4, 5, batch_size=2, mask="alibi"), "normal", _FLOAT64
    both = _core("causal", 5, 5, batch_size=2, mask="causal_top_left+key_padding")
    yield "causal and key_padding uniform", both, "uniform", _MEAN
    yield "causal and key_padding poison", both, "poison", _LEAK


def _heads_and_types() -> Iterator[_Row]:
    grouped = _core("cross", 3, 5, num_kv_heads=2)
    yield "grouped heads 4/2 by value", grouped, "heads", "heads give 1, 1, 2, 2"
    yield "grouped heads 4/2 normal", grouped, "normal", _FLOAT64
    yield "multi-query 4/1 normal", _core("cross", 3, 5, num_kv_heads=1), "normal", _FLOAT64
    yield "v_head_dim 12 normal", _core("cross", 3, 5, v_head_dim=12), "normal", _FLOAT64
    yield "scale 0.5 normal", _core("cross", 3, 5, scale=0.5), "normal", _FLOAT64
    yield "fp16 normal", _core("cross", 3, 5, dtype="fp16"), "normal", _FLOAT64
    for kv_len in (2048, 70000):
        yield f"fp16 {kv_len} keys", _core("cross", 1, kv_len, dtype="fp16"), "long", "0.5 in every channel"
    yield "bf16 normal", _core("cross", 3, 5, dtype="bf16"), "normal", _FLOAT64


def _blocks() -> Iterator[_Row]:
    yield "block self 5", _block("self", 5, batch_size=2), "normal", _FLOAT64
    yield "block self, one token", _block("self", 1), "normal", _FLOAT64
    yield "block cross 5x9", _block("cross", 5, kv_len=9, batch_size=2), "normal", _FLOAT64
    yield "block causal 10", _block("causal", 10), "normal", "causality that depends on a shape"
    yield "block causal, one token", _block("causal", 1), "normal", "causality that depends on a shape"
    yield "block causal poison", _block("causal", 6, batch_size=2), "poison", _LEAK
    yield "block self bias", _block("self", 5, bias=True), "normal", _FLOAT64
    yield "block self scale 0.5", _block("self", 5, scale=0.5), "normal", _FLOAT64
    yield "block self v_head_dim 12", _block("self", 5, v_head_dim=12), "normal", _FLOAT64
    yield "block causal grouped 4/2", _block("causal", 7, num_kv_heads=2), "normal", _FLOAT64
    padded = _block("self", 5, batch_size=2, mask="key_padding", bias=True)
    yield "block key_padding poison", padded, "poison", _LEAK
    yield "block key_padding no key", padded, "no_key_sample", "such a sample gives the output bias"
    yield "block decode 1 of 6", _block("decode", 6, q_len=1), "normal", _FLOAT64
    yield "block decode 3 of 9", _block("decode", 9, q_len=3, batch_size=2), "normal", _FLOAT64
    for dtype in ("fp16", "bf16"):
        yield f"block self {dtype}", _block("self", 5, dtype=dtype), "normal", _FLOAT64


def feature_probes(problem: Problem) -> list[Probe]:
    """The probes of exactly what a problem uses, at small lengths: its mask, its alignment, its heads."""
    form = problem.masking.form
    free = problem.variant == "cross" or (problem.part, problem.variant) == ("core", "causal")
    small = problem.at(q_len=3, kv_len=7 if free else 7 if problem.variant == "decode" else 3, batch_size=2)
    fills: list[Fill] = []
    if problem.mask != "none" and problem.variant != "decode":
        fills.append("poison")
    if form is not None and form.is_bool:
        fills += ["no_key_row"] if "q_len" in form.dims else []
        fills += ["no_key_sample"] if form.dims[0] == "batch_size" else []
    if problem.part == "core":
        fills += ["uniform"] if problem.mask != "none" else []
        fills += ["heads"] if problem.num_kv_heads != problem.num_heads else []
    named = [Probe(name=fill, problem=small, fill=fill, shows="") for fill in fills]
    if problem.part == "core" and problem.mask == "causal_bottom_right":
        more = problem.at(q_len=5, kv_len=3, batch_size=2)
        named.append(Probe(name="more queries than keys", problem=more, fill="uniform", shows=_ZERO))
    return named


def excerpt(row: Array, at: int = 0) -> str:
    """Four values of a row, to read: the first, or those from `at` on where it is not among them."""
    start = at if at >= 4 else 0
    shown = " ".join(f"{float(value):.4g}" for value in row[start : start + 4])
    return f"{'... ' if start else ''}{shown}{' ...' if len(row) > start + 4 else ''}"
