"""A whole conformance run: which arms, in which scratch folder, with which workers."""

import errno
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbench import plugins
from attnbench.errors import AttnbenchError, InputError
from attnbench.interfaces import Probe as Available
from attnbench.measure import environment
from attnbench.probes import all_probes
from attnbench.sweep import grid, onnx_cases
from attnbench.sweep.bench import Bench
from attnbench.sweep.conform import Cell, Conforming, ProbeArm
from attnbench.sweep.rundir import FOLDERS, RunDirectory
from attnbench.sweep.workers import ForkServers

ALL_OPSETS, FIRST_OPSET = "all", "first"


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All cells, and with what they were found."""

    cells: Sequence[Cell]
    versions: Mapping[str, str]  # plug-in -> version of what is behind it
    notices: Sequence[str]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """As JSON: one row per cell."""
        rows = []
        for cell in self.cells:
            fields = asdict(cell)
            arm = fields.pop("arm")
            rows.append({"arm": cell.arm.label, **arm, **fields})
        return {
            "versions": dict(self.versions), "seconds": round(self.seconds, 1), "notices": list(self.notices),
            "cells": rows,
        }  # fmt: skip

    @property
    def exit_code(self) -> int:
        """0: nothing differs; 1: something does; 3: nothing could run."""
        found = {cell.verdict for cell in self.cells}
        if "differs" in found:
            return 1
        return 0 if "conforms" in found else 3


def conform(
    *,
    exporters: Sequence[str] | None,
    runtimes: Sequence[str] | None,
    opsets: Sequence[int] | str,
    say: Callable[[str], object],
) -> Matrix:
    """Run every probe on every exporter x opset x runtime, and onnx's own cases on every runtime that takes files.

    Args:
        exporters: names; None: all that are installed.
        runtimes: names; None: those that are not opt-in, and onnx-reference.
        opsets: numbers, `all` that an exporter writes, or its `first`.
        say: told what goes on.

    Raises:
        InputError: no exporter writes any of the opsets.
        AttnbenchError: the workers cannot be started, or the temporary folder is full.
    """
    start = time.monotonic()
    probed = plugins.probe_all("runtime", runtimes)
    if runtimes is None:
        probed = {name: probe for name, probe in probed.items() if _is_usual(name, probe)}
    writers = plugins.probe_all("exporter", exporters)
    check_opsets(writers, opsets)
    arms = make_arms(writers, probed, opsets)
    env, _ = environment.scrubbed_environment(1)
    with scratch_folder() as folder, ForkServers(env) as servers:
        run_dir = RunDirectory(folder)
        for name in (*FOLDERS, run_dir.work_path.name):
            (run_dir.path / name).mkdir()
        bench = Bench(
            sweep=grid.Sweep(time_budget_s=None), threads=1, arms=[], run_dir=run_dir, servers=servers,
            run_id="conform", runtime_probes=probed, exporter_probes=writers,
        )  # fmt: skip
        cells = Conforming(bench=bench, probes=all_probes(), arms=arms, say=say).run()
        takers = [name for name, probe in probed.items() if probe.traits.get("takes_artifact", True)]
        takers = [name for name in takers if name != "null"]
        more, notices = onnx_cases.run(bench, takers, say)
    versions = {name: probe.version for name, probe in {**writers, **probed}.items() if probe.version}
    notices = [*unwritten_opsets(writers, opsets), *notices]
    return Matrix(cells=[*cells, *more], versions=versions, notices=notices, seconds=time.monotonic() - start)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder for files and logs.

    Raises:
        AttnbenchError: its disk is full.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="attnbench-conform-") as folder:
            yield Path(folder)
    except OSError as err:
        if err.errno != errno.ENOSPC:
            raise
        where = tempfile.gettempdir()
        raise AttnbenchError(f"no space is left in {where!r} for what conform writes; free some or set TMPDIR") from err


def _is_usual(name: str, probe: Available) -> bool:
    return name != "null" and (not probe.traits.get("opt_in") or bool(probe.traits.get("checks_only")))


def check_opsets(writers: Mapping[str, Available], opsets: Sequence[int] | str) -> None:
    """At least one exporter writes one of the opsets that were asked, or does not tell which it writes.

    Raises:
        InputError: none does.
    """
    offered = {name: sorted(writer.traits.get("opsets", ())) for name, writer in writers.items()}
    if isinstance(opsets, str) or not offered or any(not has or set(has) & set(opsets) for has in offered.values()):
        return
    told = "; ".join(f"{name} writes {', '.join(map(str, has))}" for name, has in offered.items())
    raise InputError(f"--opsets {','.join(map(str, opsets))} is of no exporter of the selection: {told}")


def unwritten_opsets(writers: Mapping[str, Available], opsets: Sequence[int] | str) -> list[str]:
    """A sentence for every exporter that was asked for an opset it does not write."""
    sentences = []
    for exporter, writer in writers.items():
        offered = writer.traits.get("opsets", ())
        missing = [] if isinstance(opsets, str) else [opset for opset in opsets if opset not in offered]
        if missing and offered:
            asked, has = (", ".join(map(str, numbers)) for numbers in (missing, sorted(offered)))
            sentences.append(f"{exporter} does not write opset {asked}; it writes {has}")
    return sentences


def make_arms(
    writers: Mapping[str, Available], runtimes: Mapping[str, Available], opsets: Sequence[int] | str
) -> list[ProbeArm]:
    """Torch arms first, then every exporter and opset on every runtime that takes files.

    An exporter that cannot be asked for its opsets has one column, whose cells say why.
    """
    arms = [
        ProbeArm(exporter=grid.TORCH, opset=None, runtime=name)
        for name, probe in runtimes.items()
        if not probe.traits.get("takes_artifact", True)
    ]
    for exporter, writer in writers.items():
        offered = tuple(writer.traits.get("opsets", ())) or (0,)
        asked = {ALL_OPSETS: sorted(offered), FIRST_OPSET: offered[:1]}[opsets] if isinstance(opsets, str) else opsets
        arms += [
            ProbeArm(exporter=exporter, opset=opset, runtime=name)
            for opset in asked
            for name, probe in runtimes.items()
            if probe.traits.get("takes_artifact", True)
        ]
    return arms
