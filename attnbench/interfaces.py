"""What an exporter and a runtime must answer; the only things a plug-in needs to know."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attnbench.engine_facts import EngineFacts
from attnbench.errors import UnavailableError
from attnbench.model_problem import ModelProblem
from attnbench.problem import Problem

Array = NDArray[Any]  # fp32: float32, fp16: float16, bf16: ml_dtypes.bfloat16
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Can this plug-in work on this machine? If not, why, and what to type."""

    available: bool
    version: str = ""
    reason: str = ""  # a sentence, when not available
    fix: str = ""  # the command that helps, when there is one
    # What the plug-in's class declares (takes_artifact, opt_in, preload, opsets); the core fills it in when it asks.
    traits: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu",)  # that it can run on here, the preferred one first
    no_cuda: str = ""  # why none of them is a CUDA device, where the plug-in could use one
    compiles_only: str = ""  # why it can compile here and not run, where that is so: see CompilingRuntime


@dataclass(frozen=True, kw_only=True)
class Support:
    """Can this combination be run? If not, the reason as a sentence."""

    ok: bool
    reason: str = ""


SUPPORTED = Support(ok=True)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an arm is asked to run. Every field is read back by `Session.facts`."""

    threads: int = 1
    device: str = "cpu"
    seed: int = 0  # of the weights
    options: Mapping[str, str] = field(default_factory=dict)
    fp32: str = "strict"  # products of fp32 in full precision; default: in TF32 where the device has it


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One exported file and what is known of it."""

    path: Path
    exporter: str
    opset: int  # 0: no ONNX file
    sha256: str
    size_bytes: int  # external data included
    problem: Problem | ModelProblem  # the example; the file serves every batch_size, q_len and kv_len
    operators: Mapping[str, int] = field(default_factory=dict)  # "domain::Op" -> how many nodes
    verified: str = ""  # by `attnbench export`: "ort-cpu at T = 1, 5, 33", or "unverified: reason"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What really ran, read back after loading (and after a call, where the runtime only knows then)."""

    runtime_version: str
    device: str  # "cpu", "cuda:0"
    device_name: str
    threads: int | None  # in force; None: the runtime does not tell
    compute_precision: str  # "fp32", "fp16", "bf16", "tf32" or "unknown"
    attention_kernel: str = UNKNOWN  # flash, efficient, cudnn, math, fused, unfused, unknown
    kernel_evidence: str = ""  # pinned, profile, log, graph, compiler, memory-law; empty with unknown
    build_ms: float | None = None  # compiling an engine inside load; None: nothing is compiled ahead
    detail: Mapping[str, Any] = field(default_factory=dict)  # providers, placement, kernels: shown in the report


@dataclass(frozen=True, kw_only=True)
class CompiledFacts:
    """What a compiler says of a file at one problem's sizes, where nothing can run."""

    runtime_version: str
    device: str  # the architecture compiled for: "sm89"
    planned_activation_bytes: int  # device memory that a call at these sizes takes beside weights, inputs and outputs
    artifact_bytes: int  # of the engine
    build_ms: float  # parsing and compiling
    compute_precision: str  # "fp32", "fp16", "bf16", "tf32"
    attention_kernel: str = UNKNOWN  # fused, unfused, unknown
    kernel_evidence: str = ""  # "compiler"; empty with unknown
    detail: Mapping[str, Any] = field(default_factory=dict)  # shown in the report


class Exporter(Protocol):
    """Turns the reference block into a file. Stateless; constructing one imports nothing heavy."""

    name: str  # "onnx-attention"
    opsets: tuple[int, ...]  # what it can write; the first is the default
    preload: tuple[str, ...]  # modules that a worker imports for it

    def probe(self) -> Probe:
        """Can it export here?"""
        ...

    def supports(self, problem: Problem, opset: int) -> Support:
        """Can it express this problem right at this opset?"""
        ...

    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        """Write the file at `path` (atomically: nothing is left behind on failure).

        Args:
            problem: the example; batch_size, q_len and kv_len stay dynamic in the file.
            opset: of the default domain; the file must have exactly this one.
            path: where the .onnx goes; its folder exists.
            seed: of the weights (block only).

        Raises:
            ExportError: with what was asked and what came out.
        """
        ...


class ProgramExporter(Exporter, Protocol):
    """An exporter that writes modules of the user too."""

    program_opsets: tuple[int, ...]  # what it can write them in; the first is the default

    def export_program(self, program: Any, problem: ModelProblem, opset: int, path: Path) -> Artifact:
        """Write the file at `path` (atomically: nothing is left behind on failure).

        Args:
            program: a torch.export.ExportedProgram; its inputs and outputs are tensors in the order of the problem's.
            problem: their names, dtypes and dims; free dims stay dynamic in the file.
            opset: of the default domain; the file must have exactly this one.
            path: where the .onnx goes; its folder exists.

        Raises:
            UnsupportedError: it has no way to write this module.
            ExportError: with what was asked and what came out.
        """
        ...


class Session(Protocol):
    """Something loaded that can run one problem at any size that it supports."""

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Place the inputs where the runtime wants them, once; give the zero-argument call to time.

        The call computes all of the output before it returns. It must not compute anything ahead or remember results.
        """
        ...

    def outputs(self) -> Array:
        """`y` of the last call, copied out as NumPy in the problem's dtype.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        ...

    def facts(self) -> Facts:
        """What really ran.

        Raises:
            ReadBackError: it is not what was asked.
        """
        ...


class DecodeSession(Session, Protocol):
    """What a session of variant decode has too: the cache that a step gives back is judged like `y`."""

    def cache(self) -> Mapping[str, Array]:
        """`present_key` and `present_value` of the last call, copied out as NumPy in the problem's dtype.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        ...


class ModelSession(Protocol):
    """A loaded model of the user: as `Session`, but with outputs by name."""

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """As `Session.bind`."""
        ...

    def outputs_by_name(self) -> Mapping[str, Array]:
        """Every output of the last call, in the order of the problem's, copied out as NumPy in the model's own dtypes.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        ...

    def facts(self) -> Facts:
        """As `Session.facts`."""
        ...


class Runtime(Protocol):
    """Something that can run a problem. Stateless; constructing one imports nothing heavy."""

    name: str  # "ort-cpu"
    takes_artifact: bool  # True: runs files of exporters; False: runs the torch block (exporter "torch")
    opt_in: bool  # True: only when named (slow to compile, needs more)
    preload: tuple[str, ...]  # modules that a worker imports for it

    def probe(self) -> Probe:
        """Can it run on this machine?"""
        ...

    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        """Can it run this problem (and this file)?"""
        ...

    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> AbstractContextManager[Session]:
        """Hold what is needed to run `problem`; released on exit.

        Raises:
            UnsupportedError: the runtime refuses this combination; the message is its own.
            ReadBackError: threads, device or precision in force differ from what was asked.
        """
        ...


class ModelRuntime(Runtime, Protocol):
    """A runtime that runs models of the user too; others answer `unsupported` for them."""

    def load_model(
        self, problem: ModelProblem, artifact: Artifact, settings: Settings
    ) -> AbstractContextManager[ModelSession]:
        """Hold what is needed to run a model at any sizes of its free dims; released on exit.

        Args:
            problem: names, dtypes and dims of its inputs and outputs.
            artifact: an ONNX file, or a traced module (.pt2).
            settings: as for `load`.

        Raises:
            UnsupportedError: the runtime refuses this model; the message is its own.
            ReadBackError: threads, device or precision in force differ from what was asked.
        """
        ...


class EngineRuntime(ModelRuntime, Protocol):
    """A runtime that runs compiled engines of the user too: `load_model` takes them where an ONNX file could be."""

    opens_engines: bool

    def read_engine(self, path: Path, device: str) -> EngineFacts:
        """Open an engine and say what it takes and gives, and at which sizes; nothing is run.

        Args:
            path: of a file from elsewhere, in a worker with a memory limit.
            device: `cuda:0`.

        Raises:
            InputError: it is no engine of this runtime.
            UnavailableError: what is needed to open it is not here.
            UnsupportedError: the runtime refuses it, in its own words, or it has inputs or outputs that none is given.
        """
        ...


class DeviceSession(Session, Protocol):
    """What a session on a GPU has too, so that its work can be timed by the device's own clock (scope `device`).

    The call that `bind` gives is `enqueue`, then `synchronize`.
    """

    stream: int  # the cudaStream_t that all work of a call is queued on; 0: the default one
    replays_graph: bool  # a call replays a captured CUDA graph: its scope is `device_graph`

    def enqueue(self) -> object:
        """Queue the work of the call bound last on `stream` and return without waiting for it."""
        ...

    def synchronize(self) -> None:
        """Wait until everything on `stream` is done."""
        ...


class CompilingRuntime(Runtime, Protocol):
    """A runtime that can compile where it cannot run: its probe is then available, and says why in `compiles_only`."""

    def compile(self, problem: Problem, artifact: Artifact, settings: Settings) -> CompiledFacts:
        """Compile for exactly this problem's sizes; nothing runs.

        Raises:
            UnsupportedError: the parser or the compiler refuses the file; the message is its own.
        """
        ...


class ModelCompilingRuntime(CompilingRuntime, Protocol):
    """One that compiles models of the user too; others answer `unsupported` for them."""

    def compile_model(self, problem: ModelProblem, artifact: Artifact, settings: Settings) -> CompiledFacts:
        """As `compile`, for exactly the sizes of the model's free dims."""
        ...


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of fp32, fp16, bf16 (from ml_dtypes), bool, int32 or int64."""
    if dtype == "bf16":
        try:
            import ml_dtypes
        except ModuleNotFoundError as err:
            raise UnavailableError(
                f"bf16 needs the package ml_dtypes, which {sys.executable} has not: run "
                f"{sys.executable} -m pip install ml-dtypes"
            ) from err

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype({"fp32": np.float32, "fp16": np.float16}.get(dtype, dtype))
