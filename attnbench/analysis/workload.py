"""A workload: how many requests of which batch size and length T, from a CSV file."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

from attnbench.errors import InputError

_COLUMNS = {
    "batch_size": ("batch_size", "batch"), "seq_len": ("seq_len", "t", "q_len", "length"),
    "count": ("count", "requests", "weight"),
}  # fmt: skip
_MAX_SEQ_LEN = 1 << 30


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
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as err:
        raise InputError(f"cannot read the workload {str(path)!r}: {err.strerror}; name a CSV file") from err
    except UnicodeDecodeError as err:
        raise InputError(f"the workload {str(path)!r} is not UTF-8 text; save it as CSV in UTF-8") from err
    rows = [row for row in csv.reader(text.splitlines()) if any(cell.strip() for cell in row)]
    if not rows:
        raise InputError(f"the workload {str(path)!r} is empty; give it a header seq_len,count and a row per length")
    columns = _columns(path, rows[0])
    totals: dict[tuple[int, int], float] = {}
    for number, row in enumerate(rows[1:], 2):
        size, count = _row(path, number, row, columns)
        totals[size] = totals.get(size, 0.0) + count
    if not sum(totals.values()):
        raise InputError(f"the workload {str(path)!r} has no requests; give at least one row a count above 0")
    return [Requests(batch, seq_len, count) for (batch, seq_len), count in sorted(totals.items()) if count]


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
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_SEQ_LEN:
            rule = "must be a whole number of at least 1"
            raise InputError(f"{str(path)!r}, row {number}: {column} {rule}, got {text!r}; correct that row")
        sizes.append(int(text))
    text = cell("count") if "count" in columns else "1"
    try:
        count = float(text)
    except ValueError:
        count = math.nan
    if not (math.isfinite(count) and count >= 0.0):
        raise InputError(f"{str(path)!r}, row {number}: count must be a number of at least 0, got {text!r}; correct it")
    return (sizes[0], sizes[1]), count
