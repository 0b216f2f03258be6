"""Every probe on every exporter x opset x runtime, in workers: one cell each, whatever the arm does."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnbench.errors import AttnbenchError, UnavailableError, UnsupportedError, WorkerCrashed, WorkerError
from attnbench.interfaces import Probe as Available
from attnbench.probes import Probe
from attnbench.problem import Problem
from attnbench.sweep.bench import Bench, in_parallel, with_fix
from attnbench.sweep.grid import TORCH
from attnbench.sweep.workers import ReportedError, Worker

Verdict = Literal["conforms", "differs", "refuses", "unsupported"]
VERDICTS: tuple[Verdict, ...] = ("conforms", "differs", "refuses", "unsupported")
ONNX_CASES = "onnx"  # the "exporter" of the files that the onnx package ships
TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ProbeArm:
    """A column: what writes the file and what runs it."""

    exporter: str  # "torch" for runtimes that run the torch block, "onnx" for files of the onnx package
    opset: int | None
    runtime: str

    @property
    def label(self) -> str:
        """`onnx-attention[23]@ort-cpu`, `torch-sdpa`."""
        if self.exporter == TORCH:
            return self.runtime
        return f"{self.exporter}{f'[{self.opset}]' if self.opset else ''}@{self.runtime}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one arm answers to one probe."""

    probe: str
    shows: str
    problem: str
    arm: ProbeArm
    verdict: Verdict
    how: str = ""  # empty only where it conforms
    error: float | None = None  # worst row, relative; None: nothing came, or no number
    limit: float | None = None
    expected: str = ""
    got: str = ""
    words: str = ""  # the library's own, where `how` tells them in a sentence


@dataclass(kw_only=True)
class Conforming:
    """One run over the probes: arms in, cells out."""

    bench: Bench
    probes: Sequence[Probe]
    arms: Sequence[ProbeArm]
    say: Callable[[str], object] = field(default=lambda text: None)
    _cells: dict[tuple[str, ProbeArm], Cell] = field(default_factory=dict)
    _files: dict[tuple[str, int, str], dict[str, Any] | AttnbenchError] = field(default_factory=dict)
    _refusals: dict[tuple[str, int, str], AttnbenchError] = field(default_factory=dict)

    def run(self) -> list[Cell]:
        """A cell for every probe and arm, in their order."""
        self.say(f"{len(self.probes)} probes on {len(self.arms)} arms")
        in_parallel(lambda part: self._export(*part), self._shares(), at_once())
        self.say(f"{len(self._files)} files are written")
        in_parallel(self._run_arm, list(self.arms), at_once())
        cells = [self._cells[probe.name, arm] for probe in self.probes for arm in self.arms]
        assert len(cells) == len(self.probes) * len(self.arms)
        return cells

    def _shares(self) -> list[tuple[str, list[Probe]]]:
        """What each worker writes: an exporter and probes, those of one file together."""
        by_key: dict[str, list[Probe]] = {}
        for probe in self.probes:
            by_key.setdefault(probe.problem.static_key(), []).append(probe)
        exporters = dict.fromkeys(arm.exporter for arm in self.arms if arm.opset is not None)
        groups, count = list(by_key.values()), at_once()
        return [
            (exporter, [probe for group in groups[start::count] for probe in group])
            for exporter in exporters
            for start in range(min(count, len(groups)))
        ]

    def _export(self, exporter: str, probes: Sequence[Probe]) -> None:
        """Write every opset of every distinct problem, problem after problem: exporters keep the trace of the last."""
        opsets = sorted({arm.opset for arm in self.arms if arm.exporter == exporter and arm.opset is not None})
        with Workers(self.bench, "exporter", exporter, self.bench.exporter_probes[exporter]) as workers:
            for probe in probes:
                for opset in opsets:
                    self._export_once(workers, exporter, opset, probe)

    def _export_once(self, workers: "Workers", exporter: str, opset: int, probe: Probe) -> None:
        file = (exporter, opset, probe.problem.static_key())
        try:
            # Support may depend on the lengths, a file does not.
            refuse(workers, exporter, probe.problem, opset=opset)
        except AttnbenchError as err:
            self._refusals[exporter, opset, probe.name] = err
            return
        if file in self._files:
            return
        path = self.bench.run_dir.path / "artifacts" / f"{exporter}-opset{opset}-{file[-1]}.onnx"
        try:
            self._files[file] = self._write(workers, exporter, opset, probe.problem, path)
        except AttnbenchError as err:
            self._files[file] = err

    def _write(self, workers: "Workers", exporter: str, opset: int, problem: Problem, path: Path) -> dict[str, Any]:
        asked = {"exporter": exporter, "problem": problem.as_dict(), "opset": opset, "path": str(path), "seed": 0}
        artifact: dict[str, Any] = workers.ask("export", **asked)["artifact"]
        return artifact

    def _run_arm(self, arm: ProbeArm) -> None:
        by_file: dict[str, list[Probe]] = {}
        for probe in self.probes:
            refusal = self._refusals.get((arm.exporter, arm.opset or 0, probe.name))
            if refusal is None:
                by_file.setdefault(probe.problem.static_key(), []).append(probe)
            else:
                self._put(arm, probe, refusal, f"{arm.exporter}: ")
        with Workers(self.bench, "runtime", arm.runtime, self.bench.runtime_probes[arm.runtime]) as workers:
            for key, probes in by_file.items():
                self._run_file(workers, arm, key, probes)
        self.say(f"{arm.label} has answered")

    def _run_file(self, workers: "Workers", arm: ProbeArm, key: str, probes: Sequence[Probe]) -> None:
        artifact = None
        if arm.opset is not None:
            found = self._files[arm.exporter, arm.opset, key]
            if isinstance(found, AttnbenchError):
                for probe in probes:
                    self._put(arm, probe, found, f"{arm.exporter}: ")
                return
            artifact = found
        loaded: Worker | None = None
        failed: AttnbenchError | None = None
        deaths = 0
        for probe in probes:
            try:
                if failed is not None:
                    raise failed
                if loaded is None or workers.get() is not loaded:
                    try:
                        self._load(workers, arm, probe.problem, artifact)
                    except AttnbenchError as err:
                        deaths += isinstance(err, WorkerCrashed)
                        # Killed once, it may have been from outside; killed twice, this file kills.
                        failed = None if deaths == 1 and isinstance(err, WorkerCrashed) else err
                        raise
                    loaded = workers.get()
                answer = workers.ask("probe", **probe.fields)
            except AttnbenchError as err:
                self._put(arm, probe, err, "")
                continue
            self._cells[probe.name, arm] = cell_of(arm, probe.name, probe.shows, probe.problem.label(), answer)

    def _load(self, workers: "Workers", arm: ProbeArm, problem: Problem, artifact: dict[str, Any] | None) -> None:
        refuse(workers, arm.runtime, problem, artifact=artifact)
        fields = {"runtime": arm.runtime, "problem": problem.as_dict(), "artifact": artifact}
        workers.ask("load", settings=self.bench.settings_of(arm.runtime), **fields)

    def _put(self, arm: ProbeArm, probe: Probe, err: AttnbenchError, prefix: str) -> None:
        cell = failed_cell(arm, probe.name, probe.shows, probe.problem.label(), err, prefix)
        self._cells[probe.name, arm] = cell


class NotOursError(UnsupportedError):
    """The plug-in itself says that it does not do this; not the library's refusal."""


def refuse(
    workers: "Workers",
    plugin: str,
    problem: Problem,
    *,
    opset: int | None = None,
    artifact: dict[str, Any] | None = None,
) -> None:
    """Ask a plug-in before anything is tried.

    Raises:
        NotOursError: it says no; its reason.
    """
    fields = {"plugin": plugin, "problem": problem.as_dict(), "opset": opset, "artifact": artifact}
    support = workers.ask("supports", **fields)
    if not support["ok"]:
        raise NotOursError(support["reason"] or "the plug-in gives no reason")


def cell_of(arm: ProbeArm, probe: str, shows: str, problem: str, answer: Mapping[str, Any]) -> Cell:
    """The cell of an answer that came."""
    numbers = {name: answer[name] for name in ("how", "error", "limit", "expected", "got")}
    verdict: Verdict = "conforms" if answer["ok"] else "differs"
    return Cell(probe=probe, shows=shows, problem=problem, arm=arm, verdict=verdict, **numbers)


def failed_cell(arm: ProbeArm, probe: str, shows: str, problem: str, err: AttnbenchError, prefix: str = "") -> Cell:
    """The cell of an error: what the plug-in does not claim is unsupported, what fails otherwise is refused."""
    is_ours = isinstance(err, NotOursError | UnavailableError)
    how = " ".join(f"{prefix}{err}".split())[:400]
    words = "\n".join(getattr(err, "__notes__", ()))
    verdict: Verdict = "unsupported" if is_ours else "refuses"
    return Cell(probe=probe, shows=shows, problem=problem, arm=arm, verdict=verdict, how=how, words=words)


class Workers:
    """One worker at a time, replaced when it has died or hung."""

    def __init__(self, bench: Bench, kind: Literal["exporter", "runtime"], name: str, available: Available) -> None:
        self._bench, self._kind, self._name, self._available = bench, kind, name, available
        self._worker: Worker | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def get(self) -> Worker:
        """A living worker.

        Raises:
            UnavailableError: the plug-in cannot work here.
        """
        if not self._available.available:
            raise UnavailableError(f"{self._name} is not available here: {with_fix(self._available)}")
        if self._worker is None:
            server = self._bench.server(self._kind, self._name)
            self._worker = self._stack.enter_context(self._bench.worker(server, f"conform-{self._name}"))
        return self._worker

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer of a living worker; one that dies or hangs is forgotten, one that tells an error lives on.

        Raises:
            AttnbenchError: what the worker told, or how it ended.
        """
        worker = self.get()
        try:
            return worker.ask(op, timeout_s=TIMEOUT_S, **fields)
        except ReportedError:
            raise
        except WorkerError:
            self._worker = None
            self._stack.close()
            raise


def at_once() -> int:
    """How many workers may work side by side: nothing is timed."""
    return max(1, os.cpu_count() or 1)
