"""Timing on a fake clock; no test here asserts a speed."""

import gc
import json
import math
import os
import random
import statistics
import subprocess
import sys

import pytest

from attnbench.measure import statistics as s
from attnbench.measure import timing as t

MS = 1_000_000


class FakeClock:
    """Nanoseconds that only calls move."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now

    def call_of(self, *durations_ns):
        """A call that takes these durations one after another, then the last one for ever."""
        left = list(durations_ns)

        def call():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


@pytest.mark.parametrize(
    ("call_ms", "drop"), [(0.1, 5), (2.9, 5), (3, 3), (6.9, 3), (7, 1), (19.9, 1), (20, 0), (900, 0)]
)
def test_fewer_calls_are_dropped_the_longer_they_take(call_ms, drop):
    assert t.calls_to_drop(call_ms / 1e3) == drop


@pytest.mark.parametrize("call_ms", [0.0101, 0.1, 0.3, 1, 3, 4, 6, 6.7, 7, 9, 12, 15, 19.9])
def test_a_visit_keeps_five_to_twenty_milliseconds_of_calls(call_ms):
    assert 5 <= t.calls_to_keep(call_ms / 1e3) * call_ms <= 20


def test_a_visit_keeps_one_long_call_and_at_most_a_thousand_short_ones():
    assert t.calls_to_keep(0.020) == 1
    assert t.calls_to_keep(3.0) == 1
    assert t.calls_to_keep(1e-7) == 1000
    assert t.calls_to_keep(0.0) == 1000


def test_a_short_call_is_warmed_up_for_a_fifth_of_a_second():
    clock = FakeClock()
    found = t.warm_up(clock.call_of(MS), clock=clock)
    assert found.calls == 201  # the first, then 200 of 1 ms
    assert found.calls >= 20


def test_a_long_call_is_warmed_up_twice():
    clock = FakeClock()
    assert t.warm_up(clock.call_of(300 * MS), clock=clock).calls == 2


def test_a_slow_first_call_does_not_use_up_the_warm_up():
    clock = FakeClock()
    found = t.warm_up(clock.call_of(5000 * MS, 2 * MS), clock=clock)
    assert found.calls == 101
    assert (found.first_ns, found.last_ns, found.typical_ns) == (5000 * MS, 2 * MS, 2 * MS)


def test_a_clock_that_stands_still_does_not_hang_the_warm_up(monkeypatch):
    monkeypatch.setattr(t, "WARM_UP_NS", 50)
    assert t.warm_up(lambda: None, clock=lambda: 0).calls == 51


def test_a_visit_drops_its_first_calls_and_keeps_every_other_sample():
    clock = FakeClock()
    found = t.visit(clock.call_of(90, 80, 10, 20, 30), drop=2, keep=3, clock=clock)
    assert found.samples_ns == [10, 20, 30]
    assert found.median_ns == 20
    assert found.wall_ns == 60


def test_a_slow_first_call_does_not_move_the_median_of_a_visit():
    def block_median(first_ns):
        clock = FakeClock()
        return t.visit(clock.call_of(first_ns, 5 * MS), drop=3, keep=3, clock=clock).median_ns

    assert block_median(5 * MS) == block_median(105 * MS)


def test_the_collector_is_off_and_frozen_during_calls_and_restored_after():
    seen = []
    before = gc.isenabled()
    t.visit(lambda: seen.append((gc.isenabled(), gc.get_freeze_count() > 0)), drop=1, keep=1)
    assert seen == [(False, True)] * 2
    assert (gc.isenabled(), gc.get_freeze_count()) == (before, 0)


def test_the_collector_is_restored_when_a_call_raises():
    before = gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        t.visit(lambda: 1 / 0, drop=0, keep=1)
    assert (gc.isenabled(), gc.get_freeze_count()) == (before, 0)


def test_nothing_but_the_call_lies_between_two_clock_readings():
    events = []
    t.visit(lambda: events.append("call"), drop=0, keep=3, clock=lambda: events.append("clock") or 0)
    assert events == ["clock", *["clock", "call", "clock"] * 3, "clock"]


def test_a_visit_survives_the_trip_through_json():
    found = t.visit(lambda: None, drop=0, keep=3)
    assert t.Visit.from_json(json.loads(json.dumps(found.to_json()))) == found


def _visit(*, wall_ms=10.0, switches=0, steal=0, thread_ms=None, process_ms=None):
    thread_ms = wall_ms if thread_ms is None else thread_ms
    return t.Visit(
        samples_ns=[1],
        involuntary_switches=switches,
        steal_ticks=steal,
        wall_ns=int(wall_ms * MS),
        thread_cpu_ns=int(thread_ms * MS),
        process_cpu_ns=int((thread_ms if process_ms is None else process_ms) * MS),
        dropped=0,
    )


def test_a_quiet_visit_is_not_contended():
    assert not t.is_contended(_visit(), 1)
    assert not t.is_contended(_visit(switches=2, thread_ms=9.8), 1)


def test_involuntary_switches_beyond_their_rate_are_contention():
    assert t.is_contended(_visit(switches=3), 1)
    assert not t.is_contended(_visit(wall_ms=1000, switches=30), 1)
    assert t.is_contended(_visit(wall_ms=1000, switches=33), 1)


def test_one_turn_of_a_neighbour_is_contention():
    assert t.is_contended(_visit(thread_ms=7.0), 1)


def test_the_off_cpu_share_is_not_used_for_several_threads():
    assert not t.is_contended(_visit(thread_ms=5.0, process_ms=15.0), 2)


def test_work_handed_to_another_thread_is_not_taken_for_waiting():
    assert t.off_cpu_share(_visit(thread_ms=0.1, process_ms=10.0)) == 0.0
    assert t.off_cpu_share(_visit(thread_ms=0.1, process_ms=0.1)) == pytest.approx(0.99)


def test_stolen_time_condemns_a_short_visit_and_not_a_long_one():
    assert t.is_contended(_visit(steal=1), 1)
    assert not t.is_contended(_visit(wall_ms=1000, steal=1), 1)


_BUSY = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"
_VISITED = """
import os; os.sched_setaffinity(0, {%d})
from attnbench.measure import timing as t
def call():
    for _ in range(100_000):
        pass
t.warm_up(call)
print(sum(t.is_contended(t.visit(call, drop=0, keep=20), 1) for _ in range(10)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to pin processes to one CPU (Linux)")
def test_a_busy_neighbour_on_the_same_cpu_is_noticed():
    cpu = min(os.sched_getaffinity(0))
    neighbour = subprocess.Popen([sys.executable, "-c", _BUSY % cpu])
    try:
        done = subprocess.run([sys.executable, "-c", _VISITED % cpu], capture_output=True, text=True, check=True)
    finally:
        neighbour.kill()
        neighbour.wait()
    assert int(done.stdout) >= 8


# The design as a whole, on a machine that drifts ------------------------------------------------------------------


class DriftingMachine:
    """Its clock rate wanders: a slow sine of +-5 % with a random phase, and 1 % of noise on every call."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.phase = self.random.uniform(0, 2 * math.pi)

    def call(self):
        drift = 1 + 0.05 * math.sin(2 * math.pi * self.clock.now / 1e9 + self.phase)
        self.clock.now += int(1e6 * drift * (1 + abs(self.random.gauss(0, 0.01))))

    def visit(self, keep):
        return t.visit(self.call, drop=0, keep=keep, clock=self.clock).median_ns


def _blocks(machine):
    """Arm A first, then arm B: 200 calls each, as 20 blocks."""
    baseline, arm = ({i: machine.visit(10) for i in range(20)} for _ in "AB")
    return baseline, arm


def _rounds(machine):
    medians = {"A": {}, "B": {}}
    for i in range(20):
        for arm in machine.random.sample("AB", 2):
            medians[arm][i] = machine.visit(10)
    return medians["A"], medians["B"]


def _false_claims(design, trials=40):
    found = [s.ratio(*design(DriftingMachine(seed))) for seed in range(trials)]
    return sum(not f.low <= 1.0 <= f.high for f in found), max(abs(f.ratio - 1) for f in found)


def test_identical_arms_in_random_rounds_pass_on_a_drifting_machine():
    claims, worst = _false_claims(_rounds)
    assert claims <= 3
    assert worst < 0.01


def test_identical_arms_in_one_block_each_fail_on_the_same_machine():
    claims, worst = _false_claims(_blocks)
    assert claims > 10
    assert worst > 0.02


def test_a_slower_arm_is_found_through_the_drift():
    machine = DriftingMachine(7)
    baseline, arm = _rounds(machine)
    found = s.ratio(baseline, {i: median * 1.10 for i, median in arm.items()})
    assert found.low <= 1 / 1.10 <= found.high
    assert s.verdict(found.low, found.high, s.MIN_DELTA) == "slower"


def test_the_block_median_ignores_a_single_disturbed_call():
    clock = FakeClock()
    found = t.visit(clock.call_of(10, 10, 900, 10, 10), drop=0, keep=5, clock=clock)
    assert found.median_ns == statistics.median([10, 10, 900, 10, 10]) == 10
