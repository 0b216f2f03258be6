"""From a sweep to a finished run directory: plan, start, run every problem group, end well whatever happens."""

import contextlib
import os
import secrets
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnbench import __version__, interpreters, plugins
from attnbench.errors import AttnbenchError, InputError, RecordsError
from attnbench.interfaces import Probe
from attnbench.measure import environment, memory
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem
from attnbench.records import SCHEMA_VERSION, Record
from attnbench.sweep import compiling, device_arms, devices, elsewhere, gpu_workers, grid, runtime_options
from attnbench.sweep.bench import ALWAYS_PRELOADED, Bench
from attnbench.sweep.campaign import BUDGET_SPENT, Campaign
from attnbench.sweep.cases import ParkedArm
from attnbench.sweep.gpu_workers import Choice
from attnbench.sweep.grid import Arm, Sweep
from attnbench.sweep.group import utc_now
from attnbench.sweep.plan import Plan, make_plan, rounded_split
from attnbench.sweep.progress import Progress
from attnbench.sweep.rundir import RunDirectory
from attnbench.sweep.workers import ForkServers

PEAK_SECONDS = 0.4  # per dtype


@dataclass(kw_only=True)
class Prepared:
    """A sweep that was checked against what is installed; nothing was run or written."""

    sweep: Sweep
    plan: Plan
    problems: Sequence[AnyProblem]
    arms: list[Arm]
    runtime_probes: dict[str, Probe]
    exporter_probes: dict[str, Probe]
    started_s: float  # monotonic; the time budget counts from here
    devices: Mapping[str, str] = field(default_factory=dict)  # runtime -> the device that it runs on
    gpu_workers: Choice | None = None  # None: nothing runs on a GPU
    beside: Sequence[Problem] = ()  # that are compiled for arms that cannot run here, and not timed
    refined: list[AnyProblem] = field(default_factory=list)  # that --refine added before the run was interrupted
    make_bench: Callable[..., Bench] = Bench
    model: Mapping[str, Any] | None = None  # for the manifest: the model of the user that is run

    @property
    def has_extras(self) -> bool:
        """Is there work beside the grid?"""
        return self.sweep.refine or self.sweep.measure_frontier


def prepare(sweep: Sweep) -> Prepared:
    """Check every name, ask the plug-ins, predict.

    Raises:
        InputError: an unknown exporter, runtime, option, baseline or required arm.
    """
    started_s = time.monotonic()
    for name in sweep.exporters:
        plugins.find("exporter", name)
    prepared = prepare_arms(sweep, grid.problems(sweep), {}, started_s)
    needed = dict.fromkeys(arm.exporter for arm in prepared.arms if arm.exporter != grid.TORCH)
    prepared.exporter_probes = plugins.probe_all("exporter", needed)
    return prepared


def prepare_arms(
    sweep: Sweep, problems: Sequence[AnyProblem], exporter_probes: dict[str, Probe], started_s: float, *,
    runs: Callable[[str, Probe], bool] | None = None,
) -> Prepared:  # fmt: skip
    """Ask the runtimes, form the arms, predict. `runs`: are an exporter and a runtime of files an arm? None: all are.

    Raises:
        InputError: as `prepare`.
    """
    runtimes = grid.selected_runtimes(sweep)
    # Any installed runtime may verify an artifact, so all selected ones are asked; the others only by `doctor`.
    runtime_probes = interpreters.probe_runtimes(runtimes)
    # One that could not even say so takes no file where the baseline is it alone.
    takes = {
        name: bool(probe.traits.get("takes_artifact", name != sweep.baseline)) for name, probe in runtime_probes.items()
    }
    chosen_devices, runtime_probes = devices.choose(sweep.device, runtime_probes)
    runtime_options.check(sweep.options, runtime_probes)
    arms = grid.arms(
        sweep, takes, interpreters.told(runtime_probes),
        lambda exporter, runtime: runs is None or runs(exporter, runtime_probes[runtime]),
    )  # fmt: skip
    labels = [arm.label for arm in arms]
    by_asked = {arm.asked: arm.label for arm in arms}
    sweep = sweep.model_copy(
        update={
            "baseline": by_asked.get(sweep.baseline, sweep.baseline),
            "require": tuple(by_asked.get(name, name) for name in sweep.require),
        }
    )
    if sweep.baseline not in labels:
        raise InputError(
            f"baseline {sweep.baseline!r} is none of the arms {', '.join(labels)}{grid.nearest(sweep.baseline, labels)}"
        )
    arms = device_arms.with_scopes(arms, sweep.baseline, chosen_devices)
    arms = [replace(arm, on_gpu=chosen_devices[arm.runtime].startswith("cuda")) for arm in arms]
    labels = [arm.label for arm in arms]
    for name in sweep.require:
        if name not in labels and name not in runtimes:
            known = list(dict.fromkeys([*labels, *runtimes]))
            raise InputError(
                f"required arm or runtime {name!r} is not in the sweep: {', '.join(known)}{grid.nearest(name, known)}"
            )
    arms = [replace(arm, compiles_only=bool(runtime_probes[arm.runtime].compiles_only)) for arm in arms]
    choice = gpu_workers.choose(sweep.gpu_workers, problems, arms, chosen_devices, sweep.baseline)
    if choice is not None:
        arms = [replace(arm, is_alone=arm.on_gpu and choice.mode == devices.ONE_AT_A_TIME) for arm in arms]
    beside = compiling.beside(problems, arms)
    threads = sweep.threads or environment.default_threads()
    plan = make_plan(sweep, problems, arms, threads, memory.available_memory_bytes(), beside)
    if choice is not None:
        overrides = environment.precision_overrides(os.environ)
        plan = replace(plan, notices=(*plan.notices, *choice.notices, *overrides))
    return Prepared(
        sweep=sweep, plan=plan, problems=problems, arms=arms, beside=beside,
        runtime_probes=runtime_probes, exporter_probes=exporter_probes, started_s=started_s, devices=chosen_devices,
        gpu_workers=choice,
    )  # fmt: skip


@dataclass(kw_only=True)
class Outcome:
    """What a run left: its records and manifest, as they are on disk."""

    run_dir: RunDirectory
    records: list[Record]
    manifest: dict[str, Any]


def run(
    prepared: Prepared, run_dir: RunDirectory, *, command: str, progress: Progress, resumed: bool = False
) -> Outcome:
    """Run every group that has no records yet. Ctrl-C keeps what is finished (manifest: interrupted)."""
    start = prepared.started_s
    manifest = _first_manifest(prepared, run_dir, command, resumed)
    done, notices = _finished(run_dir, prepared) if resumed else ([], [])
    manifest["notices"] += notices
    run_dir.work_path.mkdir(exist_ok=True)
    run_dir.write_manifest(manifest)
    env, removed = environment.scrubbed_environment(prepared.plan.threads)
    manifest["environment"] |= {
        "removed_from_workers": removed,
        "timing_cpus": environment.timing_cpus(prepared.plan.threads),
    }
    interrupted = False
    with ForkServers(env) as servers, _terminate_is_interrupt():
        bench = prepared.make_bench(
            sweep=prepared.sweep, threads=prepared.plan.threads, arms=prepared.arms,
            runtime_probes=prepared.runtime_probes, exporter_probes=prepared.exporter_probes,
            run_dir=run_dir, servers=servers, run_id=manifest["run_id"], peaks=dict(manifest["machine_peak"]),
            devices=prepared.devices,
        )  # fmt: skip
        progress.start(prepared.plan.total_s)
        try:
            if len(done) < prepared.plan.case_count or prepared.has_extras:
                _measure_machine(bench, manifest, prepared.problems, progress)
                campaign = Campaign(
                    bench=bench, plan=prepared.plan, problems=prepared.problems, refined=prepared.refined,
                    beside=prepared.beside,
                    manifest=manifest, progress=progress, started_s=start,
                )  # fmt: skip
                campaign.run(done)
                # A busy moment at the start must not make every arm beat the roofline: the better of two counts.
                bench.measure_peaks(list(bench.peaks), PEAK_SECONDS)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            progress.stop()
    shutil.rmtree(run_dir.work_path, ignore_errors=True)
    records = run_dir.read()[0]
    manifest |= {
        "interrupted": interrupted,
        "finished_at_utc": utc_now(),
        "elapsed_s": round(manifest["elapsed_s"] + time.monotonic() - start, 1),
    }
    run_dir.write_manifest(manifest)
    return Outcome(run_dir=run_dir, records=records, manifest=manifest)


@contextlib.contextmanager
def _terminate_is_interrupt() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does, so that a batch system's stop keeps what is finished."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: the caller owns the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure_machine(
    bench: Bench, manifest: dict[str, Any], problems: Sequence[AnyProblem], progress: Progress
) -> None:
    """The harness's own cost by the null runtime, and the machine peak of every dtype."""
    _start_importing(bench)
    for name, probe in elsewhere.check_interpreters(bench).items():
        manifest["runtimes"][name] = _probe_row(probe)
    progress.say("harness overhead")
    try:
        manifest["harness_ns"], manifest["environment"]["timing_allocator"] = _harness_ns(
            bench, _harness_problem(problems)
        )
    except AttnbenchError as err:
        manifest["notices"].append(f"the harness's own cost was not measured: {err}")
    progress.say("machine peak")
    manifest["notices"] += bench.measure_peaks(dict.fromkeys(["fp32", *(p.dtype for p in problems)]), PEAK_SECONDS)
    manifest["machine_peak"] = bench.peaks
    manifest["machine_bandwidth"] = bench.measure_bandwidth(PEAK_SECONDS)
    if manifest["machine_bandwidth"] is None:
        manifest["notices"].append("the memory bandwidth was not measured: logs/machine-bandwidth.log says why")
    bench.run_dir.write_manifest(manifest)


def _start_importing(bench: Bench) -> None:
    """Begin what the arms' workers import, while the rest goes on; five seconds of torch and ONNX where one exports."""
    exporters = {arm.exporter for arm in bench.arms}
    for name, probe in bench.runtime_probes.items():
        if probe.available:
            bench.server("runtime", name)
    for name, probe in bench.exporter_probes.items():
        if probe.available and name in exporters:
            bench.server("exporter", name)


def _harness_problem(problems: Sequence[AnyProblem]) -> Problem:
    """What the null runtime is given: attention, where the run is of a model a small one."""
    return problems[0] if isinstance(problems[0], Problem) else Problem.make(seq_len=128)


def _harness_ns(bench: Bench, problem: Problem) -> tuple[float, str]:
    """Median time of a call that does nothing, in nanoseconds, and the state of a timed worker's allocator."""
    with bench.worker(bench.servers.get(ALWAYS_PRELOADED), "null") as worker:
        loaded = worker.ask(
            "load",
            timeout_s=60.0,
            runtime="null",
            problem=problem.as_dict(),
            artifact=None,
            settings=bench.settings_of("null"),
            purpose="time",
        )
        worker.ask("bind", timeout_s=60.0, problem=problem.as_dict())
        worker.ask("warm_up", timeout_s=60.0)
        visits = [ParkedArm(worker=worker, timeout_s=60.0).visit(drop=5, keep=1000) for _ in range(3)]
    return statistics.median(visit.median_ns for visit in visits), loaded["allocator"]


def _first_manifest(prepared: Prepared, run_dir: RunDirectory, command: str, resumed: bool) -> dict[str, Any]:
    if resumed:
        old = run_dir.read_manifest()
        return old | {
            "interrupted": False, "finished_at_utc": None, "command": old["command"],
            "time_budget_s": prepared.sweep.time_budget_s, "sweep": prepared.sweep.model_dump(mode="json"),
            "notices": [*old.get("notices", []), f"resumed at {utc_now()}"],
        }  # fmt: skip
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "attnbench_version": __version__,
        "command": command,
        "started_at_utc": utc_now(),
        "finished_at_utc": None,
        "interrupted": False,
        "sweep": prepared.sweep.model_dump(mode="json"),
        "model": None if prepared.model is None else dict(prepared.model),
        "threads": prepared.plan.threads,
        "seed": prepared.sweep.seed,
        "baseline_arm": prepared.sweep.baseline,
        "time_budget_s": prepared.sweep.time_budget_s,
        "elapsed_s": 0.0,
        "environment": environment.describe(),
        "versions": environment.versions(),
        "gpu_workers": None if prepared.gpu_workers is None else prepared.gpu_workers.as_dict(),
        "noise_floor": None,
        "noise_pairs": 0,
        "delta": None,
        "harness_ns": None,
        "visits": 0,
        "contended_visits": 0,
        "cases_planned": prepared.plan.case_count,
        "machine_peak": {},
        "machine_bandwidth": None,
        "refined": [],  # problems that --refine added
        "refine_stopped_by": None,
        "frontier": [],  # of --measure-frontier, a row per arm and chart
        "runtimes": {name: _probe_row(probe) for name, probe in prepared.runtime_probes.items()},
        "exporters": {name: _probe_row(probe) for name, probe in prepared.exporter_probes.items()},
        "plan": dict(rounded_split(prepared.plan)),
        "spent": {},  # seconds, by phase; beside "plan"
        "notices": list(prepared.plan.notices),
    }


def _probe_row(probe: Probe) -> dict[str, Any]:
    row = {"available": probe.available, "version": probe.version, "reason": probe.reason, "fix": probe.fix}
    interpreter = probe.traits.get(interpreters.TRAIT)
    return row if interpreter is None else {**row, interpreters.TRAIT: dict(interpreter)}


def _finished(run_dir: RunDirectory, prepared: Prepared) -> tuple[list[Record], list[str]]:
    """Records of whole groups; torn groups and those that only lacked time are taken out and run again."""
    records, notices = run_dir.read()
    problems = [*prepared.problems, *prepared.refined]
    expected = {p.problem_id: {a.case_id(p) for a in prepared.arms} for p in problems}
    compilers = [a for a in prepared.arms if a.compiles_only]
    expected |= {p.problem_id: {a.case_id(p) for a in compilers} for p in prepared.beside}
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.problem_id, []).append(record)
    kept: list[Record] = []
    for problem_id, rows_of_group in groups.items():
        ids = [r.case_id for r in rows_of_group]
        if problem_id not in expected or not set(ids) <= expected[problem_id]:
            raise RecordsError(f"{run_dir.records_path} has cases that its sweep does not; start a new run")
        whole = set(ids) == expected[problem_id] and len(ids) == len(set(ids))
        out_of_time = all(r.status == "skipped" and r.reason.startswith(BUDGET_SPENT) for r in rows_of_group)
        if whole and not out_of_time:
            kept += rows_of_group
        elif not whole:
            notices.append(f"problem {problem_id} was torn ({len(ids)} of {len(expected[problem_id])}): run again")
    run_dir.keep_only(kept)
    return kept, notices


def resume(path: Path, *, time_budget_s: float | None = None) -> tuple[RunDirectory, Prepared]:
    """An interrupted run, ready to go on with its own settings.

    Raises:
        RecordsError: not a run directory, of another version, or of other library versions or another machine.
    """
    run_dir, manifest, sweep = reopen(path, time_budget_s=time_budget_s)
    prepared = prepare(sweep)
    prepared.refined = [Problem.from_dict(fields) for fields in manifest.get("refined", [])]
    return run_dir, prepared


def reopen(path: Path, *, time_budget_s: float | None = None) -> tuple[RunDirectory, dict[str, Any], Sweep]:
    """An interrupted run's directory, manifest and sweep.

    Raises:
        RecordsError: as `resume`.
    """
    run_dir = RunDirectory.open(path)
    manifest = run_dir.read_manifest()
    fields: Mapping[str, Any] = manifest["sweep"]
    if time_budget_s is not None:
        fields = {**fields, "time_budget_s": time_budget_s}
    if (chosen := manifest.get("gpu_workers")) is not None:  # rows of both ways do not mix
        fields = {**fields, "gpu_workers": chosen["mode"]}
    sweep = grid.validate({**fields, "threads": manifest["threads"]}, where=f"sweep of {path}")
    if manifest["attnbench_version"] != __version__:
        raise RecordsError(
            f"{str(path)!r} was written by attnbench {manifest['attnbench_version']}, this is {__version__}; "
            "rows of two versions do not mix: start a new run"
        )
    changed = {
        name: (old, new)
        for name, new in environment.versions().items()
        if (old := manifest["versions"].get(name)) != new
    }
    if changed:
        name, (old, new) = next(iter(changed.items()))
        raise RecordsError(f"{str(path)!r} ran with {name} {old}, installed is {new}: start a new run")
    elsewhere.refuse_changed(path, manifest["runtimes"])
    return run_dir, manifest, sweep
