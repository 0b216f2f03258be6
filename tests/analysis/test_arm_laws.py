"""The laws of arms are fitted to what was measured, and say why where they are not."""

import math

import numpy as np
import pytest

from attnbench.analysis.arm_laws import arm_laws
from tests.analysis.synthetic import Terms, make_run, only_panel

LATENCY: dict[str, Terms] = {"torch-sdpa": (0.3, 0.02, 2e-5), "torch-eager": (0.1, 0.02, 6e-5)}
SCORES = 8 * 4  # bytes of a score matrix (B = 1, H = 8, fp32) per T^2
MEMORY: dict[str, Terms] = {"torch-sdpa": (5e5, 1e4, 0.0), "torch-eager": (4e5, 8e3, 2.0 * SCORES)}


def test_latency_and_memory_laws_are_those_of_the_arms() -> None:
    records, _ = make_run(LATENCY, np.random.default_rng(0), memory=MEMORY)
    laws = arm_laws(only_panel(records), 0.005)
    for arm, terms in LATENCY.items():
        law = laws[arm].latency
        assert law is not None
        found = (law.fixed, law.linear, law.quadratic)
        assert all(e.low <= truth <= e.high for e, truth in zip(found, terms, strict=True))
        memory = laws[arm].memory
        assert memory is not None
        assert memory.at(3000).low <= np.polyval(MEMORY[arm][::-1], 3000) <= memory.at(3000).high


def test_score_matrices_are_counted_from_the_quadratic_term() -> None:
    records, _ = make_run(LATENCY, np.random.default_rng(0), memory=MEMORY)
    laws = arm_laws(only_panel(records), 0.005)
    eager, sdpa = laws["torch-eager"].matrices, laws["torch-sdpa"].matrices
    assert eager is not None
    assert sdpa is not None
    assert eager.low <= 2.0 <= eager.high
    assert eager.high - eager.low < 0.2
    assert sdpa.low == 0.0
    assert sdpa.high < 0.1


def test_fewer_than_four_lengths_give_a_reason_instead_of_a_law() -> None:
    records, _ = make_run(LATENCY, np.random.default_rng(0), seq_lens=(128, 256, 512))
    laws = arm_laws(only_panel(records), None)["torch-sdpa"]
    assert laws.latency is None
    assert laws.latency_reason == "was timed and right at 3 of the at least 4 T that a law needs"
    assert laws.memory is None
    assert laws.matrices is None


def test_wrong_and_failed_cases_are_no_points() -> None:
    records, _ = make_run(LATENCY, np.random.default_rng(0), memory=MEMORY)
    broken = [r.model_copy(update={"status": "mismatch"}) if r.q_len in (512, 1024, 4096) else r for r in records]
    laws = arm_laws(only_panel(broken), None)["torch-sdpa"]
    assert laws.latency is None
    assert laws.memory is None


def test_what_a_compiler_plans_is_a_law_too() -> None:
    records, _ = make_run(LATENCY, np.random.default_rng(0), memory=MEMORY)
    compiled = [
        r.model_copy(
            update={
                "status": "compiled", "latency_ms_median": None, "peak_host_bytes": None,
                "planned_activation_bytes": r.peak_host_bytes,
            }
        )
        for r in records
    ]  # fmt: skip
    laws = arm_laws(only_panel(compiled), None)["torch-eager"]
    assert laws.latency is None
    assert laws.matrices is not None
    assert laws.matrices.mid == pytest.approx(2.0, abs=0.1)


def test_values_too_far_apart_for_float64_are_a_reason() -> None:
    records, _ = make_run(LATENCY, np.random.default_rng(0))
    wild = [r.model_copy(update={"latency_ms_median": 1e-6 if r.q_len % 1024 else 1e6}) for r in records]
    laws = arm_laws(only_panel(wild), 0.01)["torch-sdpa"]
    assert laws.latency is not None or "orders of magnitude" in laws.latency_reason


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 1e300, 1e-300])
def test_an_interval_that_is_none_is_not_used(bad: float) -> None:
    records, _ = make_run(LATENCY, np.random.default_rng(0))
    clean = arm_laws(only_panel(records), 0.01)["torch-sdpa"].latency
    low = [r.model_copy(update={"latency_ms_ci_low": bad}) for r in records]
    law = arm_laws(only_panel(low), 0.01)["torch-sdpa"].latency
    assert law is not None
    assert law.at(1000).mid == pytest.approx(clean.at(1000).mid, rel=0.05)
    median = [r.model_copy(update={"latency_ms_median": bad}) for r in records]
    assert arm_laws(only_panel(median), 0.01)["torch-sdpa"].latency is None


def test_a_noisier_run_has_wider_laws() -> None:
    records, _ = make_run(LATENCY, np.random.default_rng(0))
    quiet, noisy = (arm_laws(only_panel(records), floor)["torch-sdpa"].latency for floor in (0.002, 0.1))
    assert quiet is not None
    assert noisy is not None
    assert noisy.at(1000).high - noisy.at(1000).low > 2 * (quiet.at(1000).high - quiet.at(1000).low)
