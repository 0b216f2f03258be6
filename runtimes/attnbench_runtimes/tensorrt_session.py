"""The run path of TensorRT and TensorRT-RTX: an engine on a GPU, its buffers bound once, its own stream.

Tested on doubles with the signatures of the real binding; not yet timed on a GPU.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from attnbench.errors import ReadBackError, UnsupportedError
from attnbench.interfaces import UNKNOWN, Array, Facts
from attnbench.model_problem import ModelProblem
from attnbench.problem import OUTPUT_NAME, Problem
from attnbench_runtimes import binding, tensorrt
from attnbench_runtimes.cuda_buffers import Device
from attnbench_runtimes.tensorrt_engines import Engines

P = TypeVar("P", Problem, ModelProblem)
FUSED_LAYERS = ("_gemm_mha_v2", "kgen_mha", "fmha", "flash_attention", "iattention")  # in names of fused kernels
TOLD_LAYERS = 40  # names kept for the report


class EngineSession(Generic[P]):
    """What is bound to an engine and runs; a subclass says what a problem's sizes and outputs are."""

    def __init__(self, engines: Engines, problem: P, asked: Mapping[str, str], device: Device) -> None:
        self._problem: P = problem
        self._engines, self._asked, self._device = engines, asked, device
        self._places: dict[str, int] = {}  # name -> address; "" is the engine's own memory
        self._outputs: dict[str, Array] = {}
        self._ran = False
        self._launch: Callable[[], None] | None = None

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs to the device, bind them, the outputs and memory for exactly these shapes; done once."""
        own = binding.own_inputs(self._problem, inputs)
        self._ran = False
        for place in self._places.values():
            self._device.free(place)
        self._places = {}
        context = self._context(self._sized(own))
        for name, array in own.items():
            if not context.set_input_shape(name, tuple(array.shape)):
                raise UnsupportedError(f"{name} of shape {array.shape} is outside of the engine's profile")
        self._outputs = self._output_buffers(context, own)
        for name, array in own.items():
            self._place(context, name, array.nbytes)
            self._device.upload(array, self._places[name])
        for name, array in self._outputs.items():
            self._place(context, name, array.nbytes)
        self._give_memory(context)
        self._launch = self._launcher(context)

        def call() -> None:
            self.enqueue()
            self.synchronize()

        return call

    @property
    def stream(self) -> int:
        """The stream of the GPU that calls are queued on."""
        return self._device.stream

    @property
    def replays_graph(self) -> bool:
        """Is a call the replay of a captured graph?"""
        return self._asked["cuda_graph"] != "off"

    def enqueue(self) -> None:
        """Queue a call on the stream without waiting for it."""
        assert self._launch is not None, "nothing is bound"
        self._launch()
        self._ran = True

    def synchronize(self) -> None:
        """Wait until the stream is done."""
        self._device.synchronize()

    def facts(self) -> Facts:
        """What really ran, as the engine's inspector tells it."""
        layers = self._engines.layers()
        fused = [name for name in layers if any(mark in name.lower() for mark in FUSED_LAYERS)]
        settings = self._engines.settings
        return Facts(
            runtime_version=self._engines.trt.__version__,
            device=settings.device,
            device_name=self._engines.device_name,
            threads=None,
            compute_precision=self._precision(),
            attention_kernel=tensorrt.FUSED if fused else UNKNOWN,
            kernel_evidence="compiler" if fused else "",
            build_ms=self._engines.build_ms,
            detail={
                **self._engines.told, **self._asked, "layers": layers[:TOLD_LAYERS], "layer_count": len(layers)
            },
        )  # fmt: skip

    def _sized(self, own: Mapping[str, Array]) -> P:
        """The problem at the sizes of these inputs."""
        raise NotImplementedError

    def _output_buffers(self, context: Any, own: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays that the outputs fit in, once the shapes of the inputs are set."""
        raise NotImplementedError

    def _precision(self) -> str:
        """What products are computed in: engines compiled here are strongly typed, so it is the file's."""
        raise NotImplementedError

    def _context(self, sized: P) -> Any:
        engine, profile = self._engines.at(sized)
        strategy = self._engines.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = engine.create_execution_context(strategy)
        if context is None:
            raise UnsupportedError(f"{self._name} makes no execution context: {self._engines.log.last_error()}")
        if profile:
            if not context.set_optimization_profile_async(profile, self._device.stream):
                raise UnsupportedError(f"{self._name} takes no profile {profile}: {self._engines.log.last_error()}")
            self._device.synchronize()
        return context

    @property
    def _name(self) -> str:
        return self._engines.runtime.name

    def _place(self, context: Any, name: str, size_bytes: int) -> None:
        self._places[name] = self._device.allocate(size_bytes)
        if not context.set_tensor_address(name, self._places[name]):
            raise UnsupportedError(f"the engine has no tensor {name!r}: {self._engines.log.last_error()}")

    def _give_memory(self, context: Any) -> None:
        """Of what this context needs for the shapes set, not for the largest of its profile."""
        size_bytes = int(context.update_device_memory_size_for_shapes())
        self._engines.told["activation_bytes_at_bound_shapes"] = size_bytes
        if size_bytes:
            self._places[""] = self._device.allocate(size_bytes)
            context.set_device_memory(self._places[""], size_bytes)

    def _launcher(self, context: Any) -> Callable[[], None]:
        def enqueue() -> None:
            if not context.execute_async_v3(self._device.stream):
                raise UnsupportedError(f"{self._name} does not run: {self._engines.log.last_error()}")

        if self._asked["cuda_graph"] == "off":
            return enqueue
        enqueue()  # the first call may allocate, which a capture must not
        self._device.synchronize()
        return self._device.captured(enqueue)

    def _downloaded(self, name: str) -> Array:
        binding.require_ran(self._ran)
        found = np.empty_like(self._outputs[name])
        self._device.download(self._places[name], found)
        return found


class TensorrtSession(EngineSession[Problem]):
    """The built-in attention."""

    def outputs(self) -> Array:
        """`y` of the last call, copied from the device.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        return self._downloaded(OUTPUT_NAME)

    def cache(self) -> dict[str, Array]:
        """`present_key` and `present_value` of the last call, copied from the device.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        return {name: self._downloaded(name) for name in self._outputs if name != OUTPUT_NAME}

    def _sized(self, own: Mapping[str, Array]) -> Problem:
        batch_size, q_len = (int(next(iter(own.values())).shape[axis]) for axis in (0, -2))
        return self._problem.at(q_len=q_len, kv_len=binding.kv_len(own), batch_size=batch_size)

    def _output_buffers(self, context: Any, own: Mapping[str, Array]) -> dict[str, Array]:
        """An engine that gave more than the problem's output would write over other memory.

        Raises:
            ReadBackError: it says so.
        """
        due = binding.output_buffers(self._problem, own)
        for name, array in due.items():
            if (found := tuple(context.get_tensor_shape(name))) != array.shape:
                raise ReadBackError(f"the engine gives {name} of shape {found}, the problem's is {array.shape}")
        return due

    def _precision(self) -> str:
        dtype = self._problem.dtype
        return "tf32" if dtype == "fp32" and tensorrt.is_tf32(self._engines.settings) else dtype
