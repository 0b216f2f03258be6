"""Peak memory at T = 4096 in two runs of opposite order, the second from a parent of 800 MiB: `make perf` prints it."""

import sys
import tempfile
from pathlib import Path

import numpy as np

import attnbench

GRID = {"variants": ["self"], "time_budget_s": 60.0}


def peaks(folder: Path, name: str, seq_lens: list[int]) -> dict[tuple[str, str], int]:
    """Peak bytes at T = 4096 by variant and arm."""
    run = attnbench.bench("default", seq_lens=seq_lens, out=folder / name, **GRID)
    return {(r.variant, r.arm): r.peak_host_bytes for r in run.rows if r.q_len == 4096 and r.peak_host_bytes}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        first = peaks(Path(made), "first", [4096])
        ballast = np.ones(100 << 20)  # 800 MiB
        second = peaks(Path(made), "second", [64, 4096])
        del ballast
    worst = 0.0
    for case in sorted(first):
        difference = abs(second[case] / first[case] - 1)
        worst = max(worst, difference)
        sys.stdout.write(
            f"{' '.join(case):36} {first[case] / 2**20:8.1f} MiB {second[case] / 2**20:8.1f} MiB {difference:.2%}\n"
        )
    sys.stdout.write(f"worst difference between the runs: {worst:.2%} (bar: 2 %)\n")
