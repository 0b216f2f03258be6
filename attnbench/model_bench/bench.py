"""A bench of a model of the user: what its groups ask of the run instead of what they ask for attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from attnbench import interpreters, plugins
from attnbench.deploy.shop import PROGRAMS, WITH_EXPORTERS
from attnbench.errors import AttnbenchError
from attnbench.inputs import INPUT_CLASSES
from attnbench.interfaces import Artifact
from attnbench.measure import numerics
from attnbench.measure.determinism import PROPERTIES
from attnbench.model_bench import kernels
from attnbench.model_bench.engines import ENGINE
from attnbench.model_bench.kernels import Kernels
from attnbench.model_bench.source import FOLDER, MEMORY_LIMIT_BYTES, Source
from attnbench.model_problem import AnyProblem, ModelProblem
from attnbench.sweep.artifacts import artifact_as_dict
from attnbench.sweep.bench import ALWAYS_PRELOADED, Bench, NoReferenceError, Standard
from attnbench.sweep.cases import Case, Exported
from attnbench.sweep.grid import DEFAULT_COMPILER, TORCH, Arm
from attnbench.sweep.workers import ForkServer, Worker

FILE = "file"  # the "exporter" of a file of the user
JUDGED_BY = "judged_by_"  # flag of rows that another arm judges: before its label
INPUTS_FILE = "inputs.npz"  # of --load-inputs, in the model's folder
OUTPUTS = "outputs"  # folder of outputs that are kept, in artifacts/
REFERENCE = "reference"
_TASKS = "attnbench.model_bench.module_tasks"
_FEWER_DIGITS = "; an engine that was compiled for fewer digits than its file (trtexec --fp16) differs by more"
_NOT_ASKED = "asked of the built-in attention only"


@dataclass(kw_only=True)
class ModelBench(Bench):
    """The run as its problem groups see it."""

    is_attention: ClassVar[bool] = False
    source: Source
    bind: Mapping[str, str] = field(default_factory=dict)  # free dim -> what it is at T
    has_inputs: bool = False  # arrays were given
    keeps_outputs: bool = False
    _kernels: dict[tuple[str, str, str], Kernels] = field(default_factory=dict)  # file, arm, sizes that stay
    _judges: dict[str, str] = field(default_factory=dict)  # problem_id -> the arm that judges the others

    def __post_init__(self) -> None:
        """The model moves into the run directory, so that the run can be resumed; it is never run without a limit."""
        target = self.run_dir.path / "artifacts" / FOLDER
        if self.source.folder != target:
            self.source = self.source.moved_to(target)
        if self.sweep.memory_limit_bytes is None:
            self.sweep = self.sweep.model_copy(update={"memory_limit_bytes": MEMORY_LIMIT_BYTES})

    def server(self, kind: plugins.Kind, name: str) -> ForkServer:
        """The forkserver for a plug-in's workers; a file of the user needs none of an exporter."""
        if kind == "exporter" and name in (FILE, ENGINE):
            return self.servers.get(ALWAYS_PRELOADED)
        plugin, python = interpreters.split(name)
        if kind == "runtime" and not python and plugins.find(kind, plugin).builtin and "torch" in self._preload(name):
            return self.servers.get((*PROGRAMS["torch",], *ALWAYS_PRELOADED))  # what opening a program imports
        return super().server(kind, name)

    def _preload(self, runtime: str) -> Sequence[str]:
        found: Sequence[str] = self.runtime_probes[runtime].traits.get("preload", ())
        return found

    def reference_server(self) -> ForkServer:
        """The forkserver for the module in float64."""
        return self.servers.get((*WITH_EXPORTERS, *ALWAYS_PRELOADED))

    def given_inputs(self) -> dict[str, Any]:
        """The arrays of the user."""
        return {"inputs": str(self.source.folder / INPUTS_FILE)} if self.has_inputs else {}

    def is_shape_static(self, problem: AnyProblem) -> bool:
        """Only a model of which one dim alone follows T can be called at a short T first, on drawn inputs."""
        assert isinstance(problem, ModelProblem)
        if self.source.engine is not None:  # a short T may lie outside its profiles
            return True
        return problem.bound is None or len(self.bind) != 1 or self.has_inputs

    def exported(self, arm: Arm, problem: AnyProblem) -> Exported:
        """The file that an arm runs: the user's own, the traced module for torch, or the module by an exporter.

        Raises:
            AttnbenchError: as `Bench.exported`.
        """
        if arm.exporter in (TORCH, FILE, ENGINE):
            return self._as_it_is(arm, problem)
        found = super().exported(arm, problem)
        assert found is not None
        return found

    def _as_it_is(self, arm: Arm, problem: AnyProblem) -> Exported:
        source = self.source
        file, opset, size_bytes = source.file, source.opset, source.size_bytes
        if arm.exporter == ENGINE:
            assert source.engine is not None
            file, opset, size_bytes = source.engine.file, 0, source.engine.size_bytes
        artifact = Artifact(
            path=source.folder / file, exporter=arm.exporter, opset=opset, sha256=source.sha256[file],
            size_bytes=size_bytes, problem=problem,
        )  # fmt: skip
        return Exported(artifact=artifact_as_dict(artifact), export_ms=None, verified="not exported by attnbench")

    def _key(self, arm: Arm, problem: AnyProblem) -> tuple[str, int, str]:
        return arm.exporter, arm.opset or 0, problem.static_key()

    def _export(self, exporter: str, opset: int, problem: AnyProblem) -> Exported:
        """The module, written by an exporter from its trace."""
        if exporter in (TORCH, FILE, ENGINE):
            return self._as_it_is(Arm(exporter=exporter, runtime=""), problem)
        self.require_exporter(exporter)
        path = self.run_dir.path / "artifacts" / f"{exporter}-opset{opset or 'default'}-{problem.static_key()}.onnx"
        with self.worker(self.server("exporter", exporter), f"export-{exporter}") as worker:
            made = worker.ask(
                f"{_TASKS}:write", timeout_s=max(self.sweep.timeout_s, 120.0), program=str(self.source.path),
                problem=problem.as_dict(), exporter=exporter, opset=opset or None, path=str(path),
            )  # fmt: skip
        return Exported(
            artifact=made["artifact"], export_ms=made["export_ms"],
            verified="unverified: every row is judged at its own sizes",
        )  # fmt: skip

    def reference(self, problem: AnyProblem, input_classes: Sequence[str] = INPUT_CLASSES) -> dict[str, Any]:
        """What outputs are compared with: a module in float64, else the first arm here that runs the file.

        Raises:
            AttnbenchError: there is none.
        """
        assert isinstance(problem, ModelProblem)
        if self.source.kind == "module":
            return {"normal": self._module_reference(problem)}
        return {"normal": self._file_reference(problem)}

    def _reference_path(self, problem: ModelProblem) -> Path:
        return self.run_dir.work_path / f"{problem.problem_id}-reference.npz"

    def _module_reference(self, problem: ModelProblem) -> dict[str, Any]:
        with self.worker(self.reference_server(), "reference") as worker:
            found = worker.ask(
                f"{_TASKS}:reference", timeout_s=max(self.sweep.timeout_s, 120.0), problem=problem.as_dict(),
                module=self.source.module, given=self.given_inputs().get("inputs"),
                path=str(self._reference_path(problem)), kept=self._kept(problem, REFERENCE),
            )  # fmt: skip
        return {"rows": None, **found}

    def _file_reference(self, problem: ModelProblem) -> dict[str, Any]:
        """The outputs of the first arm that gives some; an engine judges only where nothing else does."""
        refused: dict[str, AttnbenchError] = {}
        for arm in sorted(self.arms, key=lambda arm: arm.exporter == ENGINE):
            if arm.compiles_only or not self.runtime_probes[arm.runtime].available:
                continue
            try:
                found = self._outputs_of(arm, problem)
            except AttnbenchError as err:
                refused[arm.label] = err
                continue
            self._judges[problem.problem_id] = arm.label
            limits = {tensor.name: file_limits(problem, arm.label) for tensor in problem.outputs}
            return {"rows": None, **found, "limits": limits}
        raise NoReferenceError(refused)

    def _outputs_of(self, arm: Arm, problem: ModelProblem) -> dict[str, Any]:
        timeout_s = self.sweep.timeout_s
        with self.worker(self.server("runtime", arm.runtime), f"reference-{arm.label}") as worker:
            worker.ask(
                "load", timeout_s=timeout_s, runtime=arm.plugin, problem=problem.as_dict(),
                artifact=self.exported(arm, problem).artifact, settings=self.settings(arm), **self.given_inputs(),
            )  # fmt: skip
            found: dict[str, Any] = worker.ask(
                "run_model", timeout_s=timeout_s, problem=problem.as_dict(), path=str(self._reference_path(problem))
            )
            if kept := self._kept(problem, REFERENCE):
                worker.ask("save_outputs", timeout_s=timeout_s, path=kept)
        return found

    def standard(self, problem: AnyProblem, judge: Mapping[str, Any], input_class: str, output: str | None) -> Standard:
        """What one output is held to."""
        assert output is not None
        limits = numerics.Limits(**judge["limits"][output])
        floors, eager = judge.get("floors", {}), judge.get("eager", {})
        return Standard(limits=limits, floor=floors.get(output), eager_error=eager.get(output))

    def settle(self, case: Case) -> None:
        """Say who judged; the arm that judges the others has no verdict of its own."""
        case.determinism_reasons = dict.fromkeys(PROPERTIES, _NOT_ASKED)
        case.stress_reason = _NOT_ASKED
        if case.status == "compiled" and case.arm.plugin == DEFAULT_COMPILER:
            case.facts = self._kernels_of(case).facts(case.facts)
        judge = self._judges.get(case.problem.problem_id)
        if judge is None or case.arm.compiles_only:
            return
        case.flags.append(f"{JUDGED_BY}{judge}")
        if case.status == "mismatch" and case.arm.exporter == ENGINE and case.arm.label != judge:
            case.reason = f"{case.reason[:850]}{_FEWER_DIGITS}"
        if case.arm.label == judge:
            if case.status == "mismatch":
                case.reason = f"it does not give again what the others are compared with: {case.reason}"[:1000]
            case.agreements.clear()
            case.output = None
            case.numerics_reason = "this arm is the reference that the others are compared with"

    def _kernels_of(self, case: Case) -> Kernels:
        """Of a file that is only compiled; asked once, since T does not matter to it."""
        assert isinstance(case.problem, ModelProblem)
        assert case.exported is not None
        path = str(case.exported.artifact["path"])
        stay = {dim: size for dim, size in case.problem.sizes.items() if dim not in self.bind}
        key = (path, case.arm.label, str(stay))
        if key not in self._kernels:
            self._kernels[key] = kernels.ask(self, case.arm, path, case.problem, self.bind)
        return self._kernels[key]

    def keep_outputs(self, case: Case, worker: Worker) -> None:
        """Write what the last timed call gave, if that was asked."""
        assert isinstance(case.problem, ModelProblem)
        if path := self._kept(case.problem, case.arm.label):
            worker.ask("save_outputs", timeout_s=self.sweep.timeout_s, path=path)

    def _kept(self, problem: ModelProblem, who: str) -> str | None:
        """Where outputs of an arm or the reference are kept; None: they are not."""
        if not self.keeps_outputs:
            return None
        folder = self.run_dir.path / "artifacts" / OUTPUTS / problem.problem_id
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder / f"{who}.npz")


def file_limits(problem: ModelProblem, judge: str) -> dict[str, Any]:
    """What two runtimes may differ by on one file: twice the worst row that the class of its dtype may be off by."""
    most = 2.0 * numerics.class_limit(problem.coarsest)
    reason = f"two runtimes in {problem.coarsest}, compared with {judge}"
    return {"worst_row": most, "gain": most, "reason": reason}
