"""One problem, all arms: reference -> load -> check -> time (interleaved) -> memory -> records."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from attnbench.errors import AttnbenchError, WorkerError
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem, digest
from attnbench.records import COMPILES_ONLY, Record
from attnbench.sweep import compiling, device_arms, rounds, rows
from attnbench.sweep.alone import AloneArm
from attnbench.sweep.bench import Bench, NoReferenceError, in_parallel, with_fix
from attnbench.sweep.cases import Case, ParkedArm
from attnbench.sweep.examiner import Examiner
from attnbench.sweep.grid import Arm
from attnbench.sweep.progress import Progress
from attnbench.sweep.rundir import Samples
from attnbench.sweep.stress import Stress
from attnbench.sweep.workers import Worker


@dataclass(kw_only=True)
class Group:
    """A problem and its cases."""

    bench: Bench
    problem: AnyProblem
    progress: Progress
    known_oom: dict[str, AnyProblem]  # arm label and shape family -> the smallest problem that had no memory
    cases: list[Case] = field(default_factory=list)
    lanes: list[rounds.Lane] = field(default_factory=list)
    measures_memory: bool = True
    arms: Sequence[Arm] | None = None  # None: all of the run's
    phases: dict[str, float] = field(default_factory=dict)  # seconds spent, by phase
    examiner: Examiner = field(init=False)

    def __post_init__(self) -> None:
        self.examiner = Examiner(bench=self.bench, problem=self.problem)

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
            self.examiner.judges = self.bench.reference(self.problem)
        except NoReferenceError as err:
            for case in self.cases:
                case.fail(err.by_arm.get(case.arm.label, err))
            return
        except AttnbenchError as err:
            for case in self.cases:
                case.fail(err, "no reference, so nothing can be judged")
            return
        if self.bench.sweep.stress and isinstance(self.problem, Problem):
            self.examiner.stress = Stress(self.bench, self.problem)

    def _park_all(self, stack: ExitStack) -> dict[str, Worker]:
        """Load, check and warm up every open case, and the baseline's replica; the workers that stay, by lane."""
        parked: dict[str, Worker] = {}
        self.progress.say(f"{self.problem.label()}: load and check {len(self.cases)} arms")
        alone = [case for case in self.cases if case.is_open and case.arm.is_alone]
        for case in alone:
            self._stand_alone(case)

        def park(case: Case) -> None:
            for replica in self._replicas(case):
                if case.is_open:
                    self._park(case, replica, stack, parked)

        in_parallel(park, [case for case in self.cases if case.is_open and case not in alone], self.bench.at_once)
        if alone:
            for lane in self.lanes:
                lane.visits_per_turn = rounds.visits_in_turn(lane.call_s)
        return parked

    def _replicas(self, case: Case) -> tuple[int, ...]:
        return (0, 1) if case.arm.label == self._baseline_of(case.arm.label) else (0,)

    def _park(self, case: Case, replica: int, stack: ExitStack, parked: dict[str, Worker]) -> None:
        try:
            worker = stack.enter_context(self._worker(case))
            warm = self.examiner.prepare(case, worker, replica)
        except AttnbenchError as err:
            case.fail(err)
            return
        if warm is not None:
            parked[f"{case.arm.label}#{replica}"] = worker
            arm = ParkedArm(worker=worker, timeout_s=self.bench.sweep.timeout_s)
            self._add_lane(case, rounds.Lane(arm=case.arm.label, replica=replica, parked=arm, **warm))

    def _stand_alone(self, case: Case) -> None:
        """Check an arm in a worker that ends at once; each of its turns has another one."""
        try:
            with self._worker(case) as worker:
                warm = self.examiner.prepare(case, worker, 0)
        except AttnbenchError as err:
            case.fail(err)
            return
        for replica in self._replicas(case) if warm is not None else ():
            arm = AloneArm(
                start=partial(self._worker, case), prepare=partial(self.examiner.prepare_again, case),
                prove=partial(self.examiner.prove_turn, case), timeout_s=self.bench.sweep.timeout_s,
            )  # fmt: skip
            lane = rounds.Lane(arm=case.arm.label, replica=replica, parked=arm, turn=arm.turn, **(warm or {}))
            self._add_lane(case, lane)

    def _add_lane(self, case: Case, lane: rounds.Lane) -> None:
        self.lanes.append(lane)
        case.lane = case.lane or lane

    def _worker(self, case: Case) -> Worker:
        server = self.bench.server("runtime", case.arm.runtime)
        return self.bench.worker(server, case.arm.label)

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
            worker = parked.get(f"{case.arm.label}#0")
            if worker is None:  # it had its GPU alone: every turn was proved at its end
                return
            try:
                self.examiner.prove(case, worker, int(rows.latency_ns(case.lane).mid))
            except AttnbenchError as err:
                case.fail(err, "after timing")

        in_parallel(prove, [case for case in self.cases if case.lane is not None], self.bench.at_once)

    def _measure_memory(self, case: Case) -> None:
        """Peak memory, loading and first call, in a fresh process with nothing else running."""
        self.progress.say(f"{self.problem.label()}: memory of {case.arm.label}")
        timeout_s = self.bench.sweep.timeout_s
        try:
            with self._worker(case) as worker:
                loaded = worker.ask("load", timeout_s=timeout_s, **self.examiner.loading(case), purpose="memory")
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


def oom_key(arm: Arm, problem: AnyProblem) -> str:
    """What shares the fate of an arm that ran out of memory: the same problem at any larger length."""
    if isinstance(problem, Problem):
        return f"{arm.label} {problem.static_key()} {problem.batch_size}"
    set_sizes = {dim: size for dim, size in problem.sizes.items() if dim != problem.bound}
    return f"{arm.label} {problem.static_key()} {sorted(set_sizes.items())}"


def utc_now() -> str:
    """`2026-01-31T12:00:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
