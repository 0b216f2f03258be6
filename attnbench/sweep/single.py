"""Exporting one problem to one verified file, outside a run."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from attnbench import plugins
from attnbench.errors import InputError
from attnbench.interfaces import Artifact
from attnbench.measure import environment
from attnbench.problem import Problem
from attnbench.sweep import grid
from attnbench.sweep.artifacts import artifact_from_dict
from attnbench.sweep.bench import Bench
from attnbench.sweep.rundir import RunDirectory
from attnbench.sweep.workers import ForkServers


def export(
    *,
    exporter: str,
    problem: Problem,
    opset: int | None,
    seed: int,
    out: Path,
) -> Artifact:
    """Export into a private folder, verify there, then move to `out`: a failure leaves nothing at `out`.

    Raises:
        InputError: a wrong value or an output that cannot be written.
        AttnbenchError: unavailable, unsupported, or the named error of the export or its verification.
    """
    plugins.find("exporter", exporter)
    sweep = grid.Sweep(exporters=(exporter,), seed=seed, time_budget_s=None)
    runtimes = [name for name in plugins.runtimes() if name != "null"]
    env, _ = environment.scrubbed_environment(1)
    try:
        folder = tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-")
    except OSError as err:
        raise InputError(f"cannot write to {str(out.parent)!r}: {err.strerror}; name another file") from err
    with folder, ForkServers(env) as servers:
        run_dir = RunDirectory.create(Path(folder.name))
        bench = Bench(
            sweep=sweep, threads=1, arms=[], run_dir=run_dir, servers=servers, run_id="export",
            runtime_probes=plugins.probe_all("runtime", runtimes),
            exporter_probes=plugins.probe_all("exporter", [exporter]),
        )  # fmt: skip
        offered = bench.exporter_probes[exporter].traits.get("opsets", ())
        if opset is not None and offered and opset not in offered:
            raise InputError(f"{exporter} writes opset {', '.join(map(str, offered))}, got {opset}; name one of them")
        exported = bench.exported(grid.Arm(exporter=exporter, runtime="", opset=opset), problem)
        assert exported is not None
        artifact = artifact_from_dict(exported.artifact)
        assert artifact is not None
        for made in sorted(artifact.path.parent.iterdir(), key=lambda made: made == artifact.path):
            # External data keeps its name, which the file refers to, and goes first: the file is never without it.
            shutil.move(made, out if made == artifact.path else out.parent / made.name)
    return replace(artifact, path=out, verified=exported.verified)
