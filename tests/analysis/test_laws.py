"""The fitted law is the one that made the points, within intervals that keep their promise."""

import math

import numpy as np
import pytest

from attnbench.analysis.laws import Law, Point, fit_law
from attnbench.analysis.least_squares import t_quantile
from attnbench.errors import MeasurementError

Terms = tuple[float, float, float]
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096)
TRIALS = 500
LAWS = {
    "mixed": (0.2, 0.02, 2e-5),
    "no fixed cost": (0.0, 0.02, 2e-5),
    "linear": (0.1, 0.02, 0.0),
    "quadratic": (0.05, 0.0, 2e-5),
}


def value(terms: Terms, x: float) -> float:
    return terms[0] + terms[1] * x + terms[2] * x * x


def sample(
    rng: np.random.Generator,
    terms: Terms,
    noise: float,
    misfit: float = 0.0,
    bad: int | None = None,
) -> list[Point]:
    """Points of a law with known noise, misfit that nobody is told, and perhaps one point 30 % too high."""
    points = []
    for i, x in enumerate(SEQ_LENS):
        truth = value(terms, x)
        factor = math.exp(rng.normal(0.0, noise) + rng.normal(0.0, misfit)) * (1.3 if i == bad else 1.0)
        points.append(Point(x, truth * factor, noise * truth))
    return points


def covers(law: Law, terms: Terms) -> list[bool]:
    """Do the intervals of the three terms, and of the value at a T between, hold the truth?"""
    found = [e.low <= truth <= e.high for e, truth in zip((law.fixed, law.linear, law.quadratic), terms, strict=True)]
    between = law.at(1500)
    return [*found, between.low <= value(terms, 1500) <= between.high]


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(
    ("noise", "misfit", "bad"),
    [(0.005, 0.0, None), (0.02, 0.0, None), (0.003, 0.03, None), (0.005, 0.0, 2), (0.003, 0.02, 3)],
    ids=["quiet", "noisy", "misfit", "one bad point", "misfit and one bad point"],
)
def test_intervals_cover_the_truth_in_at_least_93_percent(
    name: str, noise: float, misfit: float, bad: int | None
) -> None:
    rng = np.random.default_rng(20261129)
    hits = np.array([covers(fit_law(sample(rng, LAWS[name], noise, misfit, bad)), LAWS[name]) for _ in range(TRIALS)])
    assert hits.mean(axis=0).min() >= 0.93


def test_an_interval_is_not_wide_for_its_own_sake() -> None:
    rng = np.random.default_rng(1)
    laws = [fit_law(sample(rng, LAWS["mixed"], 0.005)) for _ in range(200)]
    widths = [(law.at(1500).high - law.at(1500).low) / 2 / law.at(1500).mid for law in laws]
    assert np.median(widths) < 0.02  # 4 standard deviations of 0.5 %
    laws = [fit_law(sample(rng, LAWS["quadratic"], 0.005)) for _ in range(200)]
    assert np.median([(law.quadratic.high - law.quadratic.low) / 2 / 2e-5 for law in laws]) < 0.05


def test_one_bad_point_is_left_out_and_named() -> None:
    rng = np.random.default_rng(2)
    laws = [fit_law(sample(rng, LAWS["mixed"], 0.005, bad=2)) for _ in range(100)]
    assert sum(law.left_out == SEQ_LENS[2] for law in laws) >= 95
    law = next(law for law in laws if law.left_out)
    assert law.residuals[2] == pytest.approx(0.3, abs=0.05)


def test_good_points_are_hardly_ever_left_out() -> None:
    rng = np.random.default_rng(3)
    assert sum(fit_law(sample(rng, LAWS["mixed"], 0.003, 0.03)).left_out is not None for _ in range(TRIALS)) <= 15


def test_exact_points_give_the_exact_law() -> None:
    law = fit_law([Point(x, value((3.0, 0.5, 0.25), x), 1e-6) for x in (1, 2, 3, 4, 8)])
    assert [law.fixed.mid, law.linear.mid, law.quadratic.mid] == pytest.approx([3.0, 0.5, 0.25], rel=1e-4)
    assert law.at(10).mid == pytest.approx(33.0, rel=1e-4)
    assert law.shares(2) == pytest.approx((3 / 5, 1 / 5, 1 / 5), rel=1e-4)
    assert law.is_inside(5)
    assert not law.is_inside(10)
    assert law.misfit == 0.0
    assert law.holds


def test_terms_are_never_negative_and_another_form_is_said() -> None:
    law = fit_law([Point(x, 100.0 * math.sqrt(x), 0.1) for x in SEQ_LENS])
    assert min(law.fixed.low, law.linear.low, law.quadratic.low) >= 0.0
    assert min(law.terms) >= 0.0
    falling = fit_law([Point(x, 1e4 / x + 1e-3 * x, 1e-3) for x in (10, 20, 40, 80)])
    assert falling.misfit > 0.0


def test_the_order_of_points_does_not_matter() -> None:
    points = sample(np.random.default_rng(4), LAWS["mixed"], 0.01)
    assert fit_law(points[::-1]).terms == pytest.approx(fit_law(points).terms)


def test_far_outside_the_interval_grows() -> None:
    law = fit_law(sample(np.random.default_rng(5), LAWS["mixed"], 0.01))
    relative = [(law.at(x).high - law.at(x).low) / law.at(x).mid for x in (1024, 16384)]
    assert relative[1] > relative[0]


@pytest.mark.parametrize(
    "points",
    [
        [],
        [Point(1, 1.0, 0.1), Point(2, 2.0, 0.1), Point(3, 3.0, 0.1)],
        [Point(1, 1.0, 0.1), Point(1, 1.1, 0.1), Point(3, 3.0, 0.1), Point(4, 4.0, 0.1)],
        [Point(1, 1.0, 0.1), Point(2, 0.0, 0.1), Point(3, 3.0, 0.1), Point(4, 4.0, 0.1)],
        [Point(1, 1.0, 0.1), Point(2, math.nan, 0.1), Point(3, 3.0, 0.1), Point(4, 4.0, 0.1)],
        [Point(1, 1.0, 0.1), Point(2, 2.0, 0.0), Point(3, 3.0, 0.1), Point(4, 4.0, 0.1)],
    ],
)
def test_points_that_carry_no_law_are_refused(points: list[Point]) -> None:
    with pytest.raises(MeasurementError, match="a law needs"):
        fit_law(points)


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042)]
)
def test_t_quantiles_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)


def test_a_t_quantile_outside_its_range_is_refused() -> None:
    with pytest.raises(MeasurementError):
        t_quantile(1.0, 3)
