"""The error of an arm over T: its slope, how near it is to the limit, and where it leaves its band."""

import math

import numpy as np
import pytest

from attnbench.analysis.error_law import ErrorLaw, error_laws, log_slope
from attnbench.analysis.groups import make_panels
from attnbench.report.error_text import error_section
from tests.analysis.synthetic import only_panel
from tests.report.conftest import make_problems, make_record

SEQ_LENS = (128, 256, 512, 1024, 2048)


def _panel(errors: dict[int, float], limit: float = 1e-5, status: str = "ok"):
    problems = make_problems(("self",), tuple(errors))
    records = [
        make_record(p, "torch-sdpa", worst_row_rel_err=errors[p.q_len], worst_row_limit=limit, status=status)
        for p in problems
    ]
    return only_panel(records)


def _law(errors: dict[int, float], limit: float = 1e-5) -> ErrorLaw:
    (law,) = error_laws(_panel(errors, limit))
    return law


def test_an_error_that_grows_as_the_root_of_t_has_slope_one_half() -> None:
    law = _law({t: 1e-7 * math.sqrt(t) for t in SEQ_LENS})
    assert law.slope is not None
    assert law.slope == pytest.approx((0.5, 0.5, 0.5), abs=1e-6)
    assert law.first == (128, pytest.approx(1.131e-6, rel=1e-3))
    assert law.last == (2048, pytest.approx(4.525e-6, rel=1e-3))


def test_the_interval_of_a_slope_is_that_of_least_squares_by_hand() -> None:
    # x = 0, 1, 2, 3 (in e-folds), y = 0, 2, 1, 3: slope 4/5, residual square 9/5, se = sqrt(9/10/5), t(2) = 4.3027.
    found = log_slope(np.exp([0.0, 1.0, 2.0, 3.0]), np.exp([0.0, 2.0, 1.0, 3.0]))
    half = 4.3027 * math.sqrt(0.9 / 5.0)
    assert found == pytest.approx((0.8 - half, 0.8, 0.8 + half), abs=1e-3)


def test_the_first_length_outside_the_band_is_named_and_is_no_point_of_the_slope() -> None:
    law = _law({128: 1e-6, 256: 1e-6, 512: 1e-6, 1024: 1e-6, 2048: 3e-5})
    assert law.first_outside == 2048
    assert law.closest == (2048, pytest.approx(3.0))
    assert law.slope is not None
    assert law.slope.mid == pytest.approx(0.0, abs=1e-9)


def test_an_error_that_is_not_a_number_is_outside_the_band() -> None:
    law = _law({128: 1e-6, 256: 1e-6, 512: math.nan})
    assert law.first_outside == 512
    assert law.slope is None
    assert law.reason == "right at 2 of the at least 4 T that a slope needs"


def test_an_arm_that_was_never_judged_has_no_law() -> None:
    problems = make_problems(("self",), SEQ_LENS)
    records = [make_record(p, "torch-sdpa", worst_row_rel_err=None, worst_row_limit=None) for p in problems]
    assert error_laws(only_panel(records)) == []


def test_the_section_says_measured_over_allowed_and_what_is_outside() -> None:
    panel = _panel({128: 1e-6, 256: 2e-6, 512: 5e-6, 1024: 2e-5})
    section = error_section([panel], lambda p: p.title())
    assert section.lines == [
        "self: torch-sdpa leaves its band at T = 1024; its worst is 2.0 times what is allowed, at T = 1024."
    ]
    (table,) = section.tables
    assert table.rows[0][-2:] == ["2.0 at T = 1024", "1024"]
    assert table.rows[0][3] == "none: right at 3 of the at least 4 T that a slope needs"


def test_two_lengths_make_no_section() -> None:
    section = error_section([_panel({128: 1e-6, 256: 2e-6})], lambda p: p.title())
    assert not section.tables
    assert make_panels([]) == []
