"""Do two runs of the same code differ? Quick runs, each beside the next: `make perf-diff` prints it (10 minutes).

Then every arm in turn is made slower by hand in the newer run of each pair, which shows what `diff` would find here.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from attnbench import api
from attnbench.analysis.diff import CATEGORIES, Side, diff
from attnbench.records import Record

GATES = ("slower", "mismatch", "kernel", "memory", "status", "numeric")
PLANTED = (0.03, 0.05, 0.10, 0.20)
TIMES = ("latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high")


def made(folder: Path, count: int) -> list[Path]:
    """`count` quick runs in `folder`; those that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    command = Path(sys.executable).with_name("attnbench")
    paths = [folder / f"run-{i + 1:02d}" for i in range(count)]
    for path in paths:
        if not path.exists():
            subprocess.run([command, "bench", "quick", "-q", "-o", path], check=False, capture_output=True)
    return paths


def tell(text: str) -> None:
    """A line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def slowed(rows: list[Record], arm: str, fraction: float) -> Iterator[Record]:
    """The rows with one arm slower everywhere."""
    for r in rows:
        is_slow = r.arm == arm and r.latency_ms_median is not None
        yield r.model_copy(update={c: getattr(r, c) * (1 + fraction) for c in TIMES}) if is_slow else r


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--folder", type=Path, help="keeps the runs, or has them already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = [api.open_run(path) for path in made(options.folder or Path(temporary), options.runs)]
        tell("pair            compared  judged  apart  |change|/needed at most  flagged")
        flagged_pairs = 0
        hits: dict[float, list[int]] = {fraction: [0, 0, 0, 0] for fraction in PLANTED}  # cases, of, arms, of
        for old, new in pairwise(runs):
            found = api.diff(old, new)
            shifts = [case.shift for case in found.compared if case.shift is not None]
            largest = max((abs(s.change) / s.needed for s in shifts), default=0.0)
            flagged = {category: n for category in CATEGORIES if (n := found.adverse(category))}
            flagged_pairs += found.exit_code(GATES) == 1
            tell(
                f"{old.path.name} {new.path.name}  {len(found.compared):7}  {len(shifts):6}  {len(found.apart):5}  "
                f"{largest:25.2f}  {flagged or 'nothing'}"
            )
            for fraction, hit in hits.items():
                for arm in sorted({r.arm for r in new.rows}):
                    sides = ((old, old.rows), (new, list(slowed(new.rows, arm, fraction))))
                    planted = diff(*(Side(name="", rows=rows, manifest=run.manifest) for run, rows in sides))
                    verdicts = [c.shift.verdict for c in planted.compared if c.shift and c.new.arm == arm]
                    slow = verdicts.count("slower")
                    hit[:] = [hit[0] + slow, hit[1] + len(verdicts), hit[2] + bool(slow), hit[3] + bool(verdicts)]
        tell(f"pairs flagged by --fail-on {','.join(GATES)}: {flagged_pairs} of {len(runs) - 1}")
        for fraction, (cases, of_cases, arms, of_arms) in hits.items():
            tell(f"an arm {fraction:.0%} slower: named in {cases} of {of_cases} cases judged, {arms} of {of_arms} arms")
