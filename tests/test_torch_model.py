"""The PyTorch block: right in every variant and dtype, and exportable with dynamic lengths."""

import warnings

import ml_dtypes
import numpy as np
import pytest
import torch

from attnbench.errors import ProblemError
from attnbench.inputs import make_inputs, make_weights
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.torch_model import AttentionCore, build_module, from_torch, to_torch

VARIANTS = ["self", "cross", "causal"]
ATTENTIONS = ["eager", "sdpa"]
MAX_ABS_ERR = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 4e-2}  # for outputs of size about 1


def run(module, inputs):
    return from_torch(module(*(to_torch(values) for values in inputs.values())))


def assert_close_to_reference(problem, module):
    inputs = make_inputs(problem)
    y = run(module, inputs)
    expected = reference_output(problem, inputs, make_weights(problem))
    assert y.shape == problem.output_shape()
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=0, atol=MAX_ABS_ERR[problem.dtype])


def mean_of_allowed(core, q_len, kv_len):
    """F-mean: Q = 0, V[j] = j; what row i gives is the mean of the key indices that it may see."""
    v = torch.arange(kv_len, dtype=torch.float32)[:, None].expand(1, 2, kv_len, 8)
    out = core(torch.zeros(1, 2, q_len, 8), torch.ones(1, 2, kv_len, 8), v)
    assert torch.equal(out, out[:, :1, :, :1].expand_as(out))
    return out[0, 0, :, 0].tolist()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("part", ["block", "core"])
def test_the_module_computes_the_problem(part, variant, dtype, attention):
    problem = Problem.make(
        part=part, variant=variant, seq_len=37, batch_size=2, num_heads=4, head_dim=16, dtype=dtype
    )  # fmt: skip
    assert_close_to_reference(problem, build_module(problem, attention=attention))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("lengths", [(1, 5), (3, 7), (7, 3)])
def test_a_causal_core_with_different_lengths_is_top_left(lengths, attention):
    problem = Problem.make(part="core", variant="causal", seq_len=lengths[0], kv_len=lengths[1], num_heads=2)
    assert_close_to_reference(problem, build_module(problem, attention=attention))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_module_serves_every_length_and_batch(variant, attention):
    problem = Problem.make(variant=variant, seq_len=12, num_heads=2, head_dim=16)
    module = build_module(problem, attention=attention)
    for q_len, batch_size in ((1, 1), (5, 3), (33, 2)):
        assert_close_to_reference(problem.at(q_len=q_len, batch_size=batch_size), module)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(
    ("q_len", "kv_len", "expected"),
    [(1, 5, [0]), (3, 7, [0, 0.5, 1]), (4, 4, [0, 0.5, 1, 1.5]), (7, 3, [0, 0.5, 1, 1, 1, 1, 1])],
)
def test_causal_rows_are_means_of_the_keys_up_to_their_own(q_len, kv_len, expected, attention):
    core = AttentionCore(mask="causal_top_left", attention=attention, scale=1.0)
    np.testing.assert_allclose(mean_of_allowed(core, q_len, kv_len), expected, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_causality_does_not_depend_on_a_length(attention):
    core = AttentionCore(mask="causal_top_left", attention=attention, scale=1.0)
    np.testing.assert_allclose(mean_of_allowed(core, 10, 10), np.arange(10) / 2, atol=1e-5)
    assert mean_of_allowed(core, 1, 1) == [0]
    assert mean_of_allowed(core, 1, 4) == [0]  # deciding "causal only if T > 1" would give 1.5


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_without_a_mask_every_row_sees_every_key(attention):
    core = AttentionCore(mask="none", attention=attention, scale=1.0)
    np.testing.assert_allclose(mean_of_allowed(core, 3, 7), [3, 3, 3], atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_causal_block_leaks_nothing_from_later_tokens(attention):
    problem = Problem.make(variant="causal", seq_len=20, num_heads=2, head_dim=8)
    module = build_module(problem, attention=attention)
    inputs = make_inputs(problem)
    poisoned = {"x": inputs["x"].copy()}
    poisoned["x"][:, 11:] = 10000.0
    before, after = run(module, inputs), run(module, poisoned)
    np.testing.assert_allclose(after[:, :11], before[:, :11], rtol=0, atol=1e-5)
    assert np.abs(after[:, 11:] - before[:, 11:]).max() > 1  # the poison is seen where it may be


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_self_attention_is_cross_attention_with_itself(attention):
    problem = Problem.make(seq_len=9, num_heads=2, head_dim=8)
    module = build_module(problem, attention=attention)
    x = to_torch(make_inputs(problem)["x"])
    assert torch.equal(module(x), module(x, x))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_block_agrees_with_torch_multihead_attention(variant, attention):
    problem = Problem.make(variant=variant, seq_len=23, batch_size=2, num_heads=4, head_dim=8)
    weights = {name: torch.from_numpy(w) for name, w in make_weights(problem).items()}
    mha = torch.nn.MultiheadAttention(32, 4, bias=False, batch_first=True).eval()
    mha.in_proj_weight.data = torch.cat([weights[name].T for name in ("w_q", "w_k", "w_v")])
    mha.out_proj.weight.data = weights["w_o"].T
    blocked = torch.ones(23, 23, dtype=torch.bool).triu(1) if variant == "causal" else None
    inputs = [to_torch(values) for values in make_inputs(problem).values()]
    with torch.no_grad():
        expected, _ = mha(inputs[0], inputs[-1], inputs[-1], attn_mask=blocked, need_weights=True)
    y = build_module(problem, attention=attention)(*inputs)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("part", ["block", "core"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_exported_graph_bakes_no_length_in(part, variant, attention):
    different = variant == "cross" or (part, variant) == ("core", "causal")
    problem = Problem.make(
        part=part, variant=variant, seq_len=12, kv_len=10 if different else None, batch_size=2, num_heads=2, head_dim=8
    )
    inputs = make_inputs(problem)
    dims = {name: torch.export.Dim(name, min=1) for name in ("batch_size", "seq_len", "q_len", "kv_len")}
    symbols = problem.symbolic_dims()
    dynamic = tuple({axis: dims[s] for axis, s in enumerate(symbols[name]) if isinstance(s, str)} for name in inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations; what counts is the graph
        program = torch.export.export(
            build_module(problem, attention=attention), tuple(map(to_torch, inputs.values())), dynamic_shapes=dynamic
        )
    module = program.module()
    for q_len, kv_len, batch_size in ((1, 1, 1), (33, 17, 3), (7, 19, 2)):
        other = problem.at(q_len=q_len, kv_len=kv_len if different else q_len, batch_size=batch_size)
        assert_close_to_reference(other, module)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_keys_and_values_of_different_lengths_are_refused(attention):
    core = AttentionCore(mask="none", attention=attention, scale=1.0)
    with pytest.raises(ProblemError, match="k and v must have the same length, got 5 and 4"):
        core(torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 5, 8), torch.zeros(1, 1, 4, 8))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_modules_are_in_eval_mode_with_frozen_weights_of_the_dtype(dtype):
    module = build_module(Problem.make(seq_len=4, num_heads=2, head_dim=8, dtype=dtype))
    expected = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    parameters = list(module.parameters())
    assert len(parameters) == 4
    assert not module.training
    assert not any(p.requires_grad for p in parameters)
    assert {(p.dtype, p.device.type) for p in parameters} == {(expected, "cpu")}


def test_the_seed_chooses_the_weights():
    problem = Problem.make(seq_len=4, num_heads=2, head_dim=8)
    for seed in (0, 1):
        expected = make_weights(problem, seed=seed)["w_k"].T
        np.testing.assert_array_equal(build_module(problem, seed=seed).w_k.weight.numpy(), expected)


def test_unknown_masks_and_attentions_are_refused():
    with pytest.raises(ProblemError, match="attention must be one of eager, sdpa; got 'flash'"):
        build_module(Problem.make(seq_len=4), attention="flash")
    with pytest.raises(ProblemError, match=r"mask must be none, .*; got 'causal'"):
        AttentionCore(mask="causal", attention="eager", scale=1.0)


MASKED = [
    ("self", mask) for mask in ("key_padding", "bool_b1qk", "bool_1hqk", "bool_qk", "bias_1hqk", "alibi")
] + [
    ("cross", "key_padding"), ("cross", "bias_1hqk"), ("causal", "causal_bottom_right"), ("causal", "sliding_window_3"),
    ("causal", "causal_top_left+key_padding"), ("causal", "sliding_window_5+bool_qk"),
    ("causal", "causal_bottom_right+bias_1hqk"),
]  # fmt: skip
HEADS = [
    {"num_kv_heads": 4}, {"num_kv_heads": 2, "bias": True}, {"num_kv_heads": 1, "v_head_dim": 8, "scale": 0.3},
]  # fmt: skip


@pytest.mark.parametrize("heads", HEADS, ids=["every head", "grouped", "one key head"])
@pytest.mark.parametrize(("variant", "mask"), MASKED)
@pytest.mark.parametrize("part", ["block", "core"])
def test_masks_and_heads_of_every_kind_are_what_the_oracle_says(part, variant, mask, heads):
    heads = {**heads, "bias": heads.get("bias", False) and part == "block"}
    lengths = [(7, 5), (5, 7)] if variant == "cross" or (part, variant) == ("core", "causal") else [(7, 7)]
    for q_len, kv_len in lengths:
        problem = Problem.make(
            part=part, variant=variant, seq_len=q_len, kv_len=kv_len, batch_size=2, num_heads=4, head_dim=16, mask=mask,
            **heads,
        )  # fmt: skip
        for attention in ATTENTIONS:
            assert_close_to_reference(problem, build_module(problem, attention=attention))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_the_low_rank_value_map_is_the_joint_one(kv_heads, bias):
    """Per head value-down (E -> D_v) and value-up (D_v -> E): w_v's columns and w_o's rows of the head."""
    shape = {"seq_len": 9, "batch_size": 2, "num_heads": 4, "num_kv_heads": kv_heads, "head_dim": 8, "bias": bias}
    joint, low_rank = (Problem.make(**shape, value_map=name) for name in ("joint", "low_rank"))
    for attention in ATTENTIONS:
        modules = [build_module(p, attention=attention) for p in (joint, low_rank)]
        assert_close_to_reference(low_rank, modules[1])
        x = make_inputs(joint)
        np.testing.assert_allclose(run(modules[0], x), run(modules[1], x), rtol=0, atol=1e-5)
        counts = [sum(p.numel() for p in module.parameters()) for module in modules]
        assert counts[0] == counts[1] == 2 * 32 * 32 + 2 * 32 * kv_heads * 8 + bias * (2 * 32 + 2 * kv_heads * 8)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_query_heads_share_the_key_head_of_their_group(attention):
    """F-head: V of key head h is h + 1, so 4 query heads on 2 key heads give 1, 1, 2, 2, not 1, 2, 1, 2."""
    v = torch.arange(1.0, 3.0)[:, None, None].expand(1, 2, 5, 8)
    core = AttentionCore(mask="none", attention=attention, scale=1.0)
    out = core(torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8), v)
    assert out[0, :, 0, 0].tolist() == pytest.approx([1.0, 1.0, 2.0, 2.0])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_row_without_any_key_is_zero(attention):
    mask = torch.ones(1, 1, 4, 5, dtype=torch.bool)
    mask[..., 1, :] = False
    core = AttentionCore(mask="bool_b1qk", attention=attention, scale=1.0)
    out = core(torch.randn(1, 2, 4, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8), mask)
    assert torch.equal(out[:, :, 1], torch.zeros(1, 2, 8))
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("mask", "lengths", "expected"),
    [
        ("causal_bottom_right", (3, 7), [2.0, 2.5, 3.0]),
        ("causal_bottom_right", (5, 3), [0.0, 0.0, 0.0, 0.5, 1.0]),  # the first two queries see no key
        ("sliding_window_2", (4, 4), [0.0, 0.5, 1.5, 2.5]),
        ("sliding_window_1", (3, 3), [0.0, 1.0, 2.0]),
    ],
)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_rows_are_means_of_the_keys_that_the_rule_allows(mask, lengths, expected, attention):
    core = AttentionCore(mask=mask, attention=attention, scale=1.0)
    assert mean_of_allowed(core, *lengths) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_arrays_go_to_torch_and_back_bit_by_bit_without_a_copy(dtype):
    array = np.arange(-6, 6).reshape(3, 4).astype(dtype) / 7
    array = array.astype(dtype)
    tensor = to_torch(array)
    back = from_torch(tensor)
    assert str(tensor.dtype) == f"torch.{array.dtype.name}"
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    array[1, 2] = 5
    assert tensor[1, 2] == 5
    assert back[1, 2] == 5


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_read_only_arrays_are_copied(dtype):
    array = np.ones(4, dtype)
    array.flags.writeable = False
    to_torch(array)[0] = 3  # a warning would be an error here
    assert array[0] == 1


def test_a_transposed_bfloat16_tensor_keeps_its_order():
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(from_torch(to_torch(array).T), array.T)
