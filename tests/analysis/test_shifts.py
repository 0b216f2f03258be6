"""Two runs of the same code do not differ, and a real change is found: seeded worlds with drift and process effects."""

import math
from statistics import median

import numpy as np
import pytest

from attnbench.analysis.least_squares import t_quantile
from attnbench.analysis.shifts import errors_in_interval, judge_shifts, why_unjudged
from attnbench.measure.statistics import noise_floor, rank_interval
from attnbench.problem import Problem

ARMS = {
    "torch-sdpa": "torch-sdpa", "torch-eager": "torch-eager", "onnx-decomposed@ort-cpu": "ort-cpu",
    "onnx-attention@ort-cpu": "ort-cpu", "onnx-contrib@ort-cpu": "ort-cpu", "onnx-decomposed@openvino": "openvino",
    "onnx-attention@openvino": "openvino",
}  # fmt: skip
PROBLEMS = [Problem.make(variant=v, seq_len=t) for v in ("self", "causal") for t in (128, 512, 1024)]
ROUNDS = 20


class World:
    """A machine whose clock drifts, on which every process is a little different, with heavy tails everywhere."""

    def __init__(self, lab, seed):
        self.lab = lab
        self.rng = np.random.default_rng(seed)
        problem_records = [(p, arm) for p in PROBLEMS for arm in ARMS]
        self.blank = {(p.problem_id, arm): lab.make_record(p, arm) for p, arm in problem_records}

    def process(self, arm):
        """Log effect of one process: Student's t with 3 degrees, sd about 0.4 %; eager's is 3 times as large."""
        return float(self.rng.standard_t(3)) * 0.0024 * (1.5 if arm == "torch-eager" else 1)

    def rounds(self, log_ms):
        """Block medians (ms) around exp(log_ms): 1 % noise, one in twenty up to 40 % late, slow waves."""
        noise = 0.01 * self.rng.standard_normal(ROUNDS)
        noise += (self.rng.random(ROUNDS) < 0.05) * self.rng.random(ROUNDS) * 0.4
        return np.exp(log_ms + self.wave + noise)

    def run(self, slower=None):
        """A run: {case_id: record}, its A/A log ratios."""
        clock = 0.05 * float(self.rng.standard_normal())
        records, aa = {}, []
        for problem in PROBLEMS:
            here = clock + 0.01 * float(self.rng.standard_normal())
            self.wave = 0.01 * np.sin(np.arange(ROUNDS) / 4 + self.rng.random() * 6)
            for arm in ARMS:
                blank = self.blank[problem.problem_id, arm]
                truth = math.log(blank.latency_ms_median) + here + (slower or {}).get(arm, 0.0)
                found = rank_interval(list(self.rounds(truth + self.process(arm))))
                records[blank.case_id] = blank.model_copy(
                    update={"latency_ms_median": found.mid, "latency_ms_ci_low": found.low,
                            "latency_ms_ci_high": found.high, "round_count": ROUNDS, "runtime": ARMS[arm]}
                )  # fmt: skip
            first, second = (self.rounds(self.process("torch-sdpa")) for _ in range(2))
            aa.append(median(np.log(first / second)))
        return records, aa

    def pair(self, slower=None):
        (old, aa_old), (new, aa_new) = self.run(), self.run(slower)
        pairs = {key: (old[key], new[key]) for key in old}
        return judge_shifts(pairs, [*aa_old, *aa_new], noise_floor(aa_old), noise_floor(aa_new))


@pytest.fixture(scope="module")
def world(lab):
    return World(lab, seed=1)


def named(found):
    return {key for key, shift in found.items() if shift.verdict in ("slower", "faster")}


def test_two_runs_of_the_same_code_show_a_change_in_at_most_one_pair_in_twenty(world):
    flagged = sum(bool(named(world.pair()[0])) for _ in range(600))
    assert flagged <= 0.05 * 600


# Measured over 1,000 worlds a size: 3 % 0.43, 5 % 0.68, 10 % 0.86, 20 % 0.98 of the cases. What is missed is mostly
# hidden by the clock (7 % between two runs here): slower than the others, but not in time.
@pytest.mark.parametrize(("percent", "least"), [(5, 0.5), (10, 0.75), (20, 0.93)])
def test_a_slower_arm_is_named_and_hardly_any_other(world, percent, least):
    arm, worlds = "onnx-attention@ort-cpu", 60
    mine = {r.case_id for r in world.blank.values() if r.arm == arm}
    found = [named(world.pair({arm: math.log1p(percent / 100)})[0]) for _ in range(worlds)]
    assert sum(len(flagged & mine) for flagged in found) >= least * worlds * len(mine)
    assert sum(bool(flagged - mine) for flagged in found) <= 0.1 * worlds


def test_a_runtime_that_slows_down_as_a_whole_is_named_although_it_has_most_arms(world):
    arms = [arm for arm in ARMS if arm.endswith("ort-cpu")]
    mine = {r.case_id for r in world.blank.values() if r.arm in arms}
    found = [named(world.pair(dict.fromkeys(arms, math.log(1.3)))[0]) for _ in range(20)]
    assert sum(len(flagged & mine) for flagged in found) >= 0.95 * 20 * len(mine)


def test_what_all_runtimes_share_is_said_once_and_not_of_each(world):
    for _ in range(20):
        found, _, common = world.pair(dict.fromkeys(ARMS, math.log(1.5)))
        assert not named(found)
        assert common.is_notable
        assert common.of == 4
        assert common.shift == pytest.approx(math.log(1.5), abs=0.25)  # less or more by the clocks of both runs


def quiet(lab, factor=1.0, arms=tuple(ARMS), **fields):
    """Noise-free pairs: every arm's time is multiplied by `factor` where it is in `arms`."""
    pairs = {}
    for problem in PROBLEMS:
        for arm, runtime in ARMS.items():
            old = lab.make_record(problem, arm, runtime=runtime, **fields)
            times = {
                c: getattr(old, c) * factor for c in ("latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high")
            }
            pairs[old.case_id] = (old, old.model_copy(update=times if arm in arms else {}))
    return pairs


def test_a_run_beside_itself_has_no_change(lab):
    found, _, common = judge_shifts(quiet(lab), [0.001] * 12, 0.002, 0.002)
    assert {(s.raw, s.change, s.verdict) for s in found.values()} == {(0.0, 0.0, "within_noise")}
    assert not common.is_notable


def test_nothing_below_the_noise_floor_of_either_run_is_named(lab):
    pairs = quiet(lab, 1.08, ("torch-eager",))
    assert len(named(judge_shifts(pairs, [0.001] * 12, 0.01, 0.07)[0])) == len(PROBLEMS)
    assert not named(judge_shifts(pairs, [0.001] * 12, 0.01, 0.09)[0])
    assert not named(judge_shifts(pairs, [0.001] * 12, 0.09, 0.01)[0])


def test_an_arm_that_only_differs_from_the_others_is_unclear(lab):
    # The other six arms take 20 % more, this one the same: it is not faster in time.
    others = tuple(arm for arm in ARMS if arm != "torch-sdpa")
    found, _, common = judge_shifts(quiet(lab, 1.2, others), [0.001] * 12, 0.002, 0.002)
    sdpa = {r.case_id for p in PROBLEMS for r in [lab.make_record(p, "torch-sdpa")]}
    assert {found[key].verdict for key in sdpa} == {"unclear"}
    assert not named(found)
    assert (common.shift, common.runtimes) == (pytest.approx(math.log(1.2)), ("openvino", "ort-cpu", "torch-eager"))


def test_without_another_runtime_there_is_no_drift_to_take_out(lab):
    pairs = {k: pair for k, pair in quiet(lab, 1.2).items() if pair[0].runtime == "ort-cpu"}
    found, _, common = judge_shifts(pairs, [0.001] * 12, 0.002, 0.002)
    assert {s.drift for s in found.values()} == {None}
    assert len(named(found)) == len(pairs)
    assert common is None


def test_one_case_needs_more_than_several_of_an_arm(lab):
    pairs = quiet(lab)
    mine = [key for key, (old, _) in pairs.items() if old.arm == "torch-eager"]

    def with_slower(keys):
        changed = dict(pairs)
        for key in keys:
            old, new = pairs[key]
            times = {
                c: getattr(new, c) * 1.025 for c in ("latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high")
            }
            changed[key] = (old, new.model_copy(update=times))
        return judge_shifts(changed, [0.006, -0.006] * 12, 0.002, 0.002)[0]

    assert not named(with_slower(mine[:1]))
    assert named(with_slower(mine[:2])) == set(mine[:2])


def test_without_a_noise_floor_nothing_is_judged(lab):
    assert judge_shifts(quiet(lab, 2.0, ("torch-eager",)), [0.001] * 12, None, 0.01)[0] == {}
    assert judge_shifts({}, [], 0.01, 0.01)[0] == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "mismatch"}, "not_timed"),
        ({"latency_ms_median": None}, "not_timed"),
        ({"flags": ["contended"]}, "contended"),
        ({"flags": ["beats_roofline"]}, "beats_roofline"),
        ({"round_count": 6}, "few_rounds"),
        ({"latency_ms_ci_low": None}, "few_rounds"),
        ({}, ""),
    ],
)
def test_what_was_not_measured_well_is_not_judged(lab, changes, reason):
    record = lab.make_record(Problem.make(seq_len=128), "torch-sdpa")
    other = record.model_copy(update=changes)
    assert why_unjudged(record, other) == why_unjudged(other, record) == reason


@pytest.mark.parametrize(
    ("p", "degrees", "quantile"),  # Abramowitz and Stegun, table 26.10
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.995, 4, 4.604),
        (0.975, 10, 2.228),
        (0.975, 120, 1.980),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_tables(p, degrees, quantile):
    assert t_quantile(p, degrees) == pytest.approx(quantile, abs=6e-4)


def test_a_range_of_seven_reaches_three_standard_errors():
    # Expected range of 7 normal values 2.704 (Tippett); standard error of their median about 1.2533/sqrt(7) = 0.4737.
    assert errors_in_interval(7) == pytest.approx(2.704 / 2 / 0.4737, rel=0.02)
    assert errors_in_interval(100) == pytest.approx(2.326, rel=0.1)
