"""What the page carries inside: Plotly and data, packed as text that no parser of HTML can misread."""

import base64
import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any


def packed(content: str | bytes) -> str:
    """gzip, then base64; the same content gives the same text."""
    raw = content.encode() if isinstance(content, str) else content
    return base64.b64encode(gzip.compress(raw, compresslevel=9, mtime=0)).decode("ascii")


def compact_json(value: Any) -> str:
    """JSON without spaces, in ASCII: a lone surrogate is kept, and no line separator is left raw.

    Raises:
        ValueError: a figure is not finite; JSON has no word for it.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: `<` is escaped, so no tag or comment can begin or end there."""
    return compact_json(value).replace("<", "\\u003c")


def plotly_source() -> bytes:
    """plotly.min.js as the `plotly` package brings it, licence included; found without importing the package.

    Raises:
        ImportError: the package is missing.
    """
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("plotly is not installed", name="plotly")
    return (Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js").read_bytes()
