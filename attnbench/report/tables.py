"""records.csv, records.parquet and samples.parquet: whole, typed, and every label as it was."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from attnbench.errors import RecordsError
from attnbench.files import write_atomically, write_bytes
from attnbench.records import COLUMNS, Record

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SAMPLE_COLUMNS = ("case_id", "replica", "round", "sample", "latency_ns")
_JSON_COLUMNS = frozenset({"empty_reasons", "facts", "stress", "runtime_options", "sizes"})
_SAMPLE_BATCH_ROWS = 1 << 18


def column_kind(column: str) -> type:
    """int, float, bool or str; what is not a scalar is kept as text (`flags`: `a;b`, the rest: JSON)."""
    if column in _JSON_COLUMNS:
        return str
    annotation = Record.model_fields[column].annotation
    for kind in (bool, int, float):
        if kind is annotation or kind in get_args(annotation):
            return kind
    return str


def cell(column: str, value: Any) -> Any:
    """The value as a flat cell: None stays None, lists are joined with `;`, mappings are JSON with sorted keys."""
    if column == "flags":
        return ";".join(value)
    if column in _JSON_COLUMNS:
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    return value


def flat_row(record: Record) -> list[Any]:
    """One record as cells in the order of COLUMNS."""
    return [cell(column, getattr(record, column)) for column in COLUMNS]


def _csv_text(value: Any) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def write_csv(path: Path, records: Iterable[Record]) -> None:
    """All records with all columns, atomically. None is an empty cell; floats have every digit.

    Raises:
        OSError: the folder cannot be written; nothing is left behind.
    """

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as f:
            writer = csv.writer(f, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows([_csv_text(value) for value in flat_row(record)] for record in records)

    write_atomically(path, write)


def read_csv(path: Path) -> "pd.DataFrame":
    """records.csv as typed columns. An empty number is missing; text is kept byte for byte, `None` and `NA` too.

    Raises:
        RecordsError: the file cannot be read or has no header of records.
    """
    import pandas as pd

    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as err:
        raise RecordsError(f"cannot read {path}: {err.strerror}; name the records.csv of a run") from err
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if not rows or "case_id" not in rows[0]:
        raise RecordsError(f"{path} has no header with case_id; name the records.csv of a run")
    header, body = rows[0], rows[1:]
    if any(len(row) != len(header) for row in body):
        raise RecordsError(f"{path}: a row has not the {len(header)} cells of the header; write it again with report")
    return pd.DataFrame({name: _series([row[i] for row in body], name) for i, name in enumerate(header)})


def _series(texts: list[str], column: str) -> "pd.Series[Any]":
    import pandas as pd

    kind = column_kind(column) if column in COLUMNS else str
    if kind is str:
        return pd.Series(texts, dtype=object)
    converters: dict[type, Callable[[str], Any]] = {int: int, float: float, bool: lambda text: text == "True"}
    dtype = {int: "Int64", float: "float64", bool: "boolean"}[kind]
    return pd.Series([converters[kind](t) if t else None for t in texts], dtype=dtype)


def write_parquet(path: Path, records: Sequence[Record]) -> None:
    """All records with all columns, typed, atomically.

    Raises:
        OSError: the folder cannot be written.
        ImportError: pyarrow is missing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    schema = pa.schema([(column, types[column_kind(column)]) for column in COLUMNS])
    arrays = [
        pa.array([cell(column, getattr(r, column)) for r in records], type=schema.field(column).type)
        for column in COLUMNS
    ]
    table = pa.Table.from_arrays(arrays, schema=schema)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary))


def merge_samples(folder: Path, path: Path, problem_ids: Iterable[str]) -> list[str]:
    """Stream samples/<problem_id>.parquet of these problems into one file, atomically; say what was left out.

    Raises:
        OSError: the result cannot be written.
        ImportError: pyarrow is missing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = set(problem_ids)
    files = sorted(p for p in folder.glob("*.parquet") if p.stem in wanted) if folder.is_dir() else []
    problems: list[str] = []
    schema = pa.schema(
        [("case_id", pa.string()), ("replica", pa.int8()), ("round", pa.int16()), ("sample", pa.int32()),
         ("latency_ns", pa.int64())]
    )  # fmt: skip

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema) as writer:
            for file in files:
                batches = iter(_sample_batches(file, schema))
                while True:
                    try:
                        batch = next(batches, None)
                    except (pa.ArrowException, KeyError, OSError) as err:
                        why = str(err).splitlines()[0]
                        problems.append(f"{file.name}: cannot be read ({why}); its samples are left out")
                        break
                    if batch is None:
                        break
                    writer.write_batch(batch)  # outside the try: a full disk is no fault of the file that is read

    if files:
        write_atomically(path, write)
    return problems


def _sample_batches(file: Path, schema: "pa.Schema") -> "Iterable[pa.RecordBatch]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as source:
        for batch in source.iter_batches(batch_size=_SAMPLE_BATCH_ROWS, columns=list(SAMPLE_COLUMNS)):
            columns = [batch.column(name).cast(schema.field(name).type) for name in SAMPLE_COLUMNS]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically as UTF-8.

    Raises:
        OSError: the folder cannot be written.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))
