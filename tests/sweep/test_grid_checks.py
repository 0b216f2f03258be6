"""What no problem of a sweep would use is refused, never left out without a word."""

from typing import Any

import pytest

from attnbench.errors import AttnbenchError
from attnbench.sweep.grid import problems, resolve


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"variants": ["self"], "q_lens": [4]}, "q_lens [4] needs variant decode, got variants self; add decode"),
        ({"part": ["core"], "bias": True}, "part core has no projections, so no bias; add part block"),
        ({"part": ["core"], "value_map": "low_rank"}, "so no value_map low_rank; add part block"),
        ({"part": ["core"], "variants": ["decode"]}, "part core has no decode; use part block, or variant causal"),
        ({"variants": ["decode"], "masks": ["key_padding"]}, "decode causal_bottom_right"),
        ({"variants": ["causal"], "masks": ["key_padding"]}, "variant causal takes causal and sliding-window rules"),
        ({"num_kv_heads": [0]}, "num_kv_heads must be whole numbers of at least 1"),
        ({"v_head_dims": [0]}, "v_head_dims must be whole numbers of at least 1"),
        ({"q_lens": [2, 2], "variants": ["decode"]}, "q_lens 2 is given twice"),
        ({"bias": "yes"}, "bias must be true or false, without quotes"),
        ({"stress": 1}, "stress must be true or false"),
    ],
)
def test_what_no_problem_uses_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        resolve(None, {"seq_lens": [32], **fields})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"variants": {"a": 1}}, "variants must be a name in quotes or a list of such (got {'a': 1})"),
        ({"seq_lens": [64, 1.5]}, "seq_lens must be a whole number or a list of such (got 1.5)"),
        ({"scale": "x"}, "scale must be a number (got 'x')"),
        ({"threads": "two"}, "threads must be a whole number (got 'two')"),
        ({"time_budget": [1]}, 'time_budget_s must be a time such as "90s", or a number of seconds (got [1])'),
        ({"memory_limit": 1.5}, 'memory_limit_bytes must be a size such as "8GiB", or a whole number of bytes'),
        ({"value_map": "x"}, "value_map must be 'joint' or 'low_rank' (got 'x')"),
        ({"baseline": 1}, "baseline must be a name in quotes (got 1)"),
    ],
)
def test_a_value_of_another_type_is_told_key_rule_and_value(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AttnbenchError) as caught:
        resolve(None, fields)
    assert text in str(caught.value)


def test_part_core_beside_block_leaves_out_what_it_does_not_have() -> None:
    asked = {"part": ["block", "core"], "variants": ["decode", "self"], "bias": True, "q_lens": [2], "seq_lens": [8]}
    found = {(p.part, p.variant, p.bias) for p in problems(resolve(None, asked))}
    assert found == {("block", "decode", True), ("block", "self", True), ("core", "self", False)}


def test_a_preset_with_biases_can_be_tried_as_a_core() -> None:
    found = problems(resolve(None, {"preset": "vit-b16", "part": ["core"], "seq_lens": [8]}))
    assert [(p.part, p.bias, p.num_heads) for p in found] == [("core", False, 12)]
