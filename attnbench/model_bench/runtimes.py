"""Which runtimes can run a model of the user at all, found before anything is written or run."""

from collections.abc import Mapping

from attnbench import plugins
from attnbench.errors import InputError
from attnbench.interfaces import Probe

NEVER_TIMED = "is never timed, and attnbench conform checks it on the built-in attention only"
_NULL = "null"  # computes nothing


def why_not(name: str, probe: Probe, kind: str) -> str:
    """Why a runtime runs no model of this kind (onnx, module), as what follows its name; empty: it may."""
    if name == _NULL:
        return "computes nothing"
    if probe.traits.get("checks_only"):
        return NEVER_TIMED
    if kind == "onnx" and not probe.traits.get("takes_artifact", True):
        return "runs modules of torch, and the model is an ONNX file"
    return ""


def require_one(probes: Mapping[str, Probe], kind: str) -> None:
    """Of the runtimes that were named, one may run the model; the others get a row that says why they do not.

    Args:
        probes: of the runtimes of the run.
        kind: of the model: onnx, module.

    Raises:
        InputError: none may, with those that are there.
    """
    reasons = {name: why_not(name, probe, kind) for name, probe in probes.items()}
    if not all(reasons.values()):
        return
    told = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
    what = "ONNX files" if kind == "onnx" else "modules"
    here = [name for name, probe in plugins.probe_all("runtime").items()
            if probe.available and not probe.compiles_only and not why_not(name, probe, kind)]  # fmt: skip
    raise InputError(f"--runtimes: {told}; runtimes here that run {what}: {', '.join(here) or 'none, see doctor'}")
