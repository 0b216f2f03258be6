"""How the error of each arm grows with T: error = c T^slope, fitted to the worst rows, and where it leaves its band.

The band is what `worst_row_limit` allows. Wrong answers are shown, but they are no points of the law: it says how right
answers behave.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnbench.analysis.groups import Panel
from attnbench.analysis.laws import Estimate
from attnbench.analysis.least_squares import CONFIDENCE, MIN_POINTS, t_quantile
from attnbench.records import Record


@dataclass(frozen=True, kw_only=True)
class ErrorLaw:
    """One arm of a chart; `slope` is None where `reason` says why."""

    arm: str
    first: tuple[int, float]  # the smallest x that was judged, and the worst row's error there
    last: tuple[int, float]
    slope: Estimate | None  # of log error over log x, with its 95 % interval
    reason: str
    closest: tuple[int, float]  # where the error is the largest part of what is allowed, and that part
    first_outside: int | None  # the smallest x whose worst row is more than allowed


def error_laws(panel: Panel) -> list[ErrorLaw]:
    """The law of every arm that was judged somewhere, in the order of the chart."""
    found = ((arm, [r for r in panel.row(arm) if r is not None and _is_judged(r)]) for arm in panel.arms)
    return [_law(arm, panel, records) for arm, records in found if records]


def allowed_part(record: Record) -> float:
    """Measured over allowed: above 1 is outside the band; an error that is not a number is infinitely far outside."""
    error, limit = record.worst_row_rel_err, record.worst_row_limit
    if error is None or not limit or math.isnan(error):
        return math.inf
    return error / limit


def _is_judged(record: Record) -> bool:
    return record.worst_row_rel_err is not None and bool(record.worst_row_limit)


def _law(arm: str, panel: Panel, records: Sequence[Record]) -> ErrorLaw:
    xs = [int(getattr(r, panel.x_name)) for r in records]
    errors = [math.nan if r.worst_row_rel_err is None else r.worst_row_rel_err for r in records]
    parts = [allowed_part(r) for r in records]
    closest = max(range(len(xs)), key=parts.__getitem__)
    inside = [(x, e) for x, e, part in zip(xs, errors, parts, strict=True) if part <= 1.0 and e > 0.0]
    word = "right" if panel.judge is None else "within its limit"
    slope, reason = None, f"{word} at {len(inside)} of the at least {MIN_POINTS} {panel.x_label} that a slope needs"
    if len({x for x, _ in inside}) >= MIN_POINTS:
        slope, reason = log_slope(*zip(*inside, strict=True)), ""
    return ErrorLaw(
        arm=arm, first=(xs[0], errors[0]), last=(xs[-1], errors[-1]), slope=slope, reason=reason,
        closest=(xs[closest], parts[closest]),
        first_outside=next((x for x, part in zip(xs, parts, strict=True) if not part <= 1.0), None),
    )  # fmt: skip


def log_slope(xs: Sequence[float], values: Sequence[float]) -> Estimate:
    """The slope of log value over log x by least squares, with its interval from the scatter (Student's t)."""
    x, y = np.log(np.asarray(xs, dtype=np.float64)), np.log(np.asarray(values, dtype=np.float64))
    x, y = x - x.mean(), y - y.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    freedom = len(x) - 2
    residual = y - slope * x
    half = t_quantile(1.0 - (1.0 - CONFIDENCE) / 2.0, freedom) * math.sqrt(
        float(residual @ residual) / freedom / spread
    )
    return Estimate(slope - half, slope, slope + half)
