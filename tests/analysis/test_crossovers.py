"""A crossing is claimed where there is one, with an interval that holds it, and hardly ever where there is none."""

from dataclasses import replace

import numpy as np
import pytest

from attnbench.analysis.crossovers import Pair, compare, contenders, pairs
from attnbench.measure import verdicts
from tests.analysis.synthetic import SEQ_LENS, Terms, floor_of, make_run, only_panel

BASE: Terms = (0.05, 0.02, 2e-5)
A, B = "torch-sdpa", "torch-eager"
TRIALS = 500
TWELVE = tuple(int(64 * 2 ** (i / 2)) for i in range(12))


def one_pair(first: Terms, second: Terms, rng: np.random.Generator, with_rounds: bool = True, **how: float) -> Pair:
    records, medians = make_run({A: first, B: second}, rng, **how)  # type: ignore[arg-type]
    return compare(only_panel(records), A, B, floor_of(how.get("worker", 0.003)), medians if with_rounds else None)


@pytest.mark.parametrize(
    ("first", "truth", "how"),
    [
        ((7.05, 0.01, 2e-5), 700.0, {}),
        ((0.05, 0.015, 3e-5), 500.0, {}),
        ((0.05, 0.015, 3e-5), 500.0, {"noise": 0.03}),
        ((0.05, 0.015, 3e-5), 500.0, {"worker": 0.01}),
        ((0.05, 0.015, 3e-5), 500.0, {"rounds": 7}),
    ],
    ids=["fixed cost", "quadratic cost", "noisy rounds", "noisy workers", "few rounds"],
)
def test_the_interval_holds_the_crossing_in_at_least_93_percent(
    first: Terms, truth: float, how: dict[str, float]
) -> None:
    rng = np.random.default_rng(20261129)
    found = [one_pair(first, BASE, rng, **how).crossings for _ in range(TRIALS)]
    claimed = [crossing for crossings in found for crossing in crossings]
    assert len(claimed) >= 0.9 * TRIALS
    assert sum(c.at.low <= truth <= c.at.high for c in claimed) >= 0.93 * len(claimed)
    assert {len(crossings) for crossings in found} <= {0, 1}
    assert np.median([c.at.high / c.at.low for c in claimed]) < 2.0  # T doubles from one to the next


@pytest.mark.parametrize(
    ("first", "how"),
    [
        (BASE, {}),
        (BASE, {"noise": 0.05, "worker": 0.01}),
        ((0.05, 0.0202, 2.2e-5), {}),
        ((0.5, 0.02, 2e-5), {}),
        ((0.055, 0.022, 2.2e-5), {"rounds": 7}),
    ],
    ids=["equal", "equal and noisy", "nearly touching", "equal at long T", "ten percent slower"],
)
def test_no_crossing_is_claimed_where_there_is_none(first: Terms, how: dict[str, float]) -> None:
    rng = np.random.default_rng(4)
    claims = sum(bool(one_pair(first, BASE, rng, **how).crossings) for _ in range(TRIALS))
    assert claims <= 0.05 * TRIALS


@pytest.mark.parametrize("seq_lens", [SEQ_LENS, TWELVE], ids=["6 T", "12 T"])
@pytest.mark.parametrize("worker", [0.01, 0.03])
def test_the_floor_of_a_run_of_its_own_few_pairs_claims_no_crossing(worker: float, seq_lens: tuple[int, ...]) -> None:
    """Rounds are quiet, workers differ, and all that is known of it are the A/A pairs of the same records."""
    rng = np.random.default_rng(3)
    claims = 0
    for _ in range(TRIALS):
        records, medians = make_run({A: BASE, B: BASE}, rng, noise=0.002, worker=worker, seq_lens=seq_lens)
        records, noise = verdicts.judge(records)
        claims += bool(compare(only_panel(records), A, B, noise.floor, medians).crossings)
    assert claims <= 0.05 * TRIALS


def test_a_crossing_says_who_is_faster_below_and_above() -> None:
    pair = one_pair((7.05, 0.01, 2e-5), BASE, np.random.default_rng(5))  # 7 ms more per call, 10 us less per token
    (crossing,) = pair.crossings
    assert (crossing.before, crossing.after) == (B, A)
    assert crossing.between == (512, 1024)
    assert crossing.by == "law"
    assert 512 <= crossing.at.low < crossing.at.mid < crossing.at.high <= 1024
    assert {d.evidence for d in pair.differences} == {"paired rounds"}


def test_without_samples_the_ratio_to_the_baseline_is_used() -> None:
    pair = one_pair((7.05, 0.01, 2e-5), BASE, np.random.default_rng(5), with_rounds=False)
    assert {d.evidence for d in pair.differences} == {"ratio to the baseline"}
    assert pair.crossings[0].between == (512, 1024)
    assert [d.sign for d in pair.differences] == [1, 1, 1, -1, -1, -1]


def test_without_either_two_intervals_are_used() -> None:
    laws: dict[str, Terms] = {"torch-sdpa": (9.0, 0.1, 1e-4), A + "-x": (7.05, 0.01, 2e-5), B: BASE}
    records, _ = make_run(laws, np.random.default_rng(6))
    pair = compare(only_panel(records), A + "-x", B, 0.01)
    assert {d.evidence for d in pair.differences} == {"two intervals"}
    assert pair.crossings[0].between == (512, 1024)


def test_three_lengths_only_bound_the_crossing() -> None:
    records, medians = make_run({A: (7.05, 0.01, 2e-5), B: BASE}, np.random.default_rng(7), seq_lens=(128, 1024, 4096))
    (crossing,) = compare(only_panel(records), A, B, 0.005, medians).crossings
    assert crossing.by == "interpolation"
    assert (crossing.at.low, crossing.at.high) == (128.0, 1024.0)


def test_contended_and_hardly_timed_cases_decide_nothing() -> None:
    records, medians = make_run({A: (7.05, 0.01, 2e-5), B: BASE}, np.random.default_rng(8))
    contended = [
        r.model_copy(update={"flags": ["contended"]}) if r.q_len >= 1024 and r.arm == A else r for r in records
    ]
    pair = compare(only_panel(contended), A, B, 0.005, medians)
    assert pair.undecided == (1024, 2048, 4096)
    assert pair.crossings == ()
    few = [r.model_copy(update={"round_count": 6}) for r in records]
    assert compare(only_panel(few), A, B, 0.005, medians).undecided == (128, 256, 512, 1024, 2048, 4096)


def test_rounds_of_different_runs_are_never_paired() -> None:
    records, medians = make_run({A: (7.05, 0.01, 2e-5), B: BASE}, np.random.default_rng(9))
    other = [r.model_copy(update={"run_id": "another"}) if r.arm == B else r for r in records]
    medians |= {("another", case_id): block for (_, case_id), block in medians.items()}
    panel = replace(only_panel(records), records=tuple(other))  # make_panels keeps runs apart
    assert {d.evidence for d in compare(panel, A, B, 0.005, medians).differences} == {"two intervals"}


def test_the_pairs_that_matter_are_those_of_the_fastest_and_the_baseline() -> None:
    laws: dict[str, Terms] = {
        "torch-sdpa": (0.05, 0.03, 3e-5), "torch-eager": (9.0, 0.1, 1e-4),
        "onnx-decomposed@ort-cpu": (7.05, 0.01, 2e-5), "onnx-attention@ort-cpu": BASE,
    }  # fmt: skip
    records, medians = make_run(laws, np.random.default_rng(10))
    panel = only_panel(records)
    assert contenders(panel) == ["torch-sdpa", "onnx-decomposed@ort-cpu", "onnx-attention@ort-cpu"]
    found = {(p.first, p.second): len(p.crossings) for p in pairs(panel, 0.005, medians)}
    assert found["onnx-decomposed@ort-cpu", "onnx-attention@ort-cpu"] == 1
    assert len(found) == 3


def test_where_nothing_can_be_told_it_is_said() -> None:
    pair = one_pair((0.5, 0.02, 2e-5), BASE, np.random.default_rng(11))  # 0.45 ms more: nothing at 100 ms and above
    assert 4096 in pair.undecided
    assert 128 not in pair.undecided
