"""The reference is one path: no grad mode and no fast path changes what the block computes (known fault 10)."""

import numpy as np
import pytest
import torch

from attnbench.inputs import make_inputs, make_weights
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.torch_model import build_module, from_torch, to_torch

SIZES = {"seq_len": 5, "batch_size": 2, "num_heads": 2, "head_dim": 8}  # E = 16
PADDED = Problem.make(**SIZES, mask="key_padding", bias=True)
BIASED = Problem.make(**SIZES, mask="bias_1hqk", bias=True)


def _inputs(problem: Problem) -> dict[str, np.ndarray]:
    inputs = make_inputs(problem)
    if problem is PADDED:
        inputs["mask"][1] = False  # every key of sample 1 is padding
    return inputs


def _outputs(problem: Problem, attention: str) -> list[np.ndarray]:
    """The block's output without and with grad mode, without torch's fast path, and under inference mode."""
    module = build_module(problem, attention=attention)
    tensors = [to_torch(a) for a in _inputs(problem).values()]
    found = []
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            for fast_path in (True, False):
                torch.backends.mha.set_fastpath_enabled(fast_path)
                with mode():
                    found.append(from_torch(module(*tensors)))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return found


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("problem", [PADDED, BIASED], ids=lambda p: p.mask)
def test_grad_mode_and_fast_path_do_not_change_a_bit(problem: Problem, attention: str) -> None:
    first, *others = _outputs(problem, attention)
    assert np.isfinite(first).all()
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_sample_whose_keys_are_all_padding_is_the_bias_of_the_output_projection(attention: str) -> None:
    bias = make_weights(PADDED)["b_o"]
    y = _outputs(PADDED, attention)[0]
    np.testing.assert_allclose(y[1], np.broadcast_to(bias, (5, 16)), atol=1e-6)
    expected = reference_output(PADDED, _inputs(PADDED), make_weights(PADDED))
    np.testing.assert_allclose(expected[1], np.broadcast_to(bias, (5, 16)), atol=1e-12)
    np.testing.assert_allclose(y, expected, atol=1e-5)
