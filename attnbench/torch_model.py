"""Multi-head attention in PyTorch, to be read: what the exporters export and the torch arms run.

Shapes: B batch_size, T sequence length (T_q of the queries, T_kv of keys and values), d embed_dim, h num_heads,
d_h head_dim, d = h * d_h.
"""

import math
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnbench.errors import ProblemError
from attnbench.inputs import make_weights
from attnbench.interfaces import Array, numpy_dtype
from attnbench.problem import Mask, Problem

Attention = Literal["eager", "sdpa"]


def eager_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Attention written out. q (B, h, T_q, d_h), k and v (B, h, T_kv, d_h) -> (B, h, T_q, d_h)."""
    scale = 1.0 / math.sqrt(q.shape[-1])
    scores = (q * scale) @ k.mT  # (B, h, T_q, T_kv)
    if mask == "causal_top_left":
        scores = scores.masked_fill(~causal_top_left(scores), float("-inf"))  # (B, h, T_q, T_kv)
    weights = torch.softmax(scores, dim=-1)  # (B, h, T_q, T_kv), each row sums to 1
    return weights @ v  # (B, h, T_q, d_h)


def causal_top_left(scores: Tensor) -> Tensor:
    """True where query i may see key j: j <= i, counted from the first key. (B, h, T_q, T_kv) -> (T_q, T_kv)."""
    query = torch.arange(scores.shape[-2], device=scores.device)  # (T_q,)
    key = torch.arange(scores.shape[-1], device=scores.device)  # (T_kv,)
    return key <= query[:, None]  # (T_q, T_kv)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """The same by PyTorch's fused operator; its `is_causal` is top-left. Shapes as in `eager_attention`."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal_top_left")  # (B, h, T_q, d_h)


class AttentionCore(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Attention on given q, k, v: softmax(q k^T / sqrt(d_h)) v.

    Args:
        mask: `none` or `causal_top_left`; a property of the module, never guessed from a shape.
        attention: `eager` writes the scores out, `sdpa` calls the fused operator.

    Raises:
        ProblemError: an unknown mask or attention.
    """

    def __init__(self, *, mask: Mask, attention: Attention) -> None:
        super().__init__()
        for name, value, allowed in (("mask", mask, get_args(Mask)), ("attention", attention, get_args(Attention))):
            if value not in allowed:
                raise ProblemError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
        self.mask: Mask = mask
        self.attend = eager_attention if attention == "eager" else sdpa_attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend: q (B, h, T_q, d_h), k and v (B, h, T_kv, d_h) -> (B, h, T_q, d_h).

        Raises:
            ProblemError: k and v differ in length (the fused operator would read past the end without a word).
        """
        # While a graph is traced the lengths are symbols: comparing them would tie them together in the file.
        if not torch.compiler.is_compiling() and not torch.jit.is_tracing() and k.shape[-2] != v.shape[-2]:
            raise ProblemError(f"k and v must have the same length, got {k.shape[-2]} and {v.shape[-2]}")
        return self.attend(q, k, v, self.mask)  # (B, h, T_q, d_h)


class AttentionBlock(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Multi-head attention with its projections, without bias.

    Self-attention passes one sequence; cross-attention passes the context that keys and values come from: the only
    difference. Causal is a mask. See Vaswani et al., 2017, section 3.2.

    Args:
        embed_dim: d, a multiple of num_heads.
        num_heads: h.
        mask: as in `AttentionCore`.
        attention: as in `AttentionCore`.

    Raises:
        ProblemError: embed_dim is not a multiple of num_heads.
    """

    def __init__(self, *, embed_dim: int, num_heads: int, mask: Mask, attention: Attention) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ProblemError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}")
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.w_q = nn.Linear(embed_dim, embed_dim, bias=False)
        self.w_k = nn.Linear(embed_dim, embed_dim, bias=False)
        self.w_v = nn.Linear(embed_dim, embed_dim, bias=False)
        self.w_o = nn.Linear(embed_dim, embed_dim, bias=False)
        self.core = AttentionCore(mask=mask, attention=attention)

    def forward(self, query: Tensor, context: Tensor | None = None) -> Tensor:
        """Attend: query (B, T_q, d), context (B, T_kv, d); without a context the query itself -> (B, T_q, d)."""
        if context is None:
            context = query
        q = self.split_heads(self.w_q(query))  # (B, T_q, d) -> (B, h, T_q, d_h)
        k = self.split_heads(self.w_k(context))  # (B, T_kv, d) -> (B, h, T_kv, d_h)
        v = self.split_heads(self.w_v(context))  # (B, T_kv, d) -> (B, h, T_kv, d_h)
        y = self.core(q, k, v)  # (B, h, T_q, d_h)
        y = y.transpose(1, 2)  # (B, T_q, h, d_h)
        y = y.flatten(2)  # (B, T_q, d)
        return self.w_o(y)  # (B, T_q, d)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, h, T, d_h)."""
        x = x.unflatten(-1, (self.num_heads, self.head_dim))  # (B, T, h, d_h)
        return x.transpose(1, 2)  # (B, h, T, d_h)


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
        return AttentionCore(mask=problem.mask, attention=attention).eval()
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        block = AttentionBlock(
            embed_dim=problem.embed_dim, num_heads=problem.num_heads, mask=problem.mask, attention=attention
        )
    # `x @ w` of the problem is `nn.Linear` with the transpose of w.
    state = {
        f"{name}.weight": to_torch(np.ascontiguousarray(w.T)) for name, w in make_weights(problem, seed=seed).items()
    }
    block.load_state_dict(state, assign=True)
    return block.requires_grad_(False).eval()


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
