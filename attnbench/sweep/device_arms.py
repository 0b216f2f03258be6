"""Arms that are timed by a GPU's own clock, beside the same arms timed by the host.

`torch-sdpa[scope=device]` is `torch-sdpa` between events on its stream, `[scope=device;l2=cold]` with the L2 cache
written over before each call. Each way of timing has a baseline and a rotation of its own: no ratio crosses.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from attnbench.errors import InputError
from attnbench.sweep import runtime_options
from attnbench.sweep.grid import Arm
from attnbench.sweep.rounds import Lane

DEVICE_SCOPE = ("scope", "device")


def with_scopes(arms: Sequence[Arm], baseline: str, devices: Mapping[str, str]) -> list[Arm]:
    """The arms, each on a GPU a second time by its clock unless only that was asked; baselines of each way first.

    Args:
        arms: as asked; options of timing are among their options.
        baseline: the label of one of them.
        devices: that every runtime will run on, such as `cuda:0`.

    Raises:
        InputError: an option of timing for an arm that runs on the CPU.
    """
    found: list[Arm] = []
    for arm in arms:
        chosen = timing_of(arm)
        if not devices[arm.runtime].startswith("cuda"):
            if chosen:
                raise InputError(
                    f"{arm.label} runs on {devices[arm.runtime]}, which has no clock of its own: leave out "
                    f"{', '.join(f'{name}={value}' for name, value in chosen)}"
                )
            found.append(arm)
        else:
            found += [] if DEVICE_SCOPE in chosen else [timed_as(arm, ())]
            found.append(timed_as(arm, tuple(dict.fromkeys([DEVICE_SCOPE, *chosen]))))
    base = next(arm for arm in arms if arm.label == baseline)
    ways = dict.fromkeys(timing_of(arm) for arm in found)
    if devices[base.runtime].startswith("cuda"):
        found = [*(timed_as(base, way) for way in ways), *found]
    return list(dict.fromkeys(found))


def timing_of(arm: Arm) -> runtime_options.Options:
    """The options that say how it is timed; none: by the host."""
    return tuple(option for option in arm.options if option[0] in runtime_options.TIMING)


def timed_as(arm: Arm, way: runtime_options.Options) -> Arm:
    """The same arm timed another way."""
    return replace(arm, options=(*runtime_options.of_runtime(arm.options), *way))


def baseline_of(arm: Arm, arms: Iterable[Arm], baseline: str) -> str:
    """The label of the arm that this one is compared with: the baseline, timed in the same way."""
    base = next((other for other in arms if other.label == baseline), None)
    return baseline if base is None else timed_as(base, timing_of(arm)).label


def rotations(lanes: Sequence[Lane], baseline: Callable[[Lane], str]) -> list[list[Lane]]:
    """Lanes that share a baseline, each with the baseline's first; those of the host come first.

    Only lanes of one way of timing are visited in turn: waiting for events beside calls that the host times would put
    the cost of one into the other.
    """
    found: dict[str, list[Lane]] = {}
    for lane in lanes:
        found.setdefault(baseline(lane), []).append(lane)
    return [sorted(group, key=lambda lane: (lane.arm != name, lane.replica != 0)) for name, group in found.items()]
