"""Seeded inputs and weights: every process makes the same ones, so they are never shipped or stored.

Each tensor has a counter-based stream of its own (Philox), keyed by the seed and the name of the tensor. So a tensor
does not depend on which others were made before it, nor the weights on T, on the batch or on the input class.
"""

import hashlib
import math

import numpy as np

from attnbench.errors import InputError
from attnbench.interfaces import Array, numpy_dtype
from attnbench.model_problem import FLOATS, ModelProblem, TensorSpec
from attnbench.problem import MASK_NAME, Problem

INPUT_CLASSES = ("normal", "peaked")
# Inputs that are hard to compute with; `stress_classes` says which a problem has.
LOGIT_SCALES = {"logits_x8": 8, "logits_x64": 64, "logits_x1024": 1024}  # the last makes rows one-hot
STRESS_CLASSES = (*LOGIT_SCALES, "near_ties", "long_tail", "masked_rows")
SMALL_LOGITS = frozenset({"near_ties", "masked_rows"})  # of spread 1 or less
WEIGHT_NAMES = ("w_q", "w_k", "w_v", "w_o")

# The spread of the logits is the product of the factors of q and k: 1 for `normal`, 4 for `peaked`. In a block q and k
# come from the same inputs, in the core v is an input of its own and stays N(0, 1).
_PEAKED_FACTOR = 2.0
_CHUNK = 1 << 18  # numbers drawn at a time, in float32: 1 MiB


def make_inputs(problem: Problem | ModelProblem, *, seed: int = 0, input_class: str = "normal") -> dict[str, Array]:
    """The inputs of the problem, drawn in float32 and rounded once to the problem's dtype.

    Args:
        problem: gives the names, shapes and dtype.
        seed: any whole number.
        input_class: `normal`, N(0, 1): with `make_weights` the logits have spread 1; `peaked`: spread 4; or of
            STRESS_CLASSES: `logits_xN`: spread N; `near_ties`: keys that differ by 2^-6 of their size; `long_tail`:
            log-normal sizes; `masked_rows`: no key for the first query (the first item, if all its queries share a
            mask). A model of the user has `normal` alone, as its `TensorSpec`s say.

    Returns:
        name -> array, as in `problem.input_shapes()`.

    Raises:
        InputError: an unknown input class.
    """
    known = ("normal",) if isinstance(problem, ModelProblem) else (*INPUT_CLASSES, *stress_classes(problem))
    if input_class not in known:
        raise InputError(f"input_class must be one of {', '.join(known)} for this problem; got {input_class!r}")
    if isinstance(problem, ModelProblem):
        shapes = problem.input_shapes()
        return {tensor.name: draw(tensor, shapes[tensor.name], seed=seed) for tensor in problem.inputs}
    inputs = {}
    for name, shape in problem.input_shapes().items():
        if name == MASK_NAME:
            inputs[name] = make_mask(problem, shape, seed=seed)
            if input_class == "masked_rows":
                inputs[name][(..., 0, slice(None)) if inputs[name].shape[-2] > 1 else 0] = False
            continue
        values = normal_array(seed, name, shape, dtype=problem.dtype, std=_factor(problem, input_class, name))
        inputs[name] = _hardened(values, input_class, seed, name)
    return inputs


def draw(tensor: TensorSpec, shape: tuple[int, ...], *, seed: int) -> Array:
    """Values for an input of a model: floats of N(0, std^2), booleans, integers from least to most.

    The first of every row of booleans is what most are, so that no row is by chance all of what is rare.
    """
    if tensor.dtype in FLOATS:
        return normal_array(seed, tensor.name, shape, dtype=tensor.dtype, std=tensor.std)
    generator = named_generator(seed, tensor.name)
    if tensor.dtype != "bool":
        return np.asarray(generator.integers(tensor.least, tensor.most, shape, dtype=tensor.dtype, endpoint=True))
    drawn = np.asarray(generator.random(shape, dtype=np.float32) < tensor.share_true)
    if drawn.ndim:
        drawn[..., :1] = tensor.share_true >= 0.5
    return drawn


def stress_classes(problem: Problem) -> tuple[str, ...]:
    """The stress classes that a problem has: rows can be masked wholly only where the mask is a boolean tensor."""
    form = problem.masking.form
    has_rows = form is not None and form.is_bool
    return tuple(name for name in STRESS_CLASSES if has_rows or name != "masked_rows")


def _factor(problem: Problem, input_class: str, name: str) -> float:
    """The spread of an input: the logits have the product of those of queries and keys."""
    if input_class == "peaked":
        return 1.0 if name == "v" else _PEAKED_FACTOR
    scale = LOGIT_SCALES.get(input_class, 1)
    if name in ("x", "past_key"):  # queries and keys come from it, or meet it
        return math.sqrt(scale)
    return float(scale) if name in ("q", "query") else 1.0


def _hardened(values: Array, input_class: str, seed: int, name: str) -> Array:
    """The normal values of an input (..., T, n) made near ties or long tails, rounded again."""
    if input_class == "near_ties" and name in ("k", "x", "context", "past_key"):
        common = values[..., :1, :].astype(np.float32)
        return np.asarray((common + values.astype(np.float32) * 2.0**-6).astype(values.dtype))
    if input_class == "long_tail":
        sizes = np.exp(named_generator(seed, f"{name} sizes").standard_normal(values.shape, dtype=np.float32))
        return np.asarray((values.astype(np.float32) * sizes).astype(values.dtype))
    return values


def make_mask(problem: Problem, shape: tuple[int, ...], *, seed: int) -> Array:
    """The mask tensor of a problem: bool (True means attend) or what is added to the scores, in the problem's dtype.

    Booleans are True with a chance of 3/4, other for every batch item and head, not shaped like padding; key 0 is
    always allowed, so that no row is left without a key. Biases are N(0, 1). ALiBi: -2^(-8 (h+1)/H) |i - j|, of Press,
    Smith and Lewis 2022.
    """
    form = problem.masking.form
    assert form is not None
    if form.is_bool:
        allowed: Array = named_generator(seed, "mask").random(shape, dtype=np.float32) < 0.75
        allowed[..., 0] = True
        return allowed
    if problem.masking.tensor != "alibi":
        return normal_array(seed, "mask", shape, dtype=problem.dtype)
    heads, q_len, kv_len = shape[-3:]
    slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)  # (H,)
    distance = np.abs(np.arange(q_len)[:, None] - np.arange(kv_len))  # (q_len, kv_len)
    return np.asarray((-slopes[:, None, None] * distance)[None].astype(numpy_dtype(problem.dtype)))


def fingerprint() -> dict[str, str]:
    """{"sha256": of some draws of every kind}: two NumPys that agree in it make the same inputs and weights."""
    problem = Problem.make(part="block", variant="self", seq_len=65)
    arrays = [*make_inputs(problem).values(), *make_weights(problem).values()]
    generator = named_generator(0, "fingerprint")
    arrays += [generator.random(999, dtype=np.float32), generator.integers(0, 999, 999, dtype=np.int64, endpoint=True)]
    return {"sha256": hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()}


def make_weights(problem: Problem, *, seed: int = 0) -> dict[str, Array]:
    """The weights of the block, N(0, 1/rows), rounded to the problem's dtype; used as `x @ w + b`.

    Returns:
        `w_q` (E, H D), `w_k` (E, H_kv D), `w_v` (E, H_kv D_v), `w_o` (H D_v, E); with bias `b_q`, `b_k`, `b_v`, `b_o`
        of N(0, 1/4) too; nothing for part `core`.
    """
    weights = {
        name: normal_array(seed, name, shape, dtype=problem.dtype, std=1.0 / math.sqrt(shape[0]))
        for name, shape in weight_shapes(problem).items()
    }
    biases = {f"b{name[1:]}": w.shape[1] for name, w in weights.items() if problem.bias}
    return weights | {n: normal_array(seed, n, (size,), dtype=problem.dtype, std=0.5) for n, size in biases.items()}


def weight_shapes(problem: Problem) -> dict[str, tuple[int, int]]:
    """Shapes of the four projections by name; nothing for part `core`."""
    if problem.part == "core":
        return {}
    p = problem
    return {
        "w_q": (p.embed_dim, p.num_heads * p.head_dim), "w_k": (p.embed_dim, p.num_kv_heads * p.head_dim),
        "w_v": (p.embed_dim, p.num_kv_heads * p.v_head_dim), "w_o": (p.num_heads * p.v_head_dim, p.embed_dim),
    }  # fmt: skip


def normal_array(seed: int, name: str, shape: tuple[int, ...], *, dtype: str, std: float = 1.0) -> Array:
    """N(0, std^2) of the stream (seed, name), rounded to fp32, fp16 or bf16.

    Drawn in pieces, so that beside the result no more than 1 MiB is held.
    """
    generator = named_generator(seed, name)
    values: Array = np.empty(shape, dtype=numpy_dtype(dtype))
    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        piece = flat[start : start + _CHUNK]
        piece[...] = generator.standard_normal(piece.size, dtype=np.float32) * np.float32(std)
    return values


def named_generator(seed: int, name: str) -> np.random.Generator:
    """The random stream that belongs to this seed and this name, the same in every process."""
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
