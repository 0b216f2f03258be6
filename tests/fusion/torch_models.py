"""Models as people write them in torch: each block like one of a known family, each with a place for one change."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

EMBED_DIM, NUM_HEADS = 256, 8


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is exported: one change per layer, empty where there is none."""

    layers: tuple[str, ...]
    family: str = "bert"
    dtype: torch.dtype = torch.float16
    head_dim: int = 64
    opset: int | None = None  # of the exporter's own
    is_script: bool = False  # by the older exporter, which traces
    is_training: bool = False


class Attention(nn.Module):
    """Attention in the words of transformers' eager code; `change` is what its authors did otherwise."""

    def __init__(self, change: str, head_dim: int, num_kv_heads: int = NUM_HEADS) -> None:
        super().__init__()
        self.change, self.head_dim = change, head_dim
        self.groups = NUM_HEADS // num_kv_heads
        self.q_proj = nn.Linear(EMBED_DIM, NUM_HEADS * head_dim)
        self.k_proj = nn.Linear(EMBED_DIM, num_kv_heads * head_dim)
        self.v_proj = nn.Linear(EMBED_DIM, num_kv_heads * head_dim)
        self.o_proj = nn.Linear(NUM_HEADS * head_dim, EMBED_DIM)
        self.q_norm, self.k_norm = RmsNorm(head_dim), RmsNorm(head_dim)
        self.talk = nn.Linear(NUM_HEADS, NUM_HEADS)
        self.sinks = nn.Parameter(torch.zeros(NUM_HEADS))
        self.logit_scale = nn.Parameter(torch.ones(NUM_HEADS, 1, 1))
        self.prefix = nn.Parameter(torch.zeros(2, num_kv_heads, 8, head_dim))
        self.register_buffer("head_mask", torch.ones(NUM_HEADS, 1, 1))
        self.dropout = nn.Dropout(0.1)

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, H*D) as (B, H, T, D)."""
        return x.view(x.shape[0], x.shape[1], -1, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, E) and (B, S, E) as (B, T, E), and the weights (B, H, T, S)."""
        q, k, v = self.heads(self.q_proj(x)), self.heads(self.k_proj(context)), self.heads(self.v_proj(context))
        if self.change == "rope":
            q, k = rotate(q), rotate(k)
        if self.change == "qk_norm":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.change == "cosine":
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        if self.groups > 1:
            k, v = repeat_kv(k, self.groups), repeat_kv(v, self.groups)
        if self.change == "prefix":
            k, v = (torch.cat((part.expand(k.shape[0], -1, -1, -1), own), dim=2) for part, own in
                    zip(self.prefix, (k, v), strict=True))  # fmt: skip
        if self.change == "sdpa":
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.merged(y), y
        if self.change == "bmm":
            return self.merged(self.folded(q, k, v, mask)), q
        weights = self.weights(self.scores(q, k), mask).to(v.dtype)
        if self.change == "nan_guard":
            weights = torch.where(torch.isnan(weights), torch.zeros((), dtype=v.dtype), weights)
        if self.change == "nan_guard_full":
            weights = torch.where(torch.isnan(weights), torch.zeros_like(weights), weights)
        if self.change == "head_mask":
            weights = weights * self.head_mask
        if self.change == "nan_to_num":
            weights = torch.nan_to_num(weights)
        if self.change == "einsum":
            return self.merged(torch.einsum("bhqk,bhkd->bhqd", weights, v)), weights
        return self.merged(self.dropout(weights) @ v), weights

    def merged(self, y: Tensor) -> Tensor:
        """(B, H, T, D) projected to (B, T, E)."""
        return self.o_proj(y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, T, S)."""
        root = math.sqrt(self.head_dim)
        if self.change == "scaled_query":
            return (q * (1.0 / root)) @ k.transpose(-1, -2)
        if self.change == "einsum":
            return torch.einsum("bhqd,bhkd->bhqk", q, k) / root
        if self.change == "k_transposed":  # as GPT-1 splits heads
            k = k.transpose(1, 2).permute(0, 2, 3, 1)
            return q @ k / root
        if self.change == "t5":
            return q @ k.transpose(3, 2)
        if self.change == "upcast_qk":
            return q.float() @ k.float().transpose(-1, -2) / root
        if self.change == "cosine":
            return q @ k.transpose(-1, -2) * self.logit_scale.clamp(max=4.6).exp()
        scores = q @ k.transpose(-1, -2) / root
        if self.change == "softcap":
            return torch.tanh(scores / 50.0) * 50.0
        if self.change == "clamp":
            return scores.clamp(min=-50000.0, max=50000.0)
        if self.change == "talking_heads":
            return self.talk(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return scores

    def weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of masked scores."""
        if mask is not None:
            is_bool = mask.dtype == torch.bool
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if is_bool else scores + mask
        if self.change in ("fp32_softmax", "t5", "rope"):
            return functional.softmax(scores, dim=-1, dtype=torch.float32)
        if self.change == "sink":
            sinks = self.sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
            return functional.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
        if self.change == "softmax_by_hand":
            exps = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
            return exps / exps.sum(dim=-1, keepdim=True)
        return functional.softmax(scores, dim=-1)

    def folded(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """As CLIP and fairseq write it: batch and heads are one axis."""
        batch, heads, q_len, _ = q.shape
        q, k, v = (part.reshape(batch * heads, -1, self.head_dim) for part in (q, k, v))
        scores = torch.bmm(q * self.head_dim**-0.5, k.transpose(1, 2))
        if mask is not None:
            scores = (scores.view(batch, heads, q_len, -1) + mask).view(batch * heads, q_len, -1)
        return torch.bmm(functional.softmax(scores, dim=-1), v).view(batch, heads, q_len, -1)


class RmsNorm(nn.Module):
    """As Llama writes it: in fp32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """The last axis."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions as Llama has them: (B, H, T, D) and sines of (T, D)."""
    freqs = 1.0 / 10000 ** (torch.arange(0, x.shape[-1], 2, dtype=torch.float32) / x.shape[-1])
    angles = torch.outer(torch.arange(x.shape[2], dtype=torch.float32), freqs)
    cos, sin = (torch.cat((fn(angles),) * 2, dim=-1).to(x.dtype) for fn in (torch.cos, torch.sin))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """(B, Hkv, T, D) as (B, Hkv*groups, T, D), by expand and reshape."""
    batch, heads, kv_len, dim = x.shape
    return x[:, :, None].expand(batch, heads, groups, kv_len, dim).reshape(batch, heads * groups, kv_len, dim)


class Stack(nn.Module):
    """Layers one after the other, with masks as the family makes them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        kv_heads = 1 if model.family == "mqa" else NUM_HEADS // 2 if model.family == "llama" else NUM_HEADS
        dims = [320 if change == "head_dim_320" else model.head_dim for change in model.layers]
        self.embed = nn.Embedding(64, EMBED_DIM)
        self.norms = nn.ModuleList(nn.LayerNorm(EMBED_DIM) for _ in model.layers)
        self.attentions = nn.ModuleList(
            Attention(change, dim, kv_heads) for change, dim in zip(model.layers, dims, strict=True)
        )
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(EMBED_DIM, 2 * EMBED_DIM), nn.GELU(), nn.Linear(2 * EMBED_DIM, EMBED_DIM))
            for _ in model.layers
        )
        self.relative = nn.Embedding(32, NUM_HEADS)

    def forward(self, tokens: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """(B, T) token ids as (B, T, E), and what layers return beside it."""
        x, extra = self.embed(tokens), []
        mask = self.mask(x, *others)
        for change, norm, attention, mlp in zip(self.model.layers, self.norms, self.attentions, self.mlps, strict=True):
            inner = norm(x)
            context = self.embed(others[0]) if self.model.family == "cross" else inner
            y, weights = attention(inner, context, mask)
            x = x + y
            x = x + mlp(x)
            if change == "returned":
                extra.append(weights)
            if change == "averaged":
                extra.append(weights.mean(dim=1))
        return (x, *extra)

    def mask(self, x: Tensor, *others: Tensor) -> Tensor | None:
        """Of (B or 1, H or 1, T, T): boolean, or added to the scores."""
        family, seq = self.model.family, torch.arange(x.shape[1])
        if family == "bert":  # 1 where a token is there
            keep = others[0][:, None, None, :].to(x.dtype)
            return (1.0 - keep) * torch.finfo(x.dtype).min
        if family in ("added", "bool"):
            return others[0]
        if family in ("gpt2", "llama", "mqa"):
            return (seq[None, :] <= seq[:, None])[None, None]
        if family == "window":
            distance = seq[:, None] - seq[None, :]
            return ((distance >= 0) & (distance < 128))[None, None]
        if family == "alibi":
            slopes = torch.tensor([2.0 ** -(head + 1) for head in range(NUM_HEADS)], dtype=x.dtype)
            return (slopes[:, None, None] * (seq[None, :] - seq[:, None]).to(x.dtype))[None]
        if family == "t5":
            buckets = (seq[None, :] - seq[:, None]).clamp(-16, 15) + 16
            return self.relative(buckets).permute(2, 0, 1)[None]
        return None


def inputs_of(model: Model, seq: int = 24) -> tuple[tuple[Tensor, ...], tuple[dict[int, str], ...], list[str]]:
    """Examples, free dims by axis, and names."""
    tokens = torch.zeros(2, seq, dtype=torch.int64)
    free = {0: "batch", 1: "seq"}
    if model.family == "bert":
        return (tokens, torch.ones(2, seq, dtype=torch.int64)), (free, free), ["input_ids", "attention_mask"]
    if model.family == "cross":
        return (
            (tokens, torch.zeros(2, seq + 8, dtype=torch.int64)),
            (free, {0: "batch", 1: "source"}),
            ["input_ids", "encoder_ids"],
        )
    if model.family in ("added", "bool"):
        dtype = torch.bool if model.family == "bool" else model.dtype
        mask = torch.zeros(2, 1, seq, seq, dtype=dtype)
        return (tokens, mask), (free, {0: "batch", 2: "seq", 3: "seq"}), ["input_ids", "attention_mask"]
    return (tokens,), (free,), ["input_ids"]


def export(model: Model, path: Path) -> None:
    """Write the model by one of torch's two exporters."""
    torch.manual_seed(0)
    stack = Stack(model).to(model.dtype).train(model.is_training)
    args, free, names = inputs_of(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if model.is_script:
            outputs = ["y", *(f"weights{n}" for n, change in enumerate(model.layers) if change == "returned")]
            torch.onnx.export(
                stack, args, str(path), dynamo=False, opset_version=model.opset or 17, input_names=names,
                output_names=outputs, dynamic_axes=dict(zip(names, free, strict=True)),
                training=torch.onnx.TrainingMode.TRAINING if model.is_training else torch.onnx.TrainingMode.EVAL,
                do_constant_folding=not model.is_training,
            )  # fmt: skip
            return
        dynamic = (free[0], *((tuple(free[1:]),) if free[1:] else ()))  # the others are *others
        torch.onnx.export(
            stack, args, str(path), dynamo=True, opset_version=model.opset, input_names=names,
            dynamic_shapes=dynamic, external_data=False, verbose=False,
        )  # fmt: skip
