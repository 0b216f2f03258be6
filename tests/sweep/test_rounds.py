import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from attnbench.errors import UnavailableError, WorkerCrashed, WorkerError
from attnbench.measure.timing import Visit
from attnbench.sweep import rounds


class Machine:
    """A simulated machine: one clock, on which every visit takes its time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.order: list[str] = []


class Arm:
    """A parked arm of constant speed times whatever `speed` says at the machine's time."""

    def __init__(self, machine: Machine, name: str, call_s: float, speed: Callable[[float], float] = lambda _: 1.0):
        self.machine, self.name, self.call_s, self.speed = machine, name, call_s, speed
        self.rng = random.Random(name)
        self.noise = 0.0
        self.off_cpu = 0.0
        self.dies_at: int | None = None
        self.visits = 0

    def visit(self, *, drop: int, keep: int) -> Visit:
        if self.visits == self.dies_at:
            raise WorkerCrashed("killed by signal 9 (SIGKILL)")
        self.visits += 1
        self.machine.order.append(self.name)
        took = [
            int(1e9 * self.call_s * self.speed(self.machine.now_s) * (1 + self.noise * self.rng.gauss(0, 1)))
            for _ in range(keep)
        ]
        self.machine.now_s += sum(took) / 1e9 + drop * self.call_s
        wall = sum(took)
        return Visit(
            samples_ns=took, involuntary_switches=0, steal_ticks=0, wall_ns=wall,
            thread_cpu_ns=int(wall * (1 - self.off_cpu)), process_cpu_ns=int(wall * (1 - self.off_cpu)), dropped=drop,
        )  # fmt: skip


def lanes_of(*arms: Arm, baseline: str = "base") -> list[rounds.Lane]:
    seen: dict[str, int] = {}
    lanes = []
    for arm in arms:
        replica = seen.get(arm.name, 0)
        seen[arm.name] = replica + 1
        lanes.append(rounds.Lane(arm=arm.name, replica=replica, parked=arm, call_s=arm.call_s))
    return lanes


def run(machine: Machine, lanes: list[rounds.Lane], budget_s: float = 1e9) -> None:
    rounds.run_rounds(lanes, rng=random.Random(1), threads=1, budget_s=budget_s, now=lambda: machine.now_s)


def test_quiet_arms_stop_by_precision_at_the_first_look() -> None:
    machine = Machine()
    lanes = lanes_of(Arm(machine, "base", 0.001), Arm(machine, "base", 0.001), Arm(machine, "other", 0.0011))
    run(machine, lanes)
    assert {lane.stopped_by for lane in lanes} == {"precision"}
    assert {len(lane.medians) for lane in lanes} == {20}


def test_noisy_arms_go_on_to_a_hundred_rounds() -> None:
    machine = Machine()
    arms = [Arm(machine, "base", 0.03), Arm(machine, "other", 0.031)]
    for arm in arms:
        arm.noise = 0.2
    lanes = lanes_of(*arms)
    run(machine, lanes)
    assert {(lane.stopped_by, len(lane.medians)) for lane in lanes} == {("rounds", 100)}


def test_a_spent_budget_stops_only_after_the_least_rounds() -> None:
    machine = Machine()
    arms = [Arm(machine, "base", 0.4), Arm(machine, "other", 0.4)]
    for arm in arms:
        arm.noise = 0.2
    lanes = lanes_of(*arms)
    run(machine, lanes, budget_s=0.001)
    # Seven are the fewest with an interval at 98 %.
    assert {(lane.stopped_by, len(lane.medians)) for lane in lanes} == {("budget", 7)}


def test_an_arm_that_is_far_off_leaves_the_rotation_after_the_least_rounds() -> None:
    machine = Machine()
    arms = [Arm(machine, "base", 0.01), Arm(machine, "other", 0.01), Arm(machine, "slow", 0.1)]
    for arm in arms:
        arm.noise = 0.05
    lanes = lanes_of(*arms)
    run(machine, lanes)
    assert (lanes[2].stopped_by, len(lanes[2].medians)) == ("outlying", 20)
    assert len(lanes[0].medians) > 20


def test_a_lane_may_have_several_visits_a_turn_and_one_block_of_them() -> None:
    machine = Machine()
    entered: list[str] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    base, alone = Arm(machine, "base", 0.1), Arm(machine, "alone", 0.1)
    lanes = lanes_of(base, alone)
    lanes[1].turn, lanes[1].visits_per_turn = turn, 3
    alone.speed = lambda now_s: 1.0 + (alone.visits % 3)  # 2, 3, 1: the median of a turn is twice as slow
    run(machine, lanes, budget_s=0.001)
    assert entered == ["in", "out"] * 7
    assert (alone.visits, base.visits, lanes[1].visits) == (21, 7, 21)
    assert set(lanes[1].medians.values()) == {200_000_000}
    assert {len(ns) for ns in lanes[1].samples.values()} == {3}


def test_what_fails_at_the_end_of_a_turn_ends_the_lane() -> None:
    machine = Machine()

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        yield
        raise UnavailableError("the GPU is taken")

    lanes = lanes_of(Arm(machine, "base", 0.1), Arm(machine, "alone", 0.1))
    lanes[1].turn = turn
    run(machine, lanes, budget_s=0.001)
    assert str(lanes[1].failure) == "the GPU is taken"
    assert (len(lanes[0].medians), len(lanes[1].medians)) == (7, 1)


@pytest.mark.parametrize(("call_s", "visits"), [(1e-5, 10), (0.002, 10), (0.2, 2), (3.0, 1)])
def test_half_a_second_of_visits_repays_a_worker_of_one_turn(call_s: float, visits: int) -> None:
    assert rounds.visits_in_turn(call_s) == visits


def test_every_round_has_its_own_order() -> None:
    machine = Machine()
    lanes = lanes_of(*(Arm(machine, name, 0.001) for name in "abcdef"))
    run(machine, lanes)
    orders = {tuple(machine.order[i : i + 6]) for i in range(0, 120, 6)}
    assert len(orders) > 15
    assert all(sorted(order) == list("abcdef") for order in orders)


def test_drift_of_the_machine_does_not_bias_the_ratio() -> None:
    machine = Machine()
    slowing: Callable[[float], float] = lambda now_s: 1 + now_s  # noqa: E731
    arms = [Arm(machine, "base", 0.001, slowing), Arm(machine, "other", 0.00105, slowing)]
    lanes = lanes_of(*arms)
    run(machine, lanes)
    found = rounds.ratio_of(lanes, lanes[1])
    assert found is not None
    assert found.low <= 1 / 1.05 <= found.high
    assert found.ratio == pytest.approx(1 / 1.05, rel=0.02)


def started_anew(machine: Machine, lane: rounds.Lane, arm: Arm, seed: int, start_s: float, spread: float) -> None:
    """Every turn of the lane begins with a start that takes time, in a process that is a little faster or slower."""
    rng, drift = random.Random(f"{lane.arm} {lane.replica} {seed}"), arm.speed

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        machine.now_s += start_s
        own = 1 + spread * rng.gauss(0, 1)
        arm.speed = lambda now_s: own * drift(now_s)
        yield

    lane.turn, lane.visits_per_turn = turn, 10


def passes_of_fresh_workers(seed: int) -> list[rounds.Lane]:
    """Seven passes, 3 s a start, 1 % slower every 100 s, starts that differ by 0.5 %: `x` takes 1.05 times as long."""
    machine = Machine()
    drift: Callable[[float], float] = lambda now_s: 1 + 1e-4 * now_s  # noqa: E731
    arms = [Arm(machine, "base", 0.001, drift), Arm(machine, "base", 0.001, drift), Arm(machine, "x", 0.00105, drift)]
    lanes = lanes_of(*arms)
    for lane, arm in zip(lanes, arms, strict=True):
        started_anew(machine, lane, arm, seed, 3.0, 0.005)
    rounds.run_rounds(lanes, rng=random.Random(seed), threads=1, budget_s=0.0, now=lambda: machine.now_s)
    return lanes


def test_intervals_over_passes_of_fresh_workers_miss_the_truth_as_often_as_they_say() -> None:
    runs = [passes_of_fresh_workers(seed) for seed in range(200)]
    ratios = [found for lanes in runs if (found := rounds.ratio_of(lanes, lanes[2])) is not None]
    assert {found.count for found in ratios} == {7}
    assert len(ratios) == 200
    missed = sum(not found.low <= 1 / 1.05 <= found.high for found in ratios)
    assert missed <= 10  # 98 % intervals: 4 are due
    noise = sorted(abs(rounds.noise_log_ratio(lanes) or 0.0) for lanes in runs)
    assert 0.002 < noise[180] < 0.01  # nine in ten A/A pairs, of starts that differ by 0.5 %


def test_a_contended_visit_is_repeated_twice_and_then_kept_and_counted() -> None:
    machine = Machine()
    arm = Arm(machine, "base", 0.001)
    arm.off_cpu = 0.5
    lanes = lanes_of(arm)
    run(machine, lanes)
    lane = lanes[0]
    assert lane.visits == 3 * len(lane.medians)
    assert lane.contended_visits == len(lane.medians)
    assert lane.is_contended


def test_a_worker_that_dies_leaves_and_the_others_go_on() -> None:
    machine = Machine()
    arms = [Arm(machine, "base", 0.001), Arm(machine, "other", 0.001)]
    arms[1].dies_at = 3
    lanes = lanes_of(*arms)
    run(machine, lanes)
    assert isinstance(lanes[1].failure, WorkerError)
    assert len(lanes[0].medians) == 20


def test_the_noise_ratio_is_that_of_the_two_replicas() -> None:
    machine = Machine()
    lanes = lanes_of(Arm(machine, "base", 0.001), Arm(machine, "base", 0.00101), Arm(machine, "other", 0.002))
    run(machine, lanes)
    assert rounds.noise_log_ratio(lanes) == pytest.approx(-0.00995, abs=1e-4)
    assert rounds.noise_log_ratio(lanes[1:]) is None


def test_a_call_below_the_clock_s_resolution_is_one_nanosecond_not_zero() -> None:
    machine = Machine()
    lanes = lanes_of(Arm(machine, "base", 0.0))
    machine_clock = iter(range(10**6))
    rounds.run_rounds(lanes, rng=random.Random(1), threads=1, budget_s=1.0, now=lambda: next(machine_clock) / 1e3)
    assert set(lanes[0].medians.values()) == {1.0}
