"""The float64 oracle."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from attnbench import reference
from attnbench.errors import ProblemError
from attnbench.inputs import make_inputs, make_weights
from attnbench.problem import Problem
from attnbench.reference import reference_attention, reference_output, sample_rows

VARIANTS = ["self", "cross", "causal"]
# (q_len, kv_len): several tiles of queries, the last one not full; more and fewer keys than queries; single ones.
LENGTHS = [(1, 1), (1, 5), (3, 7), (7, 3), (128, 128), (257, 257), (515, 301), (300, 517)]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def indices_as_v(kv_len, *, heads=2, head_dim=8):
    """F-mean: V[j] = j in every channel, so that with Q = 0 an output is the mean of the allowed key indices."""
    return np.broadcast_to(np.arange(kv_len, dtype=np.float32)[:, None], (1, heads, kv_len, head_dim))


def torch_mha(problem, weights):
    """torch.nn.MultiheadAttention in float64 with the weights of the problem."""
    mha = torch.nn.MultiheadAttention(
        problem.embed_dim, problem.num_heads, bias=False, batch_first=True, dtype=torch.float64
    )
    stacked = np.concatenate([weights[name].T for name in ("w_q", "w_k", "w_v")]).astype(np.float64)
    mha.in_proj_weight.data = torch.from_numpy(stacked)
    mha.out_proj.weight.data = torch.from_numpy(weights["w_o"].T.astype(np.float64))
    return mha.eval()


# --- by hand


def test_three_tokens_by_hand():
    q = np.array([[1.0, 1.0]])
    k = np.array([[1.0, 2.0], [1.0, 1.0], [2.0, 2.0]])  # raw scores 3, 2, 4
    weights = reference_attention(q, k, np.eye(3))
    np.testing.assert_allclose(weights, [[0.284, 0.140, 0.576]], atol=5e-4)


def test_the_weights_of_three_tokens_mix_the_values():
    q = np.array([[1.0, 1.0]])
    k = np.array([[1.0, 2.0], [1.0, 1.0], [2.0, 2.0]])
    v = np.array([[10.0, 0.0], [0.0, 100.0], [1.0, 1.0]])
    np.testing.assert_allclose(reference_attention(q, k, v), [[2.84 + 0.576, 14.0 + 0.576]], atol=0.06)


def test_scale_replaces_one_over_root_head_dim():
    q, k = np.array([[1.0, 0.0]]), np.array([[np.log(3.0), 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(reference_attention(q, k, np.eye(2), scale=1.0), [[0.75, 0.25]], rtol=1e-15)


def test_a_block_by_hand_with_identity_weights():
    # One head of size 1, tokens 0 and ln 3, weights 1: token 1 has scores 0 and (ln 3)^2.
    problem = Problem.make(seq_len=2, num_heads=1, head_dim=1)
    weights = {name: np.ones((1, 1), np.float64) for name in ("w_q", "w_k", "w_v", "w_o")}
    x = np.array([[[0.0], [np.log(3.0)]]])
    weight = np.exp(np.log(3.0) ** 2) / (1 + np.exp(np.log(3.0) ** 2))
    expected = [[[np.log(3.0) / 2], [np.log(3.0) * weight]]]
    np.testing.assert_allclose(reference_output(problem, {"x": x}, weights), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("q_len", "kv_len", "expected"),
    [(1, 5, [0]), (3, 7, [0, 0.5, 1]), (4, 4, [0, 0.5, 1, 1.5]), (7, 3, [0, 0.5, 1, 1, 1, 1, 1])],
)
def test_top_left_counts_keys_from_the_first(q_len, kv_len, expected):
    q, k = np.zeros((1, 2, q_len, 8), np.float32), np.ones((1, 2, kv_len, 8), np.float32)
    out = reference_attention(q, k, indices_as_v(kv_len), mask="causal_top_left")
    np.testing.assert_allclose(out, np.broadcast_to(np.array(expected)[:, None], out.shape), rtol=1e-14)


@pytest.mark.parametrize(
    ("q_len", "kv_len", "expected"),
    [(1, 5, [2]), (3, 7, [2, 2.5, 3]), (4, 4, [0, 0.5, 1, 1.5]), (7, 3, [0, 0, 0, 0, 0, 0.5, 1])],
)
def test_bottom_right_lets_the_last_query_see_every_key(q_len, kv_len, expected):
    q, k = np.zeros((1, 2, q_len, 8), np.float32), np.ones((1, 2, kv_len, 8), np.float32)
    out = reference_attention(q, k, indices_as_v(kv_len), mask="causal_bottom_right")
    np.testing.assert_allclose(out, np.broadcast_to(np.array(expected)[:, None], out.shape), rtol=1e-14)


def test_a_row_with_every_key_masked_is_zero():
    q, k = normal(7, 4, seed=1), normal(3, 4, seed=2)
    out = reference_attention(q, k, np.full((3, 4), 5.0), mask="causal_bottom_right")
    np.testing.assert_array_equal(out[:4], np.zeros((4, 4)))
    np.testing.assert_allclose(out[4:], np.full((3, 4), 5.0), rtol=1e-14)


def test_a_tile_whose_rows_all_see_no_key_is_zero():
    out = reference_attention(normal(600, 4), normal(3, 4), np.ones((3, 4)), mask="causal_bottom_right")
    np.testing.assert_array_equal(out[:597], np.zeros((597, 4)))
    np.testing.assert_allclose(out[597:], 1.0, rtol=1e-14)


@pytest.mark.parametrize("mask", ["causal_top_left", "causal_bottom_right"])
def test_masked_keys_leak_nothing(mask):
    q_len, kv_len = 300, 310
    q, k = normal(q_len, 8, seed=1), normal(kv_len, 8, seed=2)
    for row in (0, 1, 127, 128, 299):
        last = row + (kv_len - q_len if mask == "causal_bottom_right" else 0)
        v = np.where(np.arange(kv_len) <= last, 1.0, 10000.0)[:, None]
        np.testing.assert_allclose(reference_attention(q, k, v, mask=mask, rows=[row]), [[1.0]], rtol=1e-12)
    full = reference_attention(q, k, np.where(np.arange(kv_len) <= 0, 1.0, 10000.0)[:, None], mask=mask)
    assert full[-1, 0] > 9000  # the last row does see the poison: the check above can fail


@pytest.mark.parametrize("kv_len", [2048, 4096, 70000])
def test_long_fp16_key_axes_neither_overflow_nor_stick(kv_len):
    q, k = np.zeros((1, 1, 1, 8), np.float16), np.ones((1, 1, kv_len, 8), np.float16)
    v = np.full((1, 1, kv_len, 8), 0.5, np.float16)
    v[..., 0] = np.arange(kv_len) % 2
    np.testing.assert_allclose(reference_attention(q, k, v), np.full((1, 1, 1, 8), 0.5), rtol=1e-12)


def test_huge_scores_do_not_overflow():
    q, k = np.array([[1000.0], [-1000.0]]), np.array([[-50.0], [0.0], [50.0]])
    np.testing.assert_array_equal(reference_attention(q, k, np.eye(3)), [[0, 0, 1], [1, 0, 0]])


# --- against torch in float64


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_attention_agrees_with_torch_in_float64(q_len, kv_len, causal):
    q, k, v = normal(2, 3, q_len, 16), 2 * normal(2, 3, kv_len, 16, seed=1), normal(2, 3, kv_len, 16, seed=2)
    expected = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), is_causal=causal)
    out = reference_attention(q, k, v, mask="causal_top_left" if causal else "none")
    np.testing.assert_allclose(out, expected.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
def test_small_tiles_change_nothing(variant, monkeypatch):
    problem = Problem.make(part="core", variant=variant, seq_len=41, kv_len=None if variant == "self" else 29)
    inputs = make_inputs(problem)
    expected = reference_output(problem, inputs, {})
    monkeypatch.setattr(reference, "_TILE_BYTES", 8 * 29 * 7)  # seven rows of scores at 29 keys
    np.testing.assert_allclose(reference_output(problem, inputs, {}), expected, rtol=0, atol=1e-14)
    monkeypatch.setattr(reference, "_TILE_BYTES", 1)  # not even one row: a tile is one row
    np.testing.assert_allclose(reference_output(problem, inputs, {}), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seq_len", [1, 10, 261])
def test_the_block_agrees_with_torch_multihead_attention(variant, seq_len):
    problem = Problem.make(variant=variant, seq_len=seq_len, batch_size=2, num_heads=4, head_dim=8)
    inputs, weights = make_inputs(problem, input_class="peaked"), make_weights(problem)
    tensors = [torch.from_numpy(values.astype(np.float64)) for values in inputs.values()]
    query, context = tensors[0], tensors[-1]
    blocked = torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1) if variant == "causal" else None
    with torch.no_grad():
        expected, _ = torch_mha(problem, weights)(query, context, context, attn_mask=blocked, need_weights=True)
    y = reference_output(problem, inputs, weights)
    np.testing.assert_allclose(y, expected.numpy(), rtol=0, atol=1e-12)


# --- rows, dtypes, purity


@pytest.mark.parametrize("part", ["block", "core"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sampled_rows_are_the_rows_of_the_full_output(part, variant):
    problem = Problem.make(part=part, variant=variant, seq_len=300, batch_size=2, num_heads=2, head_dim=8)
    inputs, weights = make_inputs(problem), make_weights(problem)
    rows = np.array([299, 0, 7, 127, 128, 7])  # any order, repeated
    full = reference_output(problem, inputs, weights)
    sampled = reference_output(problem, inputs, weights, rows=rows)
    assert full.shape == problem.output_shape()
    np.testing.assert_allclose(sampled, np.take(full, rows, axis=-2), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("part", ["block", "core"])
def test_the_rounded_inputs_are_what_is_computed_with(dtype, part):
    problem = Problem.make(part=part, variant="causal", seq_len=70, num_heads=2, head_dim=8, dtype=dtype)
    inputs, weights = make_inputs(problem), make_weights(problem)
    widened = [{name: a.astype(np.float64) for name, a in arrays.items()} for arrays in (inputs, weights)]
    y = reference_output(problem, inputs, weights)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, reference_output(problem, *widened))
    unrounded = Problem.make(part=part, variant="causal", seq_len=70, num_heads=2, head_dim=8)
    other = reference_output(unrounded, make_inputs(unrounded), make_weights(unrounded))
    assert np.abs(y - other).max() > 1e-4  # had it computed with unrounded inputs, this would be 0


@pytest.mark.parametrize("part", ["block", "core"])
def test_inputs_and_weights_are_left_as_they_were(part):
    problem = Problem.make(part=part, variant="causal", seq_len=20, num_heads=2, head_dim=8)
    arrays = {**make_inputs(problem), **make_weights(problem)}
    for values in arrays.values():
        values.flags.writeable = False
    before = {name: values.copy() for name, values in arrays.items()}
    reference_output(problem, arrays, arrays)
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, before[name])


def test_cross_takes_keys_and_values_from_the_context():
    problem = Problem.make(variant="cross", seq_len=6, kv_len=4, num_heads=2, head_dim=8)
    inputs, weights = make_inputs(problem), make_weights(problem)
    constant = {**inputs, "context": np.ones_like(inputs["context"])}
    value = np.ones(16) @ weights["w_v"].astype(np.float64) @ weights["w_o"].astype(np.float64)
    y = reference_output(problem, constant, weights)  # equal values: whatever the weights, their mean
    np.testing.assert_allclose(y, np.broadcast_to(value, y.shape), rtol=0, atol=1e-14)


# --- sampled positions


def test_sample_rows_are_all_rows_when_few():
    np.testing.assert_array_equal(sample_rows(5, 8), [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(sample_rows(8, 8), np.arange(8))


@pytest.mark.parametrize("q_len", [257, 1000, 65536, 70001])
def test_sample_rows_are_sorted_unique_and_reach_both_ends(q_len):
    rows = sample_rows(q_len)
    assert len(rows) == 256
    assert rows[0] == 0
    assert rows[-1] == q_len - 1
    assert np.all(np.diff(rows) > 0)
    assert np.diff(rows).max() <= 2 * -(-q_len // 256)
    np.testing.assert_array_equal(rows, sample_rows(q_len))


def test_sample_rows_follow_no_period():
    for period in (2, 16, 64, 256):
        assert len(np.unique(sample_rows(65536) % period)) > period // 2


@pytest.mark.parametrize(("q_len", "count"), [(0, 4), (10, 1)])
def test_sample_rows_refuses_impossible_counts(q_len, count):
    with pytest.raises(ProblemError, match=f"got {q_len} and {count}"):
        sample_rows(q_len, count)


# --- refusals


@pytest.mark.parametrize(
    ("q", "k", "v", "rule"),
    [
        ((4,), (4,), (4,), "at least 2 dimensions"),
        ((2, 4), (3, 5), (3, 4), "same head_dim"),
        ((2, 4), (3, 4), (2, 4), "same length"),
        ((2, 2, 4), (3, 3, 4), (3, 3, 4), "the heads of k and v must divide"),
        ((2, 4), (0, 4), (0, 4), "must not be empty"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_and_named(q, k, v, rule):
    with pytest.raises(ProblemError, match=rule) as caught:
        reference_attention(np.zeros(q), np.zeros(k), np.zeros(v))
    assert f"q {q}, k {k}, v {v}" in str(caught.value)


def test_a_bare_causal_mask_is_refused():
    with pytest.raises(ProblemError, match=r"mask must be none, causal_top_left, .*; got 'causal'"):
        reference_attention(np.zeros((2, 4)), np.zeros((2, 4)), np.zeros((2, 4)), mask="causal")


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([5], r"0\.\.4, got 5\.\.5"),
        ([-1], r"0\.\.4, got -1"),
        ([], "at least one"),
        ([[0]], "one-dim"),
        ([0.5], "whole"),
    ],
)
def test_rows_outside_the_problem_are_refused(rows, rule):
    with pytest.raises(ProblemError, match=rule):
        reference_attention(np.zeros((5, 4)), np.zeros((5, 4)), np.zeros((5, 4)), rows=rows)


def test_a_missing_input_is_named():
    problem = Problem.make(variant="cross", seq_len=4)
    with pytest.raises(ProblemError, match="input 'context' is missing; needed: query, context; got: query"):
        reference_output(problem, {"query": np.zeros((1, 4, 512))}, {})


def test_inputs_and_weights_of_another_shape_are_refused():
    problem = Problem.make(seq_len=4, num_heads=2, head_dim=8)
    with pytest.raises(ProblemError, match=r"input 'x' must have shape \(1, 4, 16\), got \(1, 5, 16\)"):
        reference_output(problem, {"x": np.zeros((1, 5, 16))}, make_weights(problem))
    weights = {**make_weights(problem), "w_o": np.zeros((16, 1))}
    with pytest.raises(ProblemError, match=r"weight 'w_o' must have shape \(16, 16\), got \(16, 1\)"):
        reference_output(problem, make_inputs(problem), weights)


# --- memory

MEASURE_PEAK = """
import numpy, ml_dtypes
from pathlib import Path
from attnbench.inputs import make_inputs, make_weights
from attnbench.problem import Problem
from attnbench.reference import reference_output, sample_rows

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

problem = Problem.make(variant="{variant}", seq_len={seq_len})
inputs = weights = None
if not {count_inputs}:
    inputs, weights = make_inputs(problem), make_weights(problem)
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
if {count_inputs}:
    inputs, weights = make_inputs(problem), make_weights(problem)
rows = sample_rows({seq_len}) if {count_inputs} else None
y = reference_output(problem, inputs, weights, rows=rows)
assert numpy.isfinite(y).all()
print(status("VmHWM") - before)
"""


def peak_bytes(**values):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    code = MEASURE_PEAK.format(**values)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


needs_clear_refs = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc/self/clear_refs and VmHWM"
)


@needs_clear_refs
@pytest.mark.parametrize("variant", ["self", "cross"])
def test_sampled_rows_at_65536_stay_within_300_mb_inputs_included(variant):
    peak = peak_bytes(variant=variant, seq_len=65536, count_inputs=True)
    assert 128 << 20 < peak <= 300_000_000  # the inputs alone are 128 MiB: a lower figure would not be a measurement


@needs_clear_refs
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_whole_block_at_4096_stays_within_200_mb(variant):
    peak = peak_bytes(variant=variant, seq_len=4096, count_inputs=False)
    assert 4096 * 512 * 8 < peak <= 200_000_000  # at least the output itself
