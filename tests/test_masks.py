"""Masks by name: parsed, positioned, refused."""

import numpy as np
import pytest

from attnbench.errors import ProblemError
from attnbench.inputs import make_inputs
from attnbench.masks import EXAMPLES, parse_mask
from attnbench.problem import Problem


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_a_name(name):
    assert parse_mask(name).name == name


@pytest.mark.parametrize(
    "name",
    ["", "causal", "none+key_padding", "key_padding+causal_top_left", "causal_top_left+causal_bottom_right",
     "key_padding+alibi", "sliding_window_0", "sliding_window_", "sliding_window_-1", "+", "causal_top_left+"],
)  # fmt: skip
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ProblemError, match="mask must be"):
        parse_mask(name)


@pytest.mark.parametrize(
    ("name", "q_len", "kv_len", "first", "end"),
    [
        ("none", 2, 3, [0, 0], [3, 3]),
        ("causal_top_left", 3, 2, [0, 0, 0], [1, 2, 2]),
        ("causal_bottom_right", 2, 4, [0, 0], [3, 4]),
        ("causal_bottom_right", 3, 1, [0, 0, 0], [0, 0, 1]),
        ("sliding_window_2", 4, 4, [0, 0, 1, 2], [1, 2, 3, 4]),
        ("sliding_window_2", 4, 2, [0, 0, 1, 2], [1, 2, 2, 2]),
    ],
)
def test_what_positions_see(name, q_len, kv_len, first, end):
    found = parse_mask(name).visible(np.arange(q_len), q_len, kv_len)
    assert [part.tolist() for part in found] == [first, end]


@pytest.mark.parametrize(
    ("variant", "mask"),
    [("self", "causal_top_left"), ("causal", "none"), ("cross", "sliding_window_2"), ("causal", "alibi")],
)
def test_a_mask_that_contradicts_the_variant_is_refused(variant, mask):
    with pytest.raises(ProblemError, match="contradicts mask"):
        Problem.make(variant=variant, seq_len=4, mask=mask)


@pytest.mark.parametrize(
    ("mask", "shape"),
    [("key_padding", (2, 1, 1, 6)), ("bool_b1qk", (2, 1, 6, 6)), ("bool_1hqk", (1, 3, 6, 6)), ("bool_qk", (6, 6)),
     ("bias_1hqk", (1, 3, 6, 6)), ("alibi", (1, 3, 6, 6))],
)  # fmt: skip
def test_mask_tensors_have_their_shape_and_kind(mask, shape):
    problem = Problem.make(seq_len=6, batch_size=2, num_heads=3, head_dim=4, dtype="fp16", mask=mask)
    tensor = make_inputs(problem)["mask"]
    assert tensor.shape == shape == problem.input_shapes()["mask"]
    is_bool = problem.input_kinds()["mask"] == "bool"
    assert tensor.dtype == (np.bool_ if is_bool else np.float16)
    if is_bool:
        assert tensor[..., 0].all()
        assert not tensor.all()


def test_padding_differs_between_samples_and_is_not_a_prefix():
    tensor = make_inputs(Problem.make(seq_len=64, batch_size=2, num_heads=1, head_dim=4, mask="key_padding"))["mask"]
    first, second = tensor[:, 0, 0]
    assert (first != second).any()
    assert (np.diff(first.astype(int)) > 0).any()  # a key after a masked one is allowed again


def test_alibi_falls_with_distance_by_the_slope_of_the_head():
    tensor = make_inputs(Problem.make(seq_len=4, num_heads=2, head_dim=4, mask="alibi"))["mask"]
    assert tensor[0, 0, 3].tolist() == pytest.approx([-3 / 16, -2 / 16, -1 / 16, 0])  # 2^(-8/2)
    assert tensor[0, 1, 0].tolist() == pytest.approx([0, -1 / 256, -2 / 256, -3 / 256])  # 2^(-8)


def test_problems_of_before_keep_their_ids():
    assert Problem.make(seq_len=128).as_dict().keys() == {
        "part", "variant", "batch_size", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "dtype", "mask",
    }  # fmt: skip
    other = Problem.make(seq_len=128, num_kv_heads=2, v_head_dim=32, scale=0.5, bias=True, mask="alibi")
    assert Problem.from_dict(other.as_dict()) == other
    assert other.label() == "block self T=128 fp32 alibi H=8/2 D=64/32 scale=0.5 bias"


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads"), ({"scale": 0.0}, "scale must be"),
        ({"scale": float("nan")}, "scale must be"), ({"part": "core", "bias": True}, "no projections"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(fields, rule):
    with pytest.raises(ProblemError, match=rule):
        Problem.make(seq_len=4, **fields)
