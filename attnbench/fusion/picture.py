"""The matrix as a picture: a panel for every group of architectures with equal verdicts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.fusion import text
from attnbench.fusion.matrix import Matrix
from attnbench.fusion.questions import Question
from attnbench.fusion.verdicts import FAILED, FUSED, REFUSED, UNFUSED, UNSUPPORTED, Answer
from attnbench.report.style import GRID, MUTED, TEXT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "fusion"
# Told apart by lightness too, so that they differ in grey and for colour-blind eyes.
COLORS = {FUSED: "#bedcfa", UNFUSED: "#ecb577", REFUSED: "#a6adb5", UNSUPPORTED: "#eceef0", FAILED: "#a11f05"}


def save(matrix: Matrix, folder: Path) -> str:
    """Write fusion.png and fusion.svg; gives the SVG.

    Raises:
        ImportError: matplotlib is missing.
        OSError: the folder cannot be written.
    """
    from attnbench.report import figures

    with figures.plotting():
        return figures.save(draw(matrix), folder, NAME)


def draw(matrix: Matrix) -> "Figure":
    """Rows are questions, columns dtype and recipe."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    groups = text.fold(matrix)
    rows, columns, _ = text.axes(groups[0][1])
    width, height = 2.6 + 0.42 * len(columns) * len(groups), 2.0 + 0.26 * len(rows)
    figure = Figure(figsize=(max(6.4, width), height))
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    for panel, (archs, answers) in zip(panels, groups, strict=True):
        _panel(panel, archs, answers)
    plan = matrix.plan
    lens = f"T = {plan.seq_len} and {2 * plan.seq_len}"
    figure.suptitle(f"Is attention fused? {matrix.compiler}, core, 8 heads, {lens}", x=0.01, ha="left", fontsize=10)
    handles = [
        Patch(facecolor=COLORS[verdict], edgecolor=GRID, label=f"{text.MARKS[verdict]}  {verdict}")
        for verdict in COLORS if verdict in matrix.counts
    ]  # fmt: skip
    if any(answer.strict == REFUSED for answer in matrix.answers):
        handles.append(Patch(facecolor="none", edgecolor="none", label="*  refused as strict attention"))
    recipes = dict.fromkeys(recipe for _, recipe in columns)
    short = "; ".join(f"{text.SHORT[recipe]} = {recipe}" for recipe in recipes if recipe.startswith("onnx-"))
    handles += [Patch(facecolor="none", edgecolor="none", label=short)] if short else []
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=8)
    return figure


def _panel(panel: Any, archs: tuple[str, ...], answers: dict[Question, Answer]) -> None:
    from matplotlib.patches import Rectangle

    rows, columns, cells = text.axes(answers)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            answer = cells.get((row, column))
            if answer is None:
                continue
            color = COLORS[answer.verdict]
            panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, edgecolor="white", linewidth=1.2))
            ink = "white" if answer.verdict == FAILED else TEXT
            panel.text(x, y, text.mark(answer), ha="center", va="center", fontsize=7.5, color=ink)
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xticks(range(len(columns)), [f"{dtype} {text.SHORT[recipe]}" for dtype, recipe in columns], rotation=90)
    panel.set_yticks(range(len(rows)), rows)
    panel.tick_params(length=0, labelsize=7.5, color=MUTED)
    panel.grid(visible=False)
    for side in panel.spines.values():
        side.set_visible(False)
    panel.set_title(", ".join(archs), fontsize=8.5)
