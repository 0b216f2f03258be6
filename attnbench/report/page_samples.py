"""Raw samples for the page: every visit's median, fastest and slowest call, small enough to be carried inside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnbench.records import Record
from attnbench.report.text import fmt_count

MAX_VISITS = 300_000  # about 1.2 MB inside the page
STEPS = 1000  # a visit is stored in thousandths of its worker's median

NO_FILE = "this run has no file of samples for this problem"
OVER_LIMIT = "left out to keep this page small; samples.parquet has them"

Ints = NDArray[np.int64]


@dataclass(kw_only=True)
class PageSamples:
    """Columns of all workers, one after another, and why a case has none."""

    case: list[int] = field(default_factory=list)  # position of the record
    replica: list[int] = field(default_factory=list)
    median_us: list[float] = field(default_factory=list)  # over visits; what the next three are relative to
    count: list[int] = field(default_factory=list)  # visits
    rounds: list[int] = field(default_factory=list)  # per visit: its round, less the round of the visit before
    medians: list[int] = field(default_factory=list)  # per visit, in STEPS of the worker's median
    below: list[int] = field(default_factory=list)  # median - fastest
    above: list[int] = field(default_factory=list)  # slowest - median
    absent: dict[str, list[int]] = field(default_factory=dict)  # reason: positions of records
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """What is embedded."""
        names = ("case", "replica", "median_us", "count", "rounds", "medians", "below", "above", "absent")
        return {name: getattr(self, name) for name in names}


def read_samples(folder: Path | Mapping[str, Path], records: Sequence[Record]) -> PageSamples:
    """The visits of all records, each file of samples/ read once; a file that cannot be read costs its own samples.

    Args:
        folder: samples/ of the run; of several runs each one's, by run_id.
        records: of which the position is kept.

    Raises:
        ImportError: pyarrow is missing.
    """
    found = PageSamples()
    groups: dict[Path, dict[str, int]] = {}
    for i, record in enumerate(records):
        path = (folder if isinstance(folder, Path) else folder[record.run_id]) / f"{record.problem_id}.parquet"
        groups.setdefault(path, {})[record.case_id] = i
    for path, cases in groups.items():
        reason = NO_FILE
        if len(found.rounds) > MAX_VISITS:
            reason = OVER_LIMIT
        elif path.is_file():
            try:
                _add_file(found, path, cases)
                continue
            except (OSError, ValueError, KeyError) as err:
                why = (str(err).splitlines() or [type(err).__name__])[0]
                reason = f"{path.name} cannot be read ({why})"
                found.problems.append(f"{path.name}: cannot be read ({why}); its samples are left out")
        found.absent.setdefault(reason, []).extend(cases.values())
    left_out = len(found.absent.get(OVER_LIMIT, ()))
    if left_out:
        found.problems.append(f"raw samples of {fmt_count(left_out, 'case')} are {OVER_LIMIT}")
    return found


def _add_file(found: PageSamples, path: Path, cases: Mapping[str, int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, read_dictionary=["case_id"]) as source:
        table = source.read(columns=["case_id", "replica", "round", "latency_ns"])
    if table.num_rows == 0:
        return
    ids = table.column("case_id").combine_chunks()
    if not pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_encode()
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.unify_dictionaries().combine_chunks()
    positions = np.array([cases.get(case_id, -1) for case_id in ids.dictionary.to_pylist()], dtype=np.int64)
    case = positions[ids.indices.to_numpy()]
    replica, number, latency_ns = (
        table.column(name).to_numpy().astype(np.int64) for name in ("replica", "round", "latency_ns")
    )
    mine = case >= 0
    _add_visits(found, case[mine], replica[mine], number[mine], latency_ns[mine])


def _add_visits(found: PageSamples, case: Ints, replica: Ints, number: Ints, latency_ns: Ints) -> None:
    """Sort by worker, round and latency; a visit is then a slice whose middle and ends are what is wanted."""
    if case.size == 0:
        return
    order = np.lexsort((latency_ns, number, replica, case))
    case, replica, number, latency_ns = (column[order] for column in (case, replica, number, latency_ns))
    new_worker = np.flatnonzero((np.diff(case, prepend=-1) != 0) | (np.diff(replica, prepend=-1) != 0))
    is_new = np.zeros(case.size, dtype=bool)
    is_new[new_worker] = True
    starts = np.flatnonzero(is_new | (np.diff(number, prepend=-1) != 0))
    ends = np.append(starts[1:], case.size)
    medians = (latency_ns[(starts + ends - 1) // 2] + latency_ns[(starts + ends) // 2]) / 2
    lows, highs, rounds = latency_ns[starts], latency_ns[ends - 1], number[starts]
    firsts = np.searchsorted(starts, new_worker)
    for first, last in zip(firsts, np.append(firsts[1:], starts.size), strict=True):
        visits = slice(first, last)
        center = float(np.median(medians[visits])) or 1.0
        scaled = np.rint(medians[visits] * STEPS / center).astype(np.int64)
        found.case.append(int(case[starts[first]]))
        found.replica.append(int(replica[starts[first]]))
        found.median_us.append(float(f"{center / 1e3:.5g}"))
        found.count.append(int(last - first))
        found.rounds += np.diff(rounds[visits], prepend=0).tolist()
        found.medians += scaled.tolist()
        found.below += (scaled - np.rint(lows[visits] * STEPS / center).astype(np.int64)).tolist()
        found.above += (np.rint(highs[visits] * STEPS / center).astype(np.int64) - scaled).tolist()
