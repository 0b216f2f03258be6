"""The judge's side of a problem group: float64 outputs in files, the dtype's floor, torch eager's own error."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnbench.files import write_atomically
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Array
from attnbench.measure import numerics
from attnbench.problem import MASK_NAME, Problem
from attnbench.reference import reference_output, sample_rows

# Above this many scores the judge looks at sampled rows (8 heads x 4096 x 4096 is judged whole).
MAX_WHOLE_SCORES = 150_000_000
SAMPLED_ROWS = 256
# Above this length torch eager, the second reference, runs on sampled rows (fp16 on a CPU does 1 GFLOP/s).
MAX_EAGER_LEN = 1024
SAMPLED_EAGER_ROWS = 64


def _save(path: Path, array: Array) -> None:
    with path.open("wb") as f:
        np.save(f, array)


def judged_rows(problem: Problem) -> NDArray[np.int64] | None:
    """The query positions that the judge looks at; None: all."""
    scores = problem.batch_size * problem.num_heads * problem.q_len * problem.kv_len
    if scores <= MAX_WHOLE_SCORES or problem.q_len <= SAMPLED_ROWS:
        return None
    return sample_rows(problem.q_len, SAMPLED_ROWS)


def make_reference(problem: Problem, seed: int, input_class: str, folder: Path) -> dict[str, Any]:
    """Write the float64 output for one input class to the folder.

    Returns:
        path, rows (None: all), floor (worst row error of the reference rounded once), and eager (the agreement of
        torch eager in the same dtype, on at most sampled rows).
    """
    weights = make_weights(problem, seed=seed)
    inputs = make_inputs(problem, seed=seed, input_class=input_class)
    rows = judged_rows(problem)
    expected = reference_output(problem, inputs, weights, rows=rows)
    path = folder / f"{problem.problem_id}-{input_class}.npy"
    # Another worker may have it mapped into memory: a file that shrinks under it kills it by SIGBUS.
    write_atomically(path, lambda temporary: _save(temporary, expected))
    positions = np.arange(problem.q_len) if rows is None else rows
    count = SAMPLED_EAGER_ROWS if problem.q_len > MAX_EAGER_LEN else len(positions)
    chosen = np.linspace(0, len(positions) - 1, count).astype(np.int64)
    eager = torch_eager_rows(problem, inputs, weights, positions[chosen])
    return {
        "path": str(path),
        "rows": None if rows is None else rows.tolist(),
        "floor": numerics.floor_error(expected, problem.dtype),
        "eager": asdict(numerics.compare(eager, expected[..., chosen, :])),
    }


def torch_eager_rows(
    problem: Problem, inputs: dict[str, Array], weights: dict[str, Array], rows: NDArray[np.int64]
) -> Array:
    """What torch computes eagerly, in the problem's dtype, for some query positions of the problem.

    Shapes: (B, len(rows), E) for a block, (B, H, len(rows), D) for a core.
    """
    import torch

    from attnbench.torch_model import from_torch, repeat_heads, split_heads, to_torch

    tensors = {name: to_torch(array) for name, array in {**inputs, **weights}.items()}
    index = torch.from_numpy(rows)
    p = problem
    with torch.inference_mode():
        if p.part == "core":
            q, k, v = tensors["q"][:, :, index], tensors["k"], tensors["v"]
        else:
            query = tensors["query" if p.variant == "cross" else "x"][:, index]  # (B, rows, E)
            context = tensors["context" if p.variant == "cross" else "x"]  # (B, kv_len, E)
            q, k, v = (
                split_heads(source @ tensors[f"w_{n}"] + tensors.get(f"b_{n}", 0), heads)  # (B, heads, len, D)
                for n, source, heads in (
                    ("q", query, p.num_heads),
                    ("k", context, p.num_kv_heads),
                    ("v", context, p.num_kv_heads),
                )
            )
        if p.variant == "decode":
            k, v = torch.cat([tensors["past_key"], k], 2), torch.cat([tensors["past_value"], v], 2)
        k, v = repeat_heads(k, p.num_heads), repeat_heads(v, p.num_heads)
        scores = q @ k.mT * p.scale  # (B, H, rows, kv_len)
        allowed = None
        if p.masking.position:
            first, end = (torch.from_numpy(a)[:, None] for a in p.masking.visible(rows, p.q_len, p.kv_len))
            keys = torch.arange(p.kv_len)
            allowed = (keys >= first) & (keys < end)  # (rows, kv_len)
        mask = tensors.get(MASK_NAME)
        if mask is not None:
            mask = mask if mask.shape[-2] == 1 else mask[..., index, :]
            scores = scores if mask.dtype == torch.bool else scores + mask
            allowed = (mask if allowed is None else allowed & mask) if mask.dtype == torch.bool else allowed
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        weights_ = torch.softmax(scores, dim=-1)  # (B, H, rows, kv_len)
        if allowed is not None:
            weights_ = weights_.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
        y = weights_ @ v  # (B, H, rows, D_v)
        if p.part == "block":
            y = y.transpose(1, 2).flatten(-2) @ tensors["w_o"] + tensors.get("b_o", 0)  # (B, rows, E)
    result: Array = from_torch(y)
    return result
