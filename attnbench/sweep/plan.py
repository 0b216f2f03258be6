"""What a run will do and take, predicted before anything runs. Predictions plan; they are never results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.measure import roofline, timing
from attnbench.problem import DTYPE_BYTES, Problem
from attnbench.sweep import rounds
from attnbench.sweep.grid import TORCH, Arm, Sweep

# Orientation measured on a 2-vCPU Zen machine with one thread; a run corrects itself by what it sees.
GFLOPS_PER_THREAD = {"fp32": 80.0, "bf16": 120.0, "fp16": 3.0}
CALL_OVERHEAD_S = 20e-6
SLOWNESS = {"torch-eager": 2.0, "null": 0.0}  # of an arm beside a good one
SCORE_MATRICES = {"torch-eager": 2.3, "torch-sdpa": 0.3}  # live at the peak
OTHER_SCORE_MATRICES = 4.2
WORKER_S = 0.35  # fork, load, bind
EXPORT_S = 1.2
START_S = 6.0  # imports, machine peak
REPORT_S = 6.0
ORACLE_GFLOPS = 20.0


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """One problem: predicted seconds."""

    problem: Problem
    overhead_s: float  # reference, loading, checks, memory
    round_s: float
    min_timing_s: float
    full_timing_s: float  # what 100 rounds, or fewer slow ones, would take


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole run."""

    sweep: Sweep
    threads: int
    arms: tuple[str, ...]
    groups: tuple[GroupPlan, ...]
    export_s: float
    peak_memory_bytes: int
    available_bytes: int | None
    notices: tuple[str, ...] = ()

    @property
    def case_count(self) -> int:
        """How many records there will be."""
        return len(self.groups) * len(self.arms)

    @property
    def overhead_s(self) -> float:
        """Everything that is not timing."""
        return START_S + self.export_s + sum(g.overhead_s for g in self.groups) + REPORT_S

    def split(self) -> dict[str, float]:
        """Predicted seconds by phase; they add up to the prediction of the run."""
        return {
            "start and machine peak": START_S,
            "export and verify": self.export_s,
            "reference, checks and memory": sum(g.overhead_s for g in self.groups),
            "timing": self.timing_s(),
            "report": REPORT_S,
        }

    def timing_s(self) -> float:
        """What the budget leaves for timing, between the least and the most that is useful."""
        least, most = sum(g.min_timing_s for g in self.groups), sum(g.full_timing_s for g in self.groups)
        budget_s = self.sweep.time_budget_s
        return most if budget_s is None else max(least, min(most, budget_s - self.overhead_s))

    @property
    def total_s(self) -> float:
        """Predicted seconds of the whole run."""
        return sum(self.split().values())


def make_plan(
    sweep: Sweep, problems: Sequence[Problem], arms: Sequence[Arm], threads: int, available_bytes: int | None
) -> Plan:
    """Predict time and memory of every problem group."""
    groups = tuple(_group(sweep, p, arms, threads) for p in problems)
    files = {(a.exporter, a.opset, p.static_key()) for a in arms if a.exporter != TORCH for p in problems}
    memory = max((_memory_bytes(p, arms) for p in problems), default=0)
    notices = []
    if available_bytes is not None and memory > available_bytes:
        notices.append(
            f"predicted peak of {memory / 2**30:.1f} GiB exceeds the {available_bytes / 2**30:.1f} GiB available: "
            "expect status oom at the longest T; use a smaller T or fewer arms"
        )
    plan = Plan(
        sweep=sweep,
        threads=threads,
        arms=tuple(a.label for a in arms),
        groups=groups,
        export_s=EXPORT_S * len(files),
        peak_memory_bytes=memory,
        available_bytes=available_bytes,
        notices=tuple(notices),
    )
    if sweep.time_budget_s is not None and plan.total_s > sweep.time_budget_s * 1.02:
        notices.append(
            f"the least that these cases need is about {plan.total_s:.0f} s, more than the budget of "
            f"{sweep.time_budget_s:.0f} s: the longest T may be skipped; raise --time-budget"
        )
    return Plan(**{**vars(plan), "notices": tuple(notices)})


def call_s(problem: Problem, runtime: str, threads: int) -> float:
    """Predicted seconds of one call."""
    rate = GFLOPS_PER_THREAD[problem.dtype] * threads**0.9 * 1e9
    seconds: float = CALL_OVERHEAD_S + SLOWNESS.get(runtime, 1.0) * roofline.flops(problem) / rate
    return seconds


def _group(sweep: Sweep, problem: Problem, arms: Sequence[Arm], threads: int) -> GroupPlan:
    lanes = [a.runtime for a in arms] + [a.runtime for a in arms if a.label == sweep.baseline]
    calls = [call_s(problem, runtime, threads) for runtime in lanes]
    round_s = sum(rounds.predicted_visit_s(c) for c in calls)
    checks = sum(2 * c + timing.WARM_UP_NS / 1e9 * (c < 0.2) + WORKER_S for c in calls)
    memory = sum(4 * c + WORKER_S for c in calls)
    reference = 0.4 + 2 * roofline.flops(problem) / (ORACLE_GFLOPS * 1e9)
    wanted = rounds.rounds_wanted(round_s)
    return GroupPlan(
        problem=problem,
        overhead_s=checks + memory + reference,
        round_s=round_s,
        min_timing_s=round_s * rounds.least_rounds(round_s),
        full_timing_s=round_s * wanted,
    )


def _memory_bytes(problem: Problem, arms: Sequence[Arm]) -> int:
    """All arms of a problem parked at once: their score matrices, inputs and outputs, a loaded framework each."""
    score = problem.score_bytes() * 4 // DTYPE_BYTES[problem.dtype]
    tensors = roofline.bytes_min(problem)
    total = 0.0
    for arm in arms:
        total += score * SCORE_MATRICES.get(arm.runtime, OTHER_SCORE_MATRICES) + 2 * tensors + (150 << 20)
    return int(total)


class Budget:
    """Splits what is left of the time budget over the groups that are left, correcting predictions by experience."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._predicted_s = 0.0
        self._spent_s = 0.0

    def timing_s(self, index: int, elapsed_s: float) -> float:
        """Seconds of timing that group `index` may take."""
        groups = self._plan.groups[index:]
        budget_s = self._plan.sweep.time_budget_s
        own = groups[0].full_timing_s
        if budget_s is None:
            return own
        overhead_s = sum(g.overhead_s for g in groups) * self.correction + REPORT_S
        left_s = budget_s - elapsed_s - overhead_s
        # The long groups' least comes first: what is shared out is what the least of all leaves over.
        least_s = sum(g.min_timing_s for g in groups) * self.correction
        spare_s = max(0.0, left_s - least_s)
        wanted_s = sum(g.full_timing_s - g.min_timing_s for g in groups)
        share = (own - groups[0].min_timing_s) / wanted_s if wanted_s > 0 else 0.0
        return groups[0].min_timing_s * self.correction + spare_s * share

    @property
    def correction(self) -> float:
        """Seconds really spent per second predicted, so far (0.3 to 5)."""
        return min(5.0, max(0.3, self._spent_s / self._predicted_s)) if self._predicted_s > 1.0 else 1.0

    def learn(self, index: int, *, spent_s: float, timing_spent_s: float) -> None:
        """A group ended after spent_s, of which timing took timing_spent_s."""
        self._predicted_s += self._plan.groups[index].overhead_s
        self._spent_s += max(0.0, spent_s - timing_spent_s)

    def left_s(self, index: int, elapsed_s: float) -> float:
        """Predicted seconds from the start of group `index` to the end of the run."""
        groups = self._plan.groups[index:]
        rest_s = sum(g.overhead_s for g in groups) * self.correction + REPORT_S
        if not groups:
            return rest_s
        full_s = sum(g.full_timing_s for g in groups)
        budget_s = self._plan.sweep.time_budget_s
        if budget_s is None:
            return rest_s + full_s
        return rest_s + min(full_s, max(sum(g.min_timing_s for g in groups), budget_s - elapsed_s - rest_s))


def missing_timing(plan: Plan) -> Mapping[str, float]:
    """The split as it is printed and kept in the manifest, rounded to 0.1 s."""
    return {phase: round(seconds, 1) for phase, seconds in plan.split().items()}
