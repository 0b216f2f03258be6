"""The numbers of the lesson: small experiments with the float64 oracle and the real block."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnbench.inputs import make_inputs, make_weights, named_generator
from attnbench.problem import Problem
from attnbench.reference import reference_output

Float64 = NDArray[np.float64]
DRAWN = 2_000  # queries and keys: every product of two of them is a sample
KEYS = 64  # that a query chooses from

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


def worked_example(x: Float64 = TOKENS) -> dict[str, Float64]:
    """Every step of one head over a few tokens x (T, D), under the name that it has on paper; the last is y (T, D)."""
    steps = {"x": x} | {f"{name} = x W_{name.upper()}": x @ WEIGHTS[f"w_{name}"] for name in "qkv"}  # (T, D)
    _, q, k, v = steps.values()
    root = math.sqrt(x.shape[1])
    steps["q k^T"] = q @ k.T  # (T, T)
    steps[f"q k^T / {root:.3f}"] = q @ k.T / root
    steps["softmax"] = softmax(q @ k.T / root)
    steps["softmax v"] = steps["softmax"] @ v  # (T, D)
    steps["y = softmax v W_O"] = steps["softmax v"] @ WEIGHTS["w_o"]
    return steps


def gaps(x: Float64, y: Float64) -> tuple[float, float]:
    """How far y (T, D) of the worked example is from the float64 oracle's and from the PyTorch block's."""
    import torch

    from attnbench.torch_model import build_module

    problem = Problem.make(seq_len=len(x), num_heads=1, head_dim=x.shape[1])
    block = build_module(problem).to(torch.float64)
    block.load_state_dict({f"{name}.weight": torch.from_numpy(w.T.copy()) for name, w in WEIGHTS.items()})
    with torch.inference_mode():
        of_block = block(torch.from_numpy(x[None].copy())).numpy()
    oracle = reference_output(problem, {"x": x[None]}, WEIGHTS)
    return float(np.abs(oracle - y).max()), float(np.abs(of_block - y).max())


class Look(NamedTuple):
    """What scores of random vectors look like."""

    spread: float  # standard deviation
    largest: float  # mean largest weight over KEYS
    keys_used: float  # mean e^entropy: how many keys share the weight


def looks(d_k: int, seed: int) -> tuple[Look, Look]:
    """Of q k bare and divided by sqrt(d_k), for N(0, 1) vectors of d_k numbers drawn from the seed."""
    q, k = named_generator(seed, f"spread {d_k}").standard_normal((2, DRAWN, d_k))
    bare = q @ k.T  # (DRAWN, DRAWN)
    return _look(bare), _look(bare / math.sqrt(d_k))


def _look(scores: Float64) -> Look:
    shares = softmax(scores[:, :KEYS])
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1)
    return Look(float(scores.std()), float(shares.max(axis=1).mean()), float(np.exp(entropy).mean()))


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


def factored_value(num_heads: int, head_dim: int, seed: int) -> tuple[float, float, int]:
    """The real block in float64 with its value map joint and factored, on the same weights.

    Gives the largest difference of the outputs, the largest output, and the rank of value-down times value-up.
    """
    import torch

    from attnbench.torch_model import build_module

    shape: dict[str, Any] = {"seq_len": 16, "num_heads": num_heads, "head_dim": head_dim}
    problem, factored = (Problem.make(**shape, value_map=name) for name in ("joint", "low_rank"))
    x = torch.from_numpy(make_inputs(problem, seed=seed)["x"]).double()
    with torch.inference_mode():
        joint, low_rank = (build_module(p, seed=seed).double()(x).numpy() for p in (problem, factored))
    weights = make_weights(problem, seed=seed)
    head = weights["w_v"][:, :head_dim].astype(np.float64) @ weights["w_o"][:head_dim].astype(np.float64)
    return float(np.abs(joint - low_rank).max()), float(np.abs(joint).max()), int(np.linalg.matrix_rank(head))
