"""The oracle equals the definition of attention for every mask and head form."""

import numpy as np
import pytest

from attnbench.errors import ProblemError
from attnbench.inputs import make_inputs, make_weights
from attnbench.problem import Problem
from attnbench.reference import reference_attention, reference_output


def naive(problem, inputs, weights):
    """The definition, with whole matrices and Python loops over heads; independent of the oracle's tiles."""
    p = problem
    if p.part == "core":
        q, k, v = (np.asarray(inputs[n], np.float64) for n in ("q", "k", "v"))
    else:
        x = np.asarray(inputs.get("x", inputs.get("query")), np.float64)
        c = np.asarray(inputs.get("context", x), np.float64)
        w = {n: np.asarray(a, np.float64) for n, a in weights.items()}
        q, k, v = (
            (source @ w[f"w_{n}"] + w.get(f"b_{n}", 0.0)).reshape(*source.shape[:2], heads, -1).swapaxes(1, 2)
            for n, source, heads in (("q", x, p.num_heads), ("k", c, p.num_kv_heads), ("v", c, p.num_kv_heads))
        )
        if p.variant == "decode":
            k = np.concatenate([inputs["past_key"], k], axis=2)
            v = np.concatenate([inputs["past_value"], v], axis=2)
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    tensor = np.broadcast_to(np.asarray(inputs["mask"]), (*q.shape[:3], k.shape[2])) if "mask" in inputs else None
    for b, h, i in np.ndindex(q.shape[:3]):
        g = h // (p.num_heads // p.num_kv_heads)
        scores = {}
        for j in range(k.shape[2]):
            if not position_allows(p.mask.split("+")[0], i, j, q.shape[2], k.shape[2]):
                continue
            score = float(q[b, h, i] @ k[b, g, j]) * p.scale
            if tensor is not None and tensor.dtype == bool:
                if not tensor[b, h, i, j]:
                    continue
            elif tensor is not None:
                score += float(tensor[b, h, i, j])
            scores[j] = score
        if scores:
            top = max(scores.values())
            total = sum(np.exp(s - top) for s in scores.values())
            out[b, h, i] = sum(np.exp(s - top) / total * v[b, g, j] for j, s in scores.items())
    if p.part == "core":
        return out
    return out.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ w["w_o"] + w.get("b_o", 0.0)


def position_allows(rule, i, j, q_len, kv_len):
    if rule == "causal_top_left":
        return j <= i
    if rule == "causal_bottom_right":
        return j <= i + kv_len - q_len
    if rule.startswith("sliding_window_"):
        return i - int(rule.rsplit("_", 1)[1]) < j <= i
    return True


@pytest.mark.parametrize(
    "heads", [{}, {"num_kv_heads": 2, "bias": True}, {"num_kv_heads": 1, "v_head_dim": 3, "scale": 0.7}]
)
@pytest.mark.parametrize(
    ("part", "variant", "mask", "lengths"),
    [
        ("block", "self", "none", (6, 6)), ("block", "self", "key_padding", (6, 6)),
        ("block", "cross", "bool_b1qk", (4, 6)), ("block", "self", "bool_1hqk", (6, 6)),
        ("block", "self", "bias_1hqk", (5, 5)), ("block", "self", "alibi", (5, 5)), ("block", "decode", "", (2, 6)),
        ("block", "decode", "causal_bottom_right+key_padding", (1, 5)),
        ("block", "causal", "sliding_window_2", (6, 6)), ("block", "causal", "causal_top_left+key_padding", (6, 6)),
        ("core", "causal", "causal_bottom_right", (3, 6)), ("core", "causal", "causal_bottom_right", (6, 3)),
        ("core", "causal", "sliding_window_3+bool_qk", (7, 5)), ("core", "cross", "bool_qk", (3, 5)),
        ("core", "causal", "causal_bottom_right+bias_1hqk", (4, 6)),
    ],
)  # fmt: skip
def test_the_oracle_equals_the_definition_for_every_mask_and_head_form(part, variant, mask, lengths, heads):
    heads = {**heads, "bias": heads.get("bias", False) and part == "block"}
    problem = Problem.make(
        part=part, variant=variant, seq_len=lengths[variant == "decode"], q_len=lengths[0],
        kv_len=None if variant == "decode" else lengths[1], batch_size=2, num_heads=4, head_dim=4, mask=mask, **heads,
    )  # fmt: skip
    inputs, weights = make_inputs(problem), make_weights(problem)
    expected = naive(problem, inputs, weights)
    np.testing.assert_allclose(reference_output(problem, inputs, weights), expected, rtol=1e-12, atol=1e-13)
    rows = np.array([lengths[0] - 1, 0])
    picked = reference_output(problem, inputs, weights, rows=rows)
    np.testing.assert_allclose(picked, expected[..., rows, :], rtol=1e-12, atol=1e-13)


def test_a_mask_that_does_not_broadcast_is_refused_with_both_shapes():
    with pytest.raises(ProblemError, match=r"shape \(3, 3\), which does not broadcast to \(2, 4\)"):
        reference_attention(np.zeros((2, 4)), np.zeros((4, 4)), np.zeros((4, 4)), mask_tensor=np.ones((3, 3), bool))
