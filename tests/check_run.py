"""Check the CSV of a run, as somebody else's script would read it: `python check_run.py RUN_DIR ARM...`."""

import csv
import math
import sys
from pathlib import Path


def faults(run_dir: Path, arms: list[str]) -> list[str]:
    """What is wrong with records.csv: missing files, arms that are not ok, figures that cannot be."""
    path = run_dir / "records.csv"
    if not path.is_file():
        return [f"{path} is missing"]
    with path.open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    found = [
        f"{run_dir / name} is missing" for name in ("report.html", "manifest.json") if not (run_dir / name).is_file()
    ]
    cases = [row["case_id"] for row in rows]
    if len(set(cases)) != len(cases):
        found.append("a case has two rows")
    for arm in arms:
        own = [row for row in rows if row["arm"] == arm]
        if not own:
            found.append(f"no row of {arm}")
        found += [f"{arm} at T = {row['q_len']}: {fault}" for row in own for fault in _row_faults(row)]
    return found


def _row_faults(row: dict[str, str]) -> list[str]:
    if row["status"] != "ok":
        return [f"status {row['status']}: {row['reason']}"]
    low, median, high = (
        float(row[key] or "nan") for key in ("latency_ms_ci_low", "latency_ms_median", "latency_ms_ci_high")
    )
    if not 0 < low <= median <= high < math.inf:
        return [f"latency {low} <= {median} <= {high} ms is not an interval"]
    error, limit = float(row["worst_row_rel_err"] or "nan"), float(row["worst_row_limit"] or "nan")
    return [] if error <= limit else [f"error {error} is above {limit}, and yet ok"]


if __name__ == "__main__":
    complaints = faults(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.write(("\n".join(complaints) or f"{sys.argv[1]}: records.csv is as promised") + "\n")
    sys.exit(bool(complaints))
