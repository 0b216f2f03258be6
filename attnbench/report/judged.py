"""How rows were judged, in words: right against float64, or in agreement with another arm and no more than that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.analysis.groups import Panel, judge_of, judge_of_row, judges_of
from attnbench.records import Record
from attnbench.report.text import fmt_count, fmt_list, printable


@dataclass(frozen=True, kw_only=True)
class Words:
    """What tables and sentences call a case that is within its limit, and one that is not."""

    column: str  # heading of the count
    none: str  # at one x
    nothing_ran: str
    only_one: str
    holds: str  # `right at 5 of 6 T values`
    ran: str  # `no case ran right`
    wrong: str  # a case
    wrong_title: str  # of the section
    wrong_link: str  # to it


RIGHT = Words(
    column="right", none="none is right", nothing_ran="nothing ran right", only_one="the only one that ran right",
    holds="right", ran="ran right", wrong="wrong answer", wrong_title="Wrong answers", wrong_link="Wrong",
)  # fmt: skip


MIXED = Words(
    column="within", none="none within its limit", nothing_ran="nothing within its limit", only_one="the only one",
    holds="within its limit", ran="ran", wrong="answer beyond its limit", wrong_title="Answers beyond their limit",
    wrong_link="Beyond",
)  # fmt: skip


def words_of(judge: str | None) -> Words:
    """The words for rows that this arm judged; None: float64 did."""
    if judge is None:
        return RIGHT
    judge = printable(judge)
    return Words(
        column="agree", none="none agrees", nothing_ran=f"nothing agrees with {judge}",
        only_one="the only one with a figure", holds=f"in agreement with {judge}", ran="ran",
        wrong="answer that differs",
        wrong_title=f"Answers that differ from those of {judge}", wrong_link="Differing",
    )  # fmt: skip


def count_at(panel: Panel, x: int) -> str:
    """`4/5`: within the limit, of those that answered; the arm that judges does not count. Empty where none did."""
    cells = [r for arm in panel.arms if (r := panel.cells.get((arm, x))) is not None]
    judge = judge_of(cells)
    answered = sum(r.status in ("ok", "mismatch") and r.arm != judge for r in cells)
    right = [r for r in panel.ok_at(x) if r.arm != judge]
    return f"{len(right)}/{answered}" if answered else ""


def words_for(records: Sequence[Record]) -> Words:
    """The words for rows that may be of several runs: only where all are judged by float64 is anything right."""
    kinds = _kinds(records)
    if "file" not in kinds:
        return RIGHT
    return words_of(judge_of(records)) if kinds == {"file"} else MIXED


def how_judged(records: Sequence[Record]) -> str:
    """What the error columns are differences to, in a few sentences."""
    kinds = _kinds(records)
    told = []
    if "file" in kinds:
        judges = judges_of(records)
        others = f" (where that gave none, with {fmt_list(judges[1:])})" if len(judges) > 1 else ""
        told.append(
            f"There is no float64 truth for a file: every other arm is compared with {printable(judges[0])}{others}, "
            "whose own answer was not judged. Agreement is no proof: where both err alike, nothing here shows it."
        )
    if kinds - {"file"} and all(r.worst_row_rel_err is None for r in records if r.model is not None):
        told += ["No answer was compared with another."] * (kinds == {"module"})
    elif "module" in kinds:
        error = "Error" if kinds == {"module"} else "The error of a module"
        told.append(f"{error} is against the module itself in float64, from the same rounded inputs and weights.")
    if "attention" in kinds:
        error = "Error" if kinds == {"attention"} else "That of the built-in attention"
        told.append(f"{error} is against a float64 oracle on the same rounded inputs.")
    return " ".join(told)


def judges_text(records: Sequence[Record]) -> str:
    """Who judged these rows: `float64`, the arms that others were compared with, `nobody`."""
    found = sorted({printable(judge) for r in records if (judge := judge_of_row(r)) is not None})
    return fmt_list(found) if found else "nobody"


def judge_change_text(changes: Mapping[tuple[str, str], int]) -> str:
    """That cases of two runs were compared with different answers, and what follows; empty where none were."""
    if not changes:
        return ""
    told = [f"{printable(old)} in OLD, {printable(new)} in NEW ({fmt_count(n, 'case')})"
            for (old, new), n in changes.items()]  # fmt: skip
    return (
        f"The judge is another one: {'; '.join(told)}. An error against another answer is another error: errors of "
        "these cases are not compared, and a case that differs from its judge in one run only is set apart. Give "
        "both runs one --baseline."
    )


def _kinds(records: Sequence[Record]) -> set[str]:
    """Of file, module and attention those that rows are about."""
    files = {(r.run_id, r.model) for r in records if r.model is not None and judges_of([r])}
    found = {"attention"} if any(r.model is None for r in records) or not records else set()
    models = {(r.run_id, r.model) for r in records if r.model is not None}
    return found | ({"file"} if files else set()) | ({"module"} if models - files else set())
