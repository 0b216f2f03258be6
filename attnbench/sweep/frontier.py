"""The longest T that fits a memory budget, measured: bisection in workers that may die.

The budget is of the memory that an arm works in: a GPU's for arms on one, else the host's. An arm on a GPU that runs
out of the host's memory has not been shown to exceed the GPU's.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attnbench.analysis.arm_laws import arm_laws, memory_bytes
from attnbench.analysis.frontier import Frontier, frontiers
from attnbench.analysis.groups import Panel, make_panels
from attnbench.errors import AttnbenchError, ProblemError, WorkerTimeout
from attnbench.measure import memory
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.sweep import device_arms
from attnbench.sweep.bench import Bench
from attnbench.sweep.cases import status_of
from attnbench.sweep.grid import Arm
from attnbench.sweep.refine import kv_len_at

CLOSE = 1.02  # fits and fails this near are an answer
GROW = 1.5
MAX_PROBES = 14
MAX_SEQ_LEN = 1 << 22
MEMORY_SHARE = 0.9  # of what is free, for a probe where --memory-limit says nothing
OUT_OF_TIME = "the time budget was spent"
# What is said where the host's memory is used up; whatever else is out of memory under an arm on a GPU is the GPU's.
OF_HOST = re.compile(r"unable to allocate|DefaultCPUAllocator|bad_alloc|killed by signal|out-of-memory killer", re.I)
PATIENCE = 5  # times the timeout of a case: a probe calls up to six times


class Outcome(NamedTuple):
    """What one T gave. `fits` None: it cannot be told (a timeout), so the search ends."""

    fits: bool | None
    reason: str
    peak_bytes: int | None = None


@dataclass(kw_only=True)
class Search:
    """A bisection in T: the largest that fits, the smallest that does not."""

    fits: int | None
    fails: int | None
    probes: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""  # of what fails, or why the search ended without it
    out_of_time: bool = False  # more time would narrow it

    def run(self, try_at: Callable[[int], Outcome], guess: float, has_time: Callable[[], bool]) -> None:
        """Narrow the bracket until it is close, the probes are used up, or there is no time.

        Args:
            try_at: measures one T.
            guess: where to begin, such as the law's answer.
            has_time: asked before every probe.
        """
        wanted = guess
        while len(self.probes) < MAX_PROBES and not self._is_close():
            if not has_time():
                self.reason, self.out_of_time = self.reason or OUT_OF_TIME, True
                return
            seq_len = self._inside(wanted)
            if seq_len is None:
                self.reason = self.reason or f"T above {MAX_SEQ_LEN:,} is not tried"
                return
            outcome = try_at(seq_len)
            self.probes.append({"x": seq_len, "peak_bytes": outcome.peak_bytes, "reason": outcome.reason})
            if outcome.fits is None:
                self.reason, self.out_of_time = f"at T = {seq_len:,}: {outcome.reason}", outcome.reason == OUT_OF_TIME
                return
            if outcome.fits:
                self.fits = seq_len
            else:
                self.fails, self.reason = seq_len, outcome.reason
            wanted = self._next(guess)
        if not self._is_close():
            self.reason = self.reason or f"{MAX_PROBES} lengths were tried"

    def _is_close(self) -> bool:
        if self.fits is None or self.fails is None:
            return self.fails == 1
        return self.fails - self.fits <= 1 or self.fails / self.fits <= CLOSE

    def _inside(self, wanted: float) -> int | None:
        """A T strictly within the bracket; None above the largest that is tried."""
        low, high = self.fits or 0, self.fails or MAX_SEQ_LEN
        return None if high - low <= 1 else min(max(round(wanted), low + 1), high - 1)

    def _next(self, guess: float) -> float:
        """A good guess is confirmed by its neighbour; else grow, shrink, or take the geometric middle."""
        if len(self.probes) == 1:
            near = guess * math.sqrt(CLOSE) if self.fits == self.probes[0]["x"] else guess / math.sqrt(CLOSE)
            if (self.fits or 0) < round(near) < (self.fails or MAX_SEQ_LEN):
                return near
        if self.fails is None:
            return (self.fits or 1) * GROW
        if self.fits is None:
            return self.fails / 2.0
        return math.sqrt(self.fits * self.fails)


def measure_frontiers(
    bench: Bench,
    records: list[Record],
    problems: dict[str, Problem],
    *,
    floor: float | None,
    done: Sequence[dict[str, Any]],
    left_s: Callable[[], float | None],
    say: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """A row per arm and chart, beside those that are done: how long T may get under the sweep's memory budget.

    The arm must have been right and its peak measured at some T. That long T are answered right is not checked.

    Args:
        done: rows of an interrupted run; those that lacked time go on from where they were.
        left_s: seconds that are left, None: no limit; each search has an equal part of them, and waits no longer.
    """
    budget = bench.sweep.memory_budget_bytes
    assert budget is not None
    arms = {arm.label: arm for arm in bench.arms}
    wanted = [one for one in _wanted(records, problems, floor, budget, done) if not _is_twin(arms[one.arm], arms)]
    for i, one in enumerate(wanted):
        say(f"longest T of {one.arm}, {one.name}")
        share_s = _share(left_s, len(wanted) - i)
        search = Search(fits=one.fits, fails=one.fails)
        search.run(_probe(bench, arms[one.arm], one.example, one.rule, budget, share_s), one.guess, _has(share_s))
        yield {
            "arm": one.arm, "problem": one.name, "budget_bytes": budget,
            "memory": "device" if arms[one.arm].on_gpu else "host", "fits": search.fits, "fails": search.fails,
            "reason": search.reason, "out_of_time": search.out_of_time, "probes": [*one.probes, *search.probes],
        }  # fmt: skip


class _Wanted(NamedTuple):
    """A search that is to be made."""

    arm: str
    name: str  # of the problem
    example: Problem
    rule: Callable[[int], int]
    guess: float
    fits: int | None
    fails: int | None
    probes: Sequence[dict[str, Any]]  # made before


def _wanted(
    records: list[Record],
    problems: dict[str, Problem],
    floor: float | None,
    budget_bytes: int,
    done: Sequence[dict[str, Any]],
) -> Iterator[_Wanted]:
    before = {(row["arm"], row["problem"]): row for row in done}
    for panel in make_panels(records):
        rule = kv_len_at(panel)
        if rule is None:
            continue
        for known in frontiers(panel, arm_laws(panel, floor), budget_bytes):
            example = problems[panel.records[0].problem_id]
            name = _name(panel, example)
            record = next((r for r in panel.row(known.arm) if r is not None and _has_peak(r)), None)
            if record is None:
                continue
            row = before.get((record.arm, name), {"fits": known.fits, "fails": known.fails, "out_of_time": True})
            if row.get("out_of_time"):
                yield _Wanted(
                    record.arm, name, example, rule, _guess(known), row["fits"], row["fails"], row.get("probes", ())
                )


def _is_twin(arm: Arm, arms: Mapping[str, Arm]) -> bool:
    """Is it another arm timed by another clock? Memory has none."""
    return bool(device_arms.timing_of(arm)) and device_arms.timed_as(arm, ()).label in arms


def _share(left_s: Callable[[], float | None], searches: int) -> Callable[[], float | None]:
    """What is left for the next of so many searches: an equal part, so that a slow arm does not take it all."""
    left = left_s()
    end_s = math.inf if left is None else time.monotonic() + left / searches
    return lambda: None if left is None else end_s - time.monotonic()


def _has(left_s: Callable[[], float | None]) -> Callable[[], bool]:
    return lambda: (left := left_s()) is None or left > 0.0


def _name(panel: Panel, example: Problem) -> str:
    heads = f"{example.num_heads} heads of {example.head_dim}"
    return f"{panel.facet.part} {panel.title()} {example.dtype} batch {example.batch_size}, {heads}"


def _has_peak(record: Record) -> bool:
    return record.status == "ok" and memory_bytes(record) is not None


def _guess(known: Frontier) -> float:
    """The law's answer; twice what fits where there is no law."""
    if known.at is None or known.at.mid > MAX_SEQ_LEN:
        return 2.0 * (known.fits or 1)
    return known.at.mid


def _probe(
    bench: Bench,
    arm: Arm,
    example: Problem,
    rule: Callable[[int], int],
    budget_bytes: int,
    left_s: Callable[[], float | None],
) -> Callable[[int], Outcome]:
    """Measures one T of one arm in a fresh worker."""
    available = memory.available_memory_bytes()
    limit = bench.sweep.memory_limit_bytes or (None if available is None else int(available * MEMORY_SHARE))
    patience_s = bench.sweep.timeout_s * PATIENCE
    end_s = math.inf

    def timeout_s() -> float:
        return max(0.1, min(patience_s, end_s - time.monotonic()))

    def try_at(seq_len: int) -> Outcome:
        nonlocal end_s
        left = left_s()
        end_s = math.inf if left is None else time.monotonic() + left
        try:
            problem = example.at(q_len=seq_len, kv_len=rule(seq_len))
            exported = bench.exported(arm, problem)
            with bench.worker(bench.server("runtime", arm.runtime), arm.label, memory_limit_bytes=limit) as worker:
                worker.ask(
                    "load", timeout_s=timeout_s(), runtime=arm.plugin, problem=problem.as_dict(),
                    artifact=exported.artifact if exported else None, settings=bench.settings(arm), purpose="memory",
                )  # fmt: skip
                peak = worker.ask("measure_memory", timeout_s=timeout_s(), problem=problem.as_dict())
        except ProblemError as err:
            return Outcome(None, str(err))
        except AttnbenchError as err:
            if isinstance(err, WorkerTimeout) and time.monotonic() >= end_s:
                return Outcome(None, OUT_OF_TIME)
            return _failed(err, on_gpu=arm.on_gpu)
        return _on_device(peak["device"], budget_bytes) if arm.on_gpu else _on_host(peak, budget_bytes)

    return try_at


def _failed(err: AttnbenchError, *, on_gpu: bool) -> Outcome:
    """What a death says: that the memory which the budget is of was used up, or nothing about it."""
    status = status_of(err)
    if on_gpu and (status == "crashed" or OF_HOST.search(str(err))):
        return Outcome(None, f"{status}, which says nothing of the GPU's memory: {err}")
    return Outcome(False if status in ("oom", "crashed") else None, f"{status}: {err}")


def _on_host(peak: Mapping[str, Any], budget_bytes: int) -> Outcome:
    if peak["peak_bytes"] is None:
        return Outcome(None, peak["reason"])
    return Outcome(peak["peak_bytes"] <= budget_bytes, f"peak {_mib(peak['peak_bytes'])}", peak["peak_bytes"])


def _on_device(peak: Mapping[str, Any], budget_bytes: int) -> Outcome:
    """By what the calls took on the device; calls that took nothing beyond what was kept before fit any budget."""
    words = (
        "no growth on the device" if peak["peak_bytes"] is None else f"peak {_mib(peak['peak_bytes'])} on the device"
    )
    if peak["is_shared"]:
        words += f", which others were on too ({peak['sharing']})"
    return Outcome((peak["peak_bytes"] or 0) <= budget_bytes, words, peak["peak_bytes"])


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.4g} MiB"
