"""One case of a run by what a person types, and the problem that its row is about."""

from collections.abc import Sequence

from attnbench.errors import InputError, RecordsError
from attnbench.problem import Problem
from attnbench.records import Record

_MOST_NAMED = 6
_FIELDS = (
    "part", "variant", "batch_size", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "dtype", "mask",
)  # fmt: skip


def find_case(records: Sequence[Record], text: str) -> Record:
    """The row of a case_id, of the beginning of one, or of `ARM:VARIANT:T` such as `torch-sdpa:causal:512`.

    Raises:
        InputError: no such case, or several.
    """
    arm, _, place = text.rpartition(":")[0].partition(":")
    if place:
        found = [r for r in records if (r.arm, r.variant, length(r)) == (arm, place, text.rpartition(":")[2])]
    else:
        found = [r for r in records if text and r.case_id.startswith(text.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(f"{r.case_id} ({problem_of(r).label()})" for r in found[:_MOST_NAMED])
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise InputError(f"CASE {text!r} means {len(found)} cases: {named}{more}; name one by its case_id")
    example = f"; for example {records[0].case_id} or {short_name(records[0])}" if records else "; the run has no case"
    raise InputError(f"CASE must be a case_id, its beginning, or ARM:VARIANT:T, got {text!r}{example}")


def length(r: Record) -> str:
    """T as a person types it: q_len, or the tokens after a decode step."""
    return str(r.kv_len if r.variant == "decode" else r.q_len)


def short_name(r: Record) -> str:
    """`ARM:VARIANT:T`; several cases may share it."""
    return f"{r.arm}:{r.variant}:{length(r)}"


def problem_of(record: Record) -> Problem:
    """The problem that a row is about.

    Raises:
        RecordsError: the row's fields are not those of its problem_id.
    """
    fields = {name: getattr(record, name) for name in _FIELDS}
    fields |= {"v_head_dim": record.v_head_dim or record.head_dim, "bias": bool(record.bias)}
    fields |= {"value_map": record.value_map or "joint"}
    for scale in (None, record.scale):
        problem = Problem.from_dict({**fields, "given_scale": scale})
        if problem.problem_id == record.problem_id:
            return problem
    raise RecordsError(
        f"case {record.case_id}: its fields are not those of problem {record.problem_id}; restore the run"
    )
