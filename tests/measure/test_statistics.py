"""Statistics: values by hand, and long-run behaviour on simulated rounds."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.errors import MeasurementError
from attnbench.measure import statistics as s


def _rounds(values):
    return dict(enumerate(values))


def _exact_ratio(low, high):
    return s.Ratio(ratio=math.sqrt(low * high), low=low, high=high, exact=True, count=20, n_eff=20.0)


def test_lag1_of_an_alternating_series_counts_as_zero():
    assert s.lag1([1.0, -1.0] * 10) == 0.0


def test_lag1_of_a_short_ramp_is_the_value_by_hand():
    # centred -1.5 -0.5 0.5 1.5: products 0.75 - 0.25 + 0.75 = 1.25, squares 5
    assert s.lag1([1.0, 2.0, 3.0, 4.0]) == pytest.approx(0.25)


def test_effective_count_follows_the_formula():
    assert s.effective_count([1.0, 2.0, 3.0, 4.0]) == pytest.approx(4 * 0.75 / 1.25)


def test_equal_values_are_independent():
    assert s.effective_count([5.0] * 9) == 9


@pytest.mark.parametrize(("n", "low_rank"), [(7, 1), (10, 1), (20, 5), (35, 11), (60, 21), (100, 38)])
def test_rank_interval_uses_the_binomial_ranks_of_the_tables(n, low_rank):
    # Binomial(n, 1/2): largest k with P(X <= k - 1) <= 1 %, e.g. n = 20: P(X <= 4) = 0.59 %, P(X <= 5) = 2.07 %.
    found = s.rank_interval([float(i) for i in range(1, n + 1)], n_eff=n)
    assert (found.low, found.high) == (low_rank, n + 1 - low_rank)
    assert found.exact


def test_six_rounds_give_the_range_and_say_that_it_is_no_interval():
    found = s.rank_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0], n_eff=6)
    assert (found.low, found.mid, found.high, found.exact) == (1.0, 3.5, 6.0, False)


def test_dependence_widens_the_interval():
    values = [float(i) for i in range(100)]
    wide, narrow = s.rank_interval(values, n_eff=25), s.rank_interval(values, n_eff=100)
    assert wide.low < narrow.low
    assert wide.high > narrow.high


def test_an_interval_of_nothing_or_of_nan_is_refused():
    with pytest.raises(MeasurementError, match="at least one value"):
        s.rank_interval([])
    with pytest.raises(MeasurementError, match="all finite"):
        s.rank_interval([1.0, float("nan")])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(1, 60))
def test_intervals_hold_their_middle_and_stay_within_the_values(values, n_eff):
    found = s.rank_interval(values, n_eff=n_eff)
    assert min(values) <= found.low <= found.mid <= found.high <= max(values)


def test_ratio_pairs_only_the_rounds_that_both_have():
    baseline = {0: 10.0, 1: 20.0, 2: 40.0, 5: 1000.0}
    arm = {0: 5.0, 1: 10.0, 2: 20.0, 7: 1.0}
    found = s.ratio(baseline, arm)
    assert found.count == 3
    assert (found.low, found.ratio, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_ratio_above_one_means_that_the_arm_is_faster():
    assert s.ratio(_rounds([2.0] * 8), _rounds([1.0] * 8)).ratio == pytest.approx(2.0)


def test_ratio_without_a_shared_round_is_an_error_and_not_a_number():
    with pytest.raises(MeasurementError, match="share no round"):
        s.ratio({0: 1.0}, {1: 1.0})


def test_a_block_median_of_zero_is_refused():
    with pytest.raises(MeasurementError, match="above 0"):
        s.ratio({0: 1.0}, {0: 0.0})


def test_minimum_rounds_follow_the_length_of_a_round():
    assert [s.min_rounds(x) for x in (0.01, 0.5, 0.51, 3.0, 3.1)] == [20, 20, 10, 10, 7]
    assert s.looks_for(0.1) == (20, 35, 60, 100)
    assert s.looks_for(1.0) == (10, 20, 35, 60, 100)
    assert s.looks_for(10.0) == (7, 20, 35, 60, 100)


def test_precision_is_half_a_percent_to_either_side():
    assert s.is_precise([_exact_ratio(0.9951, 1.0049)])
    assert not s.is_precise([_exact_ratio(0.9951, 1.0049), _exact_ratio(0.99, 1.01)])


def test_nothing_measured_and_inexact_intervals_are_never_precise():
    inexact = s.Ratio(ratio=1.0, low=1.0, high=1.0, exact=False, count=3, n_eff=3.0)
    assert not s.is_precise([])
    assert not s.is_precise([inexact])


def test_an_arm_is_outlying_only_with_its_whole_interval():
    assert s.is_outlying(_exact_ratio(0.3, 0.66))
    assert s.is_outlying(_exact_ratio(1.51, 1.6))
    assert not s.is_outlying(_exact_ratio(0.6, 0.68))
    assert not s.is_outlying(_exact_ratio(1.4, 1.6))


def test_an_arm_is_not_outlying_before_seven_rounds():
    baseline, arm = _rounds([1.0] * 7), _rounds([5.0] * 7)
    assert s.is_outlying(s.ratio(baseline, arm))
    del arm[6]
    assert not s.is_outlying(s.ratio(baseline, arm))


def test_noise_floor_is_the_ninetieth_percentile_of_the_absolute_log_ratios():
    logs = [(-1) ** i * i / 1000 for i in range(1, 11)]  # 0.001 .. 0.010: the ninth is 0.009
    assert s.noise_floor(logs) == pytest.approx(math.exp(0.009) - 1)
    assert s.noise_floor([-0.02]) == pytest.approx(math.exp(0.02) - 1)
    assert s.noise_floor([]) is None


def test_delta_is_the_floor_and_at_least_one_percent():
    assert s.delta(0.002) == 0.01
    assert s.delta(0.03) == 0.03


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.011, 1.2, "faster"),
        (1.01, 1.2, "ambiguous"),
        (0.8, 0.989, "slower"),
        (0.8, 1 / 1.01, "ambiguous"),
        (0.995, 1.005, "same"),
        (1 / 1.01, 1.01, "same"),
        (0.95, 1.05, "ambiguous"),
    ],
)
def test_verdict_follows_the_interval(low, high, expected):
    assert s.verdict(low, high, 0.01) == expected


@pytest.mark.parametrize(("low", "high"), [(2.0, 3.0), (0.1, 0.2), (1.0, 1.0)])
def test_a_contended_case_is_never_called_faster_or_slower(low, high):
    assert s.verdict(low, high, 0.01, contended=True) == "ambiguous"


def test_percentiles_need_the_sample_counts_of_early_stopping():
    assert (s.min_samples(0.9), s.min_samples(0.99)) == (64, 662)
    assert s.percentile(list(range(63)), 0.9) is None
    assert s.percentile([float(i) for i in range(1, 101)], 0.9) == 90.0
    assert s.percentile(list(range(661)), 0.99) is None
    assert s.percentile([float(i) for i in range(1, 1001)], 0.99) == 990.0


def test_a_percentile_in_percent_is_refused():
    with pytest.raises(MeasurementError, match=r"write 0\.9 for p90"):
        s.percentile([1.0] * 100, 90)


def test_sign_test_is_exact():
    assert s.sign_test_p([1, 1, 1, 1, -1]) == 6 / 32
    assert s.sign_test_p([0.0, 0.0]) == 1.0


def test_holm_steps_down():
    assert s.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_fastest_set_compares_with_the_lowest_median_over_shared_rounds():
    arms = {
        "fast": _rounds([1.0] * 10),
        "slow": _rounds([2.0] * 10),
        "left early": _rounds([3.0] * 7),
        "never ran": {},
    }
    found = s.fastest_set(arms)
    assert found["fast"] == (1.0, 1.0)
    assert found["slow"] == pytest.approx((2.0, 2 / 2**10))
    assert found["left early"] == pytest.approx((3.0, 1 / 2**7))
    assert found["never ran"] == (None, None)


def test_an_arm_that_shares_no_round_with_the_fastest_has_no_standing():
    assert s.fastest_set({"a": {0: 1.0}, "b": {1: 2.0}})["b"] == (None, None)


def test_outliers_are_counted_by_tukeys_fences():
    # quartiles 10 and 20 of 11 values would move with outliers; the middle half is made wide to keep them there
    samples = [10.0] * 50 + [20.0] * 50 + [36.0, 51.0, -6.0, -21.0]
    found = s.classify_outliers(samples)
    assert (found.low_severe, found.low_mild, found.high_mild, found.high_severe) == (1, 1, 1, 1)


def test_the_module_loads_neither_numpy_nor_scipy():
    code = "import sys, attnbench.measure.statistics; print({'numpy', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Long-run behaviour ---------------------------------------------------------------------------------------------


def _autocorrelated(rng, n, r, sd=0.01):
    """AR(1) log ratios with median 0."""
    noise = rng.standard_normal(n) * sd * math.sqrt(1 - r * r)
    values = [rng.standard_normal() * sd]
    for e in noise[1:]:
        values.append(r * values[-1] + e)
    return values


@pytest.mark.parametrize(("n", "r", "most"), [(20, 0.0, 0.03), (20, 0.3, 0.05), (60, 0.5, 0.05), (100, 0.5, 0.05)])
def test_intervals_miss_the_truth_no_more_often_than_promised(n, r, most):
    rng = np.random.default_rng(1)
    trials = 600
    missed = 0
    for _ in range(trials):
        found = s.rank_interval(_autocorrelated(rng, n, r))
        missed += not found.low <= 0.0 <= found.high
    assert missed / trials <= most


def test_ignoring_autocorrelation_would_miss_far_more_often():
    rng = np.random.default_rng(1)
    ours = naive = 0
    for _ in range(400):
        values = _autocorrelated(rng, 60, 0.5)
        for n_eff, counter in ((None, "ours"), (60, "naive")):
            found = s.rank_interval(values, n_eff=n_eff)
            missed = not found.low <= 0.0 <= found.high
            ours, naive = ours + (missed and counter == "ours"), naive + (missed and counter == "naive")
    assert naive > 3 * ours


@pytest.mark.parametrize("r", [0.0, 0.3])
def test_stopping_at_the_four_looks_keeps_the_miss_rate_below_four_percent(r):
    rng = np.random.default_rng(2)
    trials = 600
    missed = early = 0
    for _ in range(trials):
        values = _autocorrelated(rng, s.LOOKS[-1], r, sd=0.012)
        for n in s.LOOKS:
            found = s.ratio(_rounds(np.exp(values[:n]).tolist()), _rounds([1.0] * n))
            if s.is_precise([found]):
                early += n < s.LOOKS[-1]
                break
        missed += not found.low <= 1.0 <= found.high
    assert early > trials / 10  # stopping was really exercised
    assert missed / trials <= 0.04


def test_looking_after_every_round_would_miss_more_often():
    rng = np.random.default_rng(3)
    at_looks = at_every = 0
    for _ in range(300):
        values = _autocorrelated(rng, 100, 0.0, sd=0.012)
        for looks in (s.LOOKS, range(20, 101)):
            for n in looks:
                found = s.rank_interval(values[:n])
                if found.exact and (found.high - found.low) / 2 <= s.HALF_WIDTH:
                    break
            missed = not found.low <= 0.0 <= found.high
            at_looks, at_every = (at_looks + missed, at_every) if looks is s.LOOKS else (at_looks, at_every + missed)
    assert at_every > at_looks
