"""Laws over T: value(T) = fixed + linear T + quadratic T^2, fitted with intervals to what was measured.

The terms are what the physics allows: a call costs something, every token costs something, every pair of tokens costs
something, and none of it is negative. A measured value differs from the law by its own noise and by misfit: libraries
change kernels and leave caches as T grows (least_squares.py). One point that the law through the others excludes is
left out, and named; a bad point at an end of the range cannot always be told from another law.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from attnbench.analysis.least_squares import MIN_POINTS, Fit, Vector, fit_terms, not_negative
from attnbench.errors import MeasurementError


class Point(NamedTuple):
    """One measured value and the standard deviation of its noise, in the same unit."""

    x: int
    value: float
    sd: float


class Estimate(NamedTuple):
    """A figure with its 95 % interval."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Law:
    """A fitted law. `at` gives its value; outside [x_min, x_max] that is an extrapolation."""

    fixed: Estimate  # in the unit of the values
    linear: Estimate  # per token
    quadratic: Estimate  # per pair of tokens
    xs: tuple[int, ...]  # all points, the one that was left out too
    residuals: tuple[float, ...]  # measured / law - 1 at xs
    left_out: int | None  # the x of the point that the law through the others excludes
    misfit: float  # relative spread around the law beyond the points' own noise; 0: none is shown
    holds: bool  # False: a term is negative beyond its interval, so what was measured has another form
    terms: Vector  # (3,) of the constrained fit
    free_terms: Vector  # (3,) of the unconstrained fit, which the covariance belongs to
    covariance: Vector  # (3, 3)
    t_quantile: float

    @cached_property
    def x_min(self) -> int:
        """The smallest x that was fitted."""
        return min(x for x in self.xs if x != self.left_out)

    @cached_property
    def x_max(self) -> int:
        """The largest x that was fitted."""
        return max(x for x in self.xs if x != self.left_out)

    def is_inside(self, x: float) -> bool:
        """Is x within the fitted range? Outside, the law is an extrapolation."""
        return self.x_min <= x <= self.x_max

    def at(self, x: float) -> Estimate:
        """The value at x with the interval of the law there (of its mean, not of one measurement)."""
        row = np.array([1.0, x, x * x])
        center, mid = float(row @ self.free_terms), float(row @ self.terms)
        half = self.t_quantile * math.sqrt(max(0.0, float(row @ self.covariance @ row)))
        return Estimate(max(0.0, min(center - half, mid)), mid, max(center + half, mid))

    def predict(self, x: float) -> Estimate:
        """What a measurement at x would give: the interval of the law there and the misfit of single points."""
        mean = self.at(x)
        half = math.hypot(max(mean.high - mean.mid, mean.mid - mean.low), self.t_quantile * self.misfit * mean.mid)
        return Estimate(max(0.0, mean.mid - half), mean.mid, mean.mid + half)

    def shares(self, x: float) -> tuple[float, float, float]:
        """The parts of the value at x that are fixed, linear and quadratic; they add up to 1."""
        parts = self.terms * np.array([1.0, x, x * x])
        total = float(parts.sum())
        fixed, linear, quadratic = (float(p) / total if total > 0 else 0.0 for p in parts)
        return fixed, linear, quadratic


def fit_law(points: Sequence[Point]) -> Law:
    """Fit the law to points in any order.

    Raises:
        MeasurementError: fewer than four different x, a value that is not above 0, or a deviation that is not.
    """
    points = sorted(points)
    if len({p.x for p in points}) < max(MIN_POINTS, len(points)):
        raise MeasurementError(f"a law needs at least {MIN_POINTS} different lengths, got {[p.x for p in points]}")
    xs, values, sds = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    if not (np.all(np.isfinite(values)) and np.all(values > 0.0) and np.all(sds > 0.0) and np.all(np.isfinite(sds))):
        raise MeasurementError("a law needs finite values and deviations above 0")
    scale, unit = float(xs[-1]), float(np.median(values))  # so that the three columns have like sizes
    rows = np.stack([np.ones(len(xs)), xs / scale, (xs / scale) ** 2], axis=1)
    fit = fit_terms(rows, values / unit, sds / unit, relative=True)
    return _law(fit, rows, xs, values / unit, unit / np.array([1.0, scale, scale * scale]))


def _law(fit: Fit, rows: Vector, xs: Vector, values: Vector, units: Vector) -> Law:
    """The fit in the user's units, with terms that are not negative."""
    constrained = not_negative(rows, values, fit.weights, fit.terms)
    half = fit.t_quantile * np.sqrt(np.clip(np.diag(fit.covariance), 0.0, None))
    low = np.clip(np.minimum(fit.terms - half, constrained), 0.0, None)
    high = np.maximum(fit.terms + half, constrained)
    triples = zip(low * units, constrained * units, high * units, strict=True)
    fixed, linear, quadratic = (Estimate(*map(float, triple)) for triple in triples)
    fitted = rows @ constrained
    return Law(
        fixed=fixed, linear=linear, quadratic=quadratic, xs=tuple(int(x) for x in xs),
        residuals=tuple(float(v / f - 1.0) if f > 0.0 else math.inf for v, f in zip(values, fitted, strict=True)),
        left_out=None if fit.left_out is None else int(xs[fit.left_out]),
        misfit=fit.misfit, holds=bool(np.all(fit.terms + half >= 0.0)),
        terms=constrained * units, free_terms=fit.terms * units, covariance=fit.covariance * np.outer(units, units),
        t_quantile=fit.t_quantile,
    )  # fmt: skip


def as_dict(law: Law) -> dict[str, Any]:
    """What a page or a JSON file needs of a law."""
    return {
        "fixed": list(law.fixed), "linear": list(law.linear), "quadratic": list(law.quadratic),
        "x_min": law.x_min, "x_max": law.x_max, "left_out": law.left_out, "misfit": law.misfit, "holds": law.holds,
        "residuals": dict(zip(map(str, law.xs), law.residuals, strict=True)),
    }  # fmt: skip
