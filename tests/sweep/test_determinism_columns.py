"""A record has the three answers on same bits, with reasons where there is none."""

from attnbench.problem import Problem
from attnbench.sweep import rows
from attnbench.sweep.cases import Case
from attnbench.sweep.grid import Arm


def _case() -> Case:
    return Case(problem=Problem.make(seq_len=8), arm=Arm(exporter="torch", runtime="torch-sdpa"), status="ok")


def test_an_answer_that_does_not_apply_is_empty_with_its_own_reason() -> None:
    case = _case()
    case.determinism = {"bitwise_repeatable": True, "batch_invariant": False, "prefix_invariant": None}
    case.determinism_reasons = {"prefix_invariant": "tokens see later ones"}
    reasons = rows.empty_reasons(case, dict(case.determinism))
    assert reasons["prefix_invariant"] == "tokens see later ones"
    assert not {"bitwise_repeatable", "batch_invariant"} & reasons.keys()


def test_what_was_never_asked_says_so() -> None:
    assert rows.empty_reasons(_case(), {})["batch_invariant"] == "not checked"
