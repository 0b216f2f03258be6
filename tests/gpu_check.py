"""`make gpu-check`: what a machine with a GPU can say in 8 minutes, left in one folder; the short table comes last.

The doctor, `pytest -m gpu`, then a sweep of every runtime that can use the GPU: causal, fp32 and fp16, block and core,
T = 128 to 16384. What cannot run is named with the reason. Exit code 0: all is well; 1: a test or a case failed; 2: no
such folder can be made; 3: no runtime can use a GPU here. Tested without a GPU; not yet run on one.
"""

import csv
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUDGET_S = 480.0
DOCTOR_S, TESTS_S, SWEEP_S, REPORT_S = 60.0, 120.0, 225.0, 45.0
END_S = 10.0  # for each of them to end by itself when told to
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SHOWN_LENS = (128, 1024, 4096, 16384)
GPU_RUNTIMES = ("torch-eager", "torch-sdpa", "torch-compile", "ort-cuda", "ort-tensorrt", "tensorrt", "tensorrt-rtx")
FAILED = {"mismatch", "crashed", "error", "timeout"}
NO_TESTS_RAN = 5  # pytest's exit code
Row = Mapping[str, str]
Key = tuple[str, str, str, str]  # part, variant, dtype, arm


def main(argv: Sequence[str]) -> int:
    """Run everything into the folder of the first argument, else into a new one under results/."""
    start = time.monotonic()
    if len(argv) > 1 or any(argument.startswith("-") for argument in argv):
        sys.stderr.write(f"make gpu-check takes one new folder, got {' '.join(argv)}; write ARGS=results/mine\n")
        return 2
    folder = Path(argv[0]) if argv else ROOT / "results" / f"gpu-check-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        sys.stderr.write(f"make gpu-check: {folder} exists already; name a new folder\n")
        return 2
    except OSError as err:
        sys.stderr.write(f"make gpu-check: cannot make the folder {folder}: {err.strerror}; name another\n")
        return 2
    told = json.loads(output_of([*attnbench(), "doctor", "--json"], folder / "doctor.json", DOCTOR_S)[1])["runtimes"]
    runtimes, others = usable(told), refused(told)
    say(*others)
    if not runtimes:
        say("gpu-check: no runtime can use a GPU here, so nothing is timed; the reasons are above")
        return 3
    say(f"on the GPU: {', '.join(runtimes)}")
    code, text = output_of(pytest_command(), folder / "pytest.txt", TESTS_S)
    say(f"pytest -m gpu: {last_line(text)}")
    is_right = code in (0, NO_TESTS_RAN)
    left_s = min(SWEEP_S, BUDGET_S - REPORT_S - (time.monotonic() - start))
    code, text = output_of(bench_command(runtimes, left_s, folder / "sweep"), folder / "bench.txt", left_s + REPORT_S)
    rows = read_rows(folder / "sweep" / "records.csv")
    found = faults(rows) or ([] if rows else [f"the sweep has no rows: {last_line(text)}"])
    say(*found, f"everything is in {folder}")
    table = render(rows)
    (folder / "table.txt").write_text(table + "\n", encoding="utf-8")
    say(table)
    return int(not is_right or bool(found) or code not in (0, 1))


def attnbench() -> list[str]:
    """The command of this environment."""
    return [str(Path(sys.executable).with_name("attnbench"))]


def pytest_command() -> list[str]:
    """The tests that need a GPU."""
    return [sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(ROOT / "tests" / "gpu")]


def bench_command(runtimes: Sequence[str], budget_s: float, out: Path) -> list[str]:
    """The sweep; without --device the GPU is taken where a runtime can, which `faults` checks afterwards."""
    lengths = ",".join(map(str, SEQ_LENS))
    return [
        *attnbench(), "bench", "default", "--dtypes", "fp32,fp16", "--parts", "block,core", "--variants", "causal",
        "--seq-lens", lengths, "--runtimes", ",".join(runtimes), "--baseline", baseline(runtimes),
        "--time-budget", f"{max(30.0, budget_s):.0f}s", "-o", str(out), "-q",
    ]  # fmt: skip


def baseline(runtimes: Sequence[str]) -> str:
    """torch-sdpa where it runs, else the first."""
    return "torch-sdpa" if "torch-sdpa" in runtimes else runtimes[0]


def usable(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The runtimes that have a CUDA device, of the doctor's JSON."""
    return [
        name
        for name in GPU_RUNTIMES
        if name in told
        and told[name]["available"]
        and not told[name].get("compiles_only")
        and any(device.startswith("cuda") for device in told[name].get("devices", ()))
    ]


def refused(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each runtime of GPUs that cannot use one here: why, and the way out."""
    lines = []
    for name in GPU_RUNTIMES:
        if name not in told or name in usable(told):
            continue
        answer = told[name]
        why = answer["reason"] or answer.get("no_cuda") or answer.get("compiles_only") or "it names no CUDA device"
        lines.append(f"skipped {name}: {why}{'; fix: ' if answer['fix'] else ''}{answer['fix']}")
    return lines


def output_of(command: Sequence[str], file: Path, timeout_s: float) -> tuple[int, str]:
    """Exit code and stdout of a command; both streams are kept in the file. Past its time it is ended, with code 124.

    It is ended gently first: a sweep then keeps and reports what is finished.
    """
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    late = ""
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        late = f"{' '.join(command)} had not ended after {timeout_s:.0f} s\n"
        child.terminate()
        try:
            out, err = child.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
    file.write_text(out, encoding="utf-8")
    if late or err:
        file.with_name(file.name + ".stderr").write_text(err + late, encoding="utf-8")
    return 124 if late else child.returncode, out if out.strip() else err + late


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of records.csv; none where the sweep did not come so far."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def faults(rows: Sequence[Row]) -> list[str]:
    """Failed cases, and timed ones that did not run on the GPU."""
    found = []
    for row in rows:
        case = f"{row['arm']} {row['part']} {row['variant']} {row['dtype']} T = {row['q_len']}"
        if row["status"] in FAILED:
            found.append(f"{case}: {row['status']}: {row['reason']}")
        elif row["latency_ms_median"] and not row["device"].startswith("cuda"):
            found.append(f"{case}: ran on {row['device'] or 'an unknown device'}, not on the GPU")
    return found


def render(rows: Sequence[Row]) -> str:
    """Median latency in ms by arm and T; a status where nothing was timed."""
    cells: dict[Key, dict[int, str]] = {}
    for row in rows:
        key = (row["part"], row["variant"], row["dtype"], row["arm"])
        cells.setdefault(key, {})[int(row["q_len"])] = cell(row)
    lines, wide = [], max((len(arm) + 4 for *_, arm in cells), default=0)
    wide = max(wide, 32)
    for group, of_group in itertools.groupby(sorted(cells), key=lambda key: key[:3]):
        lines.append(f"{' '.join(group) + ', ms':<{wide}}" + "".join(f"{f'T={length}':>12}" for length in SHOWN_LENS))
        for key in of_group:
            lines.append(
                f"  {key[3]:<{wide - 2}}" + "".join(f"{cells[key].get(length, '-'):>12}" for length in SHOWN_LENS)
            )
    return "\n".join(lines)


def cell(row: Row) -> str:
    """A figure with three digits, else the status."""
    latency_ms = float(row["latency_ms_median"] or math.nan)
    return row["status"] if math.isnan(latency_ms) else f"{latency_ms:.3g}"


def say(*lines: str) -> None:
    """Print lines, each at once."""
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
