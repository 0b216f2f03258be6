"""A workload: how many requests of which batch size and length T, from a CSV file."""

import csv
import math
import re
from pathlib import Path
from typing import NamedTuple

from attnbench.errors import InputError

_COLUMNS = {
    "batch_size": ("batch_size", "batch"), "seq_len": ("seq_len", "t", "q_len", "length"),
    "count": ("count", "requests", "weight"),
}  # fmt: skip
_MAX_SEQ_LEN = 1 << 30
_MAX_COUNT = 1e15  # of a row: sums of many stay finite
_MAX_BYTES = 64 << 20  # 4 million rows


_NUMBER = re.compile(r"(?a:(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)")


class Requests(NamedTuple):
    """So many requests of one size."""

    batch_size: int
    seq_len: int
    number: float


def read_workload(path: Path) -> list[Requests]:
    """The rows of a CSV file with a header: seq_len, and perhaps batch_size and count (1 where they lack).

    Rows of the same size are added up.

    Raises:
        InputError: not a CSV file of this form; the message has the line.
    """
    reader = csv.reader(_text(path).splitlines())
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as err:
        raise InputError(f"{str(path)!r}, row {reader.line_num}: {err}; correct that row") from err
    if not rows:
        raise InputError(f"the workload {str(path)!r} is empty; give it a header seq_len,count and a row per length")
    columns = _columns(path, rows[0][1])
    totals: dict[tuple[int, int], float] = {}
    for number, row in rows[1:]:
        size, count = _row(path, number, row, columns)
        totals[size] = totals.get(size, 0.0) + count
    if not sum(totals.values()):
        raise InputError(f"the workload {str(path)!r} has no requests; give at least one row a count above 0")
    return [Requests(batch, seq_len, count) for (batch, seq_len), count in sorted(totals.items()) if count]


def _text(path: Path) -> str:
    """What the file says. A pipe or device could wait, or go on, for ever."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"the workload {str(path)!r} is a pipe or a device; save it as a CSV file")
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise InputError(
                f"the workload {str(path)!r} has {size >> 20} MiB, the most is {_MAX_BYTES >> 20}; add up its rows"
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as err:
        raise InputError(f"cannot read the workload {str(path)!r}: {err.strerror}; name a CSV file") from err
    except UnicodeDecodeError as err:
        raise InputError(f"the workload {str(path)!r} is not UTF-8 text; save it as CSV in UTF-8") from err


def _columns(path: Path, header: list[str]) -> dict[str, int]:
    names = [cell.strip().lower() for cell in header]
    found: dict[str, int] = {}
    for column, aliases in _COLUMNS.items():
        places = [i for i, name in enumerate(names) if name in aliases]
        if len(places) > 1:
            raise InputError(f"the workload {str(path)!r} has {column} twice ({', '.join(header)}); keep one")
        if places:
            found[column] = places[0]
    if "seq_len" not in found:
        raise InputError(f"the workload {str(path)!r} has no column seq_len, it has {', '.join(header)}; name it so")
    return found


def _row(path: Path, number: int, row: list[str], columns: dict[str, int]) -> tuple[tuple[int, int], float]:
    def cell(column: str) -> str:
        at = columns[column]
        return row[at].strip() if at < len(row) else ""

    sizes = []
    for column in ("batch_size", "seq_len"):
        text = cell(column) if column in columns else "1"
        if not re.fullmatch("0*[0-9]{1,10}", text) or not 1 <= int(text[-10:]) <= _MAX_SEQ_LEN:
            rule = f"must be a whole number from 1 to {_MAX_SEQ_LEN}"
            raise InputError(f"{str(path)!r}, row {number}: {column} {rule}, got {_shown(text)}; correct that row")
        sizes.append(int(text))
    text = cell("count") if "count" in columns else "1"
    count = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0.0 <= count <= _MAX_COUNT:  # nan too
        rule = f"must be a number from 0 to {_MAX_COUNT:g}"
        raise InputError(f"{str(path)!r}, row {number}: count {rule}, got {_shown(text)}; correct it")
    return (sizes[0], sizes[1]), count


def _shown(text: str) -> str:
    """The cell, quoted, and cut where it is very long."""
    return repr(text if len(text) <= 40 else text[:40] + "...")
