"""TensorRT and TensorRT-RTX: one class on two modules with the same names.

Without a GPU TensorRT-RTX still compiles, and tells planned memory and whether attention is fused. Compiled and tested
without a GPU; not yet timed on one.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench import trt_compiler
from attnbench.errors import UnavailableError, UnsupportedError
from attnbench.interfaces import UNKNOWN, Artifact, CompiledFacts, Probe, Settings, Support
from attnbench.model_problem import AnyProblem, ModelProblem
from attnbench.problem import Problem
from attnbench_runtimes import binding, cuda_driver, gpu_stack, tf32

if TYPE_CHECKING:
    from attnbench.engine_facts import EngineFacts
    from attnbench.interfaces import ModelSession
    from attnbench_runtimes.cuda_buffers import Device
    from attnbench_runtimes.tensorrt_session import TensorrtSession

GROWTH_LEN = 4096  # planned memory is compared between this and twice this length: below, other buffers hide scores
GROWTH_HEADS = 8  # batch size x heads at least, so that one shared mask is no score matrix
FUSED_BELOW, UNFUSED_FROM = 0.25, 0.5  # score matrices; seen: at most 0.0, and 2.0
FUSED, UNFUSED = "fused", "unfused"


class TensorrtRuntime:
    """A compiler and runtime of NVIDIA's; a subclass names the module."""

    name = ""
    module = ""
    compiles_without_gpu: ClassVar[bool] = False
    architectures: ClassVar[tuple[str, ...]] = ()  # of the GPUs that it has kernels for; empty: not limited
    takes_artifact = True
    opens_engines = True  # see `attnbench.interfaces.EngineRuntime`
    opt_in = True
    preload: tuple[str, ...] = ()
    # strict: every Attention node keeps a kernel of its own, or the file is refused; decomposable: it may be taken
    # apart. exact: kernels chosen for the problem's own sizes; range: for all from one token up to them.
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "attention": ("strict", "decomposable"), "profile": ("exact", "range"), "cuda_graph": ("off", "on"),
        "cache": ("off", "on"), tf32.OPTION: tf32.SWITCH,
    }  # fmt: skip

    def probe(self) -> Probe:
        """Is the package there, with what it needs, and is there a GPU?"""
        package = trt_compiler.PACKAGES[self.module]
        found = binding.probe_package(package, self.module)
        why, fix = self._why_not_run(package)
        if not found.available or not why:
            devices = cuda_driver.devices() or ("cpu",)
            return Probe(
                available=found.available, version=found.version, reason=found.reason, fix=found.fix, devices=devices
            )
        if self.compiles_without_gpu:
            only = f"{why}, so {self.name} compiles and runs nothing"
            return Probe(available=True, version=found.version, compiles_only=only)
        return Probe(available=False, version=found.version, reason=why, fix=fix)

    def _why_not_run(self, package: str) -> tuple[str, str]:
        """Reason and way out where driver or GPU do not fit; both empty where engines can run."""
        if why := cuda_driver.why_no_gpu():
            return why, cuda_driver.INSTALL_DRIVER
        why, fix = gpu_stack.why_driver_too_old_for(package, gpu_stack.cuda_version())
        if why or not self.architectures:
            return why, fix
        return gpu_stack.why_no_architecture(gpu_stack.architecture(), self.architectures, self.name), ""

    def __hash__(self) -> int:
        return hash(type(self))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        """Every file; what the parser or the compiler refuses is found at loading, in its own words."""
        return binding.needs_file(self.name, artifact)

    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> "Iterator[TensorrtSession]":
        """Compile (or take from the cache) and hold an engine on the GPU.

        Raises:
            UnsupportedError: the file is refused, in the compiler's words, or there is no GPU to run it on.
        """
        from attnbench_runtimes.tensorrt_engines import CompiledEngines
        from attnbench_runtimes.tensorrt_session import TensorrtSession

        if artifact is None:
            raise UnsupportedError(f"{self.name} runs ONNX files; name an exporter")
        with self._on_gpu(settings) as (asked, device):
            engines = CompiledEngines(self, problem, artifact, settings, asked)
            yield TensorrtSession(engines, problem, asked, device)

    @contextlib.contextmanager
    def load_model(self, problem: ModelProblem, artifact: Artifact, settings: Settings) -> "Iterator[ModelSession]":
        """Hold a model of the user: an ONNX file compiled at its sizes, or an engine as it is.

        Raises:
            UnsupportedError: as `load`; or the engine holds not these sizes, or is settled already.
            InputError: the engine is none, or of another model.
        """
        from attnbench_runtimes import tensorrt_models, tensorrt_plans
        from attnbench_runtimes.tensorrt_engines import CompiledEngines, Engines

        is_plan = tensorrt_plans.is_plan(artifact.path)
        if not is_plan:
            binding.require_onnx(self.name, artifact)
        elif settled := [name for name in settings.options if name != "cuda_graph"]:
            raise UnsupportedError(f"{', '.join(settled)} was settled when the engine was compiled; it has cuda_graph")
        with self._on_gpu(settings) as (asked, device):
            engines: Engines
            if is_plan:
                engines = tensorrt_models.PlanEngines(self, artifact.path, settings)
            else:
                engines = CompiledEngines(self, problem, artifact, settings, asked)
            asked = {"cuda_graph": asked["cuda_graph"]} if is_plan else asked
            yield tensorrt_models.EngineModelSession(engines, problem, asked, device)

    def read_engine(self, path: Path, device: str) -> "EngineFacts":
        """What an engine of the user takes and gives, and its profiles; the GPU that it is for must be here.

        Raises:
            InputError: it is no engine of this runtime.
            UnavailableError: the package or a GPU lacks.
            UnsupportedError: NVIDIA refuses it, or it has inputs or outputs that cannot be benched.
        """
        from attnbench_runtimes import tensorrt_plans

        why, _ = self._why_not_run(trt_compiler.PACKAGES[self.module])
        return tensorrt_plans.read(path, device, module=self.module, runtime=self.name, why_not_run=why)

    @contextlib.contextmanager
    def _on_gpu(self, settings: Settings) -> Iterator[tuple[dict[str, str], "Device"]]:
        """Every option with its value, and the GPU, which is given back at the end.

        Raises:
            UnsupportedError: an option that there is not, or no GPU to run on.
        """
        from attnbench_runtimes import cuda_buffers

        asked = self._asked(settings)
        why = cuda_driver.why_no_gpu()
        if why:
            raise UnsupportedError(f"{why}, so {self.name} runs nothing here")
        if "arch" in settings.options:
            raise UnsupportedError(f"{self.name} runs what it compiles for the GPU that is here; leave arch out")
        asked.pop("arch", None)  # None: of the GPU that is here
        tf32.set_override(allowed=is_tf32(settings))
        with cuda_buffers.opened(cuda_driver.device_index(settings.device, self.name)) as device:
            yield asked, device

    def _asked(self, settings: Settings) -> dict[str, str]:
        """Every option but `use_tf32` with its value, the first of its values where it was not given.

        Raises:
            UnsupportedError: an option or value that there is not.
        """
        for name, value in settings.options.items():
            if name not in self.options:
                raise UnsupportedError(f"{self.name} has no option {name!r}; known: {', '.join(self.options)}")
            if value not in self.options[name]:
                raise UnsupportedError(f"{name} is one of {', '.join(self.options[name])}, got {value!r}")
        given = {name: settings.options.get(name, values[0]) for name, values in self.options.items()}
        del given[tf32.OPTION]  # see `is_tf32`: where it is not given, the policy decides
        return given


class Tensorrt(TensorrtRuntime):
    """NVIDIA TensorRT 10.14 or newer."""

    name = "tensorrt"
    module = trt_compiler.TRT


class TensorrtRtx(TensorrtRuntime):
    """NVIDIA TensorRT for RTX; compiles without a GPU too."""

    name = "tensorrt-rtx"
    module = trt_compiler.RTX
    compiles_without_gpu: ClassVar[bool] = True
    architectures: ClassVar[tuple[str, ...]] = trt_compiler.ARCHS
    opt_in = False
    preload: tuple[str, ...] = ("tensorrt_rtx",)
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **TensorrtRuntime.options,
        "arch": (trt_compiler.DEFAULT_ARCH, *(a for a in trt_compiler.ARCHS if a != trt_compiler.DEFAULT_ARCH)),
    }

    def compile(self, problem: Problem, artifact: Artifact, settings: Settings) -> CompiledFacts:
        """Compile for these sizes, and see whether planned memory grows as the score matrix does.

        Raises:
            UnsupportedError: the parser or the compiler refuses the file; the message is its own.
        """
        binding.require_onnx(self.name, artifact)
        asked = self._asked(settings)
        made = compiled(self, problem, artifact, asked, tf32=is_tf32(settings))
        kernel, growth = attention_growth(self, artifact, problem, asked, tf32=is_tf32(settings))
        return _compiled_facts(made, problem.dtype, settings, kernel, growth)

    def compile_model(self, problem: ModelProblem, artifact: Artifact, settings: Settings) -> CompiledFacts:
        """Compile a model of the user for these sizes.

        Raises:
            UnsupportedError: as `compile`, or the file is none of ONNX.
            UnavailableError: it is an engine, and there is no GPU to run it on.
        """
        from attnbench_runtimes import tensorrt_plans

        if tensorrt_plans.is_plan(artifact.path):
            raise UnavailableError(f"{self.name} runs nothing here, and an engine is compiled already")
        binding.require_onnx(self.name, artifact)
        made = compiled(self, problem, artifact, self._asked(settings), tf32=is_tf32(settings))
        why = "which attention of a file is fused is what attnbench fusion --onnx FILE says"
        return _compiled_facts(made, problem.coarsest, settings, UNKNOWN, {"why_unknown": why})


def _compiled_facts(
    made: trt_compiler.Compiled, dtype: str, settings: Settings, kernel: str, more: Mapping[str, Any]
) -> CompiledFacts:
    """What is told of an engine; `dtype` is what the file computes in."""
    assert made.engine is not None
    assert made.planned_activation_bytes is not None
    told = {
        "scratch_bytes": made.planned_scratch_bytes, "weights_bytes": made.planned_weights_bytes,
        "attention_decomposed": made.attention_decomposed, **more,
    }  # fmt: skip
    return CompiledFacts(
        runtime_version=made.version, device=made.arch, planned_activation_bytes=made.planned_activation_bytes,
        artifact_bytes=len(made.engine), build_ms=made.build_ms,
        compute_precision="tf32" if dtype == "fp32" and is_tf32(settings) else dtype,
        attention_kernel=kernel, kernel_evidence="" if kernel == UNKNOWN else "compiler", detail=told,
    )  # fmt: skip


def is_tf32(settings: Settings) -> bool:
    """May products of fp32 take TF32? As for all runtimes; what is compiled without a GPU is for one all the same."""
    return tf32.is_allowed(replace(settings, device="cuda:0"))


def compiled(
    runtime: TensorrtRuntime, problem: AnyProblem, artifact: Artifact, asked: Mapping[str, str], **more: Any
) -> trt_compiler.Compiled:
    """An engine for a problem: of its own sizes, or of all up to them.

    Raises:
        UnsupportedError: the file is refused.
    """
    shapes: trt_compiler.Shapes = problem.input_shapes()
    if asked["profile"] == "range":
        shapes = range_of(problem)
    made = trt_compiler.compile_onnx(
        artifact.path, shapes=shapes, arch=asked.get("arch"), module=runtime.module,
        strict=asked["attention"] == "strict", **more,
    )  # fmt: skip
    if made.engine is None:
        whose = f"the {made.stage} of {runtime.name} {made.version}"
        hint = "; it may be taken apart with attention=decomposable" if "dedicated kernel" in made.words else ""
        raise UnsupportedError(f"{whose} refuses the file: {made.words}{hint}")
    return made


def range_of(problem: AnyProblem) -> trt_compiler.Shapes:
    """Every input's least, usual and largest shape: one token up to the problem's own sizes, which are the usual.

    Of a model every free dim begins at 1.
    """
    if isinstance(problem, ModelProblem):
        least = problem.at(dict.fromkeys(problem.sizes, 1)).input_shapes()
    else:
        least = problem.at(batch_size=1, q_len=1, kv_len=2 if problem.variant == "decode" else 1).input_shapes()
    usual = problem.input_shapes()
    return {name: (least[name], shape, shape) for name, shape in usual.items()}


def attention_growth(
    runtime: TensorrtRuntime, artifact: Artifact, problem: Problem, asked: Mapping[str, str], *, tf32: bool
) -> tuple[str, dict[str, Any]]:
    """fused, unfused or unknown by how planned memory grows between `GROWTH_LEN` and twice that, and the bytes there.

    What grows faster than the length is counted in whole score matrices: fused attention holds none, unfused one or
    two. Batch and heads make at least eight of them, beside which a mask that all share is small.
    """
    if problem.variant == "decode":  # one query: scores grow as the keys do
        return UNKNOWN, {"why_unknown": "scores of a decode step grow no faster than its cache"}
    batch_size = max(1, -(-GROWTH_HEADS // problem.num_heads))
    once, twice = (problem.at(q_len=n, kv_len=n, batch_size=batch_size) for n in (GROWTH_LEN, 2 * GROWTH_LEN))
    planned = [
        planned_at(runtime, str(artifact.path), artifact.sha256, p, tuple({**asked, "profile": "exact"}.items()), tf32)
        for p in (once, twice)
    ]
    if planned[0] is None or planned[1] is None:
        return UNKNOWN, {"why_unknown": f"the compiler refuses the file at T = {GROWTH_LEN} or {2 * GROWTH_LEN}"}
    matrices = (planned[1] - 2 * planned[0]) / (2 * once.score_bytes())
    told = {"planned_bytes_at": {str(GROWTH_LEN): planned[0], str(2 * GROWTH_LEN): planned[1]}, "matrices": matrices}
    kernel = FUSED if matrices < FUSED_BELOW else UNFUSED if matrices >= UNFUSED_FROM else UNKNOWN
    return kernel, told


@functools.lru_cache(maxsize=64)
def planned_at(
    runtime: TensorrtRuntime, path: str, sha256: str, problem: Problem, asked: tuple[tuple[str, str], ...], tf32: bool
) -> int | None:
    """Planned bytes of a file (known by `sha256`) at a problem's sizes; None: refused there."""
    made = trt_compiler.compile_onnx(
        Path(path), shapes=problem.input_shapes(), arch=dict(asked).get("arch"), module=runtime.module,
        strict=dict(asked)["attention"] == "strict", tf32=tf32,
    )  # fmt: skip
    return made.planned_activation_bytes
