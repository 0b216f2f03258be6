"""Sentences about NVIDIA's driver, libraries and GPUs, on a made-up driver that answers as documented."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from attnbench.errors import UnsupportedError
from attnbench.trt_compiler import ARCHS
from attnbench_runtimes import cuda_driver, gpu_stack
from attnbench_runtimes.ort_gpu import OrtCuda

ORT = "onnxruntime-gpu 1.31.1"
LINKED = ["libcudnn.so.9", "libcufft.so.12", "libcublasLt.so.13", "libcublas.so.13"]


class Installed:
    """A distribution of `importlib.metadata`, as far as it is asked."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version


class Driver:
    """`libcuda.so.1` of one GPU."""

    def __init__(self, version: int, capability: tuple[int, int], status: int = 0) -> None:
        self._version, self._capability, self._status = version, capability, status

    def cuInit(self, flags: int) -> int:
        return self._status

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self._version
        return self._status

    def cuDeviceGet(self, out: Any, index: int) -> int:
        return self._status if index == 0 else 101  # CUDA_ERROR_INVALID_DEVICE

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> int:
        out._obj.value = {75: self._capability[0], 76: self._capability[1]}[attribute]
        return self._status


def install(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    def load(name: str, *args: Any, **kwargs: Any) -> Driver:
        assert name == "libcuda.so.1"
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)


@pytest.mark.parametrize(("number", "expected"), [(13000, (13, 0)), (12080, (12, 8)), (11040, (11, 4))])
def test_the_newest_cuda_of_a_driver_is_read(
    monkeypatch: pytest.MonkeyPatch, number: int, expected: tuple[int, int]
) -> None:
    install(monkeypatch, Driver(number, (9, 0)))
    assert gpu_stack.cuda_version() == expected


def test_the_architecture_of_a_gpu_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(13000, (12, 1)))
    assert gpu_stack.architecture() == "sm121"
    assert gpu_stack.architecture(1) is None


def test_a_driver_that_fails_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(13000, (9, 0), status=100))  # CUDA_ERROR_NO_DEVICE
    assert gpu_stack.cuda_version() is None
    assert gpu_stack.architecture() is None


def test_without_a_driver_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert gpu_stack.cuda_version() is None
    assert gpu_stack.architecture() is None


def test_a_driver_older_than_the_runtime_is_named_with_the_one_to_take() -> None:
    reason, fix = gpu_stack.why_driver_too_old(LINKED, ORT, (12, 8))
    assert reason == f"NVIDIA's driver runs CUDA 12.8, {ORT} needs CUDA 13 (libcublas.so.13)"
    assert fix == "update NVIDIA's driver to 580 or newer"


@pytest.mark.parametrize("driver", [(13, 0), (13, 2), (14, 0), None])
def test_a_driver_of_the_same_or_a_newer_cuda_is_right(driver: tuple[int, int] | None) -> None:
    assert gpu_stack.why_driver_too_old(LINKED, ORT, driver) == ("", "")


def test_libraries_that_count_for_themselves_say_nothing_of_cuda() -> None:
    assert gpu_stack.why_driver_too_old(["libcufft.so.12", "libcudnn.so.9"], ORT, (8, 0)) == ("", "")


def test_a_driver_older_than_the_cuda_of_a_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Installed("tensorrt_cu12", "10.9.0"), Installed("tensorrt_rtx_cu13", "1.7.1.116")]
    monkeypatch.setattr(gpu_stack.importlib.metadata, "distributions", lambda: found)
    reason, fix = gpu_stack.why_driver_too_old_for("tensorrt-rtx", (12, 4))
    assert reason == "NVIDIA's driver runs CUDA 12.4, tensorrt-rtx 1.7.1.116 needs CUDA 13 (tensorrt-rtx-cu13)"
    assert fix == "update NVIDIA's driver to 580 or newer"
    assert gpu_stack.why_driver_too_old_for("tensorrt", (12, 4)) == ("", "")
    assert gpu_stack.why_driver_too_old_for("openvino", (8, 0)) == ("", "")


@pytest.mark.parametrize(
    ("lacking", "installed", "expected"),
    [
        (["libnvinfer.so.10"], "11.0.0.1", "TensorRT 11.0.0.1 is installed, TensorRT 10 is needed"),
        (["libnvonnxparser.so.10"], "10.14.1", "TensorRT 10.14.1 is installed, but the loader does not find"),
        (["libnvinfer.so.10"], None, ""),
        (["libcublasLt.so.13"], "11.0.0.1", ""),
    ],
)
def test_a_tensorrt_of_another_version_is_named(lacking: list[str], installed: str | None, expected: str) -> None:
    found = gpu_stack.why_other_tensorrt(lacking, installed)
    assert found.startswith(expected)
    assert bool(found) is bool(expected)


def test_tensorrt_rtx_is_not_taken_for_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [Installed("tensorrt-rtx", "1.7.1"), Installed("tensorrt_rtx_cu13", "1.7.1")]
    monkeypatch.setattr(gpu_stack.importlib.metadata, "distributions", lambda: both)
    assert gpu_stack.installed_tensorrt() is None
    both.append(Installed("tensorrt_cu13", "10.14.1"))
    assert gpu_stack.installed_tensorrt() == "10.14.1"


def test_libraries_of_tensorrts_wheel_are_loaded_by_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "tensorrt_libs"
    folder.mkdir()
    for name in ("__init__.py", "libnvinfer.so.10", "libnvonnxparser.so.10", "libnvinfer_builder_resource.so.10.1"):
        (folder / name).touch()
    loaded: list[str] = []

    def load(path: str, mode: int) -> None:
        loaded.append(Path(path).name)
        raise OSError("file too short")

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.syspath_prepend(str(tmp_path))
    gpu_stack.preload_tensorrt()
    assert loaded == ["libnvinfer.so.10", "libnvonnxparser.so.10"]


def test_a_gpu_that_the_compiler_does_not_know_is_named_with_those_that_it_does() -> None:
    found = gpu_stack.why_no_architecture("sm90", ARCHS, "tensorrt-rtx 1.7.1.116")
    assert found == "tensorrt-rtx 1.7.1.116 supports sm75, sm80, sm86, sm89, sm120, sm121; this GPU is sm90"
    assert gpu_stack.why_no_architecture("sm89", ARCHS, "tensorrt-rtx") == ""
    assert gpu_stack.why_no_architecture(None, ARCHS, "tensorrt-rtx") == ""


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "devices", lambda: ("cuda:0", "cuda:1"))
    assert cuda_driver.device_index("cuda:1", "ort-cuda") == 1
    with pytest.raises(UnsupportedError, match="ort-cuda has no cuda:2 here; the GPUs are cuda:0, cuda:1"):
        cuda_driver.device_index("cuda:2", "ort-cuda")


def test_a_wheel_for_cpus_is_not_the_only_thing_missing_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("needs the wheel of onnxruntime for CPUs")
    words = "has no CUDAExecutionProvider; it has"
    for why in ("there is no NVIDIA driver: libcuda.so.1 is missing", ""):
        monkeypatch.setattr(cuda_driver, "why_no_gpu", lambda why=why: why)
        probe = OrtCuda().probe()
        assert not probe.available
        assert words in probe.reason
        assert probe.reason.startswith(f"{why}; onnxruntime" if why else "onnxruntime")
        assert probe.fix.endswith("pip uninstall -y onnxruntime && pip install onnxruntime-gpu")
        assert probe.fix.startswith("install NVIDIA's driver") is bool(why)
