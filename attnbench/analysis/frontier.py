"""The longest T whose peak memory fits a budget, by the law of the arm."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from attnbench.analysis.arm_laws import ArmLaws, memory_bytes
from attnbench.analysis.groups import Panel
from attnbench.analysis.laws import Estimate

MAX_X = 1 << 30  # beyond it nothing is said


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """How long T may get for one arm under one budget."""

    arm: str
    budget_bytes: int
    at: Estimate | None  # x, whole numbers, rounded down; None: `reason` says why
    is_extrapolated: bool  # the law says it beyond the x that were measured
    fits: int | None  # the largest measured x that fits
    fails: int | None  # the smallest measured x that does not, or ran out of memory
    reason: str


def frontiers(panel: Panel, laws: dict[str, ArmLaws], budget_bytes: int) -> list[Frontier]:
    """A frontier per arm of the panel, in its order."""
    return [_frontier(panel, arm, laws[arm], budget_bytes) for arm in panel.arms]


def _frontier(panel: Panel, arm: str, laws: ArmLaws, budget_bytes: int) -> Frontier:
    fits, fails = None, None
    for x, record in zip(panel.xs, panel.row(arm), strict=True):
        peak = None if record is None else memory_bytes(record)
        if record is not None and (record.status == "oom" or (peak is not None and peak > budget_bytes)):
            fails = x if fails is None else fails
        elif peak is not None and fails is None:
            fits = x
    law, at = laws.memory, None
    if law is not None:
        at = Estimate(
            _longest(lambda x: law.at(x).high, budget_bytes),
            _longest(lambda x: law.at(x).mid, budget_bytes),
            _longest(lambda x: law.at(x).low, budget_bytes),
        )
    return Frontier(
        arm=arm, budget_bytes=budget_bytes, at=at, is_extrapolated=law is not None and at is not None
        and not law.is_inside(at.mid), fits=fits, fails=fails, reason=laws.memory_reason,
    )  # fmt: skip


def _longest(peak: Callable[[int], float], budget_bytes: int) -> float:
    """The largest whole x with peak(x) within the budget, 0 where none is, infinite beyond MAX_X.

    The first crossing counts: the lower end of an interval far outside the data may turn down again.
    """
    below, above = 0, 1
    while peak(above) <= budget_bytes:
        below, above = above, above * 2
        if above > MAX_X:
            return math.inf
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if peak(middle) <= budget_bytes else (below, middle)
    return float(below)
