"""One word for TF32 reaches every runtime on a GPU alike, and what is set beside it is named."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench import trt_compiler
from attnbench.errors import ReadBackError, UnsupportedError
from attnbench.interfaces import Artifact, Settings
from attnbench.problem import Problem
from attnbench_exporters.decomposed import OnnxDecomposed
from attnbench_runtimes import cuda_driver, ort_gpu, tensorrt, tf32, torch_settings
from tests.runtimes.binding_doubles import rtx

PROBLEM = Problem.make(seq_len=64, num_heads=2, head_dim=32)
GPU = Settings(device="cuda:0")
POLICIES = [
    ("strict", {}, False), ("default", {}, True), ("strict", {"use_tf32": "on"}, True),
    ("default", {"use_tf32": "off"}, False),
]  # fmt: skip


@pytest.fixture(autouse=True)
def overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's shell says the opposite of whatever is asked."""
    monkeypatch.setenv(tf32.OVERRIDE, "1")


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return OnnxDecomposed().export(PROBLEM, 20, tmp_path / "m.onnx", seed=0)


def in_torch(settings: Settings, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> bool:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(torch_settings, "_why_no_cuda", lambda version: "")
    with torch_settings.in_force(settings):
        return bool(torch.backends.cuda.matmul.allow_tf32)


def in_ort_cuda(settings: Settings, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(ort_gpu, "preload_libraries", lambda: None)
    asked = dict(ort_gpu.OrtCuda().asked(PROBLEM, artifact, settings))
    return {"0": False, "1": True}[asked["CUDAExecutionProvider"]["use_tf32"]]


def in_ort_tensorrt(settings: Settings, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> bool:
    """TensorRT's provider has no option for it: NVIDIA's variable decides, and the folder of its engines is another."""
    monkeypatch.setattr(ort_gpu, "preload_libraries", lambda: None)
    asked = dict(ort_gpu.OrtTensorRt().asked(PROBLEM, artifact, settings))
    assert asked["CUDAExecutionProvider"]["use_tf32"] == str(int(tf32.OVERRIDE not in os.environ))
    return tf32.OVERRIDE not in os.environ


def in_tensorrt(settings: Settings, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The flag of the real builder's configuration at the time that it builds."""
    trt = rtx()
    found = []
    config_of = trt_compiler._config

    def config(*arguments: Any) -> Any:
        made = config_of(*arguments)
        found.append(bool(made.get_flag(trt.BuilderFlag.TF32)))
        return made

    monkeypatch.setattr(trt_compiler, "_config", config)
    tensorrt.TensorrtRtx().compile(PROBLEM, artifact, replace(settings, device="cpu"))
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("runtime", [in_torch, in_ort_cuda, in_ort_tensorrt, in_tensorrt])
@pytest.mark.parametrize(("policy", "options", "allowed"), POLICIES)
def test_strict_and_default_mean_the_same_to_every_runtime(
    runtime: Callable[..., bool], policy: str, options: dict[str, str], allowed: bool, artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert runtime(replace(GPU, fp32=policy, options=options), artifact, monkeypatch) is allowed


def test_native_tensorrt_tells_what_it_was_allowed(artifact: Artifact) -> None:
    rtx()
    for policy, precision in (("strict", "fp32"), ("default", "tf32")):
        facts = tensorrt.TensorrtRtx().compile(PROBLEM, artifact, Settings(fp32=policy))
        assert facts.compute_precision == precision


@pytest.mark.parametrize(("policy", "left"), [("strict", "0"), ("default", None)])
def test_native_tensorrt_takes_the_variable_back_before_it_loads(
    policy: str, left: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnbench_runtimes import cuda_buffers

    monkeypatch.setattr(cuda_driver, "why_no_gpu", lambda: "")
    monkeypatch.setattr(cuda_driver, "device_index", lambda device, who: 0)

    def opened(index: int) -> None:
        raise UnsupportedError(f"variable: {os.environ.get(tf32.OVERRIDE)}")

    monkeypatch.setattr(cuda_buffers, "opened", opened)
    artifact = Artifact(path=Path("m.onnx"), exporter="e", opset=20, sha256="", size_bytes=1, problem=PROBLEM)
    with (
        pytest.raises(UnsupportedError, match=f"variable: {left}"),
        tensorrt.TensorrtRtx().load(PROBLEM, artifact, replace(GPU, fp32=policy)),
    ):
        pass


def test_tf32_that_torchs_own_variable_allows_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    torch.backends.cuda.matmul.allow_tf32 = True  # as it is after such an import
    try:
        with pytest.raises(ReadBackError, match="TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 is set: unset it"):
            torch_settings.check_matmul_precision()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
