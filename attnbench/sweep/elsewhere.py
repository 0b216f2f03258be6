"""Other interpreters in a run: what they must have in common with this one, and with themselves when a run goes on."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnbench import inputs, interpreters
from attnbench.errors import AttnbenchError, RecordsError
from attnbench.interfaces import Probe
from attnbench.sweep.bench import Bench


def check_interpreters(bench: Bench) -> dict[str, Probe]:
    """Start a worker under every other interpreter and have it draw inputs; those that cannot become unavailable.

    The judge draws the inputs of a case here, a worker there: where the two differ, nothing could be compared.

    Returns:
        The probes of those that cannot be used.
    """
    refused: dict[str, Probe] = {}
    for name, probe in bench.runtime_probes.items():
        if probe.available and interpreters.TRAIT in probe.traits:
            reason = _why_unusable(bench, name, probe.traits[interpreters.TRAIT])
            refused |= {name: replace(probe, available=False, reason=reason)} if reason else {}
    bench.runtime_probes = {**bench.runtime_probes, **refused}
    return refused


def _why_unusable(bench: Bench, runtime: str, interpreter: Mapping[str, Any]) -> str:
    python, version = interpreter["python"], interpreter["versions"].get("numpy", "")
    try:
        with bench.worker(bench.server("runtime", runtime), f"start-{interpreters.base(runtime)}") as worker:
            found = worker.ask("attnbench.inputs:fingerprint", timeout_s=60.0)
    except AttnbenchError as err:
        return f"no worker starts in {python}: {err}"
    if found == inputs.fingerprint():
        return ""
    return (
        f"NumPy {version} in {python} draws other inputs than NumPy {np.__version__} here, so nothing could be "
        f"compared: run {shlex.quote(python)} -m pip install numpy=={np.__version__}"
    )


def refuse_changed(path: Path, runtimes: Mapping[str, Mapping[str, Any]]) -> None:
    """Other interpreters must be what they were when the run of `path` began; `runtimes` is of its manifest.

    Raises:
        RecordsError: one is gone, or has other versions.
    """
    rows = [row[interpreters.TRAIT] for row in runtimes.values() if interpreters.TRAIT in row]
    for old in {row["python"]: row for row in rows}.values():
        try:
            new = asdict(interpreters.describe(old["python"]))
        except AttnbenchError as err:
            raise RecordsError(f"{str(path)!r} ran with {old['python']} too, but {err}; or start a new run") from err
        was, now = ({"Python": found["python_version"], **found["versions"]} for found in (old, new))
        for name in [*was, *now]:
            if was.get(name) != now.get(name):
                raise RecordsError(
                    f"{str(path)!r} ran with {name} {was.get(name, '(none)')} in {old['python']}, installed there is "
                    f"{now.get(name, 'none')}: start a new run"
                )
