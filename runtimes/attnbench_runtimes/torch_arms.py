"""`torch-eager`, `torch-sdpa` and `torch-compile`: the torch block itself, on the CPU or a CUDA device.

On a CUDA device written by the documentation and tested without one; not yet run or timed on a GPU.
"""

import contextlib
import importlib.metadata
import os
import shutil
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnbench.errors import ReadBackError, UnavailableError, UnsupportedError
from attnbench.inputs import make_inputs
from attnbench.interfaces import SUPPORTED, UNKNOWN, Array, Artifact, Facts, Probe, Settings, Support
from attnbench.problem import Problem
from attnbench_runtimes import binding, tf32, torch_settings
from attnbench_runtimes.torch_models import RunsPrograms
from attnbench_runtimes.torch_settings import check_matmul_precision, check_threads

# Profiled operator -> the kernel's name. SDPA calls exactly one of them.
_KERNELS = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
}
# Which kernel SDPA is pinned to; without it SDPA chooses.
BACKEND_OPTION = "backend"
_BACKENDS = {"flash": "FLASH_ATTENTION", "math": "MATH", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
_NO_KERNEL = ("No available kernel", "No viable backend")  # of the kernel that is pinned
_SOFTMAX = "aten::_softmax"  # attention written out: its score matrix is a tensor
_EAGER_PROFILE_LEN = 64  # the eager code takes the same path at every length, so a short one proves it


class TorchRuntime:
    """The torch block; a subclass says with which attention and whether it is compiled."""

    name = ""
    attention: Literal["eager", "sdpa"] = "sdpa"
    compiled = False
    takes_artifact = False
    opt_in = False
    preload: tuple[str, ...] = ("torch", "attnbench.torch_model")
    options: Mapping[str, tuple[str, ...]] = {BACKEND_OPTION: tuple(_BACKENDS), tf32.OPTION: tf32.SWITCH}

    def probe(self) -> Probe:
        """Is torch there?"""
        return torch_settings.probe()

    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        """Every problem."""
        return SUPPORTED

    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> "Iterator[TorchSession]":
        """Hold the module, without autograd while it is held.

        Raises:
            UnsupportedError: a device or option that it has not.
            UnavailableError: the module cannot be compiled here.
            ReadBackError: threads or matrix precision in force are not those asked.
        """
        import torch

        binding.refuse_options(settings, self.name, self.options, device_kinds=torch_settings.DEVICE_KINDS)
        try:
            with (
                torch_settings.in_force(settings),
                torch.inference_mode(),
                _pinned(settings.options.get(BACKEND_OPTION)),
            ):
                yield TorchSession(self, problem, settings)
        finally:
            if self.compiled:
                torch._dynamo.reset()


class TorchEager(RunsPrograms, TorchRuntime):
    """Attention written out: scores, softmax, product."""

    name = "torch-eager"
    attention = "eager"
    options: Mapping[str, tuple[str, ...]] = {tf32.OPTION: tf32.SWITCH}


class TorchSdpa(TorchRuntime):
    """`scaled_dot_product_attention`, which chooses a kernel."""

    name = "torch-sdpa"


class TorchCompile(RunsPrograms, TorchRuntime):
    """`torch.compile` around the SDPA block, one compilation per shape."""

    name = "torch-compile"
    compiled = True
    opt_in = True
    preload = ("torch", "attnbench.torch_model", "torch._inductor")

    def probe(self) -> Probe:
        """Is torch there, and what its compiler needs: a C++ compiler and Python's headers?"""
        probe = super().probe()
        compiler = os.environ.get("CXX", "g++")
        if probe.available and shutil.which(compiler) is None:
            reason = f"torch.compile needs a C++ compiler, {compiler!r} is not on the PATH"
            return Probe(available=False, version=probe.version, reason=reason, fix="apt install g++")
        header = Path(sysconfig.get_path("include")) / "Python.h"
        if probe.available and not header.is_file():
            reason = f"torch.compile needs the headers of Python, {header} is missing"
            return Probe(available=False, version=probe.version, reason=reason, fix="apt install python3-dev")
        return probe


def _pinned(backend: str | None) -> contextlib.AbstractContextManager[Any]:
    """Pin SDPA to a kernel while the module is held; None: it chooses."""
    if backend is None:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    pin: contextlib.AbstractContextManager[Any] = sdpa_kernel(getattr(SDPBackend, _BACKENDS[backend]))
    return pin


class TorchSession:
    """The module and the tensors that it is called with."""

    replays_graph = False  # torch.compile captures CUDA graphs in another mode only

    def __init__(self, runtime: TorchRuntime, problem: Problem, settings: Settings) -> None:
        from attnbench.torch_model import InPlaceDecodeStep, build_module

        self._runtime, self._problem, self._settings = runtime, problem, settings
        self._backend = settings.options.get(BACKEND_OPTION)
        self._module = build_module(problem, seed=settings.seed, attention=runtime.attention).to(settings.device)
        self._in_place = problem.variant == "decode" and not runtime.compiled
        self._run: Callable[..., Any] = InPlaceDecodeStep(self._module.block) if self._in_place else self._module
        self._tensors: tuple[Any, ...] = ()
        self._output: Any = None
        self._cache: Sequence[Any] = ()
        self._kernel: tuple[str, dict[str, int]] | None = None
        self._compiled_shapes: list[tuple[int, ...]] = []
        self._queue: Callable[[], None] | None = None
        self._build_ms: float | None = None
        if runtime.compiled:
            self._tensors = self._placed(make_inputs(problem))
            self._build_ms = self._compile()
            self._tensors = ()

    def _compile(self) -> float:
        """Compile for the shapes of `_tensors`, by running once; milliseconds.

        Each shape is compiled afresh: torch would otherwise make lengths dynamic at the second one and give up after
        eight.

        Raises:
            UnavailableError: the compiler does not work here.
        """
        import torch

        start_ns = time.perf_counter_ns()
        torch._dynamo.reset()
        self._run = torch.compile(self._module, dynamic=False, fullgraph=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler imports parts of torch that torch deprecated
                self._run(*self._tensors)
        except torch._dynamo.exc.BackendCompilerFailed as err:
            words = " ".join(str(err).split())[:200]
            raise UnavailableError(f"torch.compile does not work here: {words}; is a C++ compiler installed?") from err
        self._compiled_shapes = [tuple(tensor.shape) for tensor in self._tensors]
        return (time.perf_counter_ns() - start_ns) / 1e6

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs into tensors; a compiled module is compiled for their shapes."""
        self._tensors = self._placed(binding.own_inputs(self._problem, inputs))
        if self._in_place:
            self._tensors = _with_room(self._tensors)
        self._output = self._kernel = None
        if self._runtime.compiled and self._compiled_shapes != [tuple(t.shape) for t in self._tensors]:
            self._compile()
        run, tensors = self._run, self._tensors

        def queue() -> None:
            self._output, self._cache = None, ()  # their memory serves the next ones, as in an application
            try:
                found = run(*tensors)
                if isinstance(found, tuple):  # decode gives the cache too
                    self._output, *self._cache = found
                else:
                    self._output = found
            except RuntimeError as err:
                if binding.is_out_of_memory(err):
                    raise MemoryError(str(err)) from err
                if self._backend is not None and any(words in str(err) for words in _NO_KERNEL):
                    words = f"SDPA was pinned to {self._backend}, torch has no such kernel for {self._problem.label()}"
                    raise UnsupportedError(words) from err
                raise

        self._queue = queue
        if self._settings.device == "cpu":
            return queue
        wait = torch_settings.waiting(self._settings)

        def call() -> None:
            queue()
            wait()

        return call

    @property
    def stream(self) -> int:
        """The stream of a GPU that calls are queued on."""
        return torch_settings.stream(self._settings)

    def enqueue(self) -> None:
        """Queue a call on the GPU without waiting for it."""
        assert self._queue is not None, "nothing is bound"
        self._queue()

    def synchronize(self) -> None:
        """Wait until the GPU is done."""
        torch_settings.waiting(self._settings)()

    def _placed(self, inputs: Mapping[str, Array]) -> tuple[Any, ...]:
        """The inputs as tensors on the device."""
        from attnbench.torch_model import to_torch

        return tuple(to_torch(array).to(self._settings.device) for array in inputs.values())

    def outputs(self) -> Array:
        """`y` of the last call, copied.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        from attnbench.torch_model import from_torch

        binding.require_ran(self._output is not None)
        return np.array(from_torch(self._output.cpu()), order="C", copy=True)

    def cache(self) -> dict[str, Array]:
        """`present_key` and `present_value` of the last call, copied.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        from attnbench.torch_model import from_torch

        binding.require_ran(self._output is not None)
        present = self._tensors[1:3] if self._in_place else self._cache
        names = list(self._problem.output_dims())[1:]
        return {
            name: np.array(from_torch(t.cpu()), order="C", copy=True) for name, t in zip(names, present, strict=True)
        }

    def facts(self) -> Facts:
        """Threads and precision in force; the kernel from a profile of one more call, outside any timing.

        Raises:
            ReadBackError: threads, matrix precision or the pinned kernel in force are not those asked.
        """
        import torch

        check_threads(self._settings.threads)
        allowed = check_matmul_precision(tf32_allowed=tf32.is_allowed(self._settings))
        torch_settings.check_device((*self._module.parameters(), *self._tensors), self._settings)
        if self._kernel is None and self._tensors:
            self._kernel = self._profile()
        kernel, operators = self._kernel or (UNKNOWN, {})
        if self._backend is not None and kernel not in (self._backend, UNKNOWN):
            raise ReadBackError(f"kernel {self._backend} was asked, torch ran {kernel}: {operators}")
        evidence = "profile" if self._backend is None else "pinned"
        return Facts(
            runtime_version=importlib.metadata.version("torch"), device=self._settings.device,
            device_name=torch_settings.device_name(self._settings), threads=torch.get_num_threads(),
            compute_precision=self._precision(), attention_kernel=kernel,
            kernel_evidence=evidence if kernel != UNKNOWN else "", build_ms=self._build_ms,
            detail={
                **binding.cache_facts(self._problem, self._in_place),
                "inter_op_threads": torch.get_num_interop_threads(), "float32_matmul_precision": allowed,
                "profiled_operators": operators,
            },
        )  # fmt: skip

    @property
    def _is_plain(self) -> bool:
        """Are all inputs tokens along the second last axis, so that all may be cut short?"""
        return self._problem.masking.form is None and self._problem.variant != "decode"

    def _precision(self) -> str:
        """The dtype that weights and inputs have, in which torch computes products."""
        names = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
        tensors = [t for t in (*self._module.parameters(), *self._tensors) if str(t.dtype) != "torch.bool"]
        found = {names.get(str(tensor.dtype), UNKNOWN) for tensor in tensors}
        return torch_settings.precision(found, self._settings)

    def _profile(self) -> tuple[str, dict[str, int]]:
        """The kernel of one call and how often each operator of interest ran."""
        import torch

        tensors = self._tensors
        if self._runtime.attention == "eager" and self._is_plain:
            tensors = tuple(tensor[..., :_EAGER_PROFILE_LEN, :] for tensor in tensors)
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes "profiler_start" to stderr
        # Not torch.profiler.profile: its first use imports torch._inductor, a second in every fresh process.
        with torch.autograd.profiler.profile(use_kineto=False) as profile:
            self._run(*tensors)
        counts = {event.key: int(event.count) for event in profile.key_averages()}
        seen = {key: counts[key] for key in (*_KERNELS, _SOFTMAX, "aten::bmm", "aten::mm") if key in counts}
        kernels = [_KERNELS[key] for key in seen if key in _KERNELS]
        if not kernels and _SOFTMAX in seen:
            kernels = ["math"]
        return (kernels[0] if len(kernels) == 1 else UNKNOWN), seen


def _with_room(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a decode step with room in the cache for the new tokens."""
    import torch

    x, past_key, past_value, *mask = tensors
    grown = (torch.cat([past, past.new_zeros(*past.shape[:2], x.shape[1], past.shape[3])], 2)
             for past in (past_key, past_value))  # fmt: skip
    return (x, *grown, *mask)
