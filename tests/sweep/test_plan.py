from dataclasses import replace

import pytest

from attnbench.problem import Problem
from attnbench.sweep import grid
from attnbench.sweep.plan import GPU_START_S, REPORT_S, Budget, Plan, call_s, make_plan

ARMS = [grid.Arm(exporter="torch", runtime="torch-sdpa"), grid.Arm(exporter="onnx-attention", runtime="ort-cpu")]


def plan_of(**overrides: object) -> Plan:
    sweep = grid.resolve(None, overrides)
    return make_plan(sweep, grid.problems(sweep), ARMS, 1, 8 << 30)


def test_the_split_adds_up_to_the_prediction() -> None:
    plan = plan_of()
    assert sum(plan.split().values()) == pytest.approx(plan.total_s)
    assert plan.case_count == 18 * 2


def test_a_budget_too_small_is_told_before_anything_runs() -> None:
    assert any("raise --time-budget" in notice for notice in plan_of(time_budget_s=5.0).notices)
    assert not plan_of(time_budget_s=3000.0).notices


def test_workers_that_are_started_for_every_round_are_planned() -> None:
    sweep = grid.resolve(None, {"seq_lens": (128,), "variants": ("self",)})
    parked, alone = (
        make_plan(sweep, grid.problems(sweep), [replace(arm, on_gpu=True, is_alone=is_alone) for arm in ARMS], 1, None)
        for is_alone in (False, True)
    )
    assert alone.groups[0].min_timing_s > parked.groups[0].min_timing_s + 7 * 3 * GPU_START_S


def test_a_problem_that_will_not_fit_in_memory_is_told() -> None:
    assert any("GiB available" in notice for notice in plan_of(seq_lens=(16384,)).notices)


def test_groups_that_take_as_long_as_predicted_use_the_budget_up_and_no_more() -> None:
    plan = plan_of(time_budget_s=300.0)
    budget, elapsed_s = Budget(plan), 10.0
    for index, group in enumerate(plan.groups):
        timing_s = budget.timing_s(index, elapsed_s)
        assert timing_s >= group.min_timing_s * 0.999
        elapsed_s += group.overhead_s + timing_s
        budget.learn(index, overhead_s=group.overhead_s, timing_s=timing_s, round_count=round(timing_s / group.round_s))
    assert elapsed_s + REPORT_S <= 303.0


def test_a_machine_half_as_fast_gets_the_least_rounds_of_the_long_groups_reserved() -> None:
    plan = plan_of(time_budget_s=300.0)
    budget, elapsed_s = Budget(plan), 10.0
    for index, group in enumerate(plan.groups):
        timing_s = max(budget.timing_s(index, elapsed_s), 2 * group.min_timing_s)
        elapsed_s += 2 * group.overhead_s + timing_s
        count = max(1, round(timing_s / (2 * group.round_s)))
        budget.learn(index, overhead_s=2 * group.overhead_s, timing_s=timing_s, round_count=count)
    assert elapsed_s + REPORT_S <= 320.0


def test_wide_blocks_are_planned_with_the_time_their_weights_take() -> None:
    """2 x 4096^2 + 2 x 4096 x 1024 numbers of 4 bytes; the 4 x 512^2 of the default are no more than usual."""
    small, wide = (plan_of(seq_lens=(64,), variants=("self",), **size) for size in ({}, {"preset": "llama3-8b"}))
    more_gb = (2 * 4096**2 + 2 * 4096 * 1024) * 4 / 1e9 - 0.0042
    assert wide.export_s - small.export_s == pytest.approx(25.0 * more_gb)
    assert wide.groups[0].overhead_s > small.groups[0].overhead_s + 4 * more_gb


def test_the_time_that_is_left_is_never_longer_than_the_budget() -> None:
    plan = plan_of(time_budget_s=30.0)
    assert plan.total_s > 60.0
    budget = Budget(plan)
    assert budget.left_s(0, 10.0) == pytest.approx(20.0)
    assert budget.left_s(1, 29.0) == REPORT_S
    assert Budget(plan_of(time_budget_s=9000.0)).left_s(0, 10.0) < 8990.0


def test_without_a_budget_every_group_gets_all_its_rounds() -> None:
    sweep = grid.validate({"time_budget_s": None}, where="test")
    plan = make_plan(sweep, grid.problems(sweep), ARMS, 1, None)
    assert Budget(plan).timing_s(0, 1e6) == pytest.approx(plan.groups[0].full_timing_s)


def test_a_causal_core_of_two_lengths_is_planned_as_its_whole_rectangle() -> None:
    problem = Problem.make(part="core", variant="causal", seq_len=8, kv_len=4)
    whole = Problem.make(part="core", variant="cross", seq_len=8, kv_len=4)
    assert call_s(problem, "ort-cpu", 1) == call_s(whole, "ort-cpu", 1) > call_s(problem, "torch-sdpa", 1)


def test_what_runs_on_a_gpu_is_not_planned_by_the_speed_and_memory_of_the_cpu() -> None:
    """fp16 at T = 16384 takes a CPU minutes a call: so planned, a budget would leave out what a GPU does at once."""
    problem = Problem.make(variant="self", seq_len=16384, dtype="fp16")
    assert call_s(problem, "torch-sdpa", 1) > 100 > 1 > call_s(problem, "torch-sdpa", 1, on_gpu=True)
    sweep = grid.validate({"seq_lens": (16384,), "variants": ("self",), "dtypes": ("fp16",)}, where="t")
    plans = [
        make_plan(sweep, grid.problems(sweep), [replace(arm, on_gpu=on_gpu) for arm in ARMS], 1, None)
        for on_gpu in (False, True)
    ]
    assert plans[1].groups[0].min_timing_s < plans[0].groups[0].min_timing_s / 50
    assert plans[1].peak_memory_bytes < plans[0].peak_memory_bytes / 2
