"""On which device every runtime of a sweep runs: `auto`, `cpu` or one CUDA device for all that have the choice."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

from attnbench.errors import InputError, UnavailableError
from attnbench.interfaces import Probe

AUTO, CPU = "auto", "cpu"
GpuWorkers = Literal["auto", "parked", "one-at-a-time"]  # how workers share a GPU; see `gpu_workers`
GPU_WORKERS: tuple[str, ...] = get_args(GpuWorkers)
_, PARKED, ONE_AT_A_TIME = GPU_WORKERS
_NAME = re.compile(r"auto|cpu|cuda:[0-9]{1,3}")


def check_name(device: str) -> str:
    """`auto`, `cpu`, `cuda:0`; `cuda` is its first.

    Raises:
        InputError: another name.
    """
    device = "cuda:0" if device == "cuda" else device
    if not _NAME.fullmatch(device):
        raise InputError(f"device must be auto, cpu, or a CUDA device such as cuda:0, got {device!r}")
    return device


def choose(asked: str, probes: Mapping[str, Probe]) -> tuple[dict[str, str], dict[str, Probe]]:
    """The device of every runtime, and the probes, where those that cannot do what was asked are unavailable.

    A runtime of one kind of device only (ort-cpu, openvino, ort-cuda) runs there, whatever is asked of the others.

    Args:
        asked: auto: the device that each runtime prefers. cpu, cuda:N: this one for all that have the choice.
        probes: of the runtimes of the sweep.

    Raises:
        UnavailableError: a CUDA device was asked by name, and no runtime of the sweep has it.
    """
    if asked in (AUTO, CPU):
        return {name: asked if asked in p.devices else p.devices[0] for name, p in probes.items()}, dict(probes)
    refused = {name: _why_not(asked, probe) for name, probe in probes.items()}
    without = [f"{name}: {why}" for name, why in refused.items() if why]
    without += [f"{name} is unavailable: {probe.reason}" for name, probe in probes.items() if not probe.available]
    if not any(probe.available and asked in probe.devices for probe in probes.values()):
        reasons = "; ".join(without) or f"none of {', '.join(probes)} runs on one"
        raise UnavailableError(f"device {asked} was asked, there is none here: {reasons}; leave --device out")
    chosen = {name: asked if asked in probe.devices else probe.devices[0] for name, probe in probes.items()}
    return chosen, {
        name: replace(probe, available=False, reason=refused[name], fix="") if refused[name] else probe
        for name, probe in probes.items()
    }


def _why_not(asked: str, probe: Probe) -> str:
    """Why a runtime that could use a CUDA device has not the one asked; empty where it has it, or uses none at all."""
    if not probe.available or asked in probe.devices:
        return ""
    cuda = [name for name in probe.devices if name.startswith("cuda")]
    return probe.no_cuda or (f"it has {', '.join(cuda)}, not {asked}" if cuda else "")
