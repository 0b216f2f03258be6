"""Engines of TensorRT and TensorRT-RTX: compiled for the sizes that are asked for, kept in a cache, loaded on a GPU.

Tested on doubles with the signatures of the real binding; not yet timed on a GPU.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench import files, trt_compiler
from attnbench.errors import UnsupportedError
from attnbench.interfaces import Artifact, Settings
from attnbench.model_problem import AnyProblem
from attnbench_runtimes import cuda_driver, tensorrt

_MS = 1e6


class Engines:
    """The module, its log and its loader; a subclass says which engine takes which sizes."""

    def __init__(self, runtime: tensorrt.TensorrtRuntime, settings: Settings) -> None:
        self.runtime, self.settings = runtime, settings
        self.trt = trt_compiler.load_module(runtime.module)
        self.log = trt_compiler.new_log(self.trt)
        self._loader = loader_of(self.trt, self.log)
        self.device_name = cuda_driver.device_name(cuda_driver.device_index(settings.device, runtime.name))
        self.build_ms: float | None = None  # None: nothing was compiled here
        self.told: dict[str, Any] = {}  # for the report
        self.own: Any = None  # the engine of the problem's own sizes

    def at(self, sized: AnyProblem) -> tuple[Any, int]:
        """The engine that takes a problem's sizes, and which of its profiles.

        Raises:
            UnsupportedError: there is none; in NVIDIA's words where it refuses.
        """
        raise NotImplementedError

    def loaded(self, blob: bytes) -> Any:
        """An engine on the GPU.

        Raises:
            UnsupportedError: NVIDIA refuses it; its words.
        """
        start = time.perf_counter_ns()
        engine = self._loader.deserialize_cuda_engine(blob)
        if engine is None:
            raise UnsupportedError(f"{self.runtime.name} loads no engine: {self.log.every_error()}")
        self.told.setdefault("deserialise_ms", round((time.perf_counter_ns() - start) / _MS, 3))
        return engine

    def layers(self) -> list[str]:
        """Names of the layers of the own engine; none where it was compiled to tell none."""
        inspector = self.own.create_engine_inspector()
        text = inspector.get_engine_information(self.trt.LayerInformationFormat.JSON)
        layers = json.loads(text).get("Layers", []) if text.strip() else []
        return [layer if isinstance(layer, str) else str(layer["Name"]) for layer in layers]


class CompiledEngines(Engines):
    """A file as one engine per profile; the first is of the problem's own sizes."""

    def __init__(
        self, runtime: tensorrt.TensorrtRuntime, problem: AnyProblem, artifact: Artifact, settings: Settings,
        asked: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(runtime, settings)
        self._problem, self._artifact, self._asked = problem, artifact, asked
        self._found: dict[str, Any] = {}  # profile -> engine
        self.own, _ = self.at(problem)

    def at(self, sized: AnyProblem) -> tuple[Any, int]:
        """Kernels of `exact` are chosen for the problem's own sizes; of `range` one engine serves all up to them."""
        is_own = sized == self._problem
        if self._asked["profile"] == "range" and self._is_within(sized):
            is_own, sized = True, self._problem
        profile = "own" if is_own else str(sized.input_shapes())
        if profile not in self._found:
            self._found[profile] = self._opened(sized, is_own=is_own)
        return self._found[profile], 0

    def _is_within(self, sized: AnyProblem) -> bool:
        """Is every dim of every input at most the problem's own?"""
        most = self._problem.input_shapes()
        return all(
            size <= limit for name, shape in sized.input_shapes().items()
            for size, limit in zip(shape, most[name], strict=True)
        )  # fmt: skip

    def _opened(self, sized: AnyProblem, *, is_own: bool) -> Any:
        """From the cache; what lies there and does not load (damaged, of another driver) is built again and told."""
        path = self._kept_at(sized)
        if self._asked["cache"] == "on" and path.exists():
            try:
                found = self.loaded(path.read_bytes())
            except UnsupportedError as err:
                self.told["cached_engine_rebuilt"] = str(err)
                self.log.told.clear()  # else they would be the words of whatever fails next
            else:
                self.told.setdefault("engine_from_cache", path.name)
                return found
        return self.loaded(self._built(sized, path, is_first=is_own))

    def _kept_at(self, sized: AnyProblem) -> Path:
        """Where the engine of these sizes lies in the cache, if it does."""
        shapes = tensorrt.range_of(sized) if self._asked["profile"] == "range" else sized.input_shapes()
        key = cache_key(
            sha256=self._artifact.sha256, version=f"{self.runtime.name} {self.trt.__version__}",
            device_name=self.device_name, shapes=shapes, asked=self._asked, tf32=tensorrt.is_tf32(self.settings),
        )  # fmt: skip
        return cache_folder() / f"{key}.engine"

    def _built(self, sized: AnyProblem, path: Path, *, is_first: bool) -> bytes:
        """Compile, and keep the engine at `path` where that was asked."""
        is_cached = self._asked["cache"] == "on"
        timing = cache_folder() / f"{self.runtime.name}-{self.trt.__version__}-{key_of(self.device_name)}.timing"
        more = {"timing_cache": timing.read_bytes() if timing.exists() else b""} if is_cached else {}
        tf32 = tensorrt.is_tf32(self.settings)
        made = tensorrt.compiled(self.runtime, sized, self._artifact, self._asked, tf32=tf32, is_detailed=True, **more)
        assert made.engine is not None
        if is_first:
            self.build_ms = made.build_ms
            self.told["planned_activation_bytes"] = made.planned_activation_bytes
            self.told["attention_decomposed"] = made.attention_decomposed
            self.told["engine_bytes"] = len(made.engine)
        if is_cached:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, made.engine)
            files.write_bytes(timing, made.timing_cache)
        return made.engine


def loader_of(trt: Any, log: Any) -> Any:
    """What opens engines; code for the host that one may carry is not allowed."""
    found = trt.Runtime(log)
    found.engine_host_code_allowed = False
    return found


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


def key_of(text: str) -> str:
    """Eight digits for a name that may hold anything."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
