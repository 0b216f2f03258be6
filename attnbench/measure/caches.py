"""Is the cache that a decode step gives back the old one with the new tokens behind it?"""

from collections.abc import Mapping

import numpy as np

from attnbench.inputs import make_weights
from attnbench.interfaces import Array, Session, numpy_dtype
from attnbench.measure import numerics
from attnbench.problem import Problem
from attnbench.reference import reference_new_cache


def session_fault(session: Session, problem: Problem, inputs: Mapping[str, Array], *, seed: int) -> str:
    """What is wrong with the cache of a session's last call; empty where nothing is, or the problem has none.

    Args:
        session: whose call has run.
        problem: at the sizes of the inputs.
        inputs: of that call.
        seed: of the weights.
    """
    if problem.variant != "decode":
        return ""
    cache = getattr(session, "cache", None)
    if cache is None:
        return "present_key and present_value cannot be judged: the session has no cache(), which decode needs"
    return cache_fault(problem, inputs, cache(), seed=seed)


def cache_fault(problem: Problem, inputs: Mapping[str, Array], found: Mapping[str, Array], *, seed: int) -> str:
    """What is wrong with present_key or present_value.

    Old tokens must be there bit for bit; rows of new ones may differ from float64 as rows of `y` may at most.
    """
    new = reference_new_cache(problem, inputs, make_weights(problem, seed=seed))
    limit = numerics.tolerances()["block", problem.dtype, "normal"].ceiling
    shapes, dtype = problem.output_shapes(), numpy_dtype(problem.dtype)
    for name, due in new.items():
        if name not in found:
            return f"{name} is missing: the cache has {', '.join(found) or 'nothing'}"
        past_name = name.replace("present", "past")
        array, past = found[name], inputs[past_name]
        if array.shape != shapes[name] or array.dtype != dtype:
            return f"{name} is {array.dtype} of shape {array.shape}, the problem's is {dtype} of {shapes[name]}"
        old_len = past.shape[2]
        changed = int(np.count_nonzero(array[:, :, :old_len] != past))
        if changed:
            return f"{name}: {changed} of {past.size} values of old tokens are not those of {past_name}"
        error = numerics.compare(array[:, :, old_len:], due).worst_row_rel_err
        if not error <= limit:
            return f"{name}: a new token is off by {error:.2g}, {limit:.2g} is allowed"
    return ""
