"""Faults of masks and grouped heads are caught in every dtype; what is right raises no alarm."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import numpy_dtype
from attnbench.measure import numerics
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.sweep.bench import limits_of
from attnbench.sweep.oracle import torch_eager_rows
from tests.perf_numerics import judged as right_runs

T, HEADS = 64, 8
DTYPES = ("fp32", "fp16", "bf16")
PARTS = ("block", "core")

# fault -> what the problem has
FAULTS: dict[str, dict[str, Any]] = {
    "padding ignored": {"mask": "key_padding"},
    "padding off by one key": {"mask": "key_padding"},
    "mask off by one key": {"mask": "bool_1hqk"},
    "mask of the next head": {"mask": "bool_1hqk"},
    "mask inverted": {"mask": "bool_qk"},
    "bias ignored": {"mask": "bias_1hqk"},
    "bias off by one key": {"mask": "bias_1hqk"},
    "slope of the next head": {"mask": "alibi"},
    "window off by one": {"variant": "causal", "mask": "sliding_window_16"},
    "window ignored": {"variant": "causal", "mask": "sliding_window_16"},
    "rule ignored beside padding": {"variant": "causal", "mask": "causal_top_left+key_padding"},
    "padding ignored beside the rule": {"variant": "causal", "mask": "causal_top_left+key_padding"},
    "wrong kv head": {"num_kv_heads": 2},
    "kv heads tiled": {"num_kv_heads": 4},
    "given scale ignored": {"scale": 0.2},
    "given scale off by one percent": {"scale": 0.2},
}  # fmt: skip


def _allowed(problem: Problem, fault: str) -> np.ndarray:
    """(T, T), True where the position rule lets a query see a key."""
    query, key = np.arange(problem.q_len)[:, None], np.arange(problem.kv_len)
    window = problem.masking.window
    if not problem.masking.position or fault == "rule ignored beside padding":
        return np.ones((problem.q_len, problem.kv_len), dtype=bool)
    if window is None or fault == "window ignored":
        return key <= query
    return (key <= query) & (key > query - window - (1 if fault == "window off by one" else 0))


def _faulty_mask(mask: np.ndarray, fault: str) -> np.ndarray:
    """The mask tensor with the fault in it."""
    if fault in ("padding ignored", "padding ignored beside the rule"):
        return np.ones_like(mask)
    if fault.endswith("off by one key"):
        return np.roll(mask, 1, axis=-1)
    if fault in ("mask of the next head", "slope of the next head"):
        return np.roll(mask, 1, axis=1)
    if fault == "mask inverted":
        return ~mask
    return np.zeros_like(mask) if fault == "bias ignored" else mask


def _kv_heads(problem: Problem, fault: str) -> np.ndarray:
    """The key head of every query head."""
    heads = np.arange(problem.num_heads) // (problem.num_heads // problem.num_kv_heads)
    if fault == "wrong kv head":
        heads[-1] = 0
    return np.arange(problem.num_heads) % problem.num_kv_heads if fault == "kv heads tiled" else heads


def _output(problem: Problem, inputs: dict[str, Any], weights: dict[str, Any], fault: str) -> np.ndarray:
    """Plain float64 attention with one fault in it, rounded once to the problem's dtype."""
    tensors = {n: a if a.dtype == bool else a.astype(np.float64) for n, a in {**inputs, **weights}.items()}
    if problem.part == "core":
        q, k, v = (tensors[name] for name in "qkv")
    else:
        x = tensors["x"]
        q, k, v = (
            (x @ tensors[f"w_{name}"]).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
            for name, heads in (("q", problem.num_heads), ("k", problem.num_kv_heads), ("v", problem.num_kv_heads))
        )
    heads = _kv_heads(problem, fault)
    scale = {"given scale ignored": problem.head_dim**-0.5, "given scale off by one percent": 1.01 * problem.scale}
    scores = q @ k[:, heads].swapaxes(-1, -2) * scale.get(fault, problem.scale)  # (B, H, T, T)
    allowed = _allowed(problem, fault)
    if "mask" in tensors:
        mask = _faulty_mask(tensors["mask"], fault)
        if mask.dtype == bool:
            allowed = allowed & mask
        else:
            scores = scores + mask
    scores = np.where(allowed, scores, -np.inf)
    probabilities = np.exp(scores - scores.max(-1, keepdims=True))
    y = probabilities / probabilities.sum(-1, keepdims=True) @ v[:, heads]
    if problem.part == "block":
        y = y.swapaxes(1, 2).reshape(problem.output_shape()) @ tensors["w_o"]
    return np.asarray(y.astype(numpy_dtype(problem.dtype)))


@dataclasses.dataclass(frozen=True)
class _Known:
    inputs: dict[str, Any]
    weights: dict[str, Any]
    reference: np.ndarray
    limits: numerics.Limits


@pytest.fixture(scope="module")
def caught():
    """(part, dtype, fault, setup) -> (called wrong?, agreement, limits), each problem's oracle computed once."""
    known: dict[Problem, _Known] = {}

    def judge(part: Any, dtype: Any, fault: str, setup: dict[str, Any]):
        problem = Problem.make(part=part, seq_len=T, num_heads=HEADS, dtype=dtype, **setup)
        if problem not in known:
            inputs, weights = make_inputs(problem), make_weights(problem)
            reference = reference_output(problem, inputs, weights)
            eager = numerics.compare(torch_eager_rows(problem, inputs, weights, np.arange(T)), reference)
            judged = {"floor": numerics.floor_error(reference, dtype), "eager": dataclasses.asdict(eager)}
            known[problem] = _Known(inputs, weights, reference, limits_of(problem, judged, "normal"))
        k = known[problem]
        agreement = numerics.compare(_output(problem, k.inputs, k.weights, fault), k.reference)
        return not numerics.judge_agreement(agreement, k.limits)[0], agreement, k.limits

    return judge


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", PARTS)
def test_faults_of_masks_heads_and_scale_are_caught_in_every_dtype(caught, part, dtype, fault):
    is_caught, agreement, limits = caught(part, dtype, fault, FAULTS[fault])
    assert is_caught, (agreement, limits)


@pytest.mark.parametrize("setup", FAULTS.values(), ids=list(FAULTS))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", PARTS)
def test_the_same_computation_without_a_fault_passes(caught, part, dtype, setup):
    is_caught, agreement, limits = caught(part, dtype, "none", setup)
    assert not is_caught, (agreement, limits)


def test_right_outputs_of_random_masks_and_heads_raise_no_false_alarm():
    # 20 of the 1,000 seeds that `make perf-limits` judges in each dtype.
    runs = list(right_runs(range(20)))
    assert len(runs) == 20 * len(DTYPES) * 2
    alarms = [(r.problem.label(), r.arm, r.seed, r.agreement, r.limits) for r in runs if not r.ok]
    assert not alarms


def test_a_mask_that_is_added_has_limits_of_its_own():
    added = Problem.make(part="core", seq_len=8, mask="alibi", dtype="bf16")
    judge = {"floor": 1.0, "eager": {"worst_row_rel_err": 1.0}}  # far above every ceiling
    data = numerics.tolerances()["core", "bf16", "normal_added"]
    assert limits_of(added, judge, "normal").worst_row == data.ceiling
    plain = Problem.make(part="core", seq_len=8, mask="bool_qk", dtype="bf16")
    assert limits_of(plain, judge, "normal").worst_row == numerics.tolerances()["core", "bf16", "normal"].ceiling
