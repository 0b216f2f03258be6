"""The longest T under a budget is where the law meets it."""

import math

import numpy as np
import pytest

from attnbench.analysis.arm_laws import arm_laws
from attnbench.analysis.frontier import frontiers
from tests.analysis.synthetic import Terms, make_run, only_panel

LATENCY: dict[str, Terms] = {"torch-sdpa": (0.3, 0.02, 2e-5), "torch-eager": (0.1, 0.02, 6e-5)}
MEMORY: dict[str, Terms] = {"torch-sdpa": (5e5, 1e4, 0.0), "torch-eager": (4e5, 8e3, 64.0)}
GIB = 1 << 30


def found(budget: int, **how: tuple[int, ...]) -> dict[str, object]:
    records, _ = make_run(LATENCY, np.random.default_rng(0), memory=MEMORY, **how)  # type: ignore[arg-type]
    panel = only_panel(records)
    return {f.arm: f for f in frontiers(panel, arm_laws(panel, 0.005), budget)}


def test_the_frontier_solves_the_law() -> None:
    eager = found(8 * GIB)["torch-eager"]
    truth = (-8e3 + math.sqrt(8e3**2 + 4 * 64.0 * (8 * GIB - 4e5))) / (2 * 64.0)  # of 4e5 + 8e3 T + 64 T^2 = 8 GiB
    assert eager.at.low <= truth <= eager.at.high
    assert eager.at.mid == pytest.approx(truth, rel=0.01)
    assert eager.is_extrapolated
    assert eager.fits == 4096
    assert eager.fails is None


def test_within_the_measured_range_it_is_no_extrapolation() -> None:
    eager = found(GIB)["torch-eager"]
    assert not eager.is_extrapolated
    assert (eager.fits, eager.fails) == (2048, 4096)
    assert 2048 <= eager.at.mid <= 4096


def test_a_linear_law_has_no_upper_end_when_a_square_cannot_be_told_from_none() -> None:
    sdpa = found(64 * GIB)["torch-sdpa"]
    assert sdpa.at.low < 64 * GIB / 1e4
    assert sdpa.at.high >= 64 * GIB / 1e4 * 0.99


def test_a_budget_below_everything_fits_nothing() -> None:
    assert found(1000)["torch-eager"].at.mid == 0.0


def test_without_a_law_there_is_a_reason() -> None:
    short = found(GIB, seq_lens=(128, 256))["torch-eager"]
    assert short.at is None
    assert "4" in short.reason
    assert short.fits == 256
