"""Wall time of the commands that must feel instant: `make perf` prints it; nothing is asserted."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 15
COMMANDS = (["--help"], ["list"], ["bench", "--help"])


def wall_s(argv: list[str]) -> list[float]:
    """Seconds of each of `REPEATS` runs, after one that fills the file caches."""
    command = [Path(sys.executable).with_name("attnbench"), *argv]
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


if __name__ == "__main__":
    for argv in COMMANDS:
        taken = wall_s(argv)
        sys.stdout.write(
            f"attnbench {' '.join(argv):14} median {statistics.median(taken):.3f} s, "
            f"fastest {min(taken):.3f} s of {REPEATS} runs (bar: 0.25 s)\n"
        )
