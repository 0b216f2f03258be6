"""Seeded inputs and weights."""

import hashlib
import math
import subprocess
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from attnbench.errors import InputError
from attnbench.inputs import INPUT_CLASSES, make_inputs, make_weights, named_generator, normal_array
from attnbench.problem import Problem

FINGERPRINT = """
import hashlib
from attnbench.inputs import make_inputs, make_weights
from attnbench.problem import Problem
problem = Problem.make(variant="cross", seq_len=40, dtype="{dtype}", num_heads=2, head_dim=8)
for values in (*make_inputs(problem, seed=7).values(), *make_weights(problem, seed=7).values()):
    print(hashlib.sha256(values.tobytes()).hexdigest())
"""


def correlation(a, b):
    return abs(np.corrcoef(a.ravel(), b.ravel())[0, 1])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_fresh_process_makes_the_same_tensors(dtype):
    problem = Problem.make(variant="cross", seq_len=40, dtype=dtype, num_heads=2, head_dim=8)
    tensors = (*make_inputs(problem, seed=7).values(), *make_weights(problem, seed=7).values())
    done = subprocess.run(
        [sys.executable, "-c", FINGERPRINT.format(dtype=dtype)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [hashlib.sha256(t.tobytes()).hexdigest() for t in tensors]
    assert len(done.stdout.split()) == 6


@pytest.mark.parametrize("part", ["block", "core"])
@pytest.mark.parametrize("variant", ["self", "cross", "causal"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_inputs_have_the_names_shapes_and_dtype_of_the_problem(part, variant, dtype):
    problem = Problem.make(part=part, variant=variant, seq_len=9, batch_size=2, num_heads=2, head_dim=4, dtype=dtype)
    expected = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    inputs = make_inputs(problem)
    assert {name: values.shape for name, values in inputs.items()} == problem.input_shapes()
    assert {values.dtype for values in inputs.values()} == {np.dtype(expected)}
    assert {values.dtype for values in make_weights(problem).values()} <= {np.dtype(expected)}


def test_the_block_has_four_square_weights_and_the_core_none():
    block = Problem.make(seq_len=4, num_heads=2, head_dim=8)
    core = Problem.make(part="core", seq_len=4, num_heads=2, head_dim=8)
    assert {name: w.shape for name, w in make_weights(block).items()} == dict.fromkeys(
        ("w_q", "w_k", "w_v", "w_o"), (16, 16)
    )
    assert make_weights(core) == {}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_smaller_dtypes_are_the_fp32_values_rounded_once(dtype):
    wide = make_inputs(Problem.make(seq_len=200, num_heads=2, head_dim=16))["x"]
    narrow = make_inputs(Problem.make(seq_len=200, num_heads=2, head_dim=16, dtype=dtype))["x"]
    error = np.abs(narrow.astype(np.float64) - wide)
    ulp = 2.0 ** np.floor(np.log2(np.abs(wide))) * {"fp16": 2.0**-10, "bf16": 2.0**-7}[dtype]
    ulp = np.maximum(ulp, 2.0**-24 if dtype == "fp16" else 0.0)  # fp16 has a smallest step
    assert np.all(error <= ulp / 2)
    assert error.max() > 0


def test_weights_do_not_depend_on_lengths_batch_or_variant():
    first = make_weights(Problem.make(seq_len=4, num_heads=2, head_dim=8), seed=3)
    other = make_weights(
        Problem.make(variant="cross", seq_len=9, kv_len=5, batch_size=3, num_heads=2, head_dim=8), seed=3
    )
    for name, values in first.items():
        np.testing.assert_array_equal(values, other[name])


def test_another_seed_gives_independent_tensors():
    problem = Problem.make(seq_len=256, num_heads=2, head_dim=32)
    assert correlation(make_inputs(problem, seed=0)["x"], make_inputs(problem, seed=1)["x"]) < 0.03
    assert correlation(make_weights(problem, seed=0)["w_q"], make_weights(problem, seed=1)["w_q"]) < 0.06


def test_tensors_of_different_names_are_independent():
    problem = Problem.make(part="core", seq_len=256, num_heads=2, head_dim=32)
    q, k, v = make_inputs(problem).values()
    assert max(correlation(q, k), correlation(k, v), correlation(q, v)) < 0.03


def test_samples_of_a_batch_are_independent():
    x = make_inputs(Problem.make(seq_len=256, batch_size=2, num_heads=2, head_dim=32))["x"]
    assert correlation(x[0], x[1]) < 0.03


def test_seeds_beyond_64_bits_and_negative_ones_are_accepted():
    draws = {named_generator(seed, "x").integers(1 << 62) for seed in (0, -1, 2**70, 2**70 + 1)}
    assert len(draws) == 4


def test_inputs_are_standard_normal():
    x = make_inputs(Problem.make(seq_len=1024, num_heads=8, head_dim=64))["x"].astype(np.float64)
    assert abs(x.mean()) < 0.005
    assert abs(x.std() - 1) < 0.005
    assert abs((x**4).mean() - 3) < 0.05  # a normal distribution's fourth moment


def test_weights_have_variance_one_over_embed_dim():
    weights = make_weights(Problem.make(seq_len=1, num_heads=8, head_dim=64))
    for values in weights.values():
        assert abs(values.std() * math.sqrt(512) - 1) < 0.01


@pytest.mark.parametrize(("input_class", "spread"), [("normal", 1.0), ("peaked", 4.0)])
@pytest.mark.parametrize("part", ["block", "core"])
def test_the_logits_have_the_spread_of_their_class(part, input_class, spread):
    problem = Problem.make(part=part, seq_len=256)
    inputs = make_inputs(problem, input_class=input_class)
    if part == "core":
        q, k = inputs["q"][0], inputs["k"][0]
    else:
        weights = make_weights(problem)
        q, k = ((inputs["x"][0] @ weights[w]).reshape(256, 8, 64).swapaxes(0, 1) for w in ("w_q", "w_k"))
    logits = q @ k.swapaxes(1, 2) / 8
    assert abs(logits.std() / spread - 1) < 0.05


def test_peaked_core_leaves_v_standard_normal():
    inputs = make_inputs(Problem.make(part="core", seq_len=512), input_class="peaked")
    assert abs(inputs["q"].std() - 2) < 0.02
    assert abs(inputs["k"].std() - 2) < 0.02
    assert abs(inputs["v"].std() - 1) < 0.01


def test_an_unknown_input_class_is_refused_with_the_valid_ones():
    with pytest.raises(InputError, match=r"input_class must be one of normal, peaked, .*near_ties.*; got 'spiky'"):
        make_inputs(Problem.make(seq_len=2), input_class="spiky")
    assert INPUT_CLASSES == ("normal", "peaked")


def test_drawing_in_pieces_gives_the_same_numbers_as_drawing_at_once():
    size = (1 << 18) * 2 + 12345
    whole = named_generator(5, "x").standard_normal(size, dtype=np.float32)
    np.testing.assert_array_equal(normal_array(5, "x", (size,), dtype="fp32"), whole)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_no_temporary_is_as_large_as_the_result(dtype):
    tracemalloc.start()
    try:
        values = normal_array(0, "x", (1 << 23,), dtype=dtype)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes - values.nbytes < 4 << 20
