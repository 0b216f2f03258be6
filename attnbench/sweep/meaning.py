"""Does an arm mean the same attention? The probes of a problem's features, before anything is timed."""

from attnbench.probes import Probe, feature_probes
from attnbench.problem import Problem
from attnbench.sweep import precision
from attnbench.sweep.bench import Bench
from attnbench.sweep.cases import Case
from attnbench.sweep.workers import ReportedError, Worker


def refuse_another_meaning(bench: Bench, case: Case, worker: Worker) -> None:
    """Decide `mismatch` where an arm does not conform for the mask, alignment or heads of the problem.

    Asked once per arm and file: what a file means does not depend on T.

    Raises:
        AttnbenchError: the worker died or hung, or the runtime refuses in its own words.
    """
    assert isinstance(case.problem, Problem)
    key = (case.arm.label, case.problem.static_key())
    if key not in bench.meanings:
        is_wide = case.problem.dtype == "fp32" and precision.admits_tf32(bench.settings(case.arm))
        like = precision.LIKE_TF32 if is_wide else ""
        faults = (_fault(worker, probe, bench.sweep.timeout_s, like) for probe in feature_probes(case.problem))
        bench.meanings[key] = next(filter(None, faults), "")
    if bench.meanings[key]:
        case.decide("mismatch", f"does not conform: {bench.meanings[key]}")


def _fault(worker: Worker, probe: Probe, timeout_s: float, limit_of: str) -> str:
    """What is wrong; empty where nothing is. limit_of: as `Tasks.probe`."""
    where = f"probe {probe.name} at {probe.problem.label()}"
    try:
        found = worker.ask("probe", timeout_s=timeout_s, limit_of=limit_of, **probe.fields)
    except ReportedError as err:
        return f"{err} ({where})"
    if found["ok"]:
        return ""
    numbers = f": {found['got']} where {found['expected']} is right" if found["got"] else ""
    return f"{found['how']} ({where}{numbers})"
