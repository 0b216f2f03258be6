"""A flat {name: number} of a run, for experiment trackers. What was not measured is not there."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.analysis.groups import judge_of_row
from attnbench.records import STATUSES, Record
from attnbench.report import precisions
from attnbench.report.names import case_names
from attnbench.report.text import printable

OF_RIGHT_CASES = (
    "latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high", "latency_ms_p90", "latency_ms_p99", "sample_count",
    "round_count", "speedup_vs_baseline", "speedup_ci_low", "speedup_ci_high", "first_call_ms", "load_ms", "build_ms",
    "export_ms", "peak_host_bytes", "kept_host_bytes", "peak_device_bytes", "planned_activation_bytes",
    "artifact_bytes", "gflops_per_s", "peak_fraction", "gbytes_per_s", "tokens_per_s",
)  # fmt: skip
OF_CHECKED_CASES = (
    "worst_row_rel_err", "worst_row_limit", "rel_fro_err", "max_abs_err", "gain_err", "nan_count", "err_vs_floor",
    "err_vs_eager",
)  # fmt: skip
OF_RUN = (
    "threads", "noise_floor", "noise_pairs", "delta", "harness_ns", "visits", "contended_visits", "cases_planned",
    "elapsed_s",
)  # fmt: skip


def flat_metrics(records: Sequence[Record], manifest: Mapping[str, Any]) -> dict[str, float]:
    """`run/NAME` and `CASE/COLUMN`, finite numbers only.

    A case that is wrong has its errors, but no time and no memory: a chart must not show it as a competitor. A run of
    a model of the user has `run/cases_judged_by_JUDGE` too, how many cases were compared with what: float64 or an arm.

    Args:
        records: judged records.
        manifest: of the run; every key may be missing.
    """
    found: dict[str, Any] = {f"run/{name}": manifest.get(name) for name in OF_RUN}
    counts = Counter[str](r.status for r in records)
    found |= {f"run/cases_{status}": counts[status] for status in STATUSES}
    found |= {f"run/cases_judged_by_{judge}": n for judge, n in _judges(records).items()}
    for dtype, peak in (manifest.get("machine_peak") or {}).items():
        found[f"run/machine_peak_{dtype}_gflops_per_s"] = peak.get("gflops_per_s")
    beside: dict[str, dict[str, float]] = {}
    for table in precisions.tables(records, manifest):
        beside |= precisions.figures(table)
    for name, record in zip(case_names(records), records, strict=True):
        columns = (
            *(OF_CHECKED_CASES if record.status in ("ok", "mismatch") else ()),
            *(OF_RIGHT_CASES if record.status == "ok" else ()),
        )
        found |= {f"{name}/{column}": getattr(record, column) for column in columns}
        found |= {f"{name}/{column}": figure for column, figure in beside.get(record.case_id, {}).items()}
    return {name: value for name, value in found.items() if _is_figure(value)}


def _judges(records: Sequence[Record]) -> Counter[str]:
    """Cases of models by what they were compared with; the arm that judges is compared with nothing."""
    judged = (r for r in records if r.model is not None and r.status in ("ok", "mismatch"))
    return Counter(printable(judge) for r in judged if (judge := judge_of_row(r)) not in (None, r.arm))


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
