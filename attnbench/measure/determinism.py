"""Does the same question get the same bits? Asked of a loaded session at small sizes; an answer is no failure.

A runtime may give other bits in every one of these without being wrong: sums in another order are rounded otherwise.
Who caches, replays or bisects wants to know.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attnbench.inputs import make_inputs
from attnbench.interfaces import Array, Session
from attnbench.problem import Problem

MOST_LEN = 64  # T that is tried: a call costs next to nothing there
PROPERTIES = ("bitwise_repeatable", "batch_invariant", "prefix_invariant")
_TOP_LEFT = ("causal_top_left", "sliding_window")
_LENGTHS = ("seq_len", "q_len", "kv_len")


@dataclass(frozen=True, kw_only=True)
class Determinism:
    """Answers by property; what does not apply is None, with its reason."""

    answers: Mapping[str, bool | None]
    reasons: Mapping[str, str]


def ask_session(session: Session, problem: Problem, *, seed: int) -> Determinism:
    """Three questions at T <= 64, in at most six calls; another binding is left behind.

    `bitwise_repeatable`: two calls on the same bound inputs; `batch_invariant`: an item alone and first in a batch of
    two; `prefix_invariant`: the first tokens alone and before further ones, where no token sees a later one.
    """
    reasons: dict[str, str] = {}
    answers: dict[str, bool | None] = {
        "bitwise_repeatable": _is_repeatable(session, problem, seed),
        "batch_invariant": _is_batch_invariant(session, problem, seed),
        "prefix_invariant": None,
    }
    reasons["prefix_invariant"] = why_no_prefix(problem)
    if not reasons["prefix_invariant"]:
        answers["prefix_invariant"] = _is_prefix_invariant(session, problem, seed)
    return Determinism(answers=answers, reasons={name: reason for name, reason in reasons.items() if reason})


def shortened(problem: Problem, most: int, *, batch_size: int | None = None) -> Problem:
    """The problem at lengths of at most `most`; decode keeps a cache of at least one token."""
    q_len = min(most, problem.q_len)
    if problem.variant == "decode":
        past = min(most, problem.kv_len - problem.q_len)
        return problem.at(q_len=q_len, kv_len=q_len + past, batch_size=batch_size)
    kv_len = q_len if problem.kv_len == problem.q_len else min(most, problem.kv_len)
    return problem.at(q_len=q_len, kv_len=kv_len, batch_size=batch_size)


def why_no_prefix(problem: Problem) -> str:
    """Why the first tokens of a problem may depend on later ones; empty where they do not."""
    if problem.masking.position not in _TOP_LEFT or problem.q_len != problem.kv_len:
        return "tokens see later ones, or lengths differ: a prefix is another problem"
    return "a single token has no prefix" if problem.q_len < 2 else ""


def first_item(problem: Problem, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs of the first item of a batch alone."""
    dims = problem.input_dims()
    return {name: a[:1] if dims[name][0] == "batch_size" else a for name, a in inputs.items()}


def first_tokens(problem: Problem, inputs: Mapping[str, Array], count: int) -> dict[str, Array]:
    """The inputs of the first tokens alone: every axis that is a length is cut."""
    found = {}
    for name, dims in problem.input_dims().items():
        found[name] = inputs[name][tuple(slice(count) if dim in _LENGTHS else slice(None) for dim in dims)]
    return found


def _is_repeatable(session: Session, problem: Problem, seed: int) -> bool:
    call = session.bind(make_inputs(shortened(problem, MOST_LEN), seed=seed))
    call()
    first = session.outputs()
    call()
    return _same_bits(first, session.outputs())


def _is_batch_invariant(session: Session, problem: Problem, seed: int) -> bool:
    pair = shortened(problem, MOST_LEN, batch_size=2)
    inputs = make_inputs(pair, seed=seed)
    alone = _answer(session, first_item(pair, inputs))
    return _same_bits(alone, _answer(session, inputs)[:1])


def _is_prefix_invariant(session: Session, problem: Problem, seed: int) -> bool:
    whole = shortened(problem, MOST_LEN, batch_size=1)
    count = max(1, 2 * whole.q_len // 3)
    inputs = make_inputs(whole, seed=seed)
    alone = _answer(session, first_tokens(whole, inputs, count))
    return _same_bits(alone, _answer(session, inputs)[..., :count, :])


def _answer(session: Session, inputs: Mapping[str, Array]) -> Array:
    session.bind(inputs)()
    return session.outputs()


def _same_bits(one: Array, other: Array) -> bool:
    """Equal shape and bytes: NaN equals the same NaN, 0 differs from -0."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()
