"""The patterns of the real block as PNG, and the lesson as one HTML file that opens offline."""

import base64
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnbench.explain import numbers, topics
from attnbench.explain.shapes import Subject
from attnbench.problem import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --card: #f4f5f7; --line: #d5d8dd; }
@media (prefers-color-scheme: dark) { :root { --card: #1d2126; --line: #3a4048; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 48rem; padding: 0 1rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 1rem; overflow-x: auto;
      font: 13px/1.4 ui-monospace, monospace; }
img { background: #fff; max-width: 100%; border-radius: 6px; }
@media print { pre, img { break-inside: avoid; } }
"""


def draw(problem: Problem, weights: NDArray[np.float64]) -> "Figure":
    """A heatmap per head: rows are queries, columns keys; what gets exactly nothing is left white."""
    from matplotlib.figure import Figure

    heads = len(weights)
    figure = Figure(figsize=(2.3 * heads + 0.9, 3.0 * max(1.0, problem.q_len / problem.kv_len / 1.7)), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, heads, squeeze=False)[0]
    for head, (axis, values) in enumerate(zip(axes, weights, strict=True)):
        seen = np.ma.masked_equal(values, 0.0)
        image = axis.imshow(seen, cmap="viridis", vmin=0.0, vmax=float(weights.max()), interpolation="nearest")
        axis.set_title(f"head {head + 1}", fontsize=9)
        axis.set_xlabel("key", fontsize=8)
        axis.set_ylabel("query" if head == 0 else "", fontsize=8)
        axis.set_xticks(range(0, problem.kv_len, 3))
        axis.set_yticks(range(0, problem.q_len, 3))
        axis.tick_params(labelsize=7)
    bar = figure.colorbar(image, ax=list(axes), shrink=0.8)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("share of the answer", fontsize=8)
    figure.suptitle(f"{problem.variant}: {problem.q_len} queries, {problem.kv_len} keys", fontsize=10)
    return figure


def write(folder: Path, subject: Subject, names: list[str]) -> list[Path]:
    """Write attention-causal.png, attention-cross.png and lesson.html; gives their paths.

    Raises:
        OSError: the folder cannot be written.
    """
    from attnbench.files import write_bytes

    pictures: dict[str, bytes] = {}
    for problem in topics.pattern_problems():
        blob = io.BytesIO()
        figure = draw(problem, numbers.block_weights(problem, subject.seed))
        figure.savefig(blob, format="png", metadata={"Software": None})
        pictures[f"attention-{problem.variant}.png"] = blob.getvalue()
    files = {**pictures, "lesson.html": page(subject, names, pictures).encode()}
    for name, content in files.items():
        write_bytes(folder / name, content)
    return [folder / name for name in files]


def page(subject: Subject, names: list[str], pictures: dict[str, bytes]) -> str:
    """The lesson in HTML: every topic as it is in the terminal, the patterns as pictures."""
    parts = []
    for name in names:
        title, topic = topics.TOPICS[name]
        parts.append(f'<section id="{name}"><h2>{html.escape(title[0].upper() + title[1:])}</h2>')
        parts.append(f"<pre>{html.escape(topic(subject))}</pre>")
        if name == "mask":
            parts += [_image(file, content) for file, content in pictures.items()]
        parts.append("</section>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>How attention works</title>'
        f"<style>{_STYLE}</style></head><body><h1>How attention works</h1>"
        "<p>Every number was computed by attnbench when this page was written.</p>"
        f"{''.join(parts)}</body></html>\n"
    )


def _image(name: str, content: bytes) -> str:
    kind = name.removeprefix("attention-").removesuffix(".png")
    alt = f"Heatmaps of the {kind} weights of four heads of the block: rows are queries, columns are keys"
    return f'<p><img alt="{alt}" src="data:image/png;base64,{base64.b64encode(content).decode()}"></p>'
