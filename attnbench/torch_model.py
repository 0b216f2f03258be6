"""Multi-head attention in PyTorch, to be read: what the exporters export and the torch arms run.

Shapes: B batch_size, T sequence length (T_q of the queries, T_kv of keys and values), d embed_dim, h num_heads,
d_h head_dim, d_v v_head_dim, h_kv num_kv_heads, d = h * d_h.
"""

import math
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnbench.errors import ProblemError
from attnbench.inputs import make_weights, weight_shapes
from attnbench.interfaces import Array, numpy_dtype
from attnbench.masks import Mask, parse_mask
from attnbench.problem import Problem

Attention = Literal["eager", "sdpa"]


def eager_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: Mask, scale: float) -> Tensor:
    """Attention written out.

    Args:
        q: (B, h, T_q, d_h).
        k: (B, h_kv, T_kv, d_h), h_kv divides h.
        v: (B, h_kv, T_kv, d_v).
        mask: None; bool, True means attend; or added to the scores. Broadcasts to (B, h, T_q, T_kv).
        rule: what positions allow.
        scale: of the scores.

    Returns:
        (B, h, T_q, d_v); zero where a query has no key.
    """
    k = repeat_heads(k, q.shape[1])  # (B, h, T_kv, d_h)
    v = repeat_heads(v, q.shape[1])  # (B, h, T_kv, d_v)
    scores = (q * scale) @ k.transpose(-2, -1)  # (B, h, T_q, T_kv)
    allowed = allowed_keys(mask, rule, q, k)  # broadcasts to (B, h, T_q, T_kv)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask  # (B, h, T_q, T_kv)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))  # (B, h, T_q, T_kv)
    weights = torch.softmax(scores, dim=-1)  # (B, h, T_q, T_kv), each row sums to 1
    if allowed is not None and rule.may_mask_rows:
        weights = weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)  # the softmax of no key is NaN
    return weights @ v  # (B, h, T_q, d_v)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """(B, h_kv, T, d) -> (B, h, T, d): each key head serves h / h_kv query heads beside each other."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def allowed_keys(mask: Tensor | None, rule: Mask, q: Tensor, k: Tensor) -> Tensor | None:
    """True where a query may see a key, by position and by a boolean mask; None where every key is allowed."""
    by_mask = mask if mask is not None and mask.dtype == torch.bool else None
    if not rule.position:
        return by_mask
    by_position = visible(rule, q, k)  # (T_q, T_kv)
    return by_position if by_mask is None else by_position & by_mask


def visible(rule: Mask, queries: Tensor, keys: Tensor) -> Tensor:
    """True where query i may see key j by position alone. (..., T_q, any), (..., T_kv, any) -> (T_q, T_kv)."""
    query = torch.arange(queries.shape[-2], device=queries.device)[:, None]  # (T_q, 1)
    key = torch.arange(keys.shape[-2], device=queries.device)  # (T_kv,)
    if rule.position == "causal_bottom_right":
        query = query + (keys.shape[-2] - queries.shape[-2])  # the last query sees the last key
    if rule.window is None:
        return key <= query  # (T_q, T_kv)
    return (key <= query) & (key > query - rule.window)  # (T_q, T_kv)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: Mask, scale: float) -> Tensor:
    """The same by PyTorch's fused operator; its `is_causal` is top-left. Shapes as in `eager_attention`."""
    is_causal = rule.position == "causal_top_left" and mask is None
    if rule.position and not is_causal:
        by_position = visible(rule, q, k)  # (T_q, T_kv)
        if mask is None:
            mask = by_position
        elif mask.dtype == torch.bool:
            mask = mask & by_position  # broadcasts to (B, h, T_q, T_kv)
        else:
            mask = mask.masked_fill(~by_position, float("-inf"))
    if mask is not None and mask.ndim == 4 and mask.shape[2] == 1:
        # onnxruntime 1.32 runs Attention only with a mask that has every query's row.
        mask = mask.expand(-1, -1, q.shape[2], -1)  # (B, 1, T_q, T_kv)
    usual = scale == 1.0 / math.sqrt(q.shape[-1])
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=None if usual else scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # (B, h, T_q, d_v)  # fmt: skip


class AttentionCore(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Attention on given q, k, v: softmax(q k^T * scale + mask) v.

    Args:
        mask: a name of `masks.parse_mask`; a property of the module, never guessed from a shape.
        attention: `eager` writes the scores out, `sdpa` calls the fused operator.
        scale: of the scores.

    Raises:
        ProblemError: an unknown mask or attention.
    """

    def __init__(self, *, mask: str, attention: Attention, scale: float) -> None:
        super().__init__()
        if attention not in get_args(Attention):
            raise ProblemError(f"attention must be one of {', '.join(get_args(Attention))}; got {attention!r}")
        self.rule, self.scale = parse_mask(mask), scale
        self.attend = eager_attention if attention == "eager" else sdpa_attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend: q (B, h, T_q, d_h), k (B, h_kv, T_kv, d_h), v (B, h_kv, T_kv, d_v) -> (B, h, T_q, d_v).

        Raises:
            ProblemError: k and v differ in length (the fused operator would read past the end without a word).
        """
        # While a graph is traced the lengths are symbols: comparing them would tie them together in the file.
        if not torch.compiler.is_compiling() and not torch.jit.is_tracing() and k.shape[-2] != v.shape[-2]:
            raise ProblemError(f"k and v must have the same length, got {k.shape[-2]} and {v.shape[-2]}")
        return self.attend(q, k, v, mask, self.rule, self.scale)  # (B, h, T_q, d_v)


class AttentionBlock(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Multi-head attention with its projections.

    Self-attention passes one sequence; cross-attention passes the context that keys and values come from: the only
    difference. Causal is a mask. With fewer key heads than query heads it is grouped-query attention (Ainslie et al.,
    2023), with one it is multi-query. See Vaswani et al., 2017, section 3.2.

    With value map `low_rank` the output projection is written as texts that explain attention do: each head lifts its
    own d_v values to d by its rows of w_o (value-up), and the heads are added. The same weights, the same function.

    Args:
        problem: gives the sizes, the mask, the scale and whether the projections have a bias.
        attention: as in `AttentionCore`.
    """

    def __init__(self, problem: Problem, *, attention: Attention) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = problem.num_heads, problem.num_kv_heads
        for name, (rows, columns) in weight_shapes(problem).items():
            setattr(self, name, nn.Linear(rows, columns, bias=problem.bias))
        self.value_up: nn.Parameter | None = None
        if problem.value_map == "low_rank":
            del self.w_o
            self.value_up = nn.Parameter(torch.empty(problem.num_heads, problem.v_head_dim, problem.embed_dim))
            self.value_bias = nn.Parameter(torch.empty(problem.embed_dim)) if problem.bias else None
        self.core = AttentionCore(mask=problem.mask, attention=attention, scale=problem.scale)

    def forward(self, query: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Attend: query (B, T_q, d), context (B, T_kv, d); without a context the query itself -> (B, T_q, d)."""
        if context is None:
            context = query
        q, k, v = self.project(query, context)
        return self.merge(self.core(q, k, v, mask))  # (B, T_q, d)

    def project(self, query: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by heads."""
        q = split_heads(self.w_q(query), self.num_heads)  # (B, T_q, d) -> (B, h, T_q, d_h)
        k = split_heads(self.w_k(context), self.num_kv_heads)  # (B, T_kv, d) -> (B, h_kv, T_kv, d_h)
        v = split_heads(self.w_v(context), self.num_kv_heads)  # (B, T_kv, d) -> (B, h_kv, T_kv, d_v)
        return q, k, v

    def merge(self, y: Tensor) -> Tensor:
        """The output projection of the heads beside each other: (B, h, T_q, d_v) -> (B, T_q, d)."""
        if self.value_up is not None:
            lifted = y @ self.value_up  # (B, h, T_q, d_v) @ (h, d_v, d) -> (B, h, T_q, d)
            y = lifted.sum(1)  # (B, T_q, d)
            return y if self.value_bias is None else y + self.value_bias  # (B, T_q, d)
        y = y.transpose(1, 2)  # (B, T_q, h, d_v)
        y = y.flatten(2)  # (B, T_q, h * d_v)
        return self.w_o(y)  # (B, T_q, d)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, h * d_h) -> (B, h, T, d_h)."""
    # Not unflatten: after it torch's older ONNX exporter takes T for a number and writes the causal mask of one T.
    x = x.reshape(x.shape[0], x.shape[1], heads, -1)  # (B, T, h, d_h)
    return x.transpose(1, 2)  # (B, h, T, d_h)


class DecodeStep(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """One step with a cache: keys and values of the new tokens go behind those of the old ones."""

    def __init__(self, block: AttentionBlock) -> None:
        super().__init__()
        self.block = block

    def forward(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """X (B, T_q, d), past_key (B, h_kv, P, d_h), past_value (B, h_kv, P, d_v).

        Returns:
            y (B, T_q, d), present_key (B, h_kv, P + T_q, d_h), present_value (B, h_kv, P + T_q, d_v).
        """
        block = self.block
        q, k, v = block.project(x, x)
        k = torch.cat([past_key, k], dim=2)  # (B, h_kv, P + T_q, d_h)
        v = torch.cat([past_value, v], dim=2)  # (B, h_kv, P + T_q, d_v)
        return block.merge(block.core(q, k, v, mask)), k, v


class InPlaceDecodeStep(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """The step of `DecodeStep` on a cache that has room for the new tokens: no old token is copied."""

    def __init__(self, block: AttentionBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, T_q, d) -> y (B, T_q, d).

        Args:
            x: the new tokens.
            keys: (B, h_kv, P + T_q, d_h), the P old ones first; what is behind them is overwritten.
            values: (B, h_kv, P + T_q, d_v), likewise.
            mask: as in `AttentionCore`.
        """
        q, k, v = self.block.project(x, x)
        past = keys.shape[2] - x.shape[1]
        keys[:, :, past:], values[:, :, past:] = k, v
        return self.block.merge(self.block.core(q, keys, values, mask))  # (B, T_q, d)


class MaskedSelfAttention(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Self-attention whose second input is a mask, not a context."""

    def __init__(self, block: AttentionBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """X (B, T, d), mask broadcasts to (B, h, T, T) -> (B, T, d)."""
        return self.block(x, None, mask)  # (B, T, d)


def build_module(problem: Problem, *, seed: int = 0, attention: Attention = "eager") -> nn.Module:
    """The module that computes the problem, in eval mode, its weights loaded, without gradients.

    Its `forward` takes the problem's inputs in order and returns `y`; every batch_size, q_len and kv_len will do.

    Args:
        problem: gives part, mask, sizes and dtype.
        seed: of the weights.
        attention: `eager` or `sdpa`.

    Raises:
        ProblemError: an unknown attention.
    """
    if problem.part == "core":
        return AttentionCore(mask=problem.mask, attention=attention, scale=problem.scale).eval()
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        block = AttentionBlock(problem, attention=attention)
    # `x @ w + b` of the problem is `nn.Linear` with the transpose of w.
    state = {
        f"w{name[1:]}.{'weight' if name[0] == 'w' else 'bias'}": to_torch(np.ascontiguousarray(array.T))
        for name, array in make_weights(problem, seed=seed).items()
    }
    if problem.value_map == "low_rank":
        value_up = state.pop("w_o.weight").T.reshape(problem.num_heads, problem.v_head_dim, problem.embed_dim)
        state["value_up"] = value_up.contiguous()  # (h, d_v, d)
        if problem.bias:
            state["value_bias"] = state.pop("w_o.bias")
    block.load_state_dict(state, assign=True)
    module: nn.Module = block
    if problem.variant == "decode":
        module = DecodeStep(block)
    elif problem.masking.form is not None and problem.variant != "cross":
        module = MaskedSelfAttention(block)
    return module.requires_grad_(False).eval()


def to_torch(array: Array) -> Tensor:
    """A tensor on the array's own memory (a copy where the array is read-only); bfloat16 comes from ml_dtypes."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    if array.dtype == numpy_dtype("bf16"):
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Tensor) -> Array:
    """The tensor as NumPy, on its own memory where that is the host's; bfloat16 becomes ml_dtypes.bfloat16."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
        return np.asarray(tensor.numpy()).view(numpy_dtype("bf16"))
    return np.asarray(tensor.numpy())
