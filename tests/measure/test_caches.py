"""The judge of the cache that a decode step gives back."""

from types import SimpleNamespace

import numpy as np
import pytest

from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Array, numpy_dtype
from attnbench.measure import caches
from attnbench.problem import Problem
from attnbench.reference import reference_new_cache


def step(dtype: str = "fp32", **fields: object) -> Problem:
    sizes = {"seq_len": 9, "q_len": 2, "batch_size": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, **fields}
    return Problem.make(variant="decode", dtype=dtype, **sizes)  # type: ignore[arg-type]


def right_cache(problem: Problem, inputs: dict[str, Array], weights: dict[str, Array]) -> dict[str, Array]:
    """Token by token and head by head, in float64, rounded once."""
    found = {}
    for name, letter, width in (("key", "k", problem.head_dim), ("value", "v", problem.v_head_dim)):
        past = inputs[f"past_{name}"].astype(np.float64)
        present = np.zeros((2, 2, 9, width))
        present[:, :, :7] = past
        for sample, head, token in np.ndindex(2, 2, 2):
            columns = slice(head * width, (head + 1) * width)
            new = inputs["x"][sample, token].astype(np.float64) @ weights[f"w_{letter}"][:, columns].astype(np.float64)
            bias = weights.get(f"b_{letter}")
            present[sample, head, 7 + token] = new if bias is None else new + bias[columns].astype(np.float64)
        found[f"present_{name}"] = present.astype(numpy_dtype(problem.dtype))
    return found


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_old_tokens_and_the_projections_of_new_ones_are_right(dtype: str) -> None:
    problem = step(dtype, bias=True, v_head_dim=4)
    inputs, weights = make_inputs(problem), make_weights(problem)
    right = right_cache(problem, inputs, weights)
    assert caches.cache_fault(problem, inputs, right, seed=0) == ""
    for name, new in reference_new_cache(problem, inputs, weights).items():
        assert new.shape == right[name][:, :, 7:].shape
        np.testing.assert_allclose(new, right[name][:, :, 7:].astype(np.float64), rtol=1e-2, atol=1e-2)


def one_bit_of_an_old_token(cache: dict[str, Array]) -> None:
    bits = cache["present_key"].view(np.uint32 if cache["present_key"].itemsize == 4 else np.uint16)
    bits[1, 0, 3, 2] ^= 1


def new_tokens_swapped(cache: dict[str, Array]) -> None:
    cache["present_key"][:, :, 7:] = cache["present_key"][:, :, [8, 7]]


def heads_of_new_values_swapped(cache: dict[str, Array]) -> None:
    cache["present_value"][:, :, 7:] = cache["present_value"][:, ::-1, 7:]


def last_value_not_written(cache: dict[str, Array]) -> None:
    cache["present_value"][:, :, 8] = 0


def one_value_not_a_number(cache: dict[str, Array]) -> None:
    cache["present_value"][0, 0, 7, 0] = np.nan


def wider(cache: dict[str, Array]) -> None:
    cache["present_key"] = cache["present_key"].astype(np.float64)


def a_token_short(cache: dict[str, Array]) -> None:
    cache["present_value"] = cache["present_value"][:, :, :8]


def left_out(cache: dict[str, Array]) -> None:
    del cache["present_value"]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (one_bit_of_an_old_token, "present_key: 1 of 224 values of old tokens are not those of past_key"),
        (new_tokens_swapped, "present_key: a new token is off by "),
        (heads_of_new_values_swapped, "present_value: a new token is off by "),
        (last_value_not_written, "present_value: a new token is off by 1,"),
        (one_value_not_a_number, "present_value: a new token is off by nan"),
        (wider, "present_key is float64 of shape"),
        (a_token_short, "of shape (2, 2, 8, 8), the problem's is"),
        (left_out, "present_value is missing: the cache has present_key"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_cache_is_told_by_the_name_of_the_output(fault, words, dtype):
    problem = step(dtype)
    inputs = make_inputs(problem)
    cache = right_cache(problem, inputs, make_weights(problem))
    fault(cache)
    assert words in caches.cache_fault(problem, inputs, cache, seed=0)


def test_a_session_without_a_cache_is_a_fault_only_in_decode() -> None:
    session = SimpleNamespace()
    problem = step()
    assert "no cache()" in caches.session_fault(session, problem, make_inputs(problem), seed=0)  # type: ignore[arg-type]
    other = Problem.make(seq_len=4)
    assert caches.session_fault(session, other, make_inputs(other), seed=0) == ""  # type: ignore[arg-type]
