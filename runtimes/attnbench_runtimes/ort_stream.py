"""A session of ONNX Runtime on a GPU that works on a stream of ours, so that it can be timed by events there."""

from collections.abc import Callable, Mapping
from typing import Any

from attnbench.interfaces import Array, Artifact, Settings
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem
from attnbench_runtimes import binding
from attnbench_runtimes.cuda_buffers import Device
from attnbench_runtimes.ort import OrtRuntime, OrtSession
from attnbench_runtimes.ort_loaded import Asked

STREAM_OPTION = "user_compute_stream"  # of both providers: an address
_NO_WAITING = "disable_synchronize_execution_providers"


class Streamed:
    """A runtime whose providers are told to work on a stream; see `attnbench_runtimes.ort_loaded.Providers`."""

    def __init__(self, runtime: OrtRuntime, stream: int) -> None:
        self._runtime, self._stream = runtime, stream
        self.allowed_elsewhere = runtime.allowed_elsewhere
        self.has_readable_graph = runtime.has_readable_graph

    def asked(self, problem: AnyProblem, artifact: Artifact, settings: Settings) -> Asked:
        """As the runtime asks, on the stream."""
        found = self._runtime.asked(problem, artifact, settings)
        return [(name, {**options, STREAM_OPTION: str(self._stream)}) for name, options in found]

    def run_options(self, settings: Settings, bound: int) -> Any:
        """As the runtime's."""
        return self._runtime.run_options(settings, bound)

    def build_ms(self, asked: Asked, open_ms: float) -> float | None:
        """As the runtime's."""
        return self._runtime.build_ms(asked, open_ms)


class OrtGpuSession(OrtSession):
    """See `attnbench.interfaces.DeviceSession`."""

    def __init__(self, runtime: OrtRuntime, problem: Problem, artifact: Artifact, settings: Settings, gpu: Device):
        super().__init__(Streamed(runtime, gpu.stream), problem, artifact, settings)
        self._gpu = gpu
        self.stream = gpu.stream
        self.replays_graph = settings.options.get("cuda_graph") == "on"
        self._io: Any = None
        self._queueing: Any = None

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """As `OrtSession.bind`; onnxruntime's own call waits for the stream at its end."""
        self._io = None
        return super().bind(inputs)

    def _bound_call(self, io: Any) -> Callable[[], object]:
        import onnxruntime

        call = super()._bound_call(io)
        options = self._runtime.run_options(self._settings, self._bound) or onnxruntime.RunOptions()
        options.add_run_config_entry(_NO_WAITING, "1")
        self._io, self._queueing = io, options
        return call

    def enqueue(self) -> None:
        """Queue a call on the stream without waiting for it."""
        binding.require_ran(self._io is not None)
        self._session.run_with_iobinding(self._io, self._queueing)
        self._ran = True

    def synchronize(self) -> None:
        """Wait for everything on the stream."""
        self._gpu.synchronize()
