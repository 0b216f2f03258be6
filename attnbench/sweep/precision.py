"""The policy for products of fp32: which precision it admits, what outputs are held to, what an error proves.

`strict` admits full fp32 only. `default` admits TF32 on a CUDA device, for every framework alike: an output may then be
as far off as one of fp16, whose mantissa has as many bits. That TF32 was allowed does not say that it ran: the error of
normal inputs does, as no error of TF32 is as small as one of fp32.
"""

from collections.abc import Mapping
from typing import Any

from attnbench.interfaces import UNKNOWN
from attnbench.measure import numerics
from attnbench.problem import Problem

LIKE_TF32 = "fp16"  # the dtype with as many bits of mantissa


def admits_tf32(settings: Mapping[str, Any]) -> bool:
    """May products of fp32 be computed in TF32? By the option `use_tf32` of a runtime, else by the policy.

    `settings` are those of `attnbench.interfaces.Settings`.
    """
    is_asked = settings["options"].get("use_tf32", "on" if settings["fp32"] == "default" else "off") == "on"
    return bool(is_asked and settings["device"] != "cpu")


def allowed(settings: Mapping[str, Any]) -> frozenset[str]:
    """What a runtime may say that it computes a problem of fp32 in."""
    return frozenset({"fp32", UNKNOWN} | ({"tf32"} if admits_tf32(settings) else set()))


def limits(problem: Problem, settings: Mapping[str, Any], input_class: str) -> numerics.Limits | None:
    """What an output may differ by where TF32 is admitted; None where the problem's own limits hold."""
    if problem.dtype != "fp32" or not admits_tf32(settings):
        return None
    name = input_class + (numerics.ADDED if problem.masking.is_added else "")
    data = numerics.tolerances()[problem.part, LIKE_TF32, name]
    widest = min(data.ceiling * max(1.0, problem.spread), numerics.WIDEST)
    reason = f"TF32 is allowed: the ceiling of {LIKE_TF32}"
    return numerics.Limits(worst_row=widest, gain=data.gain_limit, reason=reason)


def proven(dtype: str, told: str, worst_row_rel_err: float) -> str:
    """The precision that ran, of what the runtime tells and the error of normal inputs.

    TF32 that was allowed and left no trace did not run; a runtime that cannot tell is told by its error.
    """
    found = numerics.precision_class(worst_row_rel_err)
    return found if dtype == "fp32" and told in ("tf32", UNKNOWN) and found in ("fp32", "tf32") else told


def contradiction(dtype: str, told: str, worst_row_rel_err: float) -> str:
    """What is wrong with a row that passed the limits of TF32; empty for nothing."""
    if dtype != "fp32" or told != "fp32" or numerics.precision_class(worst_row_rel_err) == "fp32":
        return ""
    found = numerics.precision_class(worst_row_rel_err)
    return f"the runtime tells fp32, its error is that of {found}: {worst_row_rel_err:.2g}"


def suspicion(dtype: str, worst_row_rel_err: float) -> str:
    """What a wrong output of fp32 looks like: `; an error of this size is that of tf32`. Empty for none."""
    found = numerics.precision_class(worst_row_rel_err)
    if dtype != "fp32" or found not in ("tf32", "bf16"):
        return ""
    way_out = " (--fp32 default admits it on a GPU)" if found == "tf32" else ""
    return f"; an error of this size is that of {found}, the row is labelled fp32{way_out}"
