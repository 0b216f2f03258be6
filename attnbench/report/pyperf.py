"""A run in the file format of pyperf (its JSON, version 1.0), for its `compare_to`, `stats`, `check` and `hist`.

Its value is the time of one call, averaged over `loops` calls; its run is a process. Here a visit of the arm in a round
takes both places: a run with one value, the median of the visit's calls, and `loops` = how many calls there were. Calls
of one visit are not independent, so that a t-test over all calls would find differences where there are none;
`values="calls"` gives them all the same, for `hist`.
"""

import gzip
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnbench.errors import InputError
from attnbench.files import write_bytes
from attnbench.records import Record
from attnbench.report.names import case_names
from attnbench.report.text import printable

Values = Literal["visits", "calls"]
_OF_RECORD = (
    "arm", "exporter", "opset", "runtime", "runtime_version", "device", "device_name", "threads", "compute_precision",
    "attention_kernel", "latency_scope", "peak_host_bytes", "peak_device_bytes", "worst_row_rel_err",
)  # fmt: skip
NS_PER_S = 1e9
Visits = Mapping[str, list[list[int]]]  # case_id -> per round, nanoseconds of the calls


@dataclass(kw_only=True)
class Suite:
    """What pyperf reads, and what was left out of it."""

    document: dict[str, Any]
    count: int  # benchmarks
    problems: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file atomically; compressed when its name ends in .gz, as pyperf expects.

        Raises:
            OSError: it cannot be written; an old file stays as it was.
        """
        blob = json.dumps(self.document, separators=(",", ":"), sort_keys=True).encode()
        blob = gzip.compress(blob, mtime=0) if path.name.endswith(".gz") else blob + b"\n"
        write_bytes(path, blob)


def make_suite(run_dir: Path, records: Sequence[Record], manifest: Mapping[str, Any], values: Values) -> Suite:
    """One benchmark per `ok` case that has samples, named as in metrics.json, in seconds per call.

    Of the baseline, which is timed by two workers, the first is taken, as in its record.

    Args:
        run_dir: holds samples/.
        records: judged records of the run.
        manifest: of the run; every key may be missing.
        values: `visits`: a value per visit, the median of its calls; `calls`: a value per call.

    Raises:
        InputError: no case has samples.
        ImportError: pyarrow is missing.
    """
    suite = Suite(document={"version": "1.0", "metadata": _machine(manifest), "benchmarks": []}, count=0)
    visits: dict[str, Visits] = {}
    for name, record in zip(case_names(records), records, strict=True):
        if record.status != "ok" or record.sample_count is None:
            continue
        if record.problem_id not in visits:
            visits[record.problem_id] = _read(run_dir / "samples" / f"{record.problem_id}.parquet", suite.problems)
        found = visits[record.problem_id].get(record.case_id)
        if not found:
            suite.problems.append(f"{name}: no samples; left out")
            continue
        runs = _runs(found, values)
        if min(min(run["values"]) for run in runs) <= 0:
            suite.problems.append(f"{name}: has a value of 0 s, which pyperf does not take; left out")
            continue
        suite.document["benchmarks"].append({"metadata": _case(name, record), "runs": runs})
        suite.count += 1
    if not suite.count:
        why = suite.problems[0] if suite.problems else "no case was timed and right"
        raise InputError(
            f"{str(run_dir)!r} has nothing to convert: {why}; name a run with its folder samples/, or run bench again"
        )
    return suite


def _read(path: Path, problems: list[str]) -> Visits:
    """The calls of every case by round, of the first replica."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rounds: dict[str, dict[int, list[int]]] = {}
    try:
        table = pq.read_table(path, columns=["case_id", "replica", "round", "latency_ns"])
        columns = [table.column(name).to_pylist() for name in ("case_id", "replica", "round", "latency_ns")]
    except FileNotFoundError:
        problems.append(f"{path} is missing")
        return {}
    except (pa.ArrowException, KeyError, OSError) as err:
        problems.append(f"{path} cannot be read ({str(err).splitlines()[0]})")
        return {}
    for case_id, replica, number, latency_ns in zip(*columns, strict=True):
        if replica == 0:
            rounds.setdefault(case_id, {}).setdefault(number, []).append(latency_ns)
    return {case_id: [calls for _, calls in sorted(found.items())] for case_id, found in rounds.items()}


def _runs(visits: Sequence[Sequence[int]], values: Values) -> list[dict[str, Any]]:
    if values == "calls":
        return [{"metadata": {"loops": 1}, "values": [ns / NS_PER_S for ns in calls]} for calls in visits]
    return [{"metadata": {"loops": len(c)}, "values": [statistics.median(c) / NS_PER_S]} for c in visits]


def _case(name: str, record: Record) -> dict[str, Any]:
    facts = {column: getattr(record, column) for column in _OF_RECORD}
    facts["flags"] = ", ".join(record.flags)
    facts["date"] = record.started_at_utc.replace("T", " ").removesuffix("Z").partition("+")[0]
    return {"name": name, "unit": "second", **_known(facts)}


def _machine(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The names that pyperf gives them where it has one, `attnbench_...` for the rest."""
    environment = manifest.get("environment") or {}
    machine, system = environment.get("machine") or {}, environment.get("os") or {}
    python, load = environment.get("python") or {}, environment.get("load_average") or []
    cpus = environment.get("timing_cpus") or []
    return _known(
        {
            "cpu_model_name": machine.get("cpu_model"),
            "cpu_machine": machine.get("architecture"),
            "cpu_count": machine.get("logical_cpus"),
            "cpu_affinity": ",".join(map(str, cpus)),
            "platform": " ".join(str(system[key]) for key in ("system", "kernel", "libc") if system.get(key)),
            "python_version": python.get("version"),
            "python_implementation": str(python.get("implementation") or "").lower(),
            "python_gc": "disabled",
            "timer": "time.perf_counter_ns",
            "load_avg_1min": load[0] if load else None,
            "attnbench_version": manifest.get("attnbench_version"),
            "attnbench_run_id": manifest.get("run_id"),
            "attnbench_noise_floor": manifest.get("noise_floor"),
        }
    )


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What pyperf's metadata take: numbers, and text of one line that is not empty."""
    clean = {key: printable(v).strip() if isinstance(v, str) else v for key, v in facts.items()}
    finite = {k: v for k, v in clean.items() if not isinstance(v, float) or math.isfinite(v)}
    return {key: value for key, value in finite.items() if value not in (None, "")}
