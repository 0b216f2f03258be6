"""The topics of the lesson: each a screen of at most 24 lines of 80 characters, from numbers that are computed."""

import textwrap
from collections.abc import Callable

import numpy as np

from attnbench import presets
from attnbench.explain import numbers
from attnbench.explain.shapes import Subject
from attnbench.inputs import weight_shapes
from attnbench.problem import DTYPE_BYTES, Problem
from attnbench.report.text import fmt_bytes, fmt_number

_RAMP = " .:-=+*#%@"
_WIDTHS = (4, 64, 512)


def example(subject: Subject) -> str:
    """Three tokens, one head, every step."""
    steps = numbers.worked_example(numbers.TOKENS)
    x, shares, width = numbers.TOKENS, steps["softmax"], numbers.TOKENS.shape[1]
    row, best = divmod(int(np.argmax(shares * (1 - np.eye(len(x))))), len(x))
    oracle_gap, block_gap = numbers.gaps(x, steps["y = softmax v W_O"])
    names = list(steps)
    return f"""\
{len(x)} tokens of {width} numbers, one head. Each asks (q), offers (k) and tells (v):
{_beside(steps, names[:4])}
How well each q (row) fits each k (column), and divided by sqrt({width}) = {width**0.5:.3f}:
{_beside(steps, names[4:6])}
Softmax makes shares of each row that sum to 1; they mix the v; then W_O:
{_beside(steps, names[6:])}
Token {row + 1} takes {100 * shares[row, best]:.0f} % of its answer from token {best + 1}.
The float64 oracle is off by {oracle_gap:.1e}, the PyTorch block by {block_gap:.1e}."""


def scale(subject: Subject) -> str:
    """Why the scores are divided by sqrt(d_k)."""
    rows = "\n".join(
        f"{d_k:6}  {bare.spread:7.1f}  {scaled.spread:8.2f}  {100 * bare.largest:9.0f} %  {100 * scaled.largest:6.0f} %"
        f"  {bare.keys_used:11.1f}  {scaled.keys_used:8.1f}"
        for d_k in _WIDTHS
        for bare, scaled in [numbers.looks(d_k, subject.seed)]
    )
    return f"""\
q k is a sum of d_k products. Of random q and k its spread grows as sqrt(d_k);
softmax then gives nearly all to one key, where its slope is nearly 0.

          spread of q k     largest of {numbers.KEYS} weights     keys that share it
   d_k     bare    scaled         bare    scaled         bare    scaled
{rows}

scaled: divided by sqrt(d_k). Measured on {numbers.DRAWN:,} x {numbers.DRAWN:,} products, seed {subject.seed};
keys that share it: e^entropy of the weights, {numbers.KEYS} if all were equal."""


def mask(subject: Subject) -> str:
    """The causal triangle and a cross pattern that is not square, of the real block."""
    causal, cross = pattern_problems()
    squares = [numbers.block_weights(p, subject.seed)[0] for p in (causal, cross)]
    rows = max(float(np.abs(w.sum(axis=1) - 1).max()) for w in squares)
    pattern = "\n".join(f"   {left:36}{right}" for left, right in zip(*map(_heat, squares), strict=True))
    return f"""\
Head 1 of the real block: a row is a query, a column a key, a sign its share
(from {_RAMP[1]!r} to {_RAMP[-1]!r}; blank: nothing at all).

   {"causal: no token looks ahead":36}cross: {cross.q_len} queries, {cross.kv_len} keys
{pattern}

Largest weight above the diagonal: {np.triu(squares[0], 1).max():g}. Rows sum to 1 within {rows:.0e}.
attnbench explain mask -o DIR writes both as PNG, all heads, and as HTML."""


def parameters(subject: Subject) -> str:
    """Parameter counts of a shape."""
    p, table = subject.problem, ""
    shapes = weight_shapes(p)
    heads = {"w_q": p.num_heads, "w_k": p.num_kv_heads, "w_v": p.num_kv_heads, "w_o": p.num_heads}
    for name, (rows, columns) in shapes.items():
        n = heads[name]
        size = f"{rows // n:,} x {columns:,}" if name == "w_o" else f"{rows:,} x {columns // n:,}"
        table += f"  {name.upper():8}{size:>18}{rows * columns // n:>16,}{n:>8}{rows * columns:>18,}\n"
    total = sum(rows * columns for rows, columns in shapes.values())
    shared = "" if p.num_kv_heads == p.num_heads else f" ({p.num_heads // p.num_kv_heads} heads share each W_K and W_V)"
    counts = [("per head", total // p.num_heads, shared), (f"{p.num_heads:4} heads", total, "")]
    counts += [(f"{subject.layers:4} layers", total * subject.layers, "")] if subject.layers > 1 else []
    lines = [f"  {name:20}{count:>18,}  {short_count(count)}{more}" for name, count, more in counts]
    biases = sum(columns for _, columns in shapes.values())
    lines += [f"  {'biases beside them':20}{biases:>18,}  in every layer"] if p.bias else []
    return f"""\
{subject.name}: embed_dim {p.embed_dim:,} = {p.num_heads} heads of {p.head_dim}

  {"":8}{"one head":>18}{"numbers":>16}{"heads":>8}{"all heads":>18}
{table}
{chr(10).join(lines)}

Any shape: --preset NAME, or --heads, --head-dim and --kv-heads."""


def low_rank(subject: Subject) -> str:
    """The value map as value-down and value-up."""
    p, heads, head_dim = subject.problem, 4, 16
    gap, size, rank = numbers.factored_value(heads, head_dim, subject.seed)
    full, down = p.embed_dim**2, p.embed_dim * p.v_head_dim
    return f"""\
Texts on attention let a head change a token by a map of embed_dim to embed_dim
of low rank: value-down (to head_dim) times value-up (back). In code value-down
is the head's W_V and value-up its slice of W_O: putting the heads side by side
and multiplying by W_O adds up what each head lifts by its own rows.

Run both ways, {heads} heads of {head_dim}, the same weights, in float64:
  largest difference of y   {gap:.1e}, where y reaches {size:.2f}
  rank of a head's map      {rank} of {heads * head_dim}

Numbers for one head of {subject.name}:
  a full map       {p.embed_dim:>7,} x {p.embed_dim:<7,}{full:>16,}
  value-down       {p.embed_dim:>7,} x {p.v_head_dim:<7,}{down:>16,}
  value-up         {p.v_head_dim:>7,} x {p.embed_dim:<7,}{down:>16,}
  down and up                       {2 * down:>16,}   {fmt_number(full / (2 * down))} times fewer

attnbench bench --value-map low_rank runs the block so written."""


def grid(subject: Subject) -> str:
    """The T x T scores, and what a fused kernel keeps: per head and query a maximum, a sum and the output, in fp32."""
    p, table = subject.problem, ""
    for length in subject.lengths:
        size = Problem.make(seq_len=length, num_heads=p.num_heads, head_dim=p.head_dim, dtype=p.dtype).score_bytes()
        kept = p.num_heads * length * (p.v_head_dim + 2) * DTYPE_BYTES["fp32"]
        lead, _, exponent = f"{length**2:.1e}".partition("e+")
        entries = f"{length**2:,}" if length**2 < 10**9 else f"{lead} x 10^{int(exponent)}".removeprefix("1.0 x ")
        table += f"  {length:>9,}{entries:>22}{fmt_bytes(size):>14}{fmt_bytes(kept):>22}{fmt_number(size / kept):>9}x\n"
    return f"""\
Every query meets every key: T x T scores a head, here {p.num_heads} heads in {p.dtype}.

  {"T":>9}{"entries a head":>22}{"all heads":>14}{"fused kernel keeps":>22}{"less by":>10}
{table}
A fused kernel goes through the keys in pieces and keeps, for each query of a
head, the largest score so far, the sum and the output row: {p.v_head_dim} + 2 numbers.
Whether a runtime does so shows in a run, by peak_host_bytes over T; the report
says which arms materialise the scores. Other lengths: --seq-lens 2048,8192."""


def models(subject: Subject) -> str:
    """The presets."""
    lines = ["Shapes of attention for --preset, in bench, export and explain:"]
    for p in presets.PRESETS.values():
        heads = f"{p.num_heads}" if p.num_heads == p.num_kv_heads else f"{p.num_heads} ({p.num_kv_heads} for keys)"
        facts = ["bias"] * p.bias + ([f"scale {p.scale:g}"] if p.scale else []) + [p.source.rpartition("; ")[2]]
        lines.append(f"{p.name:13} embed_dim {p.embed_dim} = {heads} x {p.head_dim}, {p.layers} layers, T = {p.length}")
        lines.append(f"{'':13} {'; '.join([', '.join(p.variants), *facts])}")
        lines.append(textwrap.indent(textwrap.fill(f"{p.note[0].upper()}{p.note[1:]}.", 66), " " * 14))
    return "\n".join(lines)


TOPICS: dict[str, tuple[str, Callable[[Subject], str]]] = {
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
    return f"{name}: {title}\n{topic(subject)}"


def contents() -> str:
    """The list of topics."""
    lines = [f"  attnbench explain {name:12} {title}" for name, (title, _) in TOPICS.items()]
    lines.append(f"  attnbench explain {'RUN CASE':12} one row of a run in sentences")
    return "\n".join(["How attention works, with numbers computed here.", *lines])


def short_count(count: float) -> str:
    """`6.3 M`, `604 M`, `58 B`."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{fmt_number(count / size, 2)} {unit}"
    return f"{count:.0f}"


def _beside(matrices: dict[str, numbers.Float64], names: list[str]) -> str:
    """Some of the matrices with their names, next to each other."""
    widths = {name: max(len(name), 7 * matrices[name].shape[1]) for name in names}
    rows = [[f"{name:>{width}}" for name, width in widths.items()]]
    for i in range(len(matrices[names[0]])):
        rows.append(["".join(f"{v:7.3f}" for v in matrices[name][i]).rjust(widths[name]) for name in names])
    return "\n".join("  " + "   ".join(row) for row in rows)


def _heat(weights: numbers.Float64) -> list[str]:
    """A row of signs per query: blank for exactly nothing, then darker with the share of the row's largest."""
    steps = np.where(weights == 0, 0, 1 + np.rint((len(_RAMP) - 2) * weights / weights.max(axis=1, keepdims=True)))
    return ["".join(f" {_RAMP[int(step)]}" for step in row).rstrip() for row in steps]
