"""One problem has one id; what cannot be is refused with the way out."""

import pytest

from attnbench.errors import ProblemError
from attnbench.problem import Problem


def test_the_usual_scale_given_as_a_number_is_the_same_problem() -> None:
    usual, given = (Problem.make(seq_len=8, head_dim=64, scale=scale) for scale in (None, 0.125))
    assert given == usual
    assert given.problem_id == usual.problem_id
    assert (
        Problem.make(seq_len=8, head_dim=32, scale=0.125).problem_id != Problem.make(seq_len=8, head_dim=32).problem_id
    )


def test_key_heads_that_do_not_divide_come_with_a_number_that_does() -> None:
    with pytest.raises(ProblemError, match=r"num_kv_heads must divide num_heads \(12\), got 8; 4 does"):
        Problem.make(seq_len=8, num_heads=12, num_kv_heads=8)


def test_no_key_heads_are_refused_not_replaced() -> None:
    with pytest.raises(ProblemError, match="num_kv_heads must be a whole number of at least 1, got 0"):
        Problem.make(seq_len=8, num_kv_heads=0)


def test_a_decode_step_may_have_an_empty_cache_and_holds_its_new_tokens() -> None:
    first = Problem.make(seq_len=3, q_len=3, variant="decode", num_heads=2, head_dim=4)
    assert first.input_shapes()["past_key"] == (1, 2, 0, 4)
    with pytest.raises(ProblemError, match=r"kv_len \(cached and new tokens\) must be at least q_len, got 2 and 3"):
        Problem.make(seq_len=2, q_len=3, variant="decode")


def test_a_decode_step_with_another_mask_is_told_which_it_takes() -> None:
    with pytest.raises(ProblemError, match="decode causal_bottom_right"):
        Problem.make(seq_len=8, variant="decode", mask="none")
