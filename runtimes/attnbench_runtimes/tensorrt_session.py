"""The run path of TensorRT and TensorRT-RTX: an engine on a GPU, its buffers bound once, its own stream.

Tested on doubles with the signatures of the real binding; not yet run on a GPU.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench import files, trt_compiler
from attnbench.errors import UnsupportedError
from attnbench.interfaces import UNKNOWN, Array, Artifact, Facts, Settings
from attnbench.problem import OUTPUT_NAME, Problem
from attnbench_runtimes import binding, cuda_driver, tensorrt
from attnbench_runtimes.cuda_buffers import Device

FUSED_LAYERS = ("_gemm_mha_v2", "kgen_mha", "fmha", "flash_attention", "iattention")  # in names of fused kernels
TOLD_LAYERS = 40  # names kept for the report
_MS = 1e6


def cache_folder() -> Path:
    """Where engines and timing caches are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnbench" / "engines"


def cache_key(
    *, sha256: str, version: str, device_name: str, shapes: Mapping[str, Any], asked: Mapping[str, str], tf32: bool
) -> str:
    """Of an engine: the file, the compiler, the GPU, the profile and the flags; another in any of them is another."""
    parts = {"file": sha256, "version": version, "device": device_name, "profile": dict(shapes), "tf32": tf32}
    told = json.dumps({**parts, "flags": dict(asked)}, sort_keys=True, default=list)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def open_session(
    runtime: tensorrt.TensorrtRuntime, problem: Problem, artifact: Artifact, settings: Settings,
    asked: Mapping[str, str], device: Device,
) -> "TensorrtSession":  # fmt: skip
    """A session whose engine for the problem's own sizes is there.

    Raises:
        UnsupportedError: the file is refused, or the engine does not load; in NVIDIA's words.
    """
    session = TensorrtSession(runtime, problem, artifact, settings, asked, device)
    session.prepare()
    return session


class TensorrtSession:
    """A file as one engine per profile; the first is of the problem's own sizes."""

    def __init__(
        self, runtime: tensorrt.TensorrtRuntime, problem: Problem, artifact: Artifact, settings: Settings,
        asked: Mapping[str, str], device: Device,
    ) -> None:  # fmt: skip
        self._runtime, self._problem, self._artifact = runtime, problem, artifact
        self._settings, self._asked, self._device = settings, asked, device
        self._trt = trt_compiler.load_module(runtime.module)
        self._log = trt_compiler.new_log(self._trt)
        self._loader = self._trt.Runtime(self._log)
        self._device_name = cuda_driver.device_name(cuda_driver.device_index(settings.device, runtime.name))
        self._engines: dict[str, Any] = {}  # profile -> engine
        self._places: dict[str, int] = {}  # name -> address; "" is the engine's own memory
        self._outputs: dict[str, Array] = {}
        self._ran = False
        self._launch: Callable[[], None] | None = None
        self._build_ms: float | None = None  # None: it came from the cache
        self._told: dict[str, Any] = {}

    def prepare(self) -> None:
        """Compile (or take from the cache) and load the engine for the problem's sizes."""
        self._engine_at(self._problem)

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs to the device, bind them, the outputs and memory for exactly these shapes; done once."""
        own = binding.own_inputs(self._problem, inputs)
        self._ran = False
        self._outputs = binding.output_buffers(self._problem, own)
        for place in self._places.values():
            self._device.free(place)
        self._places = {}
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine_at(self._sized(own)).create_execution_context(strategy)
        if context is None:
            raise UnsupportedError(f"{self._runtime.name} makes no execution context: {self._log.last_error()}")
        for name, array in own.items():
            if not context.set_input_shape(name, tuple(array.shape)):
                raise UnsupportedError(f"{name} of shape {array.shape} is outside of the engine's profile")
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

    def facts(self) -> Facts:
        """What really ran, as the engine's inspector tells it."""
        layers = self._layers()
        fused = [name for name in layers if any(mark in name.lower() for mark in FUSED_LAYERS)]
        tf32 = self._problem.dtype == "fp32" and tensorrt.is_tf32(self._settings)
        return Facts(
            runtime_version=self._trt.__version__,
            device=self._settings.device,
            device_name=self._device_name,
            threads=None,
            compute_precision="tf32" if tf32 else self._problem.dtype,
            attention_kernel=tensorrt.FUSED if fused else UNKNOWN,
            kernel_evidence="compiler" if fused else "",
            build_ms=self._build_ms,
            detail={**self._told, **self._asked, "layers": layers[:TOLD_LAYERS], "layer_count": len(layers)},
        )

    def _sized(self, own: Mapping[str, Array]) -> Problem:
        batch_size, q_len = (int(next(iter(own.values())).shape[axis]) for axis in (0, -2))
        return self._problem.at(q_len=q_len, kv_len=binding.kv_len(own), batch_size=batch_size)

    def _engine_at(self, sized: Problem) -> Any:
        """The engine that takes these sizes; kernels of `exact` are chosen for the problem's own, others share one."""
        is_own = sized == self._problem
        profile = "own" if is_own else f"{sized.batch_size} {sized.q_len} {sized.kv_len}"
        if self._asked["profile"] == "range" and self._is_within(sized):
            profile, sized = "own", self._problem
        if profile not in self._engines:
            self._engines[profile] = self._loaded(self._engine_bytes(sized, is_first=profile == "own"))
        return self._engines[profile]

    def _is_within(self, sized: Problem) -> bool:
        p = self._problem
        return sized.batch_size <= p.batch_size and sized.q_len <= p.q_len and sized.kv_len <= p.kv_len

    def _engine_bytes(self, sized: Problem, *, is_first: bool) -> bytes:
        tf32 = tensorrt.is_tf32(self._settings)
        shapes = tensorrt.range_of(sized) if self._asked["profile"] == "range" else sized.input_shapes()
        key = cache_key(
            sha256=self._artifact.sha256, version=f"{self._runtime.name} {self._trt.__version__}",
            device_name=self._device_name, shapes=shapes, asked=self._asked, tf32=tf32,
        )  # fmt: skip
        is_cached = self._asked["cache"] == "on"
        path = cache_folder() / f"{key}.engine"
        if is_cached and path.exists():
            return path.read_bytes()
        timing = cache_folder() / f"{self._runtime.name}-{self._trt.__version__}-{key_of(self._device_name)}.timing"
        more = {"timing_cache": timing.read_bytes() if timing.exists() else b""} if is_cached else {}
        made = tensorrt.compiled(self._runtime, sized, self._artifact, self._asked, tf32=tf32, is_detailed=True, **more)
        assert made.engine is not None
        if is_first:
            self._build_ms = made.build_ms
            self._told["planned_activation_bytes"] = made.planned_activation_bytes
            self._told["attention_decomposed"] = made.attention_decomposed
            self._told["engine_bytes"] = len(made.engine)
        if is_cached:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, made.engine)
            files.write_bytes(timing, made.timing_cache)
        return made.engine

    def _loaded(self, blob: bytes) -> Any:
        start = time.perf_counter_ns()
        engine = self._loader.deserialize_cuda_engine(blob)
        if engine is None:
            raise UnsupportedError(f"{self._runtime.name} loads no engine: {self._log.last_error()}")
        self._told.setdefault("deserialise_ms", round((time.perf_counter_ns() - start) / _MS, 3))
        return engine

    def _place(self, context: Any, name: str, size_bytes: int) -> None:
        self._places[name] = self._device.allocate(size_bytes)
        if not context.set_tensor_address(name, self._places[name]):
            raise UnsupportedError(f"the engine has no tensor {name!r}: {self._log.last_error()}")

    def _give_memory(self, context: Any) -> None:
        """Of what this context needs for the shapes set, not for the largest of its profile."""
        size_bytes = int(context.update_device_memory_size_for_shapes())
        self._told["activation_bytes_at_bound_shapes"] = size_bytes
        if size_bytes:
            self._places[""] = self._device.allocate(size_bytes)
            context.set_device_memory(self._places[""], size_bytes)

    def _launcher(self, context: Any) -> Callable[[], None]:
        def enqueue() -> None:
            if not context.execute_async_v3(self._device.stream):
                raise UnsupportedError(f"{self._runtime.name} does not run: {self._log.last_error()}")

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

    def _layers(self) -> list[str]:
        inspector = self._engines["own"].create_engine_inspector()
        text = inspector.get_engine_information(self._trt.LayerInformationFormat.JSON)
        layers = json.loads(text)["Layers"]
        return [layer if isinstance(layer, str) else str(layer["Name"]) for layer in layers]


def key_of(text: str) -> str:
    """Eight digits for a name that may hold anything."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
