"""The problem groups of a run one after the other, then what --refine and --measure-frontier add."""

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from attnbench.measure import verdicts
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem
from attnbench.records import COMPILES_ONLY, Record
from attnbench.sweep import compiling, frontier, refine, rows
from attnbench.sweep.bench import Bench
from attnbench.sweep.cases import Case
from attnbench.sweep.grid import Arm
from attnbench.sweep.group import Group, oom_key, utc_now
from attnbench.sweep.plan import EXPORT_SHARE, EXTRA_SHARE, REPORT_S, Budget, Plan, plan_group
from attnbench.sweep.progress import Progress
from attnbench.sweep.rundir import Samples

BUDGET_SPENT = "the time budget was spent"
MAX_REFINED = 12  # groups that --refine adds


@dataclass(kw_only=True)
class Campaign:
    """What is left to do of a run; every finished group is on disk before the next begins."""

    bench: Bench
    plan: Plan
    problems: Sequence[AnyProblem]  # of the grid
    refined: list[AnyProblem]  # added by --refine so far
    manifest: dict[str, Any]
    progress: Progress
    started_s: float  # monotonic
    beside: Sequence[Problem] = ()  # that are only compiled
    known_oom: dict[str, AnyProblem] = field(default_factory=dict)
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = Budget(self.plan)

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.started_s

    def run(self, done: Sequence[Record]) -> None:
        """Every group that is not done, then the extras."""
        finished = {r.problem_id for r in done}
        self.known_oom = self._known_oom(done)
        self.prepare_files(finished)
        for index, problem in enumerate(self.problems):
            if problem.problem_id not in finished:
                self._grid_group(index, problem)
        for problem in list(self.refined):  # of an interrupted run
            if problem.problem_id not in finished and not self._extra_group(problem):
                self._give_up(problem)
        if self.bench.sweep.refine:
            self._refine()
        if self.bench.sweep.measure_frontier:
            self._measure_frontier()

    def prepare_files(self, finished: Set[str]) -> None:
        """Everything that comes before the first group: files, then what compilers say of them."""
        began = time.monotonic()
        self.progress.say("export and verify")
        self.export_ahead(finished)
        self.manifest["spent"]["export and verify"] = round(time.monotonic() - began, 2)
        self._compile(finished)

    def export_ahead(self, finished: Set[str]) -> None:
        """Write files before they are needed, several at a time, for a share of the budget; the rest when needed."""
        budget_s = self.bench.sweep.time_budget_s
        ahead = [p for p in [*self.problems, *self.refined] if p.problem_id not in finished]
        self.bench.export_all(ahead, go_on=lambda: budget_s is None or self.elapsed_s < EXPORT_SHARE * budget_s)

    def _compile(self, finished: Set[str]) -> None:
        """What arms that cannot run here say of every file, and the rows of problems that only they have."""
        arms = [arm for arm in self.bench.arms if arm.compiles_only]
        if not arms:
            return
        began = time.monotonic()
        budget_s = self.bench.sweep.time_budget_s

        def has_time() -> bool:
            return budget_s is None or self.elapsed_s < EXPORT_SHARE * budget_s

        ahead = [p for p in [*self.problems, *self.beside, *self.refined] if p.problem_id not in finished]
        compiling.compile_ahead(self.bench, ahead, say=self.progress.say, go_on=has_time)
        for problem in self.beside:
            if problem.problem_id in finished:
                continue
            if not has_time():
                self.bench.run_dir.append(problem.problem_id, self._skipped(problem, arms), {})
                continue
            group = Group(
                bench=self.bench, problem=problem, progress=self.progress, known_oom=self.known_oom, arms=arms
            )
            self.bench.run_dir.append(problem.problem_id, *group.run(0.0))
        self.manifest["spent"]["compile"] = round(time.monotonic() - began, 2)

    def _case_count(self) -> int:
        return self.plan.compile_only + (len(self.problems) + len(self.refined)) * len(self.bench.arms)

    def _grid_group(self, index: int, problem: AnyProblem) -> None:
        elapsed_s = self.elapsed_s
        budget_s = self.bench.sweep.time_budget_s
        if budget_s is not None and elapsed_s > budget_s:
            self.progress.skip(BUDGET_SPENT)
            self.bench.run_dir.append(problem.problem_id, self._skipped(problem), {})
        else:
            group = self._run_group(problem, self.budget.timing_s(index, elapsed_s))
            timing_spent_s = group.phases.get("timing", 0.0)
            self.budget.learn(
                index,
                overhead_s=self.elapsed_s - elapsed_s - timing_spent_s,
                timing_s=timing_spent_s,
                round_count=max((len(lane.medians) for lane in group.lanes), default=0),
            )
        elapsed_s = self.elapsed_s
        left_s = self.budget.left_s(index + 1, elapsed_s)
        self.progress.advance(self.plan.total_s * elapsed_s / (elapsed_s + left_s), left_s)

    def _run_group(self, problem: AnyProblem, timing_s: float) -> Group:
        group = Group(bench=self.bench, problem=problem, progress=self.progress, known_oom=self.known_oom)
        new, samples = group.run(timing_s)
        self._keep(problem, group, new, samples)
        return group

    def _keep(self, problem: AnyProblem, group: Group, new: Sequence[Record], samples: Samples) -> None:
        """On disk first, then in the manifest's sums."""
        self.bench.run_dir.append(problem.problem_id, new, samples)
        for lane in group.lanes:
            self.manifest["visits"] += lane.visits
            self.manifest["contended_visits"] += lane.contended_visits
        for phase, seconds in group.phases.items():
            self.manifest["spent"][phase] = round(self.manifest["spent"].get(phase, 0.0) + seconds, 2)

    def _skipped(self, problem: AnyProblem, arms: Sequence[Arm] | None = None) -> list[Record]:
        cases = []
        for arm in self.bench.arms if arms is None else arms:
            case = Case(problem=problem, arm=arm, started_at_utc=utc_now())
            case.flags += [COMPILES_ONLY] if arm.compiles_only else []
            case.decide("skipped", f"{BUDGET_SPENT}; --resume this run with a longer --time-budget")
            cases.append(case)
        return rows.records_of(self.bench, cases, [])

    def _left_s(self, *, kept_s: float) -> float | None:
        """Seconds until the report must begin, less what is kept for others; None: no budget."""
        budget_s = self.bench.sweep.time_budget_s
        return None if budget_s is None else budget_s - self.elapsed_s - REPORT_S - kept_s

    def _refine(self) -> None:
        """Groups at the T where crossings are least known, until they are narrow or the time is spent."""
        while len(self.refined) < MAX_REFINED:
            records = self.bench.run_dir.read()[0]
            problem = refine.next_problem(records, self.bench.run_dir.path / "samples", self._attention())
            if problem is None:
                self.manifest["refine_stopped_by"] = (
                    "every crossing is known to within 10 %, no T is left between, or there is none"
                )
                return
            self.refined.append(problem)
            if not self._extra_group(problem):
                self._give_up(problem)
                self.manifest["refine_stopped_by"] = "the next group did not fit into the time budget"
                return
        self.manifest["refine_stopped_by"] = f"{MAX_REFINED} groups were added"

    def _give_up(self, problem: AnyProblem) -> None:
        """A problem of --refine that will have no rows is not one of the run's."""
        self.refined.remove(problem)
        self.manifest["refined"] = [p.as_dict() for p in self.refined]
        self.manifest["cases_planned"] = self._case_count()

    def _extra_group(self, problem: AnyProblem) -> bool:
        """One group beside the grid; False where it does not fit into the time that is left."""
        sweep = self.bench.sweep
        kept_s = EXTRA_SHARE * (sweep.time_budget_s or 0.0) if sweep.measure_frontier else 0.0
        predicted = plan_group(sweep, problem, self.bench.arms, self.plan.threads)
        timing_s = self.budget.fits(predicted, self._left_s(kept_s=kept_s))
        if timing_s is None:
            return False
        self.manifest["refined"] = [p.as_dict() for p in self.refined]
        self.manifest["cases_planned"] = self._case_count()
        self.bench.run_dir.write_manifest(self.manifest)  # so that --resume knows the group
        self._run_group(problem, timing_s)
        return True

    def _measure_frontier(self) -> None:
        """Rows of the manifest, each on disk before the next begins."""
        rows_so_far = self.manifest.setdefault("frontier", [])
        judged, noise = verdicts.judge(self.bench.run_dir.read()[0])

        found = frontier.measure_frontiers(
            self.bench, judged, self._attention(), floor=noise.floor, done=list(rows_so_far),
            left_s=lambda: self._left_s(kept_s=0.0), say=self.progress.say,
        )  # fmt: skip
        for row in found:
            rows_so_far[:] = [r for r in rows_so_far if (r["arm"], r["problem"]) != (row["arm"], row["problem"])]
            rows_so_far.append(row)
            self.bench.run_dir.write_manifest(self.manifest)

    def _attention(self) -> dict[str, Problem]:
        """The problems of the built-in attention by their ids: what can be refined, and has a longest T."""
        return {p.problem_id: p for p in [*self.problems, *self.refined] if isinstance(p, Problem)}

    def _known_oom(self, done: Sequence[Record]) -> dict[str, AnyProblem]:
        """What a resumed run already knows to be too big."""
        if not self.bench.sweep.oom_skip:
            return {}
        by_id = {p.problem_id: p for p in [*self.problems, *self.refined]}
        arms = {a.label: a for a in self.bench.arms}
        known: dict[str, AnyProblem] = {}
        for record in done:
            if record.status == "oom":
                problem = by_id[record.problem_id]
                known.setdefault(oom_key(arms[record.arm], problem), problem)
        return known
