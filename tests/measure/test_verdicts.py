"""Verdicts and the fastest set from finished records."""

import math

import pytest

from attnbench.measure.verdicts import judge, run_noise_floor, with_peak_fraction
from attnbench.records import Record


def _record(arm, *, ratio=None, noise=None, **fields):
    """A finished row of problem p; `ratio` = (low, high)."""
    given = {
        "run_id": "r", "started_at_utc": "", "case_id": f"p-{arm}", "problem_id": "p", "arm": arm, "part": "block",
        "variant": "self", "mask": "none", "batch_size": 1, "q_len": 8, "kv_len": 8, "num_heads": 1, "num_kv_heads": 1,
        "head_dim": 8, "embed_dim": 8, "dtype": "fp32", "exporter": "torch", "runtime": arm, "status": "ok",
        "latency_scope": "host", "device": "cpu", "threads": 1, "baseline_arm": "base", "round_count": 20,
        "noise_log_ratio": noise, "seed": 0, "attnbench_version": "0",
    }  # fmt: skip
    if ratio:
        given |= dict(zip(("speedup_ci_low", "speedup_ci_high"), ratio, strict=True))
        given["speedup_vs_baseline"] = sum(ratio) / 2
    return Record(**given | fields)


def _judge_one(*, noise=0.002, baseline=None, **fields):
    records, _ = judge([_record("base", noise=noise, **(baseline or {})), _record("arm", **fields)])
    return records[1]


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [((1.1, 1.2), "faster"), ((0.8, 0.9), "slower"), ((0.999, 1.001), "same"), ((0.9, 1.1), "ambiguous")],
)
def test_a_ratio_gets_the_verdict_of_its_interval(ratio, expected):
    assert _judge_one(ratio=ratio).verdict == expected


def test_a_noisy_run_calls_nothing_faster_within_its_noise():
    assert _judge_one(ratio=(1.02, 1.03)).verdict == "faster"
    assert _judge_one(ratio=(1.02, 1.03), noise=0.05).verdict == "same"


def test_the_noise_floor_is_taken_over_all_pairs_of_the_run():
    pairs = [_record("base", noise=(-1) ** i * i / 1000, problem_id=f"p{i}") for i in range(1, 11)]
    noise = run_noise_floor(pairs)
    assert noise.pairs == 10
    assert noise.floor == pytest.approx(math.exp(0.009) - 1)
    assert noise.delta == 0.01


def test_without_an_a_a_pair_there_is_no_verdict_and_a_reason():
    found = _judge_one(ratio=(1.5, 1.6), noise=None)
    assert found.verdict is None
    assert "no A/A pair" in found.empty_reasons["verdict"]


def test_a_contended_case_is_ambiguous():
    assert _judge_one(ratio=(1.5, 1.6), flags=["contended"]).verdict == "ambiguous"


def test_fewer_than_seven_rounds_are_ambiguous():
    assert _judge_one(ratio=(1.5, 1.6), round_count=6).verdict == "ambiguous"


def test_what_beats_the_roofline_gets_no_verdict_and_is_never_fastest():
    found = _judge_one(ratio=(9.0, 9.5), flags=["beats_roofline"], fastest_p=1.0, ratio_to_fastest=1.0)
    assert (found.verdict, found.fastest) == (None, False)
    assert "roofline" in found.empty_reasons["verdict"]


def test_a_wrong_answer_is_never_ranked():
    found = _judge_one(ratio=(2.0, 2.1), status="mismatch", fastest_p=1.0, ratio_to_fastest=1.0)
    assert (found.verdict, found.fastest) == (None, False)
    assert "mismatch" in found.empty_reasons["verdict"]


@pytest.mark.parametrize("field", [{"latency_scope": "device"}, {"device": "cuda:0"}, {"threads": 4}])
def test_rows_of_different_scope_device_or_threads_share_no_ratio(field):
    found = _judge_one(ratio=(2.0, 2.1), **field)
    assert (found.verdict, found.speedup_vs_baseline, found.speedup_ci_low, found.speedup_ci_high) == (None,) * 4
    assert "not comparable" in found.empty_reasons["speedup_vs_baseline"]


def test_a_baseline_that_is_not_ok_takes_its_ratios_with_it_and_leaves_latencies():
    found = _judge_one(ratio=(2.0, 2.1), latency_ms_median=3.0, baseline={"status": "mismatch"})
    assert (found.verdict, found.speedup_vs_baseline, found.latency_ms_median) == (None, None, 3.0)
    assert found.empty_reasons["verdict"] == "the baseline base is mismatch"


def test_the_baseline_itself_has_no_verdict_and_keeps_its_ratio():
    records, _ = judge([_record("base", noise=0.001, ratio=(1.0, 1.0))])
    assert (records[0].verdict, records[0].speedup_vs_baseline) == (None, 1.0)
    assert records[0].empty_reasons["verdict"] == "this is the baseline"


@pytest.mark.parametrize(
    ("p", "ratio", "expected"), [(0.2, 1.5, True), (0.001, 1.009, True), (0.001, 1.02, False), (None, None, None)]
)
def test_the_fastest_set_holds_whatever_was_not_shown_slower(p, ratio, expected):
    assert _judge_one(ratio=(0.8, 0.9), fastest_p=p, ratio_to_fastest=ratio).fastest is expected


def test_judging_twice_changes_nothing_and_leaves_the_given_records_alone():
    given = [_record("base", noise=0.001), _record("a", ratio=(1.1, 1.2)), _record("b", status="oom", reason="too big")]
    before = [r.model_copy(deep=True) for r in given]
    once, noise = judge(given)
    assert given == before
    assert judge(once) == (once, noise)


def test_a_case_without_ratio_says_why():
    assert _judge_one(status="oom", reason="needed 9 GiB").empty_reasons["verdict"] == "needed 9 GiB"


def test_a_contended_baseline_lets_no_arm_be_faster_or_slower():
    assert _judge_one(ratio=(1.5, 1.6), baseline={"flags": ["contended"]}).verdict == "ambiguous"


@pytest.mark.parametrize(
    ("gflops_per_s", "fraction", "flags"), [(50.0, 0.5, []), (104.0, 1.04, []), (106.0, 1.06, ["beats_roofline"])]
)
def test_the_fraction_of_peak_is_filled_on_reading_and_flags_the_impossible(gflops_per_s, fraction, flags):
    record = _record("arm", gflops_per_s=gflops_per_s, flags=["beats_roofline"])
    found = with_peak_fraction([record], {"fp32": {"gflops_per_s": 100.0}})[0]
    assert found.peak_fraction == pytest.approx(fraction)
    assert found.flags == flags


def test_a_contended_arm_is_neither_in_nor_out_of_the_fastest_set():
    quiet = _judge_one(ratio=(1.5, 1.6), fastest_p=1.0, ratio_to_fastest=1.0)
    assert quiet.fastest is True
    assert _judge_one(ratio=(1.5, 1.6), fastest_p=1.0, ratio_to_fastest=1.0, flags=["contended"]).fastest is None


def test_an_fp16_problem_may_be_computed_in_fp32_without_beating_the_roofline():
    record = _record("arm", gflops_per_s=90.0, dtype="fp16")
    peaks = {"fp16": {"gflops_per_s": 3.2}, "fp32": {"gflops_per_s": 100.0}}
    found = with_peak_fraction([record], peaks)[0]
    assert found.peak_fraction == pytest.approx(0.9)
    assert found.flags == []


def test_without_a_machine_peak_the_fraction_is_empty_with_a_reason():
    found = with_peak_fraction([_record("arm", gflops_per_s=50.0)], {})[0]
    assert found.peak_fraction is None
    assert found.empty_reasons["peak_fraction"]


def test_arms_timed_by_a_gpu_are_judged_against_the_baseline_timed_by_it():
    device = {"latency_scope": "device", "device": "cuda:0", "baseline_arm": "base[scope=device]"}
    on_host = {"device": "cuda:0"}
    rows = [
        _record("base", noise=0.002, **on_host), _record("base[scope=device]", noise=0.002, **device),
        _record("arm", ratio=(0.5, 0.6), **on_host), _record("arm[scope=device]", ratio=(1.5, 1.6), **device),
    ]  # fmt: skip
    records, _ = judge(rows)
    assert [r.verdict for r in records] == [None, None, "slower", "faster"]
    assert records[1].empty_reasons["verdict"] == "this is the baseline"
