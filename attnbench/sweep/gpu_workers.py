"""Do workers wait on a GPU together, or does each have it alone? `parked` or `one-at-a-time`.

Parked workers are visited in turn within milliseconds, which cancels most drift; but each holds a context, and what its
runtime keeps, while the others are timed. One at a time, a worker is started, checked, warmed and timed for the visits
of one round, and ended before the next arm's begins: a round is then a pass over fresh workers, still in random order,
and ratios pair what lies seconds to minutes apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.errors import MeasurementError
from attnbench.measure import roofline
from attnbench.measure.cuda_driver import Gpu
from attnbench.measure.nvml import DeviceMonitor
from attnbench.model_problem import AnyProblem, ModelProblem
from attnbench.sweep import device_arms
from attnbench.sweep.arm import Arm
from attnbench.sweep.device_tasks import EXCLUSIVE
from attnbench.sweep.devices import AUTO, ONE_AT_A_TIME, PARKED
from attnbench.sweep.model_sizes import tensor_bytes
from attnbench.sweep.plan import OTHER_SCORE_MATRICES, SCORE_MATRICES

CONTEXT_BYTES = 600 << 20  # of CUDA and its libraries in one process, taken high: not measured
COARSER = "a round is a pass over fresh workers, so ratios pair what lies seconds to minutes apart: coarser than parked"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which way the workers of a run use a GPU, and why."""

    asked: str
    mode: str  # parked, one-at-a-time
    reason: str

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader of the results has to know; nothing of parked workers."""
        return (f"workers have the GPU {self.mode} ({self.reason}): {COARSER}",) if self.mode == ONE_AT_A_TIME else ()

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {"asked": self.asked, "mode": self.mode, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a device tells before anything runs on it; None where it does not."""

    compute_mode: str | None = None
    free_bytes: int | None = None
    why_unknown: str = ""


def look_at(device: str) -> Seen:
    """Compute mode and free memory of `cuda:0`, without joining it: in an exclusive mode that would take it."""
    try:
        monitor = DeviceMonitor(Gpu(device).uuid())
        return Seen(compute_mode=monitor.compute_mode(), free_bytes=monitor.free_bytes())
    except MeasurementError as err:
        return Seen(why_unknown=str(err))


def choose(
    asked: str, problems: Sequence[AnyProblem], arms: Sequence[Arm], devices: Mapping[str, str], baseline: str
) -> Choice | None:
    """The way of a run; None where no arm runs on a GPU.

    Args:
        asked: one of `devices.GPU_WORKERS`; auto: one at a time where a device is in an exclusive compute mode, or
            where all parked workers of a problem are predicted to hold more than what is free on it.
        problems: of the run.
        arms: of the run, those of each way of timing too.
        devices: of every runtime.
        baseline: the label of the arm that has two workers.
    """
    on_gpu = [arm for arm in arms if arm.on_gpu and not arm.compiles_only]
    if not on_gpu:
        return None
    if asked != AUTO:
        return Choice(asked=asked, mode=asked, reason="as asked")
    baselines = {device_arms.baseline_of(arm, arms, baseline) for arm in on_gpu}
    told = []
    for device in dict.fromkeys(devices[arm.runtime] for arm in on_gpu):
        here = [arm for arm in on_gpu if devices[arm.runtime] == device]
        workers = [*here, *(arm for arm in here if arm.label in baselines)]
        is_too_much, reason = _judged(device, look_at(device), problems, workers)
        if is_too_much:
            return Choice(asked=asked, mode=ONE_AT_A_TIME, reason=reason)
        told.append(reason)
    return Choice(asked=asked, mode=PARKED, reason="; ".join(told))


def _judged(device: str, seen: Seen, problems: Sequence[AnyProblem], workers: Sequence[Arm]) -> tuple[bool, str]:
    """Is a device too small or too jealous for all workers at once? With the figures."""
    if seen.compute_mode in EXCLUSIVE:
        return True, f"{device} is in compute mode {seen.compute_mode}, which admits one process"
    if seen.free_bytes is None:
        return False, f"free memory of {device} is not known: {seen.why_unknown or 'this GPU does not tell it'}"
    largest = max(problems, key=lambda problem: parked_bytes(problem, workers))
    wanted = parked_bytes(largest, workers)
    figures = (
        f"{len(workers)} workers on {device} are predicted to hold {wanted / 2**30:.1f} GiB at {largest.label()}, "
        f"{seen.free_bytes / 2**30:.1f} GiB are free"
    )
    return wanted > seen.free_bytes, figures


def parked_bytes(problem: AnyProblem, workers: Sequence[Arm]) -> int:
    """Predicted device memory of workers that are parked together: contexts, tensors, and the scores that they keep.

    By the score matrices of `plan`. What a model holds within a call is not known: of it this is the least.
    """
    if isinstance(problem, ModelProblem):
        return len(workers) * (CONTEXT_BYTES + 2 * tensor_bytes(problem))
    scores = sum(SCORE_MATRICES.get(arm.plugin, OTHER_SCORE_MATRICES) for arm in workers) * problem.score_bytes()
    return int(scores) + len(workers) * (CONTEXT_BYTES + 2 * int(roofline.bytes_min(problem)))
