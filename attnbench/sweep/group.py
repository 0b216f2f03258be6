"""One problem, all arms: reference -> load -> check -> time (interleaved) -> memory -> records."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from attnbench.errors import AttnbenchError, ReadBackError, WorkerError
from attnbench.measure import determinism, environment, numerics
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem, digest
from attnbench.records import COMPILES_ONLY, Record
from attnbench.sweep import compiling, device_arms, precision, rounds, rows, tasks
from attnbench.sweep.bench import Bench, NoReferenceError, Standard, in_parallel, with_fix
from attnbench.sweep.cases import Case, ParkedArm
from attnbench.sweep.grid import Arm
from attnbench.sweep.meaning import refuse_another_meaning
from attnbench.sweep.progress import Progress
from attnbench.sweep.rundir import Samples
from attnbench.sweep.stress import Stress
from attnbench.sweep.workers import Worker

LONG_CALL_NS = 200_000_000


@dataclass(kw_only=True)
class Group:
    """A problem and its cases."""

    bench: Bench
    problem: AnyProblem
    progress: Progress
    known_oom: dict[str, AnyProblem]  # arm label and shape family -> the smallest problem that had no memory
    cases: list[Case] = field(default_factory=list)
    lanes: list[rounds.Lane] = field(default_factory=list)
    judges: dict[str, Any] = field(default_factory=dict)
    stress: Stress | None = None  # where it was asked
    measures_memory: bool = True
    arms: Sequence[Arm] | None = None  # None: all of the run's
    phases: dict[str, float] = field(default_factory=dict)  # seconds spent, by phase

    def run(self, budget_s: float) -> tuple[list[Record], Samples]:
        """Every case's record, and the raw samples."""
        self.cases = [self._opened(arm) for arm in (self.bench.arms if self.arms is None else self.arms)]
        with self._phase("export and verify"):
            self._make_artifacts()
        with self._phase("compile"):
            for case in self.cases:
                if case.arm.compiles_only and case.is_open:
                    compiling.compile_case(self.bench, case)
        with self._phase("reference"):
            self._make_reference()
        with ExitStack() as stack:
            with self._phase("load and check"):
                parked = self._park_all(stack)
            if self.lanes:
                with self._phase("timing"):
                    self._time(budget_s)
                with self._phase("load and check"):
                    self._prove_honest(parked)
        with self._phase("memory"):
            for case in self.cases:
                if case.lane is not None and case.is_open and self.measures_memory:
                    self._measure_memory(case)
        for case in self.cases:
            self._conclude(case)
        return rows.records_of(self.bench, self.cases, self.lanes), rows.samples_of(self.cases, self.lanes)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - start

    def _opened(self, arm: Arm) -> Case:
        case = Case(problem=self.problem, arm=arm, started_at_utc=utc_now())
        probe = self.bench.runtime_probes[arm.runtime]
        smaller = self.known_oom.get(oom_key(arm, self.problem))
        if arm.compiles_only:
            case.flags.append(COMPILES_ONLY)
        if not probe.available:
            case.decide("unavailable", with_fix(probe))
        elif arm.plugin == "null":
            case.decide(
                "unsupported", "null computes nothing to judge; its time per call is harness_ns in manifest.json"
            )
        elif probe.traits.get("checks_only"):
            only = "" if self.bench.is_attention else ", and on the built-in attention only"
            case.decide("unsupported", f"{arm.runtime} is checked by attnbench conform, never timed{only}")
        elif smaller is not None:
            case.decide("skipped", f"out of memory at {smaller.label()}; --no-oom-skip tries all the same")
        return case

    def _make_artifacts(self) -> None:
        for case in self.cases:
            if case.is_open:
                self.progress.say(f"{self.problem.label()}: export {case.arm.exporter}")
                try:
                    case.exported = self.bench.exported(case.arm, self.problem)
                except AttnbenchError as err:
                    case.fail(err)

    def _make_reference(self) -> None:
        if not any(case.is_open for case in self.cases):
            return
        self.progress.say(f"{self.problem.label()}: reference")
        try:
            self.judges = self.bench.reference(self.problem)
        except NoReferenceError as err:
            for case in self.cases:
                case.fail(err.by_arm.get(case.arm.label, err))
            return
        except AttnbenchError as err:
            for case in self.cases:
                case.fail(err, "no reference, so nothing can be judged")
            return
        if self.bench.sweep.stress and isinstance(self.problem, Problem):
            self.stress = Stress(self.bench, self.problem)

    def _park_all(self, stack: ExitStack) -> dict[str, Worker]:
        """Load, check and warm up every open case, and the baseline's replica; the workers by lane."""
        parked: dict[str, Worker] = {}
        self.progress.say(f"{self.problem.label()}: load and check {len(self.cases)} arms")

        def park(case: Case) -> None:
            for replica in (0, 1) if case.arm.label == self._baseline_of(case.arm.label) else (0,):
                if case.is_open:
                    self._park(case, replica, stack, parked)

        in_parallel(park, [case for case in self.cases if case.is_open], self.bench.at_once)
        return parked

    def _park(self, case: Case, replica: int, stack: ExitStack, parked: dict[str, Worker]) -> None:
        timeout_s = self.bench.sweep.timeout_s
        try:
            worker = stack.enter_context(self._worker(case))
            worker.ask("load", timeout_s=timeout_s, **self._loading(case), purpose="time")
            if replica == 0 and self.bench.is_attention:
                self._check(case, worker, ("peaked",))
                self._ask_determinism(case, worker)
                refuse_another_meaning(self.bench, case, worker)
                if self.stress is not None:
                    self.stress.ask(case, worker)
            took_ns = self._check(case, worker, ("normal",))
            if replica == 0:
                case.facts = worker.ask("facts", timeout_s=timeout_s)
                dtype = self._fp32_label()
                _require_as_asked(case.facts, self.bench.settings(case.arm), dtype)
                error = case.agreements["normal"].worst_row_rel_err
                if wrong := precision.contradiction(dtype, case.facts["compute_precision"], error):
                    case.decide("mismatch", wrong)
                case.facts["compute_precision"] = precision.proven(dtype, case.facts["compute_precision"], error)
            if case.is_open:
                # Calls over 0.2 s are warm after the two of the check.
                cpus = environment.timing_cpus(self.bench.threads)
                warm = worker.ask("warm_up", timeout_s=timeout_s, cpus=cpus, is_warm=took_ns > LONG_CALL_NS)
                took_ns = warm["typical_ns"] or took_ns
                scope = warm["scope"]
        except AttnbenchError as err:
            case.fail(err)
            return
        if case.is_open:
            parked[f"{case.arm.label}#{replica}"] = worker
            lane = rounds.Lane(
                arm=case.arm.label,
                replica=replica,
                parked=ParkedArm(worker=worker, timeout_s=timeout_s),
                call_s=took_ns / 1e9,
                scope=scope,
            )
            self.lanes.append(lane)
            case.lane = case.lane or lane

    def _ask_determinism(self, case: Case, worker: Worker) -> None:
        """Same bits for the same question? An error at the small sizes leaves the cells empty with its words."""
        try:
            found = worker.ask("determinism", timeout_s=self.bench.sweep.timeout_s, problem=self.problem.as_dict())
        except WorkerError:
            raise
        except AttnbenchError as err:
            case.determinism_reasons = dict.fromkeys(determinism.PROPERTIES, str(err))
            return
        case.determinism, case.determinism_reasons = found["answers"], found["reasons"]

    def _worker(self, case: Case) -> Worker:
        server = self.bench.server("runtime", case.arm.runtime)
        return self.bench.worker(server, case.arm.label)

    def _loading(self, case: Case) -> dict[str, Any]:
        return {
            "runtime": case.arm.plugin,
            "problem": self.problem.as_dict(),
            "artifact": case.exported.artifact if case.exported else None,
            "settings": self.bench.settings(case.arm),
            "timed": dict(device_arms.timing_of(case.arm)),
            **self.bench.given_inputs(),
        }

    def _standard(self, case: Case, judge: Mapping[str, Any], input_class: str, output: str | None) -> Standard:
        """What a case's output is held to, under the policy for fp32."""
        found = self.bench.standard(self.problem, judge, input_class, output)
        if not isinstance(self.problem, Problem):
            return found
        wider = precision.limits(self.problem, self.bench.settings(case.arm), input_class)
        return found if wider is None else replace(found, limits=wider)

    def _fp32_label(self) -> str:
        """The dtype of attention; of a model of the user the file says which precision its nodes have."""
        return self.problem.dtype if self.bench.is_attention else ""

    @staticmethod
    def _judged_by(judge: Mapping[str, Any]) -> dict[str, Any]:
        """What a worker needs of a judge."""
        return {"reference": judge["path"], "rows": judge["rows"], "limits": judge.get("limits")}

    def _check(self, case: Case, worker: Worker, input_classes: Sequence[str]) -> int:
        """Judge a call on each input class; `normal` last, so that it stays bound for the timing. Its time."""
        took_ns = 0
        for name in input_classes:
            judge = self.judges[name]
            found = worker.ask(
                "check",
                timeout_s=self.bench.sweep.timeout_s,
                problem=self.problem.as_dict(),
                input_class=name,
                **self._judged_by(judge),
            )
            case.agreements[name] = numerics.Agreement(**found["agreement"])
            case.check_ns = took_ns = found["first_call_ns"]
            standard = self._standard(case, judge, name, found["output"])
            case.limits[name] = standard.limits
            if name == "normal":
                case.floor, case.eager_error, case.output = standard.floor, standard.eager_error, found["output"]
            ok, reason = numerics.judge_agreement(case.agreements[name], standard.limits)
            if not ok:
                reason += precision.suspicion(self._fp32_label(), case.agreements[name].worst_row_rel_err)
                case.decide("mismatch", f"{_subject(name, found['output'])}: {reason}")
        return took_ns

    def _time(self, budget_s: float) -> None:
        rng = random.Random(digest([self.bench.sweep.seed, self.problem.problem_id]))
        rotations = device_arms.rotations(self.lanes, lambda lane: self._baseline_of(lane.arm))
        self.lanes = [lane for lanes in rotations for lane in lanes]
        for lanes in rotations:
            rounds.run_rounds(
                lanes,
                rng=rng,
                threads=self.bench.threads,
                budget_s=budget_s / len(rotations),
                between=partial(self._say_round, len(lanes)),
            )

    def _say_round(self, workers: int, done: int) -> None:
        self.progress.say(f"{self.problem.label()}: round {done}, {workers} workers")

    def _baseline_of(self, label: str) -> str:
        """What an arm is compared with."""
        arm = next(arm for arm in self.bench.arms if arm.label == label)
        return device_arms.baseline_of(arm, self.bench.arms, self.bench.sweep.baseline)

    def _prove_honest(self, parked: dict[str, Worker]) -> None:
        """The last timed call still computed what it should, and not from memory."""

        def prove(case: Case) -> None:
            assert case.lane is not None
            if case.lane.failure is not None:
                case.fail(case.lane.failure)
                return
            try:
                self._prove(case, parked[f"{case.arm.label}#0"], int(rows.latency_ns(case.lane).mid))
            except AttnbenchError as err:
                case.fail(err, "after timing")

        in_parallel(prove, [case for case in self.cases if case.lane is not None], self.bench.at_once)

    def _prove(self, case: Case, worker: Worker, median_ns: int) -> None:
        judge, timeout_s = self.judges["normal"], self.bench.sweep.timeout_s
        problem = self.problem.as_dict()
        found = worker.ask("recheck", timeout_s=timeout_s, problem=problem, **self._judged_by(judge))
        limits = self._standard(case, judge, "normal", found["output"]).limits
        ok, reason = numerics.judge_agreement(numerics.Agreement(**found["agreement"]), limits)
        if not ok:
            told = reason if found["output"] is None else f"{_subject('normal', found['output'])}: {reason}"
            case.decide("mismatch", f"after timing: {told}")
        if case.is_open:
            self.bench.keep_outputs(case, worker)
        # The check's call was on inputs not seen before; only where it was much slower does it take more to tell.
        if case.check_ns > tasks.MEMOISED_RATIO * median_ns:
            cpus = environment.affinity()
            worker.ask("refuse_memoised", timeout_s=timeout_s, problem=problem, median_ns=median_ns, cpus=cpus)

    def _measure_memory(self, case: Case) -> None:
        """Peak memory, loading and first call, in a fresh process with nothing else running."""
        self.progress.say(f"{self.problem.label()}: memory of {case.arm.label}")
        timeout_s = self.bench.sweep.timeout_s
        try:
            with self._worker(case) as worker:
                loaded = worker.ask("load", timeout_s=timeout_s, **self._loading(case), purpose="memory")
                case.load_ms = loaded["load_ms"]
                peak = worker.ask(
                    "measure_memory", timeout_s=timeout_s, problem=self.problem.as_dict(),
                    static_shape=self.bench.is_shape_static(self.problem),
                )  # fmt: skip
                if case.facts.get("build_ms") is not None:
                    case.build_ms = worker.ask("facts", timeout_s=timeout_s)["build_ms"]
        except WorkerError as err:
            case.fail(err, "in the fresh process that measures memory")
            return
        except AttnbenchError as err:
            case.memory_reason = str(err)
            return
        case.first_call_ms = peak["first_call_ns"] / 1e6
        case.peak_host_bytes, case.kept_host_bytes = peak["peak_bytes"], peak["kept_bytes"]
        case.memory_reason, case.device_peak = peak["reason"], peak.get("device", {})

    def _conclude(self, case: Case) -> None:
        if case.status == "oom" and self.bench.sweep.oom_skip:
            self.known_oom.setdefault(oom_key(case.arm, self.problem), self.problem)
        case.decide("ok", "")
        self.bench.settle(case)


def _require_as_asked(facts: Mapping[str, Any], asked: Mapping[str, Any], dtype: str) -> None:
    """What the runtime says it does must be what its settings asked.

    Raises:
        ReadBackError: threads or device differ, or an fp32 problem is computed in less than the policy allows.
    """
    for name in ("threads", "device"):
        if facts[name] is not None and facts[name] != asked[name]:
            raise ReadBackError(f"{name} asked: {asked[name]}, in force: {facts[name]}")
    if dtype == "fp32" and facts["compute_precision"] not in precision.allowed(asked):
        raise ReadBackError(f"precision asked: fp32, in force: {facts['compute_precision']}")


def _subject(input_class: str, output: str | None) -> str:
    return f"inputs {input_class}" if output is None else f"output {output}"


def oom_key(arm: Arm, problem: AnyProblem) -> str:
    """What shares the fate of an arm that ran out of memory: the same problem at any larger length."""
    if isinstance(problem, Problem):
        return f"{arm.label} {problem.static_key()} {problem.batch_size}"
    set_sizes = {dim: size for dim, size in problem.sizes.items() if dim != problem.bound}
    return f"{arm.label} {problem.static_key()} {sorted(set_sizes.items())}"


def utc_now() -> str:
    """`2026-01-31T12:00:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
