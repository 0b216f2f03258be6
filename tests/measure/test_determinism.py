"""The three questions are answered by bits, and what does not apply has its reason."""

import numpy as np
import pytest

from attnbench import plugins
from attnbench.inputs import make_inputs
from attnbench.interfaces import Settings
from attnbench.measure import determinism as d
from attnbench.problem import Problem

CAUSAL = Problem.make(variant="causal", seq_len=12, num_heads=2, head_dim=4)
SELF = Problem.make(variant="self", seq_len=12, num_heads=2, head_dim=4)


class Session:
    """y = x + fault(x, number of the call): what a fault changes is known."""

    def __init__(self, fault=lambda x, calls: 0.0):
        self.fault, self.calls, self.shapes = fault, 0, []

    def bind(self, inputs):
        x = inputs["x"].copy()
        self.shapes.append(x.shape)

        def call():
            self.calls += 1
            self.y = (x + self.fault(x, self.calls)).astype(np.float32)

        return call

    def outputs(self):
        return self.y.copy()


def _answers(problem, fault=lambda x, calls: 0.0):
    return dict(d.ask_session(Session(fault), problem, seed=0).answers)


def test_a_session_that_gives_the_same_bits_is_all_three():
    assert _answers(CAUSAL) == dict.fromkeys(d.PROPERTIES, True)


def test_one_bit_that_changes_from_call_to_call_is_not_repeatable():
    found = _answers(CAUSAL, lambda x, calls: np.where(np.arange(x.size).reshape(x.shape) == 5, calls * 1e-3, 0.0))
    assert found["bitwise_repeatable"] is False


def test_a_sum_over_the_batch_is_not_batch_invariant():
    assert _answers(CAUSAL, lambda x, calls: 1e-3 * x.shape[0]) == {
        "bitwise_repeatable": True, "batch_invariant": False, "prefix_invariant": True,
    }  # fmt: skip


def test_a_kernel_that_changes_with_the_length_is_not_prefix_invariant():
    assert _answers(CAUSAL, lambda x, calls: 1e-3 * x.shape[1]) == {
        "bitwise_repeatable": True, "batch_invariant": True, "prefix_invariant": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "problem",
    [
        SELF,
        Problem.make(variant="decode", seq_len=12),
        Problem.make(part="core", variant="causal", mask="causal_bottom_right", seq_len=4, kv_len=9),
        Problem.make(variant="causal", seq_len=1),
    ],
    ids=lambda p: p.label(),
)
def test_no_prefix_is_asked_of_where_tokens_see_later_ones(problem):
    assert d.why_no_prefix(problem)
    if problem is SELF:
        found = d.ask_session(Session(), problem, seed=0)
        assert found.answers["prefix_invariant"] is None
        assert "another problem" in found.reasons["prefix_invariant"]


def test_no_more_than_six_calls_at_small_sizes_are_made():
    session = Session()
    d.ask_session(session, Problem.make(variant="causal", seq_len=100_000, num_heads=1, head_dim=4), seed=0)
    assert session.calls == 6
    assert session.shapes == [(1, 64, 4), (1, 64, 4), (2, 64, 4), (1, 42, 4), (1, 64, 4)]


def test_a_prefix_cuts_masks_along_both_lengths_and_an_item_keeps_what_all_share():
    problem = Problem.make(variant="causal", mask="causal_top_left+bool_b1qk", seq_len=6, batch_size=2, num_heads=1)
    inputs = make_inputs(problem)
    cut = d.first_tokens(problem, inputs, 4)
    assert {name: a.shape for name, a in cut.items()} == {"x": (2, 4, 64), "mask": (2, 1, 4, 4)}
    np.testing.assert_array_equal(cut["mask"], inputs["mask"][:, :, :4, :4])
    shared = Problem.make(mask="bool_qk", seq_len=6, batch_size=2, num_heads=1)
    assert d.first_item(shared, make_inputs(shared))["mask"].shape == (6, 6)


@pytest.mark.parametrize("length", [1, 70])
def test_decode_keeps_a_cache_when_it_is_shortened(length):
    small = d.shortened(Problem.make(variant="decode", seq_len=500, q_len=length), 64)
    assert (small.q_len, small.kv_len) == (min(length, 64), min(length, 64) + 64)


@pytest.mark.parametrize("runtime", ["torch-eager", "torch-sdpa"])
@pytest.mark.parametrize(
    "problem",
    [
        Problem.make(variant="causal", mask="causal_top_left+key_padding", seq_len=40, num_kv_heads=2),
        Problem.make(part="core", variant="cross", mask="bias_1hqk", seq_len=20, dtype="bf16"),
        Problem.make(variant="decode", seq_len=30, q_len=2),
    ],
    ids=lambda p: p.label(),
)
def test_torch_is_bitwise_repeatable_whatever_the_problem(runtime, problem):
    with plugins.load_runtime(runtime).load(problem, None, Settings()) as session:
        found = d.ask_session(session, problem, seed=0)
    assert found.answers["bitwise_repeatable"] is True
    assert isinstance(found.answers["batch_invariant"], bool)
