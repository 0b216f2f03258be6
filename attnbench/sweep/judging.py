"""In a worker: outputs of a session beside the reference's, for the built-in attention and for a model of the user."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

from attnbench.errors import AttnbenchError, NotRunError
from attnbench.inputs import make_inputs
from attnbench.interfaces import Array, ModelSession, Session, numpy_dtype
from attnbench.measure import caches, numerics
from attnbench.model_problem import FLOATS, AnyProblem, ModelProblem, TensorSpec
from attnbench.problem import Problem

_EARLY = 0.05  # an output that is nearer than this before the call was computed before the call


class WrongOutputError(AttnbenchError):
    """The output has another shape or dtype than the problem's, or a decode step gave a wrong cache."""


class DishonestError(AttnbenchError):
    """The timed call does not do the work: it was done ahead, or its result was remembered."""


class Judge(Protocol):
    """What a reference says of the outputs that a session has now."""

    def answer(self) -> dict[str, Any]:
        """{"agreement": ..., "output": name of the output that it is about, None: `y`}.

        Raises:
            WrongOutputError: no number can say how wrong it is.
            NotRunError: no call has run.
        """
        ...


def refuse_early_output(judge: Judge) -> None:
    """What is bound, and not yet called, must not have the outputs that the call is to compute.

    Raises:
        DishonestError: the output was right before the call.
        WrongOutputError: as `Judge.answer`.
    """
    try:
        found = judge.answer()
    except NotRunError:
        return
    if found["agreement"]["worst_row_rel_err"] < _EARLY:
        raise DishonestError(
            "the output was right before the timed call ran: bind() or outputs() does the work; "
            "compute in the call that bind() returns"
        )


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a session has bound."""

    target: AnyProblem
    input_class: str
    seed: int  # of the inputs
    weights_seed: int


def make_judge(
    session: Session | ModelSession,
    bound: Bound,
    reference: str,
    rows: list[int] | None,
    limits: Mapping[str, Mapping[str, Any]] | None,
) -> Judge:
    """The judge of a problem of either kind.

    Args:
        session: that is asked for its outputs.
        bound: what it has bound.
        reference: the file of what is expected.
        rows: of attention, the query positions that are in it; None: all.
        limits: of a model, by output.
    """
    if isinstance(bound.target, ModelProblem):
        return ModelJudge(cast(ModelSession, session), bound.target, reference, limits or {})
    return AttentionJudge(cast(Session, session), bound.target, bound, reference, rows)


class AttentionJudge:
    """Of `y`, and of the cache where there is one."""

    def __init__(self, session: Session, target: Problem, bound: Bound, reference: str, rows: list[int] | None) -> None:
        self._session, self._target, self._bound, self._rows = session, target, bound, rows
        self._expected = np.load(reference, mmap_mode="r")

    def answer(self) -> dict[str, Any]:
        """See `Judge`."""
        agreement = numerics.compare(self._output(), self._expected)
        self._refuse_wrong_cache()
        return {"agreement": asdict(agreement), "output": None}

    def _output(self) -> Array:
        output = self._session.outputs()
        shape = self._target.output_shape()
        if output.shape != shape:
            raise WrongOutputError(f"the output has shape {output.shape}, the problem's is {shape}")
        if output.dtype != numpy_dtype(self._target.dtype):
            raise WrongOutputError(f"the output is {output.dtype}, the problem's dtype is {self._target.dtype}")
        return output if self._rows is None else output[..., self._rows, :]

    def _refuse_wrong_cache(self) -> None:
        if self._target.variant == "decode":
            inputs = make_inputs(self._target, seed=self._bound.seed, input_class=self._bound.input_class)
            fault = caches.session_fault(self._session, self._target, inputs, seed=self._bound.weights_seed)
            if fault:
                raise WrongOutputError(fault)


class ModelJudge:
    """Of every output of a model; the answer is about the one that is nearest to its limit, or furthest beyond."""

    def __init__(
        self, session: ModelSession, target: ModelProblem, path: str, limits: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._session, self._target, self._path, self._limits = session, target, path, limits

    def answer(self) -> dict[str, Any]:
        """See `Judge`."""
        found = dict(self._session.outputs_by_name())
        promised = list(self._target.output_dims())
        if list(found) != promised:
            raise WrongOutputError(f"the outputs are {', '.join(found) or 'none'}, the model's {', '.join(promised)}")
        judged = []
        with np.load(self._path, allow_pickle=False) as expected:
            for spec in self._target.outputs:
                agreement = compare_output(spec, found[spec.name], expected[spec.name])
                judged.append((self._share(spec, agreement), spec.name, agreement))
        _, name, agreement = max(judged, key=lambda entry: entry[0])
        return {"agreement": asdict(agreement), "output": name}

    def _share(self, spec: TensorSpec, agreement: numerics.Agreement) -> float:
        """Error over limit: infinite for NaN; of integers, which must be equal and here are, nothing."""
        if spec.dtype not in FLOATS:
            return 0.0
        limits = numerics.Limits(**self._limits[spec.name])
        is_right, _ = numerics.judge_agreement(agreement, limits)
        share = agreement.worst_row_rel_err / limits.worst_row if limits.worst_row else 0.0
        return share if is_right else max(2.0, np.nan_to_num(share, nan=np.inf))


def compare_output(spec: TensorSpec, found: Array, due: Array) -> numerics.Agreement:
    """One output beside the reference's; floats by rows, integers and booleans exactly.

    Raises:
        WrongOutputError: another dtype or shape, or an integer or boolean that differs.
    """
    if found.dtype != numpy_dtype(spec.dtype):
        raise WrongOutputError(f"output {spec.name} is {found.dtype}, the model's is {spec.dtype}")
    if found.shape != due.shape:
        raise WrongOutputError(f"output {spec.name} has shape {found.shape}, the reference's has {due.shape}")
    if found.size == 0:
        return _NOTHING
    found, due = np.atleast_1d(found), np.atleast_1d(due)
    if spec.dtype in FLOATS:
        return numerics.compare(found, due)
    if (count := int((found != due).sum())) > 0:
        index = tuple(int(axis[0]) for axis in np.nonzero(found != due))
        raise WrongOutputError(
            f"output {spec.name}: {count} of {found.size} {'booleans' if spec.dtype == 'bool' else 'integers'} differ "
            f"from the reference's, the first at {index}: {found[index]}, there it is {due[index]}"
        )
    return replace(_NOTHING, rows=found.size // found.shape[-1])


_NOTHING = numerics.Agreement(
    worst_row_rel_err=0.0, worst_row_index=0, rel_fro_err=0.0, max_abs_err=0.0, gain_err=0.0, nan_count=0,
    reference_nan_count=0, both_nan_count=0, inf_mismatch_count=0, rows=1,
)  # fmt: skip
