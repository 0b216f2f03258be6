"""In a worker: one probe on a loaded session, one file on a runtime, judged where the arrays are."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnbench.hypotheses import explain, take_apart
from attnbench.inputs import make_weights
from attnbench.interfaces import Array, Session, numpy_dtype
from attnbench.measure import caches, numerics
from attnbench.probes import LIMITS, excerpt, judged_rows, make_probe_inputs, weaker_poison
from attnbench.problem import Problem
from attnbench.reference import reference_output

NO_KNOWN_CAUSE = "differs by no known cause"


def run_probe(session: Session, problem: Problem, fill: str, seed: int, limit_of: str = "") -> dict[str, Any]:
    """Bind, call, judge by the limit of a dtype, else the problem's; {"ok", "how", "error", "limit", ...}."""
    inputs = make_probe_inputs(problem, fill, seed=seed)
    output = _answer(session, inputs)
    fault = caches.session_fault(session, problem, inputs, seed=seed)
    found = judge(problem, fill, inputs, output, seed=seed, limit_of=limit_of)
    if fill == "poison" and NO_KNOWN_CAUSE in found["how"]:
        weaker = weaker_poison(problem, inputs)
        if _leaks(problem, (inputs, output), (weaker, _answer(session, weaker)), seed=seed):
            found["how"] = "keys leak: values of masked keys show"
    if fault:
        found |= {"ok": False, "how": "; ".join(filter(None, [found["how"], fault]))}
    return found


def _answer(session: Session, inputs: dict[str, Array]) -> Array:
    session.bind({name: array.copy() for name, array in inputs.items()})()
    return session.outputs()


def _leaks(problem: Problem, *asked: tuple[dict[str, Array], Array], seed: int) -> bool:
    """Do two answers differ in a row whose right answer is the same for both?"""
    weights = make_weights(problem, seed=seed)
    one, other = (reference_output(problem, inputs, weights) for inputs, _ in asked)
    same = (one == other).all(-1)
    before, after = (output[same].astype(np.float64) for _, output in asked)
    return bool(same.any()) and not numerics.compare(after, before).worst_row_rel_err <= LIMITS[problem.dtype]


def judge(
    problem: Problem, fill: str, inputs: dict[str, Array], output: Array, *, seed: int, limit_of: str = ""
) -> dict[str, Any]:
    """Whether an output is right, and if not, what it is instead."""
    weights = make_weights(problem, seed=seed)
    expected = reference_output(problem, inputs, weights)
    limit = LIMITS[limit_of or problem.dtype]
    if output.shape != expected.shape:
        turned = " (transposed)" if sorted(output.shape) == sorted(expected.shape) else ""
        how = f"output shape changed: {output.shape} instead of {expected.shape}{turned}"
        return {"ok": False, "how": how, "error": None, "limit": limit, "expected": "", "got": ""}
    rows = judged_rows(problem, fill)
    chosen = slice(None) if rows is None else rows
    seen, due = output[..., chosen, :], expected[..., chosen, :]
    found = numerics.compare(seen, due)
    at = found.worst_row_index
    facts = {
        "error": found.worst_row_rel_err if np.isfinite(found.worst_row_rel_err) else None, "limit": limit,
        "expected": excerpt(due.reshape(-1, due.shape[-1])[at]), "got": excerpt(seen.reshape(-1, due.shape[-1])[at]),
    }  # fmt: skip
    dtype = numpy_dtype(problem.dtype)
    how = "" if output.dtype == dtype else f"output dtype changed: {output.dtype} instead of {dtype}"
    if not found.worst_row_rel_err <= limit:
        how = "; ".join(filter(None, [how, _how(problem, fill, inputs, weights, output, rows)]))
    return {"ok": not how, "how": how, **facts}


def _how(
    problem: Problem, fill: str, inputs: dict[str, Array], weights: dict[str, Array], output: Array, rows: Any
) -> str:
    out = output.astype(np.float64)
    chosen = slice(None) if rows is None else rows
    pieces = take_apart(problem, inputs, weights)
    for name, is_bad in (("NaN", np.isnan(out)), ("infinity", np.isinf(out))):
        if is_bad[..., chosen, :].any():
            has_key = np.asarray((pieces.by_position & pieces.by_tensor).any(-1))  # (B, H, q_len)
            empty = ~has_key if problem.part == "core" else ~has_key.all(1)
            only = " in queries without a key" if not is_bad[~empty].any() else ""
            return f"{name} x {int(is_bad.sum())} of {is_bad.size}{only}"
    limit = 4 * LIMITS[problem.dtype]

    def is_near(a: Array, b: Array) -> bool:
        axis_rows = chosen if a.ndim == out.ndim else slice(None)
        return numerics.compare(a[..., axis_rows, :], b[..., axis_rows, :]).worst_row_rel_err <= limit

    known = explain(problem, pieces, out, is_near)
    if known or problem.dtype != "fp32":
        return known or NO_KNOWN_CAUSE
    error = numerics.compare(out[..., chosen, :], pieces.output()[..., chosen, :]).worst_row_rel_err
    precision = numerics.precision_class(error)
    return f"{NO_KNOWN_CAUSE}; its error is as large as that of {precision}" if precision != "wrong" else NO_KNOWN_CAUSE


def judge_arrays(outputs: Sequence[tuple[str, Array, Array]]) -> dict[str, Any]:
    """Whether every (name, output, expected) of a file agrees; the first that does not says how.

    The error is the largest, relative to the largest expected value.
    """
    worst: dict[str, Any] = {"ok": True, "how": "", "error": 0.0, "limit": LIMITS["fp32"], "expected": "", "got": ""}
    for name, output, expected in outputs:
        kind = {2: "bf16" if "bfloat16" in str(expected.dtype) else "fp16"}.get(expected.dtype.itemsize, "fp32")
        # The file's inputs and steps are in its dtype, and so is what it expects: one rounding each.
        limit = LIMITS[kind]
        how, error = _array_fault(output, expected, limit)
        is_worse = (error or 0.0) / limit > worst["error"] / worst["limit"]
        if how or is_worse:
            at = _worst_at(output, expected)
            worst = {"ok": not how, "how": f"{name}: {how}" if how else "", "error": error, "limit": limit, **at}
        if how:
            break
    return worst


def _array_fault(output: Array, expected: Array, limit: float) -> tuple[str, float | None]:
    if output.shape != expected.shape:
        return f"output shape changed: {output.shape} instead of {expected.shape}", None
    if output.dtype != expected.dtype:
        return f"output dtype changed: {output.dtype} instead of {expected.dtype}", None
    out, due = output.astype(np.float64), expected.astype(np.float64)
    if (np.isnan(out) != np.isnan(due)).any():
        return f"NaN x {int(np.isnan(out).sum())} of {out.size}, {int(np.isnan(due).sum())} expected", None
    finite = np.isfinite(due)
    if not (out[~finite & ~np.isnan(due)] == due[~finite & ~np.isnan(due)]).all() or np.isinf(out[finite]).any():
        return f"infinity x {int(np.isinf(out).sum())} of {out.size}, {int(np.isinf(due).sum())} expected", None
    if not finite.any():
        return "", 0.0
    error = float(np.abs(out - due)[finite].max() / (np.abs(due[finite]).max() or 1.0))
    return ("" if error <= limit else f"off by {error:.2g} of the largest value"), error


def _worst_at(output: Array, expected: Array) -> dict[str, str]:
    if output.shape != expected.shape or not output.size:
        return {"expected": "", "got": ""}
    out, due = (a.astype(np.float64).reshape(-1, a.shape[-1]) for a in (output, expected))
    with np.errstate(invalid="ignore"):
        is_same = (out == due) | (np.isnan(out) & np.isnan(due))
        gap = np.where(is_same, 0.0, np.where(np.isnan(out - due), np.inf, np.abs(out - due)))
    row, column = (int(at) for at in np.unravel_index(gap.argmax(), gap.shape))
    return {"expected": excerpt(due[row], column), "got": excerpt(out[row], column)}
