"""Loads, checks, warms up and proves the arms of one problem, each in its worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnbench.errors import AttnbenchError, ReadBackError, WorkerError
from attnbench.measure import determinism, environment, numerics
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem
from attnbench.sweep import device_arms, devices, precision, tasks
from attnbench.sweep.bench import Bench, Standard
from attnbench.sweep.cases import Case
from attnbench.sweep.meaning import refuse_another_meaning
from attnbench.sweep.stress import Stress
from attnbench.sweep.workers import Worker

LONG_CALL_NS = 200_000_000


@dataclass(kw_only=True)
class Examiner:
    """What a problem's outputs are held to, and how an arm is asked for them."""

    bench: Bench
    problem: AnyProblem
    judges: Mapping[str, Any] = field(default_factory=dict)  # by input class
    stress: Stress | None = None  # where it was asked

    def prepare(self, case: Case, worker: Worker, replica: int) -> dict[str, Any] | None:
        """Load, check and warm up; what its lane begins with, None where the case is decided.

        Raises:
            AttnbenchError: the worker, or the runtime in it, fails.
        """
        timeout_s = self.bench.sweep.timeout_s
        worker.ask("load", timeout_s=timeout_s, **self.loading(case), purpose="time")
        if replica == 0 and self.bench.is_attention:
            self._check(case, worker, ("peaked",))
            self._ask_determinism(case, worker)
            refuse_another_meaning(self.bench, case, worker)
            if self.stress is not None:
                self.stress.ask(case, worker)
        took_ns = self._check(case, worker, ("normal",))
        if replica == 0:
            self._take_facts(case, worker)
        if not case.is_open:
            return None
        # Calls over 0.2 s are warm after the two of the check.
        warm = self._warm_up(worker, is_warm=took_ns > LONG_CALL_NS)
        return {"call_s": (warm["typical_ns"] or took_ns) / 1e9, "scope": warm["scope"]}

    def _take_facts(self, case: Case, worker: Worker) -> None:
        """What really ran, which must be what was asked."""
        case.facts = worker.ask("facts", timeout_s=self.bench.sweep.timeout_s)
        if case.arm.on_gpu:
            case.facts["detail"]["gpu_workers"] = devices.ONE_AT_A_TIME if case.arm.is_alone else devices.PARKED
        dtype = self._fp32_label()
        _require_as_asked(case.facts, self.bench.settings(case.arm), dtype)
        error = case.agreements["normal"].worst_row_rel_err
        if wrong := precision.contradiction(dtype, case.facts["compute_precision"], error):
            case.decide("mismatch", wrong)
        case.facts["compute_precision"] = precision.proven(dtype, case.facts["compute_precision"], error)

    def _warm_up(self, worker: Worker, *, is_warm: bool) -> dict[str, Any]:
        cpus = environment.timing_cpus(self.bench.threads)
        return worker.ask("warm_up", timeout_s=self.bench.sweep.timeout_s, cpus=cpus, is_warm=is_warm)

    def prepare_again(self, case: Case, worker: Worker) -> None:
        """A fresh worker of a case that was checked before, for one turn.

        Raises:
            AttnbenchError: it does not answer, or is wrong.
        """
        worker.ask("load", timeout_s=self.bench.sweep.timeout_s, **self.loading(case), purpose="time")
        self._check(case, worker, ("normal",))
        _require_open(case)
        self._warm_up(worker, is_warm=False)

    def prove_turn(self, case: Case, worker: Worker, median_ns: int) -> None:
        """As `_prove`, in the worker that was timed.

        Raises:
            AttnbenchError: what it was caught at.
        """
        self.prove(case, worker, median_ns)
        _require_open(case)

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

    def loading(self, case: Case) -> dict[str, Any]:
        """What a worker is told to load the case."""
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

    def prove(self, case: Case, worker: Worker, median_ns: int) -> None:
        """Decide `mismatch` where the last timed call did not compute what it should.

        Raises:
            AttnbenchError: the worker fails, or gives results from memory.
        """
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


def _require_open(case: Case) -> None:
    """Go on only with a case that nothing has decided.

    Raises:
        WorkerError: something has; with its reason.
    """
    if not case.is_open:
        raise WorkerError(case.reason)


def _subject(input_class: str, output: str | None) -> str:
    return f"inputs {input_class}" if output is None else f"output {output}"
