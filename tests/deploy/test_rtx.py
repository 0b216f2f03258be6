"""Engines of TensorRT-RTX: compiled without a GPU where it is installed, refused in words where it is not."""

import ctypes
import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench import bundles
from attnbench.deploy import golden, rtx
from attnbench.deploy.verify_runtimes import CANNOT_LOAD, Fault, load
from attnbench.errors import InputError, UnavailableError
from attnbench.problem import Problem
from tests.deploy.bundles import run_verify


def test_architectures_are_read_once_each_and_others_are_refused_with_those_there_are() -> None:
    assert rtx.parse_archs(None) == rtx.DEFAULT_ARCHS
    assert rtx.parse_archs("SM89, sm120,sm89") == ("sm89", "sm120")
    for text in ("sm90", "", "89"):
        with pytest.raises(InputError, match="must be of sm75, sm80, sm86, sm89, sm120, sm121, got"):
            rtx.parse_archs(text)


@pytest.mark.parametrize("variant", ["self", "cross", "decode"])
def test_every_golden_case_is_within_the_profile(variant: str) -> None:
    problem = Problem.make(variant=variant, seq_len=8, num_heads=2, head_dim=8)  # type: ignore[arg-type]
    profile = rtx.profile_of(problem, 64)
    for sized in golden.sizes_of(problem, 64):
        for name, shape in sized.input_shapes().items():
            least, _, most = profile[name]
            assert all(a <= size <= b for a, size, b in zip(least, shape, most, strict=True)), (name, sized.label())


def test_the_profile_reaches_from_one_token_to_the_largest_length_of_every_input() -> None:
    cross = rtx.profile_of(Problem.make(variant="cross", seq_len=8, num_heads=2, head_dim=8), 1024)
    assert cross == {name: [[1, 1, 16], [1, 512, 16], [8, 1024, 16]] for name in ("query", "context")}
    decode = rtx.profile_of(Problem.make(variant="decode", seq_len=8, num_heads=2, head_dim=8), 64)
    assert decode["x"] == [[1, 1, 16], [1, 1, 16], [8, 5, 16]]
    assert decode["past_key"] == [[1, 2, 0, 8], [1, 2, 63, 8], [8, 2, 63, 8]]


def test_without_the_package_the_target_says_what_to_install_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="pip install tensorrt-rtx"):
        bundles.export_bundle(target="tensorrt-rtx", out=tmp_path / "b", max_len=32, num_heads=2, head_dim=16)
    assert list(tmp_path.iterdir()) == []


def fake_package(words: str) -> types.ModuleType:
    """A TensorRT-RTX that loads nothing and says why, as it does where there is no driver."""

    class ILogger:
        ERROR, INTERNAL_ERROR = 1, 0

        def log(self, severity: int, message: str) -> None:
            raise NotImplementedError

    class Runtime:
        def __init__(self, log: ILogger) -> None:
            self.told = log

        def deserialize_cuda_engine(self, engine: bytes) -> None:
            self.told.log(ILogger.ERROR, words)

    module = types.ModuleType("tensorrt_rtx")
    module.__dict__.update(__version__="1.7.1", ILogger=ILogger, Runtime=Runtime)
    return module


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient)", "no NVIDIA driver here"),
        ("Version tag does not match", "loads no engine of the bundle: Version tag does not match"),
    ],
)
def test_an_engine_that_is_not_loaded_is_exit_code_5_with_the_reason(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", fake_package(words))
    (tmp_path / "model-sm89.engine").write_bytes(b"engine")
    runtime = {"distribution": "tensorrt-rtx", "version": "1.7.1", "module": "tensorrt_rtx", "settings": {}}
    bundle = {"runtime": runtime, "model": "model-sm89.engine", "files": {}, "inputs": [], "outputs": []}
    with pytest.raises(Fault, match=said) as caught:
        load(tmp_path, bundle, {})
    assert caught.value.code == CANNOT_LOAD


class FakeDriver:
    """CUDA's driver whose memory is this process's: every function gives 0."""

    def __init__(self) -> None:
        self.held: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: 0

    def cuMemAlloc_v2(self, place: Any, size: ctypes.c_size_t) -> int:
        memory = ctypes.create_string_buffer(size.value)
        place._obj.value = ctypes.addressof(memory)
        self.held[place._obj.value] = memory
        return 0

    def cuMemcpyHtoD_v2(self, to: ctypes.c_size_t, source: ctypes.c_size_t, size: ctypes.c_size_t) -> int:
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, to: ctypes.c_size_t, source: ctypes.c_size_t, size: ctypes.c_size_t) -> int:
        return self.cuMemcpyHtoD_v2(to, source, size)

    def cuMemFree_v2(self, place: ctypes.c_size_t) -> int:
        del self.held[place.value]
        return 0


class FakeContext:
    """An engine that gives y = 2 x for up to 8 numbers."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return shape[0] <= 8

    def set_tensor_address(self, name: str, place: int) -> None:
        self.places[name] = place

    def execute_async_v3(self, stream: int) -> bool:
        x, y = (np.ctypeslib.as_array((ctypes.c_float * self.shape[0]).from_address(self.places[n])) for n in "xy")
        y[:] = 2 * x
        return True


def test_an_engine_runs_through_the_memory_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, driver = fake_package(""), FakeDriver()
    engine = types.SimpleNamespace(create_execution_context=FakeContext)
    monkeypatch.setattr(module.Runtime, "deserialize_cuda_engine", lambda self, data: engine)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", module)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    (tmp_path / "model-sm89.engine").write_bytes(b"engine")
    runtime = {"distribution": "tensorrt-rtx", "version": "1.7.1", "module": "tensorrt_rtx", "settings": {}}
    tensors = {kind: [{"name": name, "dtype": "fp32"}] for kind, name in (("inputs", "x"), ("outputs", "y"))}
    run = load(tmp_path, {"runtime": runtime, "model": "model-sm89.engine", "files": {}, **tensors}, {})
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(run({"x": x}, {"y": (5,)})["y"], 2 * x)
    assert driver.held == {}
    with pytest.raises(RuntimeError, match="outside of what the engine was compiled for"):
        run({"x": np.zeros(9, np.float32)}, {"y": (9,)})


def test_an_engine_is_compiled_for_every_architecture_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    problem = {"variant": "causal", "num_heads": 2, "head_dim": 64, "dtype": "fp16"}
    made = bundles.export_bundle(
        target="tensorrt-rtx", out=tmp_path / "b", max_len=64, gpu_archs=("sm80", "sm89"), **problem
    )
    told = json.loads((tmp_path / "b" / rtx.ENGINES).read_text(encoding="utf-8"))
    assert made.model == "model-sm80.engine"
    assert {"model-sm80.engine", "model-sm89.engine", rtx.ENGINES} < set(made.files)
    assert all(engine["planned_activation_bytes"] > 0 for engine in told["engines"].values())
    done = run_verify(tmp_path / "b")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert done.returncode == CANNOT_LOAD, done.stdout + done.stderr
        assert "loads no engine of the bundle: there is no NVIDIA driver here" in done.stdout
        assert bundles.verify(tmp_path / "b").exit_code == CANNOT_LOAD
