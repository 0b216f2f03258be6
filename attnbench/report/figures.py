"""matplotlib without its surprises: file backends only, fixed settings, the same bytes from the same records."""

import io
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.files import write_bytes
from attnbench.problem import digest
from attnbench.report.style import DARK_HUES, GRID, LIGHT_HUES, LIGHT_PAGE, MUTED, TEXT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DOTS_PER_INCH = 160

# What the page replaces in an inlined SVG, so that a dark page gets light ink.
CSS_VARIABLES = {
    **{hue: f"var(--hue-{i})" for i, hue in enumerate(LIGHT_HUES)},
    TEXT: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    LIGHT_PAGE: "var(--card)",
}

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": TEXT,
    "text.parse_math": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "xtick.labelcolor": TEXT,
    "ytick.color": MUTED,
    "ytick.labelcolor": TEXT,
    "xtick.minor.visible": False,
    "figure.facecolor": LIGHT_PAGE,
    "axes.facecolor": LIGHT_PAGE,
    "savefig.facecolor": LIGHT_PAGE,
}


def palette_css() -> tuple[str, str]:
    """The hues as CSS declarations for a light and for a dark page."""
    light, dark = ("".join(f"--hue-{i}:{hue};" for i, hue in enumerate(hues)) for hues in (LIGHT_HUES, DARK_HUES))
    return light, dark


@contextmanager
def plotting() -> Iterator[None]:
    """Settings for drawing and saving, whatever MPLBACKEND, matplotlibrc or HOME say.

    Raises:
        ImportError: matplotlib is missing.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    backend = os.environ.pop("MPLBACKEND", None)  # an unknown name would make the import itself fail
    try:
        import matplotlib as mpl
        from matplotlib import style
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    with style.context("default"), mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def save(figure: "Figure", folder: Path, name: str) -> str:
    """Write NAME.svg and NAME.png atomically and return the SVG text. Call it inside `plotting`.

    Raises:
        OSError: the folder cannot be written.
    """
    svg = svg_text(figure, name)
    write_bytes(folder / f"{name}.svg", svg.encode())
    png = io.BytesIO()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.savefig(png, format="png", dpi=PNG_DOTS_PER_INCH, metadata={"Software": None})
    write_bytes(folder / f"{name}.png", png.getvalue())
    return svg


def svg_text(figure: "Figure", name: str) -> str:
    """The figure as SVG with ids that begin with `name` and no date inside."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _unique_ids(out.getvalue(), name)


def _unique_ids(svg: str, name: str) -> str:
    svg = re.sub(r'(\sid=")', rf"\1{name}-", svg)
    svg = re.sub(r"(url\(#)", rf"\1{name}-", svg)
    return re.sub(r'(xlink:href="#)', rf"\1{name}-", svg)


def inline_svg(svg: str, label: str) -> str:
    """The SVG element for an HTML page: no prologue, scales with the page, colours by CSS variable, and a label."""
    from markupsafe import escape

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    for hex_color, variable in CSS_VARIABLES.items():
        body = body.replace(hex_color, variable)
    body = re.sub(r"font: [^;\"]*?([\d.]+px) [^;\"]*", r"font-size: \1", body)
    body = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1 role='img' aria-label='@LABEL@'>", body, count=1)
    return _slim(body).replace("@LABEL@", str(escape(label)))


def _slim(svg: str) -> str:
    """The same picture in about 60 % of the bytes: short ids and only those in use, a tenth of a point, no indents."""
    used = dict.fromkeys(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg))
    short = {name: f"s{digest([name])[:8]}" for name in used}
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{short[m[1]]}"' if m[1] in short else "", svg)
    svg = re.sub(r"(url\(#|href=\"#)([^)\"]+)", lambda m: m[1] + short[m[2]], svg)
    svg = re.sub(r"<[^>]*>", lambda m: re.sub(r"(?<=\d\.\d{2})\d+", "", m[0]), svg)  # of places, not of words
    svg = re.sub(r' d="([^"]*)"', lambda m: f' d="{_slim_path(m[1])}"', svg)
    return re.sub(r">\s*\n\s*<", "><", svg)


def _slim_path(path: str) -> str:
    """Tenths of a point; hundredths below 10, where the shapes of markers are."""
    path = re.sub(r"\d\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), path)
    return re.sub(r"\s*([MLCQz])\s*", r"\1", path)
