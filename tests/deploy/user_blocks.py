"""Modules as a user has them in blocks.py, and what inputs.toml says of what they take."""

BLOCKS = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

class Own(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        B, T, E = x.shape
        q, k, v = (t.reshape(B, T, self.num_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).reshape(B, T, E))

class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x, pad):
        return self.attention(x, x, x, key_padding_mask=pad, need_weights=False)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        logits = self.head(self.embed(ids))
        return {"logits": logits, "best": logits.argmax(-1)}

class NormInFp32(nn.Module):
    def forward(self, x):
        h = x.to(torch.float32)
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) + torch.ones(32)).to(x.dtype)

class DecidesByLength(nn.Module):
    def forward(self, x):
        if x.shape[1] > 1:
            return x * 2
        return x

class DecidesByValue(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x

class Bakes(nn.Module):
    def forward(self, x):
        return x + torch.tensor(np.arange(int(x.shape[1])), dtype=x.dtype)[:, None]

class OneLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(9, 9).tril())

    def forward(self, x):
        return self.mask @ x

class OnlyFp32(nn.Module):
    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("I take float32")
        return x

class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand(1)

class WritesToItsInput(nn.Module):
    def forward(self, x):
        return x.mul_(2.0) + 1

class Words(nn.Module):
    def forward(self, x):
        return x, "done"

class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((40, 40), float("-inf")).triu(1))

    def forward(self, x):
        T = x.shape[1]
        return ((x @ x.transpose(-1, -2)) / 6 + self.mask[:T, :T]).softmax(-1) @ x

class AboveFive(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[1] > 5 else x

class Mean(nn.Module):
    def forward(self, x, past):
        joined = torch.cat((past, x), 1)
        return joined, None, [joined.mean()]

class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x, past_k, past_v):
        k, v = torch.cat((past_k, self.k(x)), 1), torch.cat((past_v, self.v(x)), 1)
        heads = (t[:, None] for t in (self.q(x), k, v))
        return F.scaled_dot_product_attention(*heads)[:, 0], k, v

class Exits(nn.Module):
    def __init__(self):
        raise SystemExit(3)

not_a_class = 3
"""
X = '[inputs.x]\ndtype = "fp32"\ndims = ["batch", "T", 32]\n'
SMALL = "[ranges.batch]\nmax = 3\nexample = 2\n[ranges.T]\nmax = 40\nexample = 11\n"
OWN = f"arguments = {{embed_dim = 32, num_heads = 4}}\n{X}"
MASK = '[inputs.mask]\ndtype = "bool"\ndims = ["batch", 1, "T", "T"]\n'
PAD = '[inputs.pad]\ndtype = "bool"\ndims = ["batch", "T"]\ntrue = 0.25\n'
IDS = '[inputs.ids]\ndtype = "int64"\ndims = ["batch", "T"]\nfrom = 0\nto = 99\n'
