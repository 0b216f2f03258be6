"""How figures and names are written for people: one place, so that table, plot and terminal agree."""

import math
from collections.abc import Iterable, Sequence

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def fmt_number(value: float | None, digits: int = 3) -> str:
    """Three significant digits without exponents for everyday sizes; empty for None, `nan` and `inf` spelt out."""
    if value is None:
        return ""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}"


def fmt_error(value: float | None) -> str:
    """A relative error: two significant digits with an exponent."""
    return "" if value is None else f"{value:.1e}"


def fmt_ms(value: float | None) -> str:
    """Milliseconds with their unit."""
    return "" if value is None else f"{fmt_number(value)} ms"


def fmt_interval(low: float | None, high: float | None) -> str:
    """`0.31 to 0.33`, or nothing when an end is missing."""
    if low is None or high is None:
        return ""
    return f"{fmt_number(low)} to {fmt_number(high)}"


def fmt_bytes(value: float | None) -> str:
    """Bytes in the binary unit that keeps the figure below 1024."""
    if value is None:
        return ""
    size = float(value)
    for unit in _BYTE_UNITS:
        if abs(size) < 1023.5 or unit == _BYTE_UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{fmt_number(size)} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def fmt_ratio(value: float | None) -> str:
    """`1.23x`."""
    return "" if value is None else f"{value:.2f}x"


def fmt_percent(fraction: float | None, digits: int = 2) -> str:
    """A fraction as per cent: 0.012 is `1.2 %`."""
    return "" if fraction is None else f"{fmt_number(100 * fraction, digits)} %"


def fmt_count(count: int, noun: str) -> str:
    """`1 case`, `12 cases`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def fmt_list(items: Sequence[str], limit: int = 6) -> str:
    """`a, b and c`; past the limit `a, b, ... and 9 more`."""
    if len(items) > limit:
        return f"{', '.join(items[:limit])} and {len(items) - limit} more"
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def fmt_duration(seconds: float | None) -> str:
    """`48 s`, `4 min 12 s`."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{fmt_number(seconds, 2)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def short_arm(arm: str, limit: int = 26) -> str:
    """The arm without `onnx-` and cut to `limit` characters: what fits beside a line.

    A short bracket at the end stays (`attention..[ort131=1.31.1]`): arms of two interpreters differ in nothing else.
    """
    short = arm.removeprefix("onnx-")
    head, _, bracket = short.rpartition("[")
    room = limit - len(bracket) - 3
    if len(short) > limit and bracket.endswith("]") and room >= 8:
        return f"{head[:room]}..[{bracket}"
    return short if len(short) <= limit else short[: limit - 2] + ".."


def printable(text: str) -> str:
    """The text with line breaks and control characters made visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def unique(items: Iterable[str]) -> list[str]:
    """Without repeats, in order of first appearance."""
    return list(dict.fromkeys(items))
