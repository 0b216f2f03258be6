"""What bounds an arm is what it uses to at least a half."""

from dataclasses import replace

import numpy as np
import pytest

from attnbench.analysis.arm_laws import arm_laws
from attnbench.analysis.bounds import bounds
from attnbench.analysis.laws import Estimate
from tests.analysis.synthetic import Terms, make_run, only_panel

SCORES = 8 * 4


def found(laws: dict[str, Terms], memory: dict[str, Terms], bandwidth: float | None, **fields: object) -> dict:
    records, _ = make_run(laws, np.random.default_rng(0), noise=0.001, worker=0.001, memory=memory)
    records = [r.model_copy(update=fields) for r in records]
    panel = only_panel(records)
    return {(b.arm, b.x): b for b in bounds(panel, arm_laws(panel, 0.002), bandwidth)}


def test_a_fixed_cost_of_most_of_the_latency_is_overhead() -> None:
    b = found({"torch-sdpa": (5.0, 0.001, 1e-6)}, {"torch-sdpa": (5e5, 1e4, 0.0)}, 100.0, peak_fraction=0.1)
    assert b["torch-sdpa", 128].by == "overhead"
    assert b["torch-sdpa", 128].overhead == pytest.approx(5.0 / (5.0 + 0.128 + 1e-6 * 128**2), rel=0.01)
    assert b["torch-sdpa", 4096].by == "none"


def test_most_of_the_peak_is_arithmetic() -> None:
    b = found({"torch-sdpa": (0.0, 0.02, 2e-5)}, {"torch-sdpa": (5e5, 1e4, 0.0)}, 100.0, peak_fraction=0.8)
    assert {x.by for x in b.values()} == {"arithmetic"}


def test_score_matrices_that_are_written_and_read_count_as_traffic() -> None:
    laws, memory = {"torch-sdpa": (0.0, 0.02, 8e-6)}, {"torch-sdpa": (5e5, 1e4, 2.0 * SCORES)}
    b = found(laws, memory, 15.0, peak_fraction=0.2, bytes_min=10_000_000)
    at = b["torch-sdpa", 4096]
    traffic = 10_000_000 + 2 * 2.0 * SCORES * 4096**2  # two matrices, each written and read
    seconds = (0.02 * 4096 + 8e-6 * 4096**2) / 1e3
    assert at.memory == pytest.approx(traffic / seconds / 15e9, rel=0.05)
    assert at.by == "memory"


def test_more_than_the_bandwidth_comes_from_caches_and_bounds_nothing() -> None:
    laws, memory = {"torch-sdpa": (0.0, 0.02, 8e-6)}, {"torch-sdpa": (5e5, 1e4, 2.0 * SCORES)}
    at = found(laws, memory, 2.0, peak_fraction=0.2)["torch-sdpa", 4096]
    assert at.memory is not None
    assert at.memory > 1.1
    assert at.by == "none"


def test_without_a_measured_bandwidth_nothing_is_bound_by_memory() -> None:
    laws, memory = {"torch-sdpa": (0.0, 0.02, 8e-6)}, {"torch-sdpa": (5e5, 1e4, 2.0 * SCORES)}
    b = found(laws, memory, None, peak_fraction=0.2)
    assert {x.memory for x in b.values()} == {None}
    assert {x.by for x in b.values()} == {"none"}


def test_intensity_is_flops_over_least_bytes() -> None:
    b = found({"torch-sdpa": (0.0, 0.02, 2e-5)}, {"torch-sdpa": (5e5, 1e4, 0.0)}, 9.0, flops=3000, bytes_min=100)
    assert {x.flops_per_byte for x in b.values()} == {30.0}


def test_neither_a_fixed_cost_nor_matrices_that_are_not_shown_bound_an_arm() -> None:
    records, _ = make_run(
        {"torch-sdpa": (2.6, 0.02, 2e-5)}, np.random.default_rng(1), noise=0.1, worker=0.05,
        seq_lens=(128, 256, 512, 1024), memory={"torch-sdpa": (5e5, 1e4, 0.0)},
    )  # fmt: skip
    panel = only_panel([r.model_copy(update={"bytes_min": 10_000_000}) for r in records])
    laws = arm_laws(panel, 0.12)["torch-sdpa"]
    vague = replace(
        laws, matrices=Estimate(0.0, 3.0, 9.0), latency=replace(laws.latency, fixed=Estimate(0.0, 2.0, 5.0))
    )
    for bound in bounds(panel, {"torch-sdpa": vague}, 10.0):
        assert bound.overhead is None
        record = next(r for r in panel.records if r.q_len == bound.x)
        assert bound.memory == pytest.approx(10_000_000 / (record.latency_ms_median / 1e3) / 10e9)
