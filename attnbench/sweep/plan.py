"""What a run will do and take, predicted before anything runs. Predictions plan; they are never results."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.inputs import stress_classes, weight_shapes
from attnbench.measure import roofline, timing
from attnbench.model_problem import AnyProblem, ModelProblem
from attnbench.problem import DTYPE_BYTES, Problem
from attnbench.sweep import rounds
from attnbench.sweep.grid import TORCH, Arm, Sweep
from attnbench.sweep.model_sizes import tensor_bytes

# Orientation measured on a 2-vCPU Zen machine with one thread; a run corrects itself by what it sees.
GFLOPS_PER_THREAD = {"fp32": 80.0, "bf16": 120.0, "fp16": 3.0}
CALL_OVERHEAD_S = 20e-6
# Of a small GPU, taken low: not measured, and a run corrects itself.
GPU_GFLOPS, GPU_BYTES_PER_S, GPU_START_S = 5000.0, 2e11, 3.0
# Eager attention writes and reads the score matrix several times, through pages fetched anew in every call.
EAGER_PASSES = {"none": 8, "causal_top_left": 12}
EAGER_BYTES_PER_S = 4e9
SCORE_MATRICES = {"torch-eager": 2.3, "torch-sdpa": 0.3}  # live at the peak
OTHER_SCORE_MATRICES = 4.2
WORKER_S = 0.1  # fork, load, bind
STRESS_S = 0.15  # reference of one class of hard inputs at T <= 256, and a call of every arm
EXPORT_S = 1.2
COMPILE_S = 0.25  # parse, compile, and its share of what tells whether attention is fused
# WORKER_S and EXPORT_S are of blocks with up to 4 MB of weights. 168 MB take 3.5 s more to write, 0.7 s to draw.
SMALL_GB, EXPORT_S_PER_GB, LOAD_S_PER_GB = 0.0042, 25.0, 4.0
MODEL_CALL_S = 0.02  # of a model nothing is known before it runs; the run corrects itself
MODEL_REFERENCE_S = 3.0
START_S = 6.0  # imports, machine peak
REPORT_S = 6.0
CAUTION = 1.25  # only what even a prediction that much too low leaves over is spent on more than the least rounds
EXPORT_SHARE = 0.4  # of the time budget, for files written before the groups that need them
EXTRA_SHARE = 0.3  # of the time budget, for each of --refine and --measure-frontier
ORACLE_GFLOPS = 30.0
MAX_ORACLE_FLOPS = 60e9  # longer problems are judged on sampled rows


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """One problem: predicted seconds."""

    problem: AnyProblem
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
    compile_only: int = 0  # records of problems that are only compiled
    compile_s: float = 0.0
    peak_memory_bytes: int
    available_bytes: int | None
    notices: tuple[str, ...] = ()

    @property
    def case_count(self) -> int:
        """How many records there will be."""
        return len(self.groups) * len(self.arms) + self.compile_only

    @property
    def overhead_s(self) -> float:
        """Everything that is not timing."""
        return START_S + self.export_s + self.compile_s + sum(g.overhead_s for g in self.groups) + REPORT_S

    def split(self) -> dict[str, float]:
        """Predicted seconds by phase; they add up to the prediction of the run."""
        return {
            "start and machine peak": START_S,
            "export and verify": self.export_s,
            **({"compile": self.compile_s} if self.compile_s else {}),
            "reference, checks and memory": sum(g.overhead_s for g in self.groups),
            "timing": self.timing_s(),
            **self.extras(),
            "report": REPORT_S,
        }

    def extras(self) -> dict[str, float]:
        """Seconds of the time budget that are kept for what follows the grid; without a budget nothing is predicted."""
        asked = {"refine": self.sweep.refine, "longest T": self.sweep.measure_frontier}
        budget_s = self.sweep.time_budget_s or 0.0
        return {name: EXTRA_SHARE * budget_s for name, is_asked in asked.items() if is_asked}

    @property
    def grid_budget_s(self) -> float | None:
        """The part of the time budget that is the grid's."""
        budget_s = self.sweep.time_budget_s
        return None if budget_s is None else budget_s - sum(self.extras().values())

    def timing_s(self) -> float:
        """What the budget leaves for timing, between the least and the most that is useful."""
        least, most = sum(g.min_timing_s for g in self.groups), sum(g.full_timing_s for g in self.groups)
        budget_s = self.grid_budget_s
        return most if budget_s is None else max(least, min(most, budget_s - self.overhead_s))

    @property
    def total_s(self) -> float:
        """Predicted seconds of the whole run."""
        return sum(self.split().values())


def make_plan(
    sweep: Sweep, problems: Sequence[AnyProblem], arms: Sequence[Arm], threads: int, available_bytes: int | None,
    beside: Sequence[Problem] = (),
) -> Plan:  # fmt: skip
    """Predict time and memory of every problem group, and of those `beside` that are only compiled."""
    groups = tuple(plan_group(sweep, p, arms, threads) for p in problems)
    compilers = [a for a in arms if a.compiles_only]
    files = {(a.exporter, a.opset, p.static_key()): p for a in arms if a.exporter != TORCH for p in problems}
    files |= {(a.exporter, a.opset, p.static_key()): p for a in compilers for p in beside}
    memory = max((_memory_bytes(p, [a for a in arms if not a.compiles_only]) for p in problems), default=0)
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
        export_s=sum(EXPORT_S + EXPORT_S_PER_GB * _weights_gb(p) for p in files.values()),
        compile_only=len(beside) * len(compilers),
        compile_s=COMPILE_S * len(compilers) * (len(problems) + len(beside)) / max(1, (os.cpu_count() or 1) // threads),
        peak_memory_bytes=memory,
        available_bytes=available_bytes,
        notices=tuple(notices),
    )
    if plan.extras() and sweep.time_budget_s is None:
        notices.append(f"no time budget: {' and '.join(plan.extras())} are not in the predicted time")
    if sweep.time_budget_s is not None and plan.total_s > sweep.time_budget_s * 1.02:
        notices.append(
            f"the least that these cases need is about {plan.total_s:.0f} s, more than the budget of "
            f"{sweep.time_budget_s:.0f} s: the longest T may be skipped; raise --time-budget"
        )
    return Plan(**{**vars(plan), "notices": tuple(notices)})


def call_s(problem: AnyProblem, runtime: str, threads: int, *, on_gpu: bool = False) -> float:
    """Predicted seconds of one call."""
    if runtime == "null":
        return CALL_OVERHEAD_S
    if isinstance(problem, ModelProblem):
        return MODEL_CALL_S
    # Most runtimes compute the whole square of a causal problem.
    is_whole = runtime == "torch-sdpa" or problem.variant != "causal"
    whole = problem if is_whole else replace(problem, variant="cross", mask="none")
    gflops = GPU_GFLOPS if on_gpu else GFLOPS_PER_THREAD[problem.dtype] * threads**0.9
    seconds: float = roofline.flops(whole) / (gflops * 1e9)
    if runtime == "torch-eager":
        passes = EAGER_PASSES["none" if problem.mask == "none" else "causal_top_left"]  # any mask is one more pass
        seconds += passes * problem.score_bytes() / (GPU_BYTES_PER_S if on_gpu else EAGER_BYTES_PER_S)
    return CALL_OVERHEAD_S + seconds


def plan_group(sweep: Sweep, problem: AnyProblem, arms: Sequence[Arm], threads: int) -> GroupPlan:
    """Predict one problem group."""
    arms = [a for a in arms if not a.compiles_only]
    lanes = [*arms, *(a for a in arms if a.label == sweep.baseline)]
    calls = [call_s(problem, arm.plugin, threads, on_gpu=arm.on_gpu) for arm in lanes]
    starts_s = GPU_START_S * sum(arm.on_gpu for arm in [*lanes, *arms])  # a context of CUDA in every worker
    at_once = max(1, min(len(calls), (os.cpu_count() or 1) // threads))
    worker_s = WORKER_S + LOAD_S_PER_GB * _weights_gb(problem)
    check_s = [3 * c + timing.WARM_UP_NS / 1e9 * (c < 0.2) + worker_s for c in calls]
    checks = sum(check_s) / at_once
    round_s = sum(rounds.predicted_visit_s(c) for c in calls)
    if any(arm.is_alone for arm in lanes):  # a fresh worker for every turn on a GPU
        round_s = sum(rounds.predicted_turn_s(c) for c in calls)
        round_s += sum(GPU_START_S + s for arm, s in zip(lanes, check_s, strict=True) if arm.is_alone)
    memory = sum(3.5 * c + worker_s for c in calls[: len(arms)])
    reference, stress = MODEL_REFERENCE_S, 0.0
    if isinstance(problem, Problem):
        reference = 0.1 + 2 / at_once * min(roofline.flops(problem), MAX_ORACLE_FLOPS) / (ORACLE_GFLOPS * 1e9)
        stress = len(stress_classes(problem)) * (WORKER_S + STRESS_S) / at_once if sweep.stress else 0.0
    wanted = rounds.rounds_wanted(round_s)
    return GroupPlan(
        problem=problem,
        overhead_s=checks + memory + reference + stress + starts_s,
        round_s=round_s,
        min_timing_s=round_s * rounds.least_rounds(round_s),
        full_timing_s=round_s * wanted,
    )


def _weights_gb(problem: AnyProblem) -> float:
    """Of weights, beyond what every block has; of a model they are not known."""
    if isinstance(problem, ModelProblem):
        return 0.0
    numbers = sum(math.prod(shape) for shape in weight_shapes(problem).values())
    return max(0.0, numbers * DTYPE_BYTES[problem.dtype] / 1e9 - SMALL_GB)


def _memory_bytes(problem: AnyProblem, arms: Sequence[Arm]) -> int:
    """All arms of a problem parked at once: their score matrices, inputs and outputs, a loaded framework each.

    What a model holds within a call is not known: of it this is the least.
    """
    if isinstance(problem, ModelProblem):
        return len(arms) * (2 * tensor_bytes(problem) + (150 << 20))
    score = problem.score_bytes() * 4 // DTYPE_BYTES[problem.dtype]
    tensors = roofline.bytes_min(problem)
    total = 0.0
    for arm in arms:
        scores = 0.0 if arm.on_gpu else score * SCORE_MATRICES.get(arm.plugin, OTHER_SCORE_MATRICES)
        total += scores + 2 * tensors + (150 << 20)
    return int(total)


class Budget:
    """Splits what is left of the time budget over the groups that are left, correcting predictions by experience."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._overhead_s = (0.0, 0.0)  # predicted, spent
        self._round_s = (0.0, 0.0)  # predicted, taken; recent groups weigh most

    def timing_s(self, index: int, elapsed_s: float) -> float:
        """Seconds of timing that group `index` may take: its least, and its share of what all leasts leave over."""
        groups = self._plan.groups[index:]
        budget_s = self._plan.grid_budget_s
        if budget_s is None:
            return groups[0].full_timing_s * self._timing_correction
        spare_s = budget_s - elapsed_s - CAUTION * (self._rest_s(index) + self._least_s(index))
        wanted_s = sum(g.full_timing_s - g.min_timing_s for g in groups)
        share = (groups[0].full_timing_s - groups[0].min_timing_s) / wanted_s if wanted_s > 0 else 0.0
        return groups[0].min_timing_s * self._timing_correction + max(0.0, spare_s) * share

    def learn(self, index: int, *, overhead_s: float, timing_s: float, round_count: int) -> None:
        """A group ended: seconds it spent beside timing, seconds of timing, rounds."""
        group = self._plan.groups[index]
        self._overhead_s = (self._overhead_s[0] + group.overhead_s, self._overhead_s[1] + overhead_s)
        if round_count:
            predicted, taken = self._round_s
            self._round_s = (0.5 * predicted + group.round_s, 0.5 * taken + timing_s / round_count)

    def fits(self, group: GroupPlan, left_s: float | None) -> float | None:
        """Seconds of timing for one more group within `left_s` (None: no limit); None where it does not fit."""
        full_s = group.full_timing_s * self._timing_correction
        least_s = group.min_timing_s * self._timing_correction
        if left_s is None:
            return full_s
        spare_s = left_s - CAUTION * group.overhead_s * self._overhead_correction
        return None if spare_s < CAUTION * least_s else min(full_s, spare_s)

    def left_s(self, index: int, elapsed_s: float) -> float:
        """Predicted seconds from the start of group `index` to the end of the run; what a budget cuts off is none."""
        extras_s = sum(self._plan.extras().values())
        full_s = self._rest_s(index) + extras_s
        full_s += sum(g.full_timing_s for g in self._plan.groups[index:]) * self._timing_correction
        budget_s = self._plan.grid_budget_s
        if budget_s is None:
            return full_s
        return min(full_s, max(REPORT_S, budget_s + extras_s - elapsed_s))

    def _rest_s(self, index: int) -> float:
        """Everything but timing from group `index` on."""
        return sum(g.overhead_s for g in self._plan.groups[index:]) * self._overhead_correction + REPORT_S

    def _least_s(self, index: int) -> float:
        return sum(g.min_timing_s for g in self._plan.groups[index:]) * self._timing_correction

    @property
    def _overhead_correction(self) -> float:
        """Seconds really spent per second predicted, so far."""
        predicted, spent = self._overhead_s
        return min(5.0, max(0.3, spent / predicted)) if predicted > 0 else 1.0

    @property
    def _timing_correction(self) -> float:
        predicted, taken = self._round_s
        return min(5.0, max(0.3, taken / predicted)) if predicted > 0 else 1.0


def rounded_split(plan: Plan) -> Mapping[str, float]:
    """The split as it is printed and kept in the manifest, rounded to 0.1 s."""
    return {phase: round(seconds, 1) for phase, seconds in plan.split().items()}
