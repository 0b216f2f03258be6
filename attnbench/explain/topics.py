"""The topics of the lesson: each a screen of at most 24 lines of 80 characters, from numbers that are computed."""

import textwrap
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from attnbench import presets
from attnbench.explain import numbers
from attnbench.explain.shapes import Subject
from attnbench.inputs import weight_shapes
from attnbench.problem import DTYPE_BYTES, Problem
from attnbench.report.text import fmt_bytes, fmt_number

_RAMP = " .:-=+*#%@"
_WIDTHS = (4, 64, 512)


def example(subject: Subject) -> Iterator[str]:
    """Three tokens, one head, every step."""
    w = numbers.worked_example()
    x, width = numbers.TOKENS, numbers.TOKENS.shape[1]
    yield f"{len(x)} tokens of {width} numbers, one head. Each asks (q), offers (k) and tells (v):"
    yield from _beside({"x": x, "q = x W_Q": w.q, "k = x W_K": w.k, "v = x W_V": w.v})
    yield f"How well each q (row) fits each k (column), and divided by sqrt({width}) = {width**0.5:.3f}:"
    yield from _beside({"q k^T": w.products, f"q k^T / {width**0.5:.3f}": w.scaled})
    yield "Softmax makes shares of each row that sum to 1; they mix the v; then W_O:"
    yield from _beside({"softmax": w.shares, "softmax v": w.mixed, "y = softmax v W_O": w.y})
    others = w.shares * (1 - np.eye(len(x)))
    row, best = divmod(int(np.argmax(others)), len(x))
    yield f"Token {row + 1} takes {100 * w.shares[row, best]:.0f} % of its answer from token {best + 1}."
    yield f"The float64 oracle is off by {w.oracle_gap:.1e}, the PyTorch block by {w.block_gap:.1e}."


def scale(subject: Subject) -> Iterator[str]:
    """Why the scores are divided by sqrt(d_k)."""
    found = [numbers.spread(d_k, subject.seed) for d_k in _WIDTHS]
    yield "q k is a sum of d_k products. Of random q and k its spread grows as sqrt(d_k);"
    yield "softmax then gives nearly all to one key, where its slope is nearly 0."
    yield ""
    yield "          spread of q k     largest of 64 weights     keys that share it"
    yield "   d_k     bare    scaled         bare    scaled         bare    scaled"
    for s in found:
        yield (
            f"{s.d_k:6}  {s.products:7.1f}  {s.scaled:8.2f}  {100 * s.largest[0]:9.0f} %  {100 * s.largest[1]:6.0f} %"
            f"  {s.keys_used[0]:11.1f}  {s.keys_used[1]:8.1f}"
        )
    yield ""
    drawn = f"{numbers.DRAWN:,} x {numbers.DRAWN:,} products, seed {subject.seed}"
    yield f"scaled: divided by sqrt(d_k). Measured on {drawn};"
    yield "keys that share it: e^entropy of the weights, 64 if all were equal."


def mask(subject: Subject) -> Iterator[str]:
    """The causal triangle and a cross pattern that is not square, of the real block."""
    causal, cross = pattern_problems()
    squares = [numbers.block_weights(p, subject.seed)[0] for p in (causal, cross)]
    above = float(np.triu(squares[0], 1).max())
    rows = max(float(np.abs(w.sum(axis=1) - 1).max()) for w in squares)
    yield "Head 1 of the real block: a row is a query, a column a key, a sign its share"
    yield f"(from {_RAMP[1]!r} to {_RAMP[-1]!r}; blank: nothing at all)."
    yield ""
    left, right = (list(_heat(w)) for w in squares)
    yield f"   {'causal: no token looks ahead':36}cross: {cross.q_len} queries, {cross.kv_len} keys"
    for i in range(max(len(left), len(right))):
        yield f"   {left[i] if i < len(left) else '':36}{right[i] if i < len(right) else ''}".rstrip()
    yield ""
    yield f"Largest weight above the diagonal: {above:g}. Rows sum to 1 within {rows:.0e}."
    yield "attnbench explain mask -o DIR writes both as PNG, all heads, and as HTML."


def parameters(subject: Subject) -> Iterator[str]:
    """Parameter counts of a shape."""
    p = subject.problem
    yield f"{subject.name}: embed_dim {p.embed_dim:,} = {p.num_heads} heads of {p.head_dim}"
    yield ""
    yield f"  {'':8}{'one head':>18}{'numbers':>16}{'heads':>8}{'all heads':>18}"
    heads = {"w_q": p.num_heads, "w_k": p.num_kv_heads, "w_v": p.num_kv_heads, "w_o": p.num_heads}
    total = 0
    for name, (rows, columns) in weight_shapes(p).items():
        of_head = (rows // heads[name], columns) if name == "w_o" else (rows, columns // heads[name])
        total += rows * columns
        size = f"{of_head[0]:,} x {of_head[1]:,}"
        yield f"  {name.upper():8}{size:>18}{of_head[0] * of_head[1]:>16,}{heads[name]:>8}{rows * columns:>18,}"
    shared = "" if p.num_kv_heads == p.num_heads else f" ({p.num_heads // p.num_kv_heads} heads share each W_K and W_V)"
    yield ""
    yield f"  per head            {total // p.num_heads:>18,}  {short_count(total / p.num_heads)}{shared}"
    yield f"  {p.num_heads:4} heads          {total:>18,}  {short_count(total)}"
    if subject.layers > 1:
        of_all = total * subject.layers
        yield f"  {subject.layers:4} layers         {of_all:>18,}  {short_count(of_all)}"
    if p.bias:
        biases = sum(columns for _, columns in weight_shapes(p).values())
        yield f"  biases beside them  {biases:>18,}  in every layer"
    yield ""
    yield "Any shape: --preset NAME, or --heads, --head-dim and --kv-heads."


def low_rank(subject: Subject) -> Iterator[str]:
    """The value map as value-down and value-up."""
    p = subject.problem
    f = numbers.factored_value(4, 16, subject.seed)
    yield "Texts on attention let a head change a token by a map of embed_dim to embed_dim"
    yield "of low rank: value-down (to head_dim) times value-up (back). In code value-down"
    yield "is the head's W_V and value-up its slice of W_O: putting the heads side by side"
    yield "and multiplying by W_O adds up what each head lifts by its own rows."
    yield ""
    yield f"Run both ways, {f.embed_dim // f.head_dim} heads of {f.head_dim}, the same weights, in float64:"
    yield f"  largest difference of y   {f.gap:.1e}, where y reaches {f.size:.2f}"
    yield f"  rank of a head's map      {f.rank} of {f.embed_dim}"
    yield ""
    full, down = p.embed_dim**2, p.embed_dim * p.v_head_dim
    yield f"Numbers for one head of {subject.name}:"
    yield f"  a full map       {p.embed_dim:>7,} x {p.embed_dim:<7,}{full:>16,}"
    yield f"  value-down       {p.embed_dim:>7,} x {p.v_head_dim:<7,}{down:>16,}"
    yield f"  value-up         {p.v_head_dim:>7,} x {p.embed_dim:<7,}{down:>16,}"
    yield f"  down and up                       {2 * down:>16,}   {fmt_number(full / (2 * down))} times fewer"
    yield ""
    yield "attnbench bench --value-map low_rank runs the block so written."


def grid(subject: Subject) -> Iterator[str]:
    """The T x T scores, and what a fused kernel keeps."""
    p = subject.problem
    yield f"Every query meets every key: T x T scores a head, here {p.num_heads} heads in {p.dtype}."
    yield ""
    yield f"  {'T':>9}{'entries a head':>22}{'all heads':>14}{'fused kernel keeps':>22}{'less by':>10}"
    for length in subject.lengths:
        q_len = Problem.make(seq_len=length, num_heads=p.num_heads, head_dim=p.head_dim, dtype=p.dtype)
        entries, size = length * length, q_len.score_bytes()
        kept = fused_bytes(q_len)
        shown = f"{entries:,}" if entries < 10**9 else _power(entries)
        yield f"  {length:>9,}{shown:>22}{fmt_bytes(size):>14}{fmt_bytes(kept):>22}{fmt_number(size / kept):>9}x"
    yield ""
    yield "A fused kernel goes through the keys in pieces and keeps, for each query of a"
    yield f"head, the largest score so far, the sum and the output row: {p.v_head_dim} + 2 numbers."
    yield "Whether a runtime does so shows in a run, by peak_host_bytes over T; the report"
    yield "says which arms materialise the scores. Other lengths: --seq-lens 2048,8192."


def fused_bytes(problem: Problem) -> int:
    """What a fused kernel keeps beside its inputs: per head and query a maximum, a sum and the output row, in fp32."""
    p = problem
    return p.batch_size * p.num_heads * p.q_len * (p.v_head_dim + 2) * DTYPE_BYTES["fp32"]


def models(subject: Subject) -> Iterator[str]:
    """The presets."""
    yield "Shapes of attention for --preset, in bench, export and explain:"
    for p in presets.PRESETS.values():
        heads = f"{p.num_heads}" if p.num_heads == p.num_kv_heads else f"{p.num_heads} ({p.num_kv_heads} for keys)"
        facts = [
            f"{', '.join(p.variants)}",
            *(["bias"] if p.bias else []),
            *([f"scale {p.scale:g}"] if p.scale else []),
        ]
        yield f"{p.name:13} embed_dim {p.embed_dim} = {heads} x {p.head_dim}, {p.layers} layers, T = {p.length}"
        yield f"{'':13} {'; '.join(facts)}; {p.source.rpartition('; ')[2]}"
        yield from textwrap.wrap(f"{p.note[0].upper()}{p.note[1:]}.", 80, initial_indent=" " * 14,
                                 subsequent_indent=" " * 14)  # fmt: skip


Topic = Callable[[Subject], Iterator[str]]
TOPICS: dict[str, tuple[str, Topic]] = {
    "example": ("three tokens, step by step", example),
    "scale": ("why divide by sqrt(d_k)", scale),
    "mask": ("the causal triangle and a cross pattern", mask),
    "parameters": ("how many numbers a shape has", parameters),
    "low-rank": ("the value map as value-down and value-up", low_rank),
    "grid": ("the T x T scores and what a fused kernel keeps", grid),
    "presets": ("shapes of published models, with sources", models),
}


def pattern_problems() -> tuple[Problem, Problem]:
    """What the heatmaps show: causal, and cross with fewer keys than queries."""
    return (
        Problem.make(variant="causal", seq_len=12, num_heads=4, head_dim=16),
        Problem.make(variant="cross", seq_len=12, kv_len=7, num_heads=4, head_dim=16),
    )


def screen(name: str, subject: Subject) -> str:
    """One topic."""
    title, topic = TOPICS[name]
    return "\n".join([f"{name}: {title}", *topic(subject)])


def contents() -> str:
    """The list of topics."""
    lines = [f"  attnbench explain {name:12} {title}" for name, (title, _) in TOPICS.items()]
    return "\n".join(["How attention works, with numbers computed here.", *lines,
                      "  attnbench explain RUN CASE     one row of a run in sentences"])  # fmt: skip


def short_count(count: float) -> str:
    """`6.3 M`, `604 M`, `58 B`."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count:.0f}"


def _power(count: int) -> str:
    """`10^10`, `4.2 x 10^9`."""
    exponent = int(np.floor(np.log10(count)))
    lead = count / 10**exponent
    return f"10^{exponent}" if lead == 1 else f"{lead:.1f} x 10^{exponent}"


def _beside(matrices: dict[str, NDArray[np.float64]]) -> Iterator[str]:
    """Small matrices with their names, next to each other."""
    widths = {name: max(len(name), 7 * m.shape[1]) for name, m in matrices.items()}
    yield "  " + "   ".join(f"{name:>{widths[name]}}" for name in matrices)
    for i in range(len(next(iter(matrices.values())))):
        cells = ("".join(f"{value:7.3f}" for value in m[i]).rjust(widths[name]) for name, m in matrices.items())
        yield "  " + "   ".join(cells)


def _heat(weights: NDArray[np.float64]) -> Iterator[str]:
    """A row of signs per query: blank for exactly nothing, then darker with the share of the row's largest."""
    steps = len(_RAMP) - 2
    for row in weights:
        yield "".join(" " + (_RAMP[0] if w == 0 else _RAMP[1 + round(steps * w / row.max())]) for w in row)
