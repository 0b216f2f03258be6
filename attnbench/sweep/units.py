"""Sizes and durations as people write them."""

import re

from attnbench.errors import InputError

MAX_SIZE_BYTES = 1 << 63  # of a memory limit, as the kernel counts it
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
          "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}  # fmt: skip
_TIMES = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_size(text: str | int) -> int:
    """Bytes of `8GiB`, `512MiB`, `1000000`.

    Raises:
        InputError: not a size.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)", str(text).strip())
    unit = match[2].lower() if match else None
    if match is None or unit not in _UNITS:
        raise InputError(f"a size is a number with a unit such as 512MiB or 8GiB, got {text!r}")
    size = float(match[1]) * _UNITS[unit]
    if size >= MAX_SIZE_BYTES:
        raise InputError(f"a size must be below 8 EiB, got {text!r}; leave it out for no limit")
    return int(size)


def parse_duration(text: str | float) -> float:
    """Seconds of `300s`, `5m`, `1h`, `90`.

    Raises:
        InputError: not a duration.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", str(text).strip())
    if match is None or match[2] not in _TIMES:
        raise InputError(f"a duration is a number with a unit such as 90s, 5m or 1h, got {text!r}")
    return float(match[1]) * _TIMES[match[2]]
