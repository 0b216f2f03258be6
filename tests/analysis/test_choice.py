"""The advice is what brute force over the figures gives, and says where it cannot tell."""

import json
import math

import numpy as np
import pytest

from attnbench.analysis.choice import Advice, Limits, advise, dominates
from attnbench.analysis.groups import make_panels
from attnbench.analysis.workload import Requests
from attnbench.records import Record
from attnbench.report.advise_text import advice_as_dict
from tests.analysis.synthetic import SEQ_LENS, Terms, make_run, value

LAWS: dict[str, Terms] = {
    "torch-sdpa": (0.05, 0.02, 2e-5),
    "torch-eager": (7.05, 0.01, 2e-5),  # ahead from T = 700
    "onnx-attention@ort-cpu": (1.0, 0.03, 3e-5),
}
MEMORY: dict[str, Terms] = {
    "torch-sdpa": (5e5, 2e4, 0.0),
    "torch-eager": (4e5, 8e3, 64.0),
    "onnx-attention@ort-cpu": (4e5, 1e4, 0.0),
}


def run(seed: int = 0, **how: object) -> tuple[list[Record], object]:
    return make_run(LAWS, np.random.default_rng(seed), memory=MEMORY, **how)  # type: ignore[arg-type]


def advice(workload: list[Requests] | None = None, limits: Limits | None = None, records=None, medians=None) -> Advice:
    if records is None:
        records, medians = run()
    (found,) = advise(make_panels(records), workload, limits or Limits(), 0.005, medians)
    return found


def test_each_measured_length_gets_the_fastest_arm() -> None:
    found = advice()
    assert [d.requests.seq_len for d in found.decisions] == list(SEQ_LENS)
    truth = [min(LAWS, key=lambda arm: value(LAWS[arm], t)) for t in SEQ_LENS]
    assert [d.chosen for d in found.decisions] == truth
    assert all(d.toss_up == () for d in found.decisions)
    assert {o.by for d in found.decisions for o in d.options} == {"measured"}


def test_between_lengths_the_law_answers_with_an_interval_that_holds_the_truth() -> None:
    found = advice([Requests(1, 3000, 1.0)])
    (decision,) = found.decisions
    assert decision.chosen == "torch-eager"
    option = decision.option("torch-eager")
    assert option.by == "law"
    assert option.latency_ms.low <= value(LAWS["torch-eager"], 3000) <= option.latency_ms.high
    assert option.memory_bytes.low <= value(MEMORY["torch-eager"], 3000) <= option.memory_bytes.high


def test_at_the_crossing_it_is_a_toss_up() -> None:
    (decision,) = advice([Requests(1, 700, 1.0)]).decisions
    assert {decision.chosen, *decision.toss_up} == {"torch-sdpa", "torch-eager"}


def test_beyond_the_range_it_is_extrapolated() -> None:
    (decision,) = advice([Requests(1, 9000, 1.0)]).decisions
    assert decision.option("torch-eager").by == "extrapolated"


@pytest.mark.parametrize("seed", range(10))
def test_choice_under_limits_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    records, medians = run(seed)
    records = [r.model_copy(update={"worst_row_rel_err": float(rng.choice([1e-6, 1e-3]))}) for r in records]
    limits = Limits(latency_ms=float(rng.uniform(5, 300)), memory_bytes=int(rng.uniform(5e6, 5e8)), error=1e-4)
    found = advice(None, limits, records, medians)
    largest = {arm: max(r.worst_row_rel_err or 0 for r in records if r.arm == arm) for arm in LAWS}
    for decision in found.decisions:
        rows = [r for r in records if r.q_len == decision.requests.seq_len]
        allowed = [
            r for r in rows
            if r.latency_ms_ci_high <= limits.latency_ms and r.peak_host_bytes <= limits.memory_bytes
            and largest[r.arm] <= limits.error
        ]  # fmt: skip
        expected = min(allowed, key=lambda r: r.latency_ms_median).arm if allowed else None
        assert decision.chosen == expected
        assert (decision.reason == "") == bool(allowed)


@pytest.mark.parametrize("seed", range(10))
def test_policies_and_their_front_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    records, medians = run(seed)
    records = [r.model_copy(update={"worst_row_rel_err": float(rng.uniform(1e-7, 1e-6))}) for r in records]
    workload = [Requests(1, int(t), float(rng.integers(1, 9))) for t in rng.choice(SEQ_LENS, 3, replace=False)]
    found = advice(workload, None, records, medians)
    by_hand = {}
    for arm in LAWS:
        at = {r.q_len: r for r in records if r.arm == arm}
        total = sum(w.number for w in workload)
        mean = sum(w.number * at[w.seq_len].latency_ms_median for w in workload) / total
        by_hand[arm] = (mean, max(at[w.seq_len].peak_host_bytes for w in workload),
                        max(r.worst_row_rel_err for r in at.values()))  # fmt: skip
    assert [p.candidate for p in found.policies] == sorted(by_hand, key=by_hand.__getitem__)
    for policy in found.policies:
        mine = by_hand[policy.candidate]
        assert (policy.latency_ms.mid, policy.memory_bytes, policy.error) == pytest.approx(mine)
        others = [v for arm, v in by_hand.items() if arm != policy.candidate]
        assert policy.is_optimal == (not any(all(a <= b for a, b in zip(o, mine, strict=True)) for o in others))
    best = sum(w.number * min(by_hand_at(records, a, w.seq_len) for a in LAWS) for w in workload)
    assert found.mixed_ms.mid == pytest.approx(best / sum(w.number for w in workload))


def by_hand_at(records: list[Record], arm: str, seq_len: int) -> float:
    return next(r.latency_ms_median for r in records if r.arm == arm and r.q_len == seq_len)


def test_a_batch_size_that_was_not_measured_has_a_reason() -> None:
    (decision,) = advice([Requests(3, 512, 1.0)]).decisions
    assert decision.chosen is None
    assert decision.reason == "batch size 3 was not measured (measured: 1)"


def test_lengths_above_a_failure_are_not_promised() -> None:
    records, medians = run()
    records = [
        r.model_copy(update={"status": "oom", "latency_ms_median": None, "reason": "8 GiB"})
        if r.arm == "torch-eager" and r.q_len == 4096 else r for r in records
    ]  # fmt: skip
    found = advice([Requests(1, 4096, 1.0), Requests(1, 5000, 1.0), Requests(1, 3000, 1.0)], None, records, medians)
    at = {d.requests.seq_len: d for d in found.decisions}
    assert at[4096].option("torch-eager").refused == "oom at this length: 8 GiB"
    assert at[5000].option("torch-eager").refused == "oom already at T = 4096"
    assert at[3000].chosen == "torch-eager"
    assert "torch-eager" not in {p.candidate for p in found.policies}


def test_a_wrong_arm_is_never_chosen() -> None:
    records, medians = run()
    records = [r.model_copy(update={"status": "mismatch"}) if r.arm == "torch-eager" else r for r in records]
    assert "torch-eager" not in {d.chosen for d in advice(None, None, records, medians).decisions}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 1e300])
def test_figures_that_are_none_neither_crash_nor_reach_json(bad: float) -> None:
    records, medians = run()
    broken = ("latency_ms_ci_low", "latency_ms_ci_high", "worst_row_rel_err", "speedup_ci_low", "speedup_vs_baseline")
    records = [r.model_copy(update=dict.fromkeys(broken, bad)) for r in records]
    for workload in (None, [Requests(1, 3000, 1.0)]):
        for rounds in (medians, None):
            (found,) = advise(make_panels(records), workload, Limits(), 0.005, rounds)
            text = json.dumps(advice_as_dict([found], {}), allow_nan=False)
            assert "Infinity" not in text
            for option in (o for d in found.decisions for o in d.options):
                assert 0.0 <= option.latency_ms.low <= option.latency_ms.mid <= option.latency_ms.high
    (found,) = advise(make_panels(records), None, Limits(error=1e-3), 0.005, medians)
    if not 0.0 <= bad <= 1e-3:
        assert {d.chosen for d in found.decisions} == {None}


def test_dtypes_are_candidates_of_one_question() -> None:
    records, medians = run()
    half = [
        r.model_copy(
            update={
                "dtype": "bf16", "problem_id": r.problem_id + "h", "case_id": r.case_id + "h",
                "latency_ms_median": r.latency_ms_median / 2, "latency_ms_ci_low": r.latency_ms_ci_low / 2,
                "latency_ms_ci_high": r.latency_ms_ci_high / 2, "worst_row_rel_err": 8e-3,
            }
        )
        for r in records
    ]  # fmt: skip
    loose = advice(None, None, records + half, medians)
    assert {d.chosen for d in loose.decisions} == {"torch-sdpa bf16", "torch-eager bf16"}
    strict = advice(None, Limits(error=1e-4), records + half, medians)
    assert {d.chosen for d in strict.decisions} == {"torch-sdpa fp32", "torch-eager fp32"}


def test_domination_needs_to_be_better_somewhere() -> None:
    assert dominates((1, 2, 3), (1, 2, 4))
    assert not dominates((1, 2, 3), (1, 2, 3))
    assert not dominates((1, 5, 3), (2, 2, 3))
    assert not dominates((math.inf, 1, 1), (1, 2, 2))


def test_other_problems_are_other_questions() -> None:
    records, medians = run()
    other = [
        r.model_copy(update={"bias": True, "problem_id": f"b{r.q_len}", "case_id": r.case_id + "b"}) for r in records
    ]
    found = advise(make_panels(records + other), None, Limits(), 0.005, medians)
    assert [a.name for a in found] == ["block, self", "block, bias, self"]
    assert all(len(d.options) == len(LAWS) for a in found for d in a.decisions)
