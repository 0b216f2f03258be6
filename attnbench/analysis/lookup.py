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
        named = ", ".join(f"{r.case_id} ({label_of(r)})" for r in found[:_MOST_NAMED])
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise InputError(f"CASE {text!r} means {len(found)} cases: {named}{more}; name one by its case_id")
    example = f"; for example {records[0].case_id} or {short_name(records[0])}" if records else "; the run has no case"
    raise InputError(f"CASE must be a case_id, its beginning, or ARM:VARIANT:T, got {text!r}{example}")


def length(r: Record) -> str:
    """T as a person types it: q_len, or the tokens after a decode step; `-` of a model of which no size is swept."""
    length = r.kv_len if r.variant == "decode" else r.q_len
    return "-" if length is None else str(length)


def short_name(r: Record) -> str:
    """`ARM:VARIANT:T`; several cases may share it."""
    return f"{r.arm}:{r.variant}:{length(r)}"


def label_of(record: Record) -> str:
    """What a row is about, for people: `block self B=1 ...`, or `encoder.onnx batch=8 seq=128 fp32`."""
    if record.model is None:
        return problem_of(record).label()
    sizes = (f"{dim}={size}" for dim, size in record.sizes.items())
    return " ".join([record.model, *sizes, record.dtype])


def problem_of(record: Record) -> Problem:
    """The problem of the built-in attention that a row is about.

    Raises:
        InputError: it is about a model of the user.
        RecordsError: the row's fields are not those of its problem_id.
    """
    if record.model is not None:
        raise InputError(
            f"case {record.case_id} is of the model {record.model!r}, and only cases of the built-in attention can be "
            "packed as inputs and expected output; the model's file is in artifacts/ of the run"
        )
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
