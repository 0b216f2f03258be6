"""What do rows of a compiler add to the default bench? `make perf` prints it; nothing is asserted.

Everything that a run does before its first group, with and without tensorrt-rtx, one after the other: asking the
runtimes, the machine's peak, files, and the rows of what is only compiled.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from attnbench import trt_compiler
from attnbench.measure import environment
from attnbench.sweep import grid, runner
from attnbench.sweep.campaign import Campaign
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from attnbench.sweep.workers import ForkServers

PAIRS = 3
BAR_S = 15.0


def seconds(folder: Path, *, compiles: bool) -> tuple[float, int]:
    """Seconds until the first group of the default bench begins, and the rows that are there by then."""
    start_s = time.monotonic()
    asked: dict[str, Any] = {} if compiles else {"runtimes": grid.DEFAULT_RUNTIMES}
    prepared = runner.prepare(grid.resolve("default", asked))
    run_dir = RunDirectory.create(folder)
    run_dir.work_path.mkdir(exist_ok=True)
    manifest = runner._first_manifest(prepared, run_dir, "perf_compile", False)
    env, _ = environment.scrubbed_environment(prepared.plan.threads)
    with ForkServers(env) as servers:
        bench = prepared.make_bench(
            sweep=prepared.sweep, threads=prepared.plan.threads, arms=prepared.arms,
            runtime_probes=prepared.runtime_probes, exporter_probes=prepared.exporter_probes,
            run_dir=run_dir, servers=servers, run_id="perf", devices=prepared.devices,
        )  # fmt: skip
        runner._measure_machine(bench, manifest, prepared.problems, Silent())
        campaign = Campaign(
            bench=bench, plan=prepared.plan, problems=prepared.problems, refined=[], beside=prepared.beside,
            manifest=manifest, progress=Silent(), started_s=start_s,
        )  # fmt: skip
        campaign.prepare_files(set())
        answers = len(bench.compilations)
        elapsed_s = time.monotonic() - start_s
    return elapsed_s, answers


if __name__ == "__main__":
    if not trt_compiler.is_installed():
        sys.stdout.write("rows of a compiler are not measured: tensorrt-rtx is not installed\n")
        sys.exit(0)
    added, rows = [], 0
    with tempfile.TemporaryDirectory() as name:
        for pair in range(PAIRS):
            without_s, _ = seconds(Path(name) / f"without-{pair}", compiles=False)
            with_s, rows = seconds(Path(name) / f"with-{pair}", compiles=True)
            added.append(with_s - without_s)
            sys.stdout.write(f"{with_s:.1f} s until the first group with tensorrt-rtx, {without_s:.1f} s without\n")
    median_s = statistics.median(added)
    sys.stdout.write(
        f"{rows} rows of tensorrt-rtx add {median_s:.1f} s to the default bench (bar {BAR_S:.0f} s: "
        f"{'met' if median_s <= BAR_S else 'MISSED'}), load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n"
    )
