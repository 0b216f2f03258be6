"""The numbers of the lesson: small experiments with the float64 oracle and the real block."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnbench.inputs import make_inputs, named_generator
from attnbench.problem import Problem
from attnbench.reference import reference_output

Float64 = NDArray[np.float64]
DRAWN = 2_000  # queries and keys: every product of two of them is a sample

# Three tokens of two numbers, one head: small enough to follow with a pencil.
TOKENS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
WEIGHTS = {
    "w_q": np.array([[2.0, 0.0], [0.0, 1.0]]), "w_k": np.array([[1.0, 1.0], [0.0, 1.0]]),
    "w_v": np.array([[1.0, 0.0], [1.0, 2.0]]), "w_o": np.array([[1.0, 1.0], [0.0, 1.0]]),
}  # fmt: skip


def softmax(scores: Float64) -> Float64:
    """Of every row."""
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: Float64 = raised / raised.sum(axis=-1, keepdims=True)
    return result


@dataclass(frozen=True, kw_only=True)
class Worked:
    """Every step for one head, and how far the oracle and the block are from the last."""

    q: Float64
    k: Float64
    v: Float64
    products: Float64
    scaled: Float64
    shares: Float64
    mixed: Float64
    y: Float64
    oracle_gap: float
    block_gap: float


def worked_example(x: Float64 = TOKENS, weights: Mapping[str, Float64] = WEIGHTS) -> Worked:
    """One head over a few tokens, step by step: x (T, D), weights (D, D)."""
    import torch

    from attnbench.torch_model import build_module

    q, k, v = (x @ weights[name] for name in ("w_q", "w_k", "w_v"))  # (T, D)
    products = q @ k.T  # (T, T)
    scaled = products / math.sqrt(x.shape[1])
    shares = softmax(scaled)
    mixed = shares @ v  # (T, D)
    y = mixed @ weights["w_o"]
    problem = Problem.make(seq_len=len(x), num_heads=1, head_dim=x.shape[1])
    oracle = reference_output(problem, {"x": x[None]}, weights)[0]
    block = build_module(problem).to(torch.float64)
    block.load_state_dict({f"{name}.weight": torch.from_numpy(w.T.copy()) for name, w in weights.items()})
    with torch.inference_mode():
        of_block = block(torch.from_numpy(x[None].copy()))[0].numpy()
    return Worked(
        q=q, k=k, v=v, products=products, scaled=scaled, shares=shares, mixed=mixed, y=y,
        oracle_gap=float(np.abs(oracle - y).max()), block_gap=float(np.abs(of_block - y).max()),
    )  # fmt: skip


class Spread(NamedTuple):
    """What products of random vectors of d_k numbers look like, without the scale and with it."""

    d_k: int
    products: float  # standard deviation of q k
    scaled: float
    largest: tuple[float, float]  # mean largest weight over 64 keys, without and with the scale
    keys_used: tuple[float, float]  # mean e^entropy: how many keys share the weight


def spread(d_k: int, seed: int, keys: int = 64) -> Spread:
    """Measured on N(0, 1) vectors drawn from the seed."""
    generator = named_generator(seed, f"spread {d_k}")
    q, k = generator.standard_normal((2, DRAWN, d_k))
    products = q @ k.T  # (DRAWN, DRAWN)
    scores = products[:, :keys]
    shares = [softmax(scores), softmax(scores / math.sqrt(d_k))]
    entropies = [-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1) for p in shares]
    return Spread(
        d_k, float(products.std()), float(products.std() / math.sqrt(d_k)),
        (float(shares[0].max(axis=1).mean()), float(shares[1].max(axis=1).mean())),
        (float(np.exp(entropies[0]).mean()), float(np.exp(entropies[1]).mean())),
    )  # fmt: skip


def block_weights(problem: Problem, seed: int) -> Float64:
    """(H, q_len, kv_len): what every query of the real block gives to every key.

    The block's own attention is given the identity for values, so that its output is its weights.
    """
    import torch

    from attnbench.torch_model import build_module, to_torch

    block = build_module(problem, seed=seed)
    tensors = [to_torch(array) for array in make_inputs(problem, seed=seed).values()]
    with torch.inference_mode():
        q, k, _ = block.project(tensors[0], tensors[-1])
        identity = torch.eye(problem.kv_len).expand(1, problem.num_kv_heads, -1, -1)
        found: Float64 = block.core(q, k, identity)[0].double().numpy()
    return found


class Factored(NamedTuple):
    """One block with its value map joint and factored."""

    gap: float  # largest difference of the two blocks' outputs
    size: float  # largest output
    rank: int  # of value-down times value-up of a head
    embed_dim: int
    head_dim: int


def factored_value(num_heads: int, head_dim: int, seed: int) -> Factored:
    """Run the real block both ways on the same weights, in float64."""
    import torch

    from attnbench.inputs import make_weights
    from attnbench.torch_model import build_module

    shape: dict[str, Any] = {"seq_len": 16, "num_heads": num_heads, "head_dim": head_dim}
    problems = [Problem.make(**shape, value_map=name) for name in ("joint", "low_rank")]
    x = torch.from_numpy(make_inputs(problems[0], seed=seed)["x"]).double()
    with torch.inference_mode():
        joint, low_rank = (build_module(p, seed=seed).double()(x).numpy() for p in problems)
    weights = make_weights(problems[0], seed=seed)
    head = weights["w_v"][:, :head_dim].astype(np.float64) @ weights["w_o"][:head_dim].astype(np.float64)
    gap, size = float(np.abs(joint - low_rank).max()), float(np.abs(joint).max())
    return Factored(gap, size, int(np.linalg.matrix_rank(head)), problems[0].embed_dim, head_dim)
