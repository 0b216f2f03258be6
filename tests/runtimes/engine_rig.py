"""A whole TensorRT-RTX on doubles of its real classes: an engine of a user that computes y = 2 x + 1 and its argmax."""

import contextlib
import ctypes
import json
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench import trt_compiler
from attnbench.interfaces import Array
from attnbench_runtimes import cuda_buffers, cuda_driver, gpu_stack
from tests.runtimes.binding_doubles import Double, HostDevice, HostEngine

LAYERS = json.dumps({"Layers": ["kgen_add", "_gemm_mha_v2_myl0_3"]})
_BYTES = {"FLOAT": np.float32, "HALF": np.float16, "INT64": np.int64}


@dataclass
class Tensor:
    """An input or output of the engine, as its getters tell it."""

    mode: str
    dtype: str
    dims: tuple[int, ...]
    form: str = "LINEAR"
    location: str = "DEVICE"


def header(tag: bytes, size_bytes: int, version: tuple[int, int, int, int] = (1, 7, 1, 116)) -> bytes:
    """The first bytes of an engine: its tag, its size and the version that wrote it."""
    return tag + bytes(12) + size_bytes.to_bytes(8, "little") + bytes(version)


def save_plan(path: Path, tag: bytes = b"vtrt") -> Path:
    """A file that begins as an engine does."""
    path.write_bytes(header(tag, 64) + bytes(36))
    return path


class EngineRig(HostEngine):
    """The module, with one engine whose tensors and profiles a test may change before it is opened."""

    def __init__(self, trt: Any) -> None:
        super().__init__(trt)
        self.tensors = {
            "x": Tensor("INPUT", "FLOAT", (-1, -1, 4)), "y": Tensor("OUTPUT", "FLOAT", (-1, -1, 4)),
            "best": Tensor("OUTPUT", "INT64", (-1, -1)),
        }  # fmt: skip
        self.profiles = [{"x": ((1, 1, 4), (2, 8, 4), (4, 16, 4))}]
        self.gives: dict[str, tuple[int, ...]] = {}  # shapes that the engine says outputs have; others are right
        self.words: list[str] = []  # errors told at opening: then there is no engine
        self.blobs: list[bytes] = []
        self.device = HostDevice()
        names = (
            "ExecutionContextAllocationStrategy", "LayerInformationFormat", "ILogger", "__version__", "TensorIOMode",
            "TensorFormat", "TensorLocation",
        )  # fmt: skip
        self.module = types.SimpleNamespace(**{n: getattr(trt, n) for n in names}, Runtime=self.make_runtime)

    def make_runtime(self, log: Any) -> Double:
        """A loader that keeps what it was given."""

        def deserialize(blob: bytes) -> Any:
            self.blobs.append(blob)
            for words in self.words:
                log.log(self.trt.ILogger.ERROR, words)
            return None if self.words else self.make_engine()

        return Double(self.trt.Runtime, deserialize_cuda_engine=deserialize)

    def make_engine(self) -> Double:
        """The engine, which answers as its tensors say."""
        trt, tensors = self.trt, self.tensors

        def ranges(name: str, index: int) -> list[Any]:
            return [trt.Dims(shape) for shape in self.profiles[index][name]]

        return Double(
            trt.ICudaEngine, num_io_tensors=len(tensors), num_optimization_profiles=len(self.profiles),
            get_tensor_name=lambda index: list(tensors)[index], get_tensor_profile_shape=ranges,
            get_tensor_mode=lambda name: getattr(trt.TensorIOMode, tensors[name].mode),
            get_tensor_dtype=lambda name: getattr(trt.DataType, tensors[name].dtype),
            get_tensor_shape=lambda name: trt.Dims(tensors[name].dims),
            get_tensor_format=lambda name, index: getattr(trt.TensorFormat, tensors[name].form),
            get_tensor_location=lambda name: getattr(trt.TensorLocation, tensors[name].location),
            create_execution_context=self.make_context,
            create_engine_inspector=lambda: Double(trt.EngineInspector, get_engine_information=lambda form: LAYERS),
        )  # fmt: skip

    def shape_of(self, name: str) -> tuple[int, ...]:
        """What the context says."""
        return self.gives.get(name) or (self.shapes["x"][:-1] if name == "best" else self.shapes["x"])

    def execute(self, stream: int) -> bool:
        """One call."""
        assert stream == HostDevice.stream
        y = self.view("x") * 2 + 1
        self.view("y")[...] = y
        if "best" in self.tensors:
            self.view("best")[...] = y.argmax(-1)
        return True

    def view(self, name: str) -> Array:
        """The memory of a tensor."""
        dtype, shape = np.dtype(_BYTES[self.tensors[name].dtype]), self.shape_of(name)
        size_bytes = dtype.itemsize * int(np.prod(shape))
        return np.frombuffer((ctypes.c_char * size_bytes).from_address(self.places[name]), dtype).reshape(shape)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In place of the module and of NVIDIA's driver."""
        monkeypatch.setattr(trt_compiler, "load_module", lambda name: self.module)
        monkeypatch.setattr(trt_compiler, "is_installed", lambda name: True)
        for name, answer in (("why_no_gpu", ""), ("devices", ("cuda:0",))):
            monkeypatch.setattr(cuda_driver, name, lambda answer=answer: answer)
        monkeypatch.setattr(cuda_driver, "device_name", lambda index: "NVIDIA Test")
        monkeypatch.setattr(gpu_stack, "cuda_version", lambda: (13, 0))
        monkeypatch.setattr(gpu_stack, "architecture", lambda: "sm89")
        monkeypatch.setattr(cuda_buffers, "opened", lambda index: contextlib.nullcontext(self.device))
