"""Which recipe is the fastest for a target: each one judged, then all timed beside each other."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench import plugins
from attnbench.deploy.manifest import Recipe
from attnbench.deploy.targets import Target
from attnbench.measure import environment
from attnbench.measure import statistics as stats
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem
from attnbench.records import Status
from attnbench.sweep import rounds
from attnbench.sweep.bench import Bench, with_fix
from attnbench.sweep.grid import Arm, Sweep
from attnbench.sweep.group import Group
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from attnbench.sweep.workers import ForkServers

TimeAll = Callable[[Sequence[str], str], tuple[list["Timed"], float]]
PLAIN = "onnx-decomposed"  # what torch.onnx.export writes unasked: every ratio is over it
SEQ_LENS = (128, 256, 1024)  # 256: loops of short blocks lose most there
TIMING_S = 1.0  # of each T, beyond the fewest rounds that carry an interval
MOST_SLOWER = 0.03  # than plain, at any T, for a recipe that is taken
SIMPLEST = ("onnx-attention", "onnx-decomposed", "onnx-contrib", "onnx-blocked")  # decides where all else is equal


@dataclass(kw_only=True)
class Timed:
    """A recipe and what was measured of it."""

    name: str
    opset: int | None
    status: Status = "ok"
    reason: str = ""
    ratios: dict[int, stats.Ratio] = field(default_factory=dict)  # T, or number of the size -> time(plain) / time(this)
    peaks: dict[int, int | None] = field(default_factory=dict)  # T -> peak bytes, of the T it was measured at

    @property
    def peak_bytes(self) -> int | None:
        """At the largest T at which it was measured."""
        return self.peaks[max(self.peaks)] if self.peaks else None

    def ratio(self, part: Callable[[stats.Ratio], float] = lambda found: found.ratio) -> float:
        """Geometric mean over T of the ratio, or of a bound of its interval."""
        return math.exp(math.fsum(math.log(part(found)) for found in self.ratios.values()) / len(self.ratios))

    @property
    def slower_at(self) -> list[int]:
        """The T at which it is shown to be slower than plain by more than is allowed."""
        return [seq_len for seq_len, found in self.ratios.items() if found.high < 1.0 / (1.0 + MOST_SLOWER)]

    @property
    def is_doubtful(self) -> bool:
        """May it, for all that was measured, be slower than plain by more than is allowed?

        At some T for certain, or in the geometric mean, whose interval is narrower than those at each T: they err
        independently.
        """
        below = [math.log(found.ratio / found.low) for found in self.ratios.values()]
        low = self.ratio() * math.exp(-math.hypot(*below) / len(below))
        return bool(self.slower_at) or low < 1.0 / (1.0 + MOST_SLOWER)

    def as_dict(self, labels: Mapping[int, str]) -> dict[str, Any]:
        """For `Recipe.candidates`; the labels are of the sizes."""
        found: dict[str, Any] = {"name": self.name, "status": self.status, "reason": self.reason}
        if self.status != "ok":
            return found
        low, high = self.ratio(lambda r: r.low), self.ratio(lambda r: r.high)
        by_size = {labels[size]: ratio.ratio for size, ratio in self.ratios.items()}
        measured = {"ratio": self.ratio(), "ratio_low": low, "ratio_high": high, "ratio_by_size": by_size}
        return {**found, **measured, "peak_host_bytes": self.peak_bytes}


def lengths_within(max_len: int) -> list[int]:
    """T to time at in a bundle that is proved up to `max_len`: none beyond it, and the longest where one would be."""
    return sorted({min(seq_len, max_len) for seq_len in SEQ_LENS})


def choose_recipe(
    problem: Problem,
    target: Target,
    *,
    seed: int = 0,
    opset: int | None = None,
    seq_lens: Sequence[int] = SEQ_LENS,
    timing_s: float = TIMING_S,
    say: Callable[[str], object] = lambda text: None,
) -> list[Recipe]:
    """The recipes of a target, the one to take first.

    Where the target runs here, every recipe is exported, verified, judged at each T and asked what its masks and heads
    mean; those that are right are timed in parked workers, visited in random order round after round. The fastest is
    taken; what is within the noise of it gives way to a smaller peak of memory, then to the simpler one (`SIMPLEST`).
    Elsewhere the order is the documented one.

    Args:
        problem: what is exported; its lengths do not matter.
        target: where it is to run.
        seed: of weights and inputs.
        opset: None: each exporter's first.
        seq_lens: T to time at.
        timing_s: of each T.
        say: told the table.
    """

    def time(names: Sequence[str], runtime: str) -> tuple[list[Timed], float]:
        return time_recipes(problem, names, runtime, seed=seed, opset=opset, seq_lens=seq_lens, timing_s=timing_s)

    return choose(target, problem, time, {seq_len: f"T={seq_len}" for seq_len in seq_lens}, say)


def choose(
    target: Target,
    problem: Problem | None,
    time: TimeAll,
    labels: Mapping[int, str],
    say: Callable[[str], object] = lambda text: None,
) -> list[Recipe]:
    """The recipes of a target by what was timed of them, or in their documented order where nothing can be.

    Args:
        target: where it is to run.
        problem: of the built-in attention; None: a module of the user.
        time: times recipes, the first of which is plain, through a runtime; also gives the noise floor.
        labels: of the sizes at which it does.
        say: told the table.
    """
    if target.runtime is None:
        return documented(target, problem, f"nothing here runs {target.name}")
    probe = plugins.probe_all("runtime", [target.runtime])[target.runtime]
    if not probe.available:
        return documented(target, problem, with_fix(probe))
    found, noise = time([PLAIN, *(name for name in target.recipes if name != PLAIN)], target.runtime)
    offered = [timed for timed in found if timed.name in target.recipes]
    for line in table(offered, noise, labels):
        say(line)
    right = [timed for timed in offered if timed.status == "ok"]
    if not right:
        return documented(target, problem, "; ".join(f"{t.name}: {t.reason}" for t in offered))
    ranked = rank(right, stats.delta(noise))
    candidates = tuple(timed.as_dict(labels) for timed in offered)
    return [
        Recipe(exporter=t.name, opset=None, chosen_by="measured", reason=_why(t, ranked[0], noise, labels),
               candidates=candidates)
        for t in ranked
    ]  # fmt: skip


def how_to_time(target: Target) -> str:
    """What a user types to have something timed."""
    if target.runtime is None:
        return f"nothing here runs {target.name}"
    return "--recipe auto times what is right" if target.recipes else "attnbench bench times it"


def documented(target: Target, problem: Problem | None, why: str) -> list[Recipe]:
    """The recipes in their documented order for a problem (None: a module), and why none was timed."""
    names, best = target.ordered(problem)
    reason = f"{best}; it was not timed: {why}"
    return [Recipe(exporter=name, opset=None, chosen_by="documented", reason=reason) for name in names]


def rank(right: Sequence[Timed], delta: float) -> list[Timed]:
    """The recipes, the one to take first: none that may be slower than plain before those that are not.

    Args:
        right: recipes that were timed; at least one.
        delta: the smallest difference that counts, as a fraction.
    """
    ordered = sorted(right, key=lambda timed: (timed.is_doubtful, bool(timed.slower_at), -timed.ratio()))
    first = ordered[0]
    like_first = [t for t in ordered if (t.is_doubtful, t.slower_at) == (first.is_doubtful, first.slower_at)]
    ties = [t for t in like_first if t.ratio() >= first.ratio() / (1.0 + delta)]
    taken = min(ties, key=lambda timed: (_or_infinite(timed.peak_bytes), _simplicity(timed.name)))
    return [taken, *(timed for timed in ordered if timed is not taken)]


def _or_infinite(peak_bytes: int | None) -> float:
    return math.inf if peak_bytes is None else float(peak_bytes)


def _simplicity(name: str) -> int:
    return SIMPLEST.index(name) if name in SIMPLEST else len(SIMPLEST)


def _why(timed: Timed, taken: Timed, noise: float, labels: Mapping[int, str]) -> str:
    low, high = timed.ratio(lambda r: r.low), timed.ratio(lambda r: r.high)
    where = f"geometric mean over {', '.join(labels.values())}"
    told = f"{timed.ratio():.2f}x of {PLAIN} ({low:.2f} to {high:.2f}) in {where}, timed here"
    if timed is not taken:
        return f"{told}; {taken.name}, {taken.ratio():.2f}x, could not be taken"
    told += f"; of what is within {stats.delta(noise):.1%} of the fastest, the one with the smallest peak of memory"
    return told if taken.is_doubtful else f"{told}; what may be over {MOST_SLOWER:.0%} slower was left aside"


def table(found: Sequence[Timed], noise: float, labels: Mapping[int, str]) -> list[str]:
    """A line per recipe: ratio over plain at each size, geometric mean, its interval, peak; or why there is none."""
    sizes = "".join(f"{label:>8}" for label in labels.values())
    lines = [f"{'recipe':17}{sizes}{'mean':>8}  {'interval':14}peak"]
    for t in found:
        if t.status != "ok":
            lines.append(f"{t.name:17}  {t.status}: {t.reason}")
            continue
        peak = "not measured" if t.peak_bytes is None else f"{t.peak_bytes / 2**20:.1f} MiB"
        cells = "".join(f"{t.ratios[size].ratio:7.2f}x" for size in labels)
        interval = f"{t.ratio(lambda r: r.low):.2f} to {t.ratio(lambda r: r.high):.2f}"
        lines.append(f"{t.name:17}{cells}{t.ratio():7.2f}x  {interval:14}{peak}")
    return [*lines, f"x: time of {PLAIN} over time of the recipe; noise floor {noise:.1%}"]


def time_recipes(
    problem: Problem,
    names: Sequence[str],
    runtime: str,
    *,
    seed: int = 0,
    opset: int | None = None,
    seq_lens: Sequence[int] = SEQ_LENS,
    timing_s: float = TIMING_S,
    memory_at: Sequence[int] | None = None,
) -> tuple[list[Timed], float]:
    """Every recipe through a runtime at every T, judged and timed; and the noise floor.

    Args:
        problem: what is exported; its lengths do not matter.
        names: exporters; the first is the one that ratios are over.
        runtime: an attnbench runtime that is available.
        seed: of weights and inputs.
        opset: None: each exporter's first.
        seq_lens: T to time at.
        timing_s: of each T.
        memory_at: T to measure peak memory at; None: the largest.
    """
    arms = [Arm(exporter=name, runtime=runtime, opset=opset) for name in names]
    found = {arm.label: Timed(name=arm.exporter, opset=opset) for arm in arms}
    env, _ = environment.scrubbed_environment(1)
    with tempfile.TemporaryDirectory(prefix="attnbench-recipes-") as folder, ForkServers(env) as servers:
        run_dir = RunDirectory.create(Path(folder))
        bench = Bench(
            sweep=Sweep(baseline=arms[0].label, seed=seed, time_budget_s=None), threads=1, arms=arms, run_dir=run_dir,
            servers=servers, run_id="recipes", runtime_probes=plugins.probe_all("runtime", [runtime]),
            exporter_probes=plugins.probe_all("exporter", names),
        )  # fmt: skip
        problems = {seq_len: sized(problem, seq_len) for seq_len in seq_lens}
        noise = run_groups(bench, found, problems, timing_s, memory_at or [max(seq_lens)])
    return list(found.values()), noise


def run_groups(
    bench: Bench, found: Mapping[str, Timed], problems: Mapping[int, AnyProblem], timing_s: float,
    memory_at: Sequence[int],
) -> float:  # fmt: skip
    """Judge and time every arm at every size, into `found` (by label); the noise floor."""
    noise: list[float] = []
    arms = bench.arms
    bench.export_all([next(iter(problems.values()))])
    for size, problem in problems.items():
        bench.arms = [arm for arm in arms if found[arm.label].status == "ok"]
        group = Group(bench=bench, problem=problem, progress=Silent(), known_oom={},
                      measures_memory=size in memory_at)  # fmt: skip
        group.run(timing_s)
        _take(group, found, size, noise)
    return stats.noise_floor(noise) or 0.0


def _take(group: Group, found: Mapping[str, Timed], seq_len: int, noise: list[float]) -> None:
    """What a group measured, into `found` and `noise`."""
    if (floor := rounds.noise_log_ratio(group.lanes)) is not None:
        noise.append(floor)
    for case in group.cases:
        timed = found[case.arm.label]
        timed.status, timed.reason = case.status or "ok", case.reason
        if group.measures_memory:
            timed.peaks[seq_len] = case.peak_host_bytes
        if timed.status == "ok":
            assert case.lane is not None
            ratio = rounds.ratio_of(group.lanes, case.lane)
            if ratio is None or group.lanes[0].arm != group.bench.sweep.baseline:
                timed.status, timed.reason = "error", "the plain export could not be timed, so that there is no ratio"
            else:
                timed.ratios[seq_len] = ratio


def sized(problem: Problem, seq_len: int) -> Problem:
    """The problem at one T and batch size 1: cross has half as many keys, decode one new token."""
    if problem.variant == "decode":
        return problem.at(q_len=1, kv_len=seq_len, batch_size=1)
    kv_len = max(1, seq_len // 2) if problem.variant == "cross" else seq_len
    return problem.at(q_len=seq_len, kv_len=kv_len, batch_size=1)
