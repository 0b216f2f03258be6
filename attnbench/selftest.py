"""The instrument proves itself on this machine, with real clocks: one table, one exit code."""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.errors import AttnbenchError
from attnbench.interfaces import Settings
from attnbench.measure import environment
from attnbench.measure import statistics as stats
from attnbench.problem import Problem
from attnbench.sweep import rounds
from attnbench.sweep.cases import ParkedArm
from attnbench.sweep.workers import ForkServers, Worker

TASKS = "attnbench.sweep.tasks"
TORCH = ("torch", "attnbench.torch_model", TASKS)
RUNTIME = "torch-sdpa"
TRIALS = 60
TRIAL_ROUNDS = 28
KNOWN_ROUNDS = 60
AA_PROBLEM = Problem.make(seq_len=512)
SHORT_PROBLEM = Problem.make(seq_len=128)
ORACLE_PROBLEM = Problem.make(seq_len=4096)
SPIKES_MIB = (1, 8, 64, 256)
TIMEOUT_S = 120.0
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the table."""

    name: str
    measured: str
    bar: str
    ok: bool | None  # None: for information, no bar


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the instrument showed."""

    checks: list[Check]
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 when every bar is met."""
        return int(any(check.ok is False for check in self.checks))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"checks": [asdict(c) for c in self.checks], "seconds": self.seconds, "exit_code": self.exit_code}

    def text(self) -> str:
        """The table, at most 80 columns."""
        words = {True: "ok", False: "FAILED", None: ""}
        lines = [f"{c.name:33} {c.measured:>22}  {c.bar:15} {words[c.ok]}".rstrip() for c in self.checks]
        failed = sum(check.ok is False for check in self.checks)
        verdict = f"{failed} of the bars not met" if failed else "every bar is met"
        return "\n".join([*lines, f"{verdict}, in {self.seconds:.0f} s"])


def run(say: Callable[[str], object] = lambda _: None) -> Result:
    """Run every check, under three minutes on two cores. `say` is told what is being done.

    Raises:
        AttnbenchError: a worker failed; there is no result then.
    """
    start = time.monotonic()
    env, _ = environment.scrubbed_environment(1)
    checks: list[Check] = []
    with ForkServers(env) as servers:
        servers.get(TORCH).wait_ready()
        for name, check in _CHECKS.items():
            say(name)
            checks += check(servers)
    return Result(checks=checks, seconds=time.monotonic() - start)


@contextmanager
def _parked(servers: ForkServers, problem: Problem, *repeats: int) -> Iterator[list[rounds.Lane]]:
    """One lane per repeat: workers of the same runtime whose call runs that many times."""
    workers: list[Worker] = []
    try:
        lanes = []
        for index, repeat in enumerate(repeats):
            workers.append(_loaded(servers, problem))
            workers[-1].ask("bind", timeout_s=TIMEOUT_S, problem=problem.as_dict(), repeat=repeat)
            cpus = environment.timing_cpus(1)
            typical_ns = workers[-1].ask("warm_up", timeout_s=TIMEOUT_S, cpus=cpus)["typical_ns"]
            parked = ParkedArm(worker=workers[-1], timeout_s=TIMEOUT_S)
            lanes.append(rounds.Lane(arm=f"lane {index}", parked=parked, call_s=typical_ns / 1e9))
        yield lanes
    finally:
        for worker in workers:
            worker.close()


def _loaded(servers: ForkServers, problem: Problem) -> Worker:
    worker = Worker(servers.get(TORCH))
    settings = asdict(Settings(threads=1))
    worker.ask(
        "load",
        timeout_s=TIMEOUT_S,
        runtime=RUNTIME,
        problem=problem.as_dict(),
        artifact=None,
        settings=settings,
        purpose="time",
    )
    return worker


def _compare(lanes: list[rounds.Lane], seed: int, count: int) -> tuple[stats.Ratio, bool]:
    """A fresh comparison of two parked lanes over about `count` rounds, and whether it was contended."""
    fresh = [rounds.Lane(arm=lane.arm, parked=lane.parked, call_s=lane.call_s) for lane in lanes]
    round_s = sum(rounds.predicted_visit_s(lane.call_s) for lane in fresh)
    rounds.run_rounds(fresh, rng=random.Random(seed), threads=1, budget_s=round_s * (count - 0.5))
    found = rounds.ratio_of(fresh, fresh[1])
    if found is None:
        raise AttnbenchError("a worker of the self-test failed while it was timed")
    return found, any(lane.is_contended for lane in fresh)


def _same_code(servers: ForkServers) -> list[Check]:
    """A/A: two workers that run the same code, compared again and again."""
    with _parked(servers, AA_PROBLEM, 1, 1) as lanes:
        trials = [_compare(lanes, seed, TRIAL_ROUNDS) for seed in range(TRIALS)]
    found = [ratio for ratio, _ in trials]
    contended = sum(flag for _, flag in trials)
    excluding = sum(not ratio.low <= 1.0 <= ratio.high for ratio in found)
    worst = max(abs(math.log(ratio.ratio)) for ratio in found)
    name = f"A/A at T={AA_PROBLEM.q_len}, {TRIALS} trials"
    return [
        Check(name=f"{name}: exclude 1", measured=str(excluding), bar="<= 6", ok=excluding <= 6),
        Check(name=f"{name}: worst", measured=f"{worst:.2%}", bar="<= 2 %", ok=worst <= 0.02),
        Check(name="  of these contended", measured=str(contended), bar="other work?" if contended else "", ok=None),
    ]


def _known_difference(servers: ForkServers) -> list[Check]:
    """Eleven calls against ten: 10 % slower by construction."""
    with _parked(servers, SHORT_PROBLEM, 10, 11) as lanes:
        found, contended = _compare(lanes, 0, KNOWN_ROUNDS)
    verdict = stats.verdict(found.low, found.high, stats.MIN_DELTA, contended)
    covers = found.low <= 1 / 1.1 <= found.high
    return [
        Check(
            name="11 calls against 10",
            measured=f"{verdict} {found.low:.3f}-{found.high:.3f}",
            bar="slower, 0.909",
            ok=verdict == "slower" and covers,
        )
    ]


def _spikes(servers: ForkServers) -> list[Check]:
    """A memory spike that lasts a millisecond."""
    checks = []
    for size in SPIKES_MIB:
        with Worker(servers.get((TASKS,))) as worker:
            peak = worker.ask("spike", timeout_s=TIMEOUT_S, size_bytes=size * MIB)
        if peak["peak_bytes"] is None:
            checks.append(Check(name=f"{size} MiB for 1 ms", measured=peak["reason"], bar="+-1 MiB", ok=None))
            continue
        measured = peak["peak_bytes"] / MIB
        ok = abs(measured - size) <= 1.0
        checks.append(Check(name=f"{size} MiB for 1 ms", measured=f"{measured:.2f} MiB", bar="+-1 MiB", ok=ok))
    return checks


def _harness(servers: ForkServers) -> list[Check]:
    """What the harness adds to a sample, and what a fresh worker costs."""
    started = []
    for _ in range(5):
        start = time.monotonic()
        with Worker(servers.get(TORCH)) as worker:
            worker.ask("ping", timeout_s=TIMEOUT_S)
            started.append(time.monotonic() - start)
    with Worker(servers.get((TASKS,))) as worker:
        worker.ask("load", timeout_s=TIMEOUT_S, runtime="null", problem=SHORT_PROBLEM.as_dict(), artifact=None,
                   settings=asdict(Settings()))  # fmt: skip
        worker.ask("bind", timeout_s=TIMEOUT_S, problem=SHORT_PROBLEM.as_dict())
        worker.ask("warm_up", timeout_s=TIMEOUT_S)
        parked = ParkedArm(worker=worker, timeout_s=TIMEOUT_S)
        harness_ns = statistics.median(parked.visit(drop=5, keep=1000).median_ns for _ in range(9))
    fresh_s = statistics.median(started)
    return [
        Check(name="null call, harness included", measured=f"{harness_ns:.0f} ns", bar="<= 200 ns",
              ok=harness_ns <= 200),
        Check(name="fresh worker with torch", measured=f"{fresh_s * 1e3:.0f} ms", bar="<= 200 ms", ok=fresh_s <= 0.2),
    ]  # fmt: skip


def _oracle(servers: ForkServers) -> list[Check]:
    """The judge at T = 4096, whole block, one thread."""
    with Worker(servers.get((TASKS,))) as worker:
        found = worker.ask("oracle_speed", timeout_s=TIMEOUT_S, problem=ORACLE_PROBLEM.as_dict())
    checks = [
        Check(name=f"oracle, {ORACLE_PROBLEM.label()}", measured=f"{found['seconds']:.2f} s", bar="<= 1.5 s",
              ok=found["seconds"] <= 1.5)
    ]  # fmt: skip
    if found["peak_bytes"] is not None:
        megabytes = found["peak_bytes"] / 1e6
        checks.append(
            Check(name="oracle, peak memory", measured=f"{megabytes:.0f} MB", bar="<= 200 MB", ok=megabytes <= 200)
        )
    return checks


def _machine_peak(servers: ForkServers) -> list[Check]:
    """For information: the most that any library reaches."""
    checks = []
    for dtype in environment.hardware_dtypes():
        with Worker(servers.get(TORCH)) as worker:
            found = worker.ask("machine_peak", timeout_s=TIMEOUT_S, dtype=dtype, threads=1, seconds=1.0)
        measured = f"{found['gflops_per_s']:.0f} GFLOP/s"
        checks.append(Check(name=f"machine peak {dtype}, 1 thread", measured=measured, bar=found["by"], ok=None))
    return checks


_CHECKS: dict[str, Callable[[ForkServers], list[Check]]] = {
    "two workers with the same code": _same_code,
    "a known difference of 10 %": _known_difference,
    "memory spikes": _spikes,
    "the harness's own cost": _harness,
    "the float64 oracle": _oracle,
    "machine peak": _machine_peak,
}
