"""Colour, dash and marker of every arm: hue by runtime, the rest by exporter (torch: by runtime); no two alike."""

from collections.abc import Sequence
from dataclasses import dataclass

# Eight hues for white paper and eight for a dark page, searched for the largest least distance under normal sight,
# protanopia and deuteranopia with a contrast of 3:1 or more to the page. The first is the ink: the baseline's.
LIGHT_HUES = ("#1b1f24", "#2792f3", "#b78e00", "#a11f05", "#6e3f83", "#1da960", "#14a6a3", "#555b4f")
DARK_HUES = ("#f0f2f5", "#4ac2ff", "#e8d22f", "#c56900", "#bc5aa0", "#2fe08a", "#3f86f8", "#a2796a")
LIGHT_PAGE, DARK_PAGE = "#ffffff", "#14181d"

# Neutral inks of the plots; in the HTML they become CSS variables like the hues.
TEXT, MUTED, GRID = "#1c2025", "#5f6771", "#dfe3e7"

_RUNTIME_HUE = {
    "torch-sdpa": 0, "ort-cpu": 1, "torch-eager": 2, "openvino": 3, "tensorrt": 4, "tensorrt-rtx": 4, "ort-cuda": 6,
    "torch-compile": 5, "ort-tensorrt": 7,
}  # fmt: skip
_EXPORTER_STYLE = {"torch": 0, "onnx-decomposed": 1, "onnx-attention": 2, "onnx-contrib": 3}
_RUNTIME_STYLE = {"torch-eager": 4, "torch-compile": 5}  # the torch arms differ in marker too, not by hue alone
DASHES = ((), (5.0, 1.6), (1.2, 1.4), (6.0, 1.5, 1.2, 1.5))  # in line widths; () is solid
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True, kw_only=True)
class ArmStyle:
    """How one arm is drawn everywhere in a report."""

    hue: int  # index into the palettes
    dash: tuple[float, ...]
    marker: str

    @property
    def color(self) -> str:
        """The hue on white."""
        return LIGHT_HUES[self.hue]


def arm_styles(arms: Sequence[tuple[str, str, str]]) -> dict[str, ArmStyle]:
    """A style for each (name, runtime, exporter), in this order; unique as long as 256 last."""
    hues = dict(_RUNTIME_HUE)
    free = [i for i in (5, 6, 7, 4, 3, 2, 1) if i not in {hues[r] for _, r, _ in arms if r in hues}]
    taken: set[tuple[int, int, int]] = set()
    styles: dict[str, ArmStyle] = {}
    for name, runtime, exporter in arms:
        if runtime not in hues:
            hues[runtime] = free.pop(0) if free else 1 + len(hues) % (len(LIGHT_HUES) - 1)
        start = _RUNTIME_STYLE.get(runtime, _EXPORTER_STYLE.get(exporter, 4))
        key = next(
            key
            for step in range(len(DASHES) * len(MARKERS))
            if (key := _nth_style(hues[runtime], start + step)) not in taken
        )
        taken.add(key)
        styles[name] = ArmStyle(hue=key[0], dash=DASHES[key[1]], marker=MARKERS[key[2]])
    return styles


def _nth_style(hue: int, n: int) -> tuple[int, int, int]:
    """Hue, dash and marker; 32 different pairs of dash and marker before they repeat."""
    return hue, (n + n // len(MARKERS)) % len(DASHES), n % len(MARKERS)
