"""How far an output is from the float64 oracle, how far it may be, and which precision that means.

A row is a vector along the last axis: a token of the block's output (embed_dim), a token of one head of the core's
(head_dim). Everything is computed in float64 over blocks of rows, so that no full float64 copy of the output exists.
"""

import math
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnbench.errors import ShapeMismatch
from attnbench.interfaces import Array, numpy_dtype

TOLERANCES_PATH = Path(__file__).with_name("tolerances.toml")
ADDED = "_added"  # a class of inputs whose mask is added to the scores: logits are larger, so they are rounded more
CLASSES = ("normal", "peaked", f"normal{ADDED}", f"peaked{ADDED}")
_BLOCK_ELEMENTS = 1 << 19  # 4 MiB of float64
_CLASSES = ((5e-5, "fp32"), (2e-3, "tf32"), (3.6e-2, "bf16"))  # largest worst-row error of each

# No row may be off by more, whatever a format holds: a dropped key, a swapped head or a scale applied twice is near 1.
WIDEST = 0.3


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """An output beside its reference. A NaN on either side makes every error NaN, so that no limit admits it."""

    worst_row_rel_err: float  # largest over rows of |out - ref| / |ref|, L2
    worst_row_index: int  # over the leading axes, flattened
    rel_fro_err: float
    max_abs_err: float
    gain_err: float  # |<out, ref> / <ref, ref> - 1|
    nan_count: int  # NaNs in the output
    reference_nan_count: int
    both_nan_count: int  # places where both are NaN: never agreement
    inf_mismatch_count: int  # places where one is infinite and the other is not that infinity
    rows: int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an output may differ by."""

    worst_row: float
    gain: float
    reason: str  # how the worst-row limit came about

    def gain_of(self, rows: int) -> float:
        """The gate on the gain of so many rows: a few rows, each within its limit, may be scaled by more by chance.

        What all rows share (a scale that was rounded) and what each has by chance add as squares.
        """
        return math.hypot(self.gain, self.worst_row / math.sqrt(rows))


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Measured data for one part, dtype and class; see tolerances.toml."""

    worst: float  # of torch eager
    ceiling: float  # worst-row limit never above this, whatever eager did
    eager_over_floor: float  # what eager may be where it was not run
    eager_factor: float  # the limit in multiples of eager's error
    gain_noise: float
    gain_limit: float


@dataclass(kw_only=True)
class _Sums:
    """What is gathered over blocks of rows."""

    diff_norms: list[NDArray[np.float64]]
    ref_norms: list[NDArray[np.float64]]
    inner: float = 0.0
    max_abs: float = 0.0
    nan: int = 0
    reference_nan: int = 0
    both_nan: int = 0
    inf_mismatch: int = 0


def compare(output: Array, reference: Array) -> Agreement:
    """Compare an output with the oracle's, row by row.

    Equal infinities agree and leave the sums; any other infinity makes its row's error infinite. A row whose
    reference is all zero (every key masked) is measured against the typical row instead of dividing by zero. Rows of
    n numbers are measured against at least 2^-n of the typical row: among many rows of one number some are nearly 0.

    Args:
        output: (..., n) in any real dtype.
        reference: (..., n) of exactly the same shape.

    Raises:
        ShapeMismatch: the shapes differ (nothing is broadcast), or there is nothing to compare.
    """
    _require_comparable(output, reference)
    width = output.shape[-1]
    out_rows, ref_rows = output.reshape(-1, width), reference.reshape(-1, width)
    sums = _Sums(diff_norms=[], ref_norms=[])
    step = max(1, _BLOCK_ELEMENTS // width)
    for start in range(0, len(out_rows), step):
        out = out_rows[start : start + step].astype(np.float64)
        _add_block(sums, out, ref_rows[start : start + step].astype(np.float64))
    return _agreement(sums, width)


def _require_comparable(output: Array, reference: Array) -> None:
    if output.shape != reference.shape:
        raise ShapeMismatch(f"output has shape {output.shape}, the reference {reference.shape}: they must be equal")
    if output.ndim == 0 or output.size == 0:
        raise ShapeMismatch(f"shape {output.shape} has no rows to compare; give at least one row of one element")
    for name, array in (("output", output), ("reference", reference)):
        # bfloat16 of ml_dtypes is of kind V; complex, text and objects cannot be compared.
        if array.dtype.kind not in "fiubV":
            raise ShapeMismatch(f"{name} has dtype {array.dtype}; real numbers are needed")


def _add_block(sums: _Sums, out: NDArray[np.float64], ref: NDArray[np.float64]) -> None:
    """Add rows (n, width) to the sums; `out` is overwritten."""
    out_nan, ref_nan = np.isnan(out), np.isnan(ref)
    sums.nan += int(out_nan.sum())
    sums.reference_nan += int(ref_nan.sum())
    sums.both_nan += int((out_nan & ref_nan).sum())
    infinite = np.isinf(out) | np.isinf(ref)
    if infinite.any():
        equal = infinite & (out == ref)
        mismatch = infinite & ~equal & ~out_nan & ~ref_nan
        sums.inf_mismatch += int(mismatch.sum())
        ref = np.where(equal | mismatch, 0.0, ref)
        out[equal] = 0.0
        out[mismatch] = np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        sums.inner += float(np.vdot(out, ref))
        out -= ref
        sums.diff_norms.append(np.sqrt(np.einsum("ij,ij->i", out, out)))
        sums.ref_norms.append(np.sqrt(np.einsum("ij,ij->i", ref, ref)))
        sums.max_abs = float(np.maximum(sums.max_abs, np.abs(out).max()))  # np.maximum keeps NaN, max() may not


def _agreement(sums: _Sums, width: int) -> Agreement:
    diff, ref = np.concatenate(sums.diff_norms), np.concatenate(sums.ref_norms)
    with np.errstate(invalid="ignore", over="ignore"):
        ref_square, diff_square = float(np.dot(ref, ref)), float(np.dot(diff, diff))
        typical = math.sqrt(ref_square / len(ref)) or 1.0
        relative = diff / np.where(ref == 0.0, typical, np.maximum(ref, typical * 2.0**-width))
    missing = np.isnan(relative)
    worst = int(np.argmax(missing)) if missing.any() else int(np.argmax(relative))
    return Agreement(
        worst_row_rel_err=float(relative[worst]),
        worst_row_index=worst,
        rel_fro_err=math.sqrt(diff_square) / (math.sqrt(ref_square) or 1.0),
        max_abs_err=sums.max_abs,
        gain_err=abs(sums.inner / ref_square - 1.0) if ref_square != 0.0 else math.sqrt(diff_square),
        nan_count=sums.nan,
        reference_nan_count=sums.reference_nan,
        both_nan_count=sums.both_nan,
        inf_mismatch_count=sums.inf_mismatch,
        rows=len(diff),
    )


def floor_error(reference: NDArray[np.float64], dtype: str) -> float:
    """Worst-row relative error of the reference rounded once to fp32, fp16 or bf16: as good as the format allows."""
    with np.errstate(over="ignore"):
        rounded = reference.astype(numpy_dtype(dtype))
    return compare(rounded, reference).worst_row_rel_err


@lru_cache(maxsize=1)
def tolerances() -> dict[tuple[str, str, str], Tolerance]:
    """Measured tolerances by (part, dtype, class), from tolerances.toml; `_added`: its mask is added."""
    tables = tomllib.loads(TOLERANCES_PATH.read_text(encoding="utf-8"))
    return {
        (part, dtype, name): Tolerance(**{k: v for k, v in entry.items() if not isinstance(v, dict)} | entry[name])
        for part, entries in tables.items()
        for dtype, entry in entries.items()
        for name in CLASSES
    }


def limits(
    dtype: str,
    floor: float,
    eager_error: float | None,
    *,
    part: str = "block",
    input_class: str = "normal",
    is_added: bool = False,
    spread: float = 1.0,
) -> Limits:
    """Worst row: max(factor x eager, 3 x floor, least), never above the ceiling of the dtype; gain: the measured gate.

    The factor is measured: 2 in fp16 and bf16, 4 in fp32. `least` is half the factor times the worst error that eager
    was seen to have: with few rows eager may be exact by luck, which makes nothing else wrong.

    Args:
        dtype: fp32, fp16 or bf16.
        floor: `floor_error` of this problem.
        eager_error: worst-row error of torch eager in the same dtype and problem. None, or not a number: the worst
            ratio of eager to floor that was measured stands in. Whatever it is, the ceiling holds.
        part: block or core.
        input_class: normal or peaked.
        is_added: the problem's mask is added to the scores.
        spread: how many times larger than usual the problem's logits are (`Problem.spread`). Scores are rounded in
            proportion to their size, so what was measured at the usual scale is multiplied by it where it is above 1.
    """
    spread = max(1.0, spread)
    input_class += ADDED if is_added else ""
    data = tolerances()[part, dtype, input_class]
    if eager_error is not None and math.isfinite(eager_error):
        eager, source = eager_error, "torch eager"
    else:
        eager, source = data.eager_over_floor * spread * floor, "the eager error known for this floor"
    by_eager = data.eager_factor * eager
    least = data.eager_factor / 2.0 * data.worst * spread
    reasons = {by_eager: f"{data.eager_factor:g} x {source}", 3.0 * floor: "3 x floor", least: "what eager may have"}
    wanted, ceiling = max(by_eager, 3.0 * floor, least), data.ceiling * spread
    if wanted <= ceiling:
        reason = reasons[wanted]
    else:  # or not a number
        wanted, reason = ceiling, f"the ceiling of {part} {dtype} {input_class}"
    if wanted > WIDEST:
        wanted, reason = WIDEST, f"the widest of all: {dtype} does not hold logits {spread:.2g} times the usual"
    return Limits(worst_row=wanted, gain=data.gain_limit, reason=reason)


def class_limit(dtype: str) -> float:
    """The largest worst-row error that `precision_class` takes for fp32, fp16 or bf16."""
    return next(most for most, name in _CLASSES if name == ("tf32" if dtype == "fp16" else dtype))


def precision_class(worst_row_rel_err: float, dtype: str = "fp32") -> str:
    """The precision that an error of normal inputs means: fp32, tf32, bf16, or `wrong` for none of them.

    Emulated on block and core at T = 16 to 1024: fp32 up to 1.4e-6, TF32 6.8e-4 to 1.1e-3, bf16 5.3e-3 to 9.4e-3
    (1.6e-2 in torch eager). TF32 and fp16 have the same mantissa: in a problem of dtype fp16 the class is named so.
    """
    for most, name in _CLASSES:
        if worst_row_rel_err <= most:
            return "fp16" if name == "tf32" and dtype == "fp16" else name
    return "wrong"


def judge_agreement(agreement: Agreement, limits: Limits) -> tuple[bool, str]:
    """Does the output agree? With the reason as a sentence when it does not, empty when it does."""
    a = agreement
    if a.both_nan_count:
        return (
            False,
            f"both NaN in {a.both_nan_count} places ({a.nan_count} NaN in the output): nothing was compared there",
        )
    if a.nan_count or a.reference_nan_count:
        return (
            False,
            f"{a.nan_count} NaN in the output, {a.reference_nan_count} in the reference, never at the same place",
        )
    if a.inf_mismatch_count:
        return False, f"{a.inf_mismatch_count} places where only one side is infinite, or with the other sign"
    # `not <=`, so that a NaN fails.
    if not a.worst_row_rel_err <= limits.worst_row:
        return False, (
            f"row {a.worst_row_index} of {a.rows} is off by {a.worst_row_rel_err:.2g}, "
            f"{limits.worst_row:.2g} is allowed ({limits.reason})"
        )
    if not a.gain_err <= (gain := limits.gain_of(a.rows)):
        return False, f"the output is scaled wrong by {a.gain_err:.2g}, {gain:.2g} is allowed"
    return True, ""
