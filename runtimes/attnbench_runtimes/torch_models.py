"""A traced module of the user in torch: as it is, or compiled."""

import contextlib
import importlib.metadata
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attnbench.errors import ArtifactError, UnavailableError, UnsupportedError
from attnbench.interfaces import Array, Artifact, Facts, ModelSession, Settings
from attnbench.model_problem import ModelProblem
from attnbench_runtimes import binding, tf32, torch_settings
from attnbench_runtimes.torch_settings import check_matmul_precision, check_threads

PROGRAM_SUFFIX = ".pt2"
_PRECISIONS = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}


class RunsPrograms:
    """What a runtime of torch needs to run traced modules."""

    name = ""
    compiled = False

    @contextlib.contextmanager
    def load_model(self, problem: ModelProblem, artifact: Artifact, settings: Settings) -> "Iterator[ModelSession]":
        """Hold the traced module, without autograd while it is held.

        Raises:
            UnsupportedError: the file is no traced module, or a device or option that it has not.
            ArtifactError: torch does not read it.
            UnavailableError: it cannot be compiled here.
            ReadBackError: threads or matrix precision in force are not those asked.
        """
        import torch

        if artifact.path.suffix != PROGRAM_SUFFIX:
            raise UnsupportedError(f"{self.name} runs modules of torch, {artifact.path.name!r} is none")
        binding.refuse_options(settings, self.name, device_kinds=torch_settings.DEVICE_KINDS)
        try:
            with torch_settings.in_force(settings), torch.inference_mode():
                yield TorchModelSession(problem, _read(artifact, settings.device), settings, compiled=self.compiled)
        finally:
            if self.compiled:
                torch._dynamo.reset()


def _read(artifact: Artifact, device: str) -> Any:
    import torch
    from torch.export.passes import move_to_device_pass

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts of torch that torch deprecated
            program = torch.export.load(artifact.path)
            if device != "cpu":  # weights, and devices that the traced code names
                program = move_to_device_pass(program, device)
            return program.module(check_guards=False)
    except (RuntimeError, ValueError, OSError, KeyError) as err:
        words = (str(err).strip().splitlines() or [type(err).__name__])[0]
        raise ArtifactError(f"torch cannot load {artifact.path.name!r}: {words}") from err


class TorchModelSession:
    """A traced module and the tensors that it is called with."""

    def __init__(self, problem: ModelProblem, module: Any, settings: Settings, *, compiled: bool) -> None:
        self._problem, self._module, self._settings, self._is_compiled = problem, module, settings, compiled
        # Not the module itself: hooks of torch.export check the sizes of all inputs in every call, which takes 0.3 ms.
        self._run: Callable[..., Any] = module.forward
        self._tensors: tuple[Any, ...] = ()
        self._outputs: Any = None
        self._compiled_shapes: list[tuple[int, ...]] = []
        self._build_ms: float | None = None

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs into tensors; a compiled module is compiled for their shapes."""
        from attnbench.torch_model import to_torch

        own = binding.own_inputs(self._problem, inputs)
        self._tensors = tuple(to_torch(array).to(self._settings.device) for array in own.values())
        self._outputs = None
        if self._is_compiled and self._compiled_shapes != [array.shape for array in own.values()]:
            self._build_ms = self._compile()
            self._compiled_shapes = [array.shape for array in own.values()]
        run, tensors, wait = self._run, self._tensors, torch_settings.waiting(self._settings)

        def call() -> None:
            self._outputs = None  # its memory serves the next one, as in an application
            try:
                self._outputs = run(*tensors)
                wait()
            except RuntimeError as err:
                if binding.is_out_of_memory(err):
                    raise MemoryError(str(err)) from err
                raise

        return call

    def _compile(self) -> float:
        """Compile for the shapes of `_tensors`, by running once; milliseconds.

        Raises:
            UnavailableError: the compiler does not work here.
        """
        import torch

        start_ns = time.perf_counter_ns()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler imports parts of torch that torch deprecated
                torch._dynamo.reset()
                self._run = torch.compile(self._module.forward, dynamic=False)
                self._run(*self._tensors)
        except torch._dynamo.exc.BackendCompilerFailed as err:
            words = " ".join(str(err).split())[:200]
            raise UnavailableError(f"torch.compile does not work here: {words}; is a C++ compiler installed?") from err
        return (time.perf_counter_ns() - start_ns) / 1e6

    def outputs_by_name(self) -> dict[str, Array]:
        """Every output of the last call, copied.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        from attnbench.torch_model import from_torch

        binding.require_ran(self._outputs is not None)
        arrays = (np.array(from_torch(tensor.cpu()), order="C", copy=True) for tensor in self._outputs)
        return dict(zip(self._problem.output_dims(), arrays, strict=True))

    def facts(self) -> Facts:
        """Threads and precision in force.

        Raises:
            ReadBackError: threads or matrix precision in force are not those asked.
        """
        import torch

        check_threads(self._settings.threads)
        allowed = check_matmul_precision(tf32_allowed=tf32.is_allowed(self._settings))
        tensors = (*self._module.parameters(), *self._module.buffers(), *self._tensors)
        torch_settings.check_device(tensors, self._settings)
        found = {_PRECISIONS[str(t.dtype)] for t in tensors if str(t.dtype) in _PRECISIONS}
        return Facts(
            runtime_version=importlib.metadata.version("torch"), device=self._settings.device,
            device_name=torch_settings.device_name(self._settings), threads=torch.get_num_threads(),
            compute_precision=torch_settings.precision(found, self._settings),
            build_ms=self._build_ms,
            detail={
                "computes": "what torch.export traced, without its checks", "float32_matmul_precision": allowed,
                "inter_op_threads": torch.get_num_interop_threads(),
            },
        )  # fmt: skip
