"""Arms that can only be compiled here: several files at a time, ahead of the groups that they belong to."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from attnbench.errors import AttnbenchError, WorkerError
from attnbench.model_problem import AnyProblem
from attnbench.problem import DType, Problem
from attnbench.sweep.bench import Bench, in_parallel
from attnbench.sweep.cases import Case, Exported
from attnbench.sweep.grid import Arm
from attnbench.sweep.workers import Worker

BESIDE: DType = "fp16"  # compiled beside fp32: fused attention is for it, and nothing else of it is timed


def beside(problems: Sequence[AnyProblem], arms: Sequence[Arm]) -> list[Problem]:
    """The fp16 siblings of a sweep's fp32 problems, for arms that are only compiled; none for other sweeps."""
    if not any(arm.compiles_only for arm in arms) or any(p.dtype != "fp32" for p in problems):
        return []
    return [replace(p, dtype=BESIDE) for p in problems if isinstance(p, Problem)]


def compile_ahead(
    bench: Bench, problems: Iterable[AnyProblem], *, say: Callable[[str], None], go_on: Callable[[], bool]
) -> None:
    """Compile every file for all its problems in a worker of its own; the answers are in `bench.compilations`.

    Where `go_on` has become false, the rest is left to the groups that need it.
    """
    by_file: dict[tuple[str, str], list[tuple[Arm, AnyProblem]]] = {}
    for problem in problems:
        for arm in bench.arms:
            if arm.compiles_only:
                key = (arm.label, f"{problem.static_key()}{problem.q_len == problem.kv_len}")
                by_file.setdefault(key, []).append((arm, problem))
    count = 0

    def compile_file(pairs: list[tuple[Arm, AnyProblem]]) -> None:
        nonlocal count
        count += 1
        say(f"compile {count} of {len(by_file)}: {pairs[0][0].label} {pairs[0][1].dtype}")
        if go_on():
            _compile_file(bench, pairs)

    in_parallel(compile_file, list(by_file.values()), bench.at_once)


def _compile_file(bench: Bench, pairs: list[tuple[Arm, AnyProblem]]) -> None:
    arm, first = pairs[0]
    try:
        exported = bench.exported(arm, first)
        if exported is None:
            return
        with _worker(bench, arm) as worker:
            for arm, problem in pairs:
                _ask(bench, worker, arm, problem, exported)
    except WorkerError:
        return  # the group asks again for what has no answer, each in a worker of its own, and so finds the culprit
    except AttnbenchError as err:
        bench.compilations.update({(arm.label, p.problem_id): err for arm, p in pairs})


def _ask(bench: Bench, worker: Worker, arm: Arm, problem: AnyProblem, exported: Exported) -> None:
    """Keep what the compiler says of one problem; a worker that fails says nothing of it."""
    try:
        found: dict[str, Any] | AttnbenchError = worker.ask(
            "attnbench.sweep.compile_task:compile_file", timeout_s=bench.sweep.timeout_s,
            runtime=arm.plugin, problem=problem.as_dict(),
            artifact=exported.artifact, settings=bench.settings(arm),
        )  # fmt: skip
    except WorkerError:
        raise
    except AttnbenchError as err:
        found = err
    bench.compilations[arm.label, problem.problem_id] = found


def compile_case(bench: Bench, case: Case) -> None:
    """Decide a case by what its compiler says: compiled, or refused in its words."""
    problem, arm = case.problem, case.arm
    if case.exported is None:
        case.decide("unsupported", f"{arm.runtime} can only compile here, and only files")
        return
    key = (arm.label, problem.problem_id)
    if key not in bench.compilations:
        try:
            with _worker(bench, arm) as worker:
                _ask(bench, worker, arm, problem, case.exported)
        except AttnbenchError as err:
            case.fail(err)
            return
    found = bench.compilations[key]
    if isinstance(found, AttnbenchError):
        case.fail(found)
        return
    case.planned_activation_bytes, case.engine_bytes = found["planned_activation_bytes"], found["artifact_bytes"]
    case.build_ms = found["build_ms"]
    case.facts = {**found, "device_name": None, "threads": None}
    case.decide("compiled", bench.runtime_probes[arm.runtime].compiles_only)


def _worker(bench: Bench, arm: Arm) -> Worker:
    return bench.worker(bench.server("runtime", arm.runtime), arm.label)
