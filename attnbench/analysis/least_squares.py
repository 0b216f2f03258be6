"""Weighted least squares of three terms, where the points differ from the form by noise and by misfit.

The noise of a point is known (its standard deviation). The misfit is one spread over all points, estimated by the
method of moments so that chi-squared equals its degrees of freedom (Paule and Mandel 1982); intervals then use
Student's t.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnbench.errors import MeasurementError

CONFIDENCE = 0.95
OUTLIER_LEVEL = 0.02  # the part of the 5 % that is spent on wrongly leaving out a point; intervals have the rest
MIN_POINTS = 4  # three terms and one degree of freedom to see a misfit with
_STEPS = 10  # of the iteration for the misfit: it converges from below, quadratically

Vector = NDArray[np.float64]


class Fit(NamedTuple):
    """Three fitted terms, and which point they do without."""

    terms: Vector  # (3,)
    covariance: Vector  # (3, 3)
    weights: Vector  # (n,), 0 for the point left out
    misfit: float  # relative to the fitted values, or in their unit
    left_out: int | None

    @property
    def t_quantile(self) -> float:
        """How many standard deviations the interval is wide, to either side."""
        used = int(np.count_nonzero(self.weights))
        return t_quantile(1.0 - (1.0 - CONFIDENCE - OUTLIER_LEVEL) / 2.0, used - 3)


def fit_terms(rows: Vector, values: Vector, sds: Vector, *, relative: bool) -> Fit:
    """The fit of all points, or of all but the one that the others exclude (Bonferroni over the points).

    Args:
        rows: (n, 3), n at least 4.
        values: (n,).
        sds: (n,) of the values' own noise.
        relative: the misfit is a fraction of the fitted values, not in their unit.
    """
    n = len(values)
    fits = _solve(rows, values, sds, np.ones((1, n)), relative)
    everything = Fit(fits[0][0], fits[1][0], fits[2][0], float(fits[3][0]), None)
    if everything.misfit == 0.0 or n < MIN_POINTS + 2:
        return everything
    terms, covariances, weights, misfits = _solve(rows, values, sds, 1.0 - np.eye(n), relative)
    predicted = np.einsum("ij,ij->i", rows, terms)
    scale = _scale(predicted, values) if relative else 1.0
    variance = np.einsum("ij,ijk,ik->i", rows, covariances, rows) + sds**2 + (misfits * scale) ** 2
    deviation = np.abs(values - predicted) / np.sqrt(
        np.maximum(variance, sds**2)
    )  # rounding may make a variance negative
    worst = int(np.argmax(deviation))
    if deviation[worst] <= t_quantile(1.0 - OUTLIER_LEVEL / (2 * n), n - 4):
        return everything
    return Fit(terms[worst], covariances[worst], weights[worst], float(misfits[worst]), worst)


def _scale(predicted: Vector, values: Vector) -> Vector:
    """What a relative misfit multiplies: the law, not what was measured, but never far from it."""
    return np.clip(predicted, values / 2.0, values * 2.0)


def _solve(
    rows: Vector, values: Vector, sds: Vector, use: Vector, relative: bool
) -> tuple[Vector, Vector, Vector, Vector]:
    """A batch of fits; `use` (m, n) of 0 and 1 says which points each has.

    Returns:
        Terms (m, 3), covariances (m, 3, 3), weights (m, n), misfits (m,).

    Raises:
        MeasurementError: the numbers are beyond what float64 can solve.
    """
    message = "the values lie too many orders of magnitude apart for a law"
    try:
        with np.errstate(all="ignore"):
            found = _iterate(rows, values, sds, use, relative)
    except np.linalg.LinAlgError as err:
        raise MeasurementError(message) from err
    if not all(np.all(np.isfinite(part)) for part in found) or np.any(found[2][use > 0] == 0.0):
        raise MeasurementError(message)
    return found


def _iterate(
    rows: Vector, values: Vector, sds: Vector, use: Vector, relative: bool
) -> tuple[Vector, Vector, Vector, Vector]:
    freedom = use.sum(axis=1) - 3.0
    spread = np.zeros(len(use))  # squared misfit
    scale = np.broadcast_to(values if relative else np.ones_like(values), use.shape)
    for step in range(_STEPS + 1):
        weights: Vector = use / (sds**2 + spread[:, None] * scale**2)
        normal = (weights[:, :, None] * rows).transpose(0, 2, 1) @ rows
        covariances = np.linalg.inv(normal).astype(np.float64)
        terms = (covariances @ ((weights * values) @ rows)[:, :, None])[:, :, 0]
        predicted = terms @ rows.T
        squared = (values - predicted) ** 2
        excess = (weights * squared).sum(axis=1) - freedom
        if step == _STEPS or np.all(excess <= 1e-6 * freedom):
            break
        if relative:
            scale = _scale(predicted, values)
        slope = (weights**2 * squared * scale**2).sum(axis=1)
        spread += np.where((excess > 0.0) & (slope > 0.0), excess / np.where(slope > 0.0, slope, 1.0), 0.0)
    misfits: Vector = np.sqrt(spread)
    return terms, covariances, weights, misfits


def not_negative(rows: Vector, values: Vector, weights: Vector, terms: Vector) -> Vector:
    """The weighted least squares with no term below 0: the best of the seven sets of terms that may be positive."""
    if np.all(terms >= 0.0):
        return terms
    best, least = np.zeros(3), math.inf
    roots = np.sqrt(weights)
    for mask in range(1, 8):
        chosen = [i for i in range(3) if mask >> i & 1]
        part, *_ = np.linalg.lstsq(rows[:, chosen] * roots[:, None], values * roots, rcond=None)
        found = np.zeros(3)
        found[chosen] = part
        loss = float((weights * (values - rows @ found) ** 2).sum())
        if np.all(part >= 0.0) and loss < least:
            best, least = found, loss
    return best


@lru_cache(maxsize=256)
def t_quantile(p: float, freedom: int) -> float:
    """The p-quantile of Student's t for a whole number of degrees of freedom, p at least 0.5."""
    if not 0.5 <= p < 1.0 or freedom < 1:
        raise MeasurementError(f"a t quantile needs p in [0.5, 1) and at least 1 degree of freedom, got {p}, {freedom}")
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < p:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2.0


def _t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for t >= 0 by the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    term, total = 1.0, 1.0
    if freedom % 2:
        term = total = cosine
        for k in range(3, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = 2.0 / math.pi * (theta + (sine * total if freedom > 1 else 0.0))
    else:
        for k in range(2, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = sine * total
    return 0.5 + inside / 2.0
