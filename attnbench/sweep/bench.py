"""What all problem groups of a run share: the sweep, the probes, the forkservers, the verified artifacts."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from attnbench import interpreters, plugins
from attnbench.errors import (
    AttnbenchError,
    ExportError,
    MeasurementError,
    UnavailableError,
    UnsupportedError,
)
from attnbench.inputs import INPUT_CLASSES, SMALL_LOGITS
from attnbench.interfaces import Probe, Settings
from attnbench.measure import numerics
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem
from attnbench.sweep import runtime_options
from attnbench.sweep.cases import Case, Exported
from attnbench.sweep.devices import CPU
from attnbench.sweep.grid import TORCH, Arm, Sweep
from attnbench.sweep.rundir import RunDirectory
from attnbench.sweep.workers import ForkServer, ForkServers, Worker

T = TypeVar("T")

# A worker imports nothing of a plug-in before its fork, unless the plug-in is our own and was seen to be safe.
ALWAYS_PRELOADED = ("attnbench.sweep.tasks",)
# No example has these sizes (batch_size, q_len, kv_len of cross): one token, odd lengths, a batch.
VERIFY_AT = ((2, 1, 4), (1, 5, 9), (3, 33, 17))


@dataclass(frozen=True, kw_only=True)
class Standard:
    """What an output is held to."""

    limits: numerics.Limits
    floor: float | None  # worst row error of the reference rounded once
    eager_error: float | None  # worst row error of torch eager


class NoReferenceError(MeasurementError):
    """No arm gives what others could be compared with; `by_arm` says why, by label."""

    def __init__(self, by_arm: Mapping[str, AttnbenchError]) -> None:
        told = "; ".join(f"{label}: {err}" for label, err in by_arm.items())
        super().__init__(f"no runtime here runs the file: {told or 'none is available'}")
        self.by_arm = by_arm


@dataclass(kw_only=True)
class Bench:
    """The run as its problem groups see it."""

    is_attention: ClassVar[bool] = True  # the built-in one, whose meaning, bits and hard inputs can be asked for

    sweep: Sweep
    threads: int
    arms: list[Arm]
    runtime_probes: Mapping[str, Probe]
    exporter_probes: Mapping[str, Probe]
    run_dir: RunDirectory
    servers: ForkServers
    run_id: str
    peaks: dict[str, dict[str, Any]] = field(default_factory=dict)  # dtype -> machine peak
    devices: Mapping[str, str] = field(default_factory=dict)  # of each runtime, where not the CPU or its only one
    meanings: dict[tuple[str, str], str] = field(default_factory=dict)  # arm, static key -> why it does not conform
    compilations: dict[tuple[str, str], dict[str, Any] | AttnbenchError] = field(default_factory=dict)
    _exported: dict[tuple[str, int, str], Exported | AttnbenchError] = field(default_factory=dict)
    _references: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _gpu: threading.Lock = field(default_factory=threading.Lock)  # held where workers have a GPU one at a time

    @property
    def at_once(self) -> int:
        """How many workers may work at once while nothing is being measured."""
        return max(1, (os.cpu_count() or 1) // self.threads)

    def export_all(self, problems: Iterable[AnyProblem], *, go_on: Callable[[], bool] = lambda: True) -> None:
        """Export and verify every artifact of these problems, several at a time; errors come up in `exported`.

        Where `go_on` has become false, the rest is left to the groups that need it.
        """
        wanted: dict[tuple[str, int, str], tuple[Arm, AnyProblem]] = {}
        for problem in problems:
            for arm in self.arms:
                if arm.exporter != TORCH and self.exporter_probes[arm.exporter].available:
                    wanted.setdefault(self._key(arm, problem), (arm, problem))
        in_parallel(lambda pair: self._export_once(*pair) if go_on() else None, list(wanted.values()), self.at_once)

    def _key(self, arm: Arm, problem: AnyProblem) -> tuple[str, int, str]:
        opset = arm.opset if arm.opset is not None else self.default_opset(arm.exporter)
        # Support may depend on the lengths (a causal mask with q_len != kv_len), so those count too.
        return arm.exporter, opset, f"{problem.static_key()}{problem.q_len == problem.kv_len}"

    def _export_once(self, arm: Arm, problem: AnyProblem) -> None:
        key = self._key(arm, problem)
        if key not in self._exported:
            try:
                self._exported[key] = self._export(arm.exporter, key[1], problem)
            except AttnbenchError as err:
                self._exported[key] = err

    def server(self, kind: plugins.Kind, name: str) -> ForkServer:
        """The forkserver for a plug-in's workers."""
        plugin, python = interpreters.split(name)
        installed = plugins.find(kind, plugin)
        probes = self.runtime_probes if kind == "runtime" else self.exporter_probes
        preload = tuple(probes[name].traits.get("preload", ())) if installed.builtin else ()
        program = interpreters.launcher(python, plugin) if python else ()
        return self.servers.get((*preload, *ALWAYS_PRELOADED), program)

    def reference_server(self) -> ForkServer:
        """The forkserver for references: NumPy for the judge, torch for eager."""
        return self.servers.get(("torch", "attnbench.torch_model", *ALWAYS_PRELOADED))  # the torch arms' own

    def worker(self, server: ForkServer, log_name: str, *, memory_limit_bytes: int | None = None) -> Worker:
        """A fresh worker under the run's memory limit, or another; what it prints goes to logs/."""
        log_path = self.run_dir.path / "logs" / f"{log_name.replace('/', '_')}.log"  # of an interpreter's path
        limit = memory_limit_bytes or self.sweep.memory_limit_bytes
        return Worker(server, memory_limit_bytes=limit, log_path=log_path)

    def gpu_turn(self, runtime: str) -> AbstractContextManager[object]:
        """What to hold while a worker of this runtime lives and others may be started beside it."""
        return self._gpu if any(arm.is_alone for arm in self.arms if arm.runtime == runtime) else nullcontext()

    def settings(self, arm: Arm) -> dict[str, Any]:
        """How an arm is asked to run, as JSON."""
        return self.settings_of(arm.runtime) | {"options": dict(runtime_options.of_runtime(arm.options))}

    def settings_of(self, runtime: str) -> dict[str, Any]:
        """How a runtime is asked to run without options of its own, as JSON."""
        own = self.runtime_probes[runtime].devices if runtime in self.runtime_probes else (CPU,)
        device = self.devices.get(runtime, CPU if CPU in own else own[0])
        return asdict(Settings(threads=self.threads, seed=self.sweep.seed, device=device, fp32=self.sweep.fp32))

    def reference(self, problem: AnyProblem, input_classes: Sequence[str] = INPUT_CLASSES) -> dict[str, Any]:
        """The judge's outputs of a problem, per input class (see `Tasks.reference`).

        Raises:
            WorkerError: it could not be computed.
        """
        found: dict[str, Any] = {}

        def judge(input_class: str) -> None:
            with self.worker(self.reference_server(), "reference") as worker:
                found[input_class] = worker.ask(
                    "reference",
                    timeout_s=max(self.sweep.timeout_s, 60.0),
                    problem=problem.as_dict(),
                    seed=self.sweep.seed,
                    input_class=input_class,
                    folder=str(self.run_dir.work_path),
                )

        in_parallel(judge, input_classes, self.at_once)
        return {name: found[name] for name in input_classes}

    def standard(self, problem: AnyProblem, judge: Mapping[str, Any], input_class: str, output: str | None) -> Standard:
        """What an output is held to; `judge` is of `reference`, `output` of a check's answer."""
        assert isinstance(problem, Problem)
        return Standard(
            limits=limits_of(problem, judge, input_class), floor=judge["floor"],
            eager_error=judge["eager"]["worst_row_rel_err"],
        )  # fmt: skip

    def given_inputs(self) -> dict[str, Any]:
        """What loading is told of inputs that are not drawn."""
        return {}

    def is_shape_static(self, problem: AnyProblem) -> bool:
        """Can the problem only be run at its own sizes, so that no short call can come before its memory?"""
        return False

    def settle(self, case: Case) -> None:
        """Last words on a case before it becomes a row."""

    def keep_outputs(self, case: Case, worker: Worker) -> None:
        """Called after the last timed call of a case that is right."""

    def exported(self, arm: Arm, problem: AnyProblem) -> Exported | None:
        """The arm's artifact, exported and verified once per file; None for torch arms.

        Raises:
            AttnbenchError: unavailable, unsupported, or the named error of the export or its verification.
        """
        if arm.exporter == TORCH:
            return None
        self._export_once(arm, problem)
        found = self._exported[self._key(arm, problem)]
        if isinstance(found, AttnbenchError):
            raise found
        return found

    def default_opset(self, exporter: str) -> int:
        """The opset that an exporter writes unless asked for another.

        Raises:
            UnavailableError: the exporter cannot work here.
        """
        return int(self.require_exporter(exporter).traits["opsets"][0])

    def require_exporter(self, exporter: str) -> Probe:
        """Its probe, where it can work here.

        Raises:
            UnavailableError: it cannot.
        """
        probe = self.exporter_probes[exporter]
        if not probe.available:
            raise UnavailableError(with_fix(probe))
        return probe

    def _export(self, exporter: str, opset: int, problem: AnyProblem) -> Exported:
        assert isinstance(problem, Problem)
        self.require_exporter(exporter)
        path = self.run_dir.path / "artifacts" / f"{exporter}-opset{opset}-{problem.static_key()}.onnx"
        with self.worker(self.server("exporter", exporter), f"export-{exporter}") as worker:
            made = worker.ask(
                "export",
                timeout_s=max(self.sweep.timeout_s, 60.0),
                exporter=exporter,
                problem=_export_example(problem).as_dict(),
                opset=opset,
                path=str(path),
                seed=self.sweep.seed,
            )
        if made["artifact"]["opset"] != opset:
            raise ExportError(f"{exporter} was asked for opset {opset} and says it wrote {made['artifact']['opset']}")
        return Exported(
            artifact=made["artifact"], export_ms=made["export_ms"], verified=self._verify(made["artifact"], problem)
        )

    def _verify(self, artifact: dict[str, Any], problem: Problem) -> str:
        """Run the file at sizes that no example had, through the first runtime here that can.

        Raises:
            ExportError: every runtime that can run it says that it is wrong; the first one's words.
        """
        sizes = [self._verification_problem(problem, size) for size in VERIFY_AT]
        refused: list[str] = []
        wrong: list[str] = []
        # Ours before those of other interpreters, and those that are made for checks after all.
        last = sorted(
            self.runtime_probes.items(),
            key=lambda item: (bool(item[1].traits.get("checks_only")), interpreters.TRAIT in item[1].traits),
        )
        for name, probe in last:
            if not (probe.available and probe.traits.get("takes_artifact")) or probe.compiles_only:
                continue
            try:
                self._verify_through(name, artifact, sizes)
            except UnsupportedError as err:
                refused.append(f"{name}: {err}")
            except AttnbenchError as err:
                wrong.append(f"{Path(artifact['path']).name} does not do what it should in {name}: {err}")
            else:
                return f"{name} at T = {', '.join(str(p.q_len) for p in sizes)}"
        if wrong:
            raise ExportError(wrong[0])
        return f"unverified: {'; '.join(refused) or 'no runtime that takes artifacts is available'}"

    @staticmethod
    def _verification_problem(problem: Problem, size: tuple[int, int, int]) -> Problem:
        batch_size, q_len, kv_len = size
        if problem.variant == "decode":
            return problem.at(q_len=q_len, kv_len=q_len + kv_len, batch_size=batch_size)
        free = problem.variant == "cross" or problem.q_len != problem.kv_len
        return problem.at(q_len=q_len, kv_len=kv_len if free else q_len, batch_size=batch_size)

    def _verify_through(self, runtime: str, artifact: dict[str, Any], sizes: list[Problem]) -> None:
        server = self.server("runtime", runtime)
        with self.gpu_turn(runtime), self.worker(server, f"verify-{runtime}") as worker:
            timeout_s = self.sweep.timeout_s
            worker.ask(
                "load",
                timeout_s=timeout_s,
                runtime=interpreters.base(runtime),
                problem=sizes[0].as_dict(),
                artifact=artifact,
                settings=self.settings_of(runtime) | {"fp32": "strict"},
            )
            for size in sizes:
                for input_class, judge in self._small_reference(size).items():
                    found = worker.ask(
                        "check",
                        timeout_s=timeout_s,
                        problem=size.as_dict(),
                        input_class=input_class,
                        reference=judge["path"],
                        rows=judge["rows"],
                    )
                    ok, reason = numerics.judge_agreement(
                        numerics.Agreement(**found["agreement"]), limits_of(size, judge, input_class)
                    )
                    if not ok:
                        raise ExportError(f"at {size.label()}, inputs {input_class}: {reason}")

    def _small_reference(self, size: Problem) -> dict[str, Any]:
        key = (size.problem_id, "verify")
        if key not in self._references:
            self._references[key] = self.reference(size)
        return self._references[key]

    def measure_peaks(self, dtypes: Iterable[str], seconds: float) -> list[str]:
        """Measure the machine peak of every dtype and keep the best seen; notices about what could not be measured."""
        notices = []
        for dtype in dtypes:
            try:
                with self.worker(self.reference_server(), "machine-peak") as worker:
                    found = worker.ask(
                        "machine_peak", timeout_s=60.0, dtype=dtype, threads=self.threads, seconds=seconds
                    )
            except AttnbenchError as err:
                notices.append(f"machine peak of {dtype} was not measured: {err}")
                continue
            if found["gflops_per_s"] > self.peaks.get(dtype, {"gflops_per_s": 0.0})["gflops_per_s"]:
                self.peaks[dtype] = found
        return notices

    def measure_bandwidth(self, seconds: float) -> dict[str, Any] | None:
        """GB/s of copying in memory; None where the worker failed."""
        try:
            with self.worker(self.servers.get(ALWAYS_PRELOADED), "machine-bandwidth") as worker:
                found: dict[str, Any] = worker.ask(
                    "machine_bandwidth", timeout_s=60.0, threads=self.threads, seconds=seconds
                )
        except AttnbenchError:
            return None
        return found


def _export_example(problem: Problem) -> Problem:
    """The problem at the sizes that an exporter is shown."""
    if problem.variant == "decode":
        return problem.at(q_len=2, kv_len=8, batch_size=2)
    return problem.at(q_len=8, kv_len=6 if problem.q_len != problem.kv_len else 8, batch_size=2)


def in_parallel(function: Callable[[T], None], items: Sequence[T], at_once: int) -> None:
    """Call the function on every item, in threads that wait for workers; the first exception is raised."""
    pool = ThreadPoolExecutor(max_workers=min(at_once, max(1, len(items))))
    try:
        for _ in pool.map(function, items):
            pass
    finally:
        # An interrupt must not wait for workers: they die with their forkserver, and with them the threads' waits.
        pool.shutdown(wait=False, cancel_futures=True)


def limits_of(problem: Problem, judge: Mapping[str, Any], input_class: str) -> numerics.Limits:
    """What an output of this problem may differ by, from the judge's floor and torch eager's error.

    Classes of stress are held to the band of `peaked`, those with small logits to that of `normal`: the point is where
    an arm leaves it.
    """
    if input_class not in INPUT_CLASSES:
        input_class = "normal" if input_class in SMALL_LOGITS else "peaked"
    eager = judge["eager"]["worst_row_rel_err"]
    return numerics.limits(
        problem.dtype, judge["floor"], eager, part=problem.part, input_class=input_class,
        is_added=problem.masking.is_added, spread=problem.spread,
    )  # fmt: skip


def with_fix(probe: Probe) -> str:
    """Why a plug-in is unavailable, and what to type."""
    return f"{probe.reason}; {probe.fix}" if probe.fix else probe.reason
