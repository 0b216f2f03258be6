"""The real onnxruntime-gpu, asked for providers that this machine has not: the true reason, never a figure of the CPU.

Run in an environment of its own: onnxruntime-gpu and onnxruntime overwrite each other.
"""

import ctypes
import importlib.metadata
from pathlib import Path

import pytest

from attnbench import plugins
from attnbench.errors import ReadBackError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Settings
from attnbench.measure.numerics import compare
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters.attention import OnnxAttention
from attnbench_runtimes import gpu_stack
from attnbench_runtimes.ort import OrtCpu
from attnbench_runtimes.ort_gpu import OrtCuda, OrtTensorRt


def _has_wheel() -> bool:
    try:
        importlib.metadata.version("onnxruntime-gpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.skipif(not _has_wheel(), reason="needs onnxruntime-gpu instead of onnxruntime"),
    pytest.mark.skipif(_has_driver(), reason="this machine has an NVIDIA driver"),
]
PROBLEM = Problem.make(variant="self", seq_len=16, num_heads=4, head_dim=16)


@pytest.mark.parametrize(("name", "library"), [("ort-cuda", "libcublasLt.so.13"), ("ort-tensorrt", "libnvinfer.so.10")])
def test_the_probe_names_the_driver_and_every_missing_library(name: str, library: str) -> None:
    probe = plugins.probe("runtime", name)
    assert not probe.available
    assert "there is no NVIDIA driver: libcuda.so.1 is missing" in probe.reason
    assert library in probe.reason
    assert probe.fix.startswith("install NVIDIA's driver")


@pytest.mark.parametrize(
    ("cuda", "tensorrt", "words"),
    [
        ((12, 8), None, "NVIDIA's driver runs CUDA 12.8, onnxruntime-gpu {version} needs CUDA 13"),
        ((13, 0), "11.0.0", "TensorRT 11.0.0 is installed, TensorRT 10 is needed"),
    ],
)
def test_the_probe_says_what_of_nvidia_does_not_fit_this_wheel(
    monkeypatch: pytest.MonkeyPatch, cuda: tuple[int, int], tensorrt: str | None, words: str
) -> None:
    monkeypatch.setattr(gpu_stack, "cuda_version", lambda: cuda)
    monkeypatch.setattr(gpu_stack, "installed_tensorrt", lambda: tensorrt)
    probe = OrtTensorRt().probe()
    assert not probe.available
    assert words.format(version=probe.version) in probe.reason
    assert ("update NVIDIA's driver to 580 or newer" in probe.fix) is (cuda < (13, 0))
    assert "tensorrt==10.*" in probe.fix


@pytest.mark.parametrize("runtime", [OrtCuda(), OrtTensorRt()], ids=lambda r: r.name)
def test_loading_all_the_same_is_an_error_not_a_session_of_the_cpu(runtime: OrtCuda, tmp_path: Path) -> None:
    """What onnxruntime does by itself: a warning, and a session whose only provider is the CPU's."""
    artifact = OnnxAttention().export(PROBLEM, 23, tmp_path / "m.onnx", seed=0)
    asked = r"providers \['(Tensorrt|CUDA)ExecutionProvider'.* were asked, onnxruntime uses \['CPUExecutionProvider'\]"
    with (
        pytest.raises(ReadBackError, match=asked),
        runtime.load(PROBLEM, artifact, Settings(device="cuda:0")),
    ):
        pass


def test_ort_cpu_works_from_that_wheel(tmp_path: Path) -> None:
    artifact = OnnxAttention().export(PROBLEM, 23, tmp_path / "m.onnx", seed=0)
    inputs = make_inputs(PROBLEM)
    with OrtCpu().load(PROBLEM, artifact, Settings()) as session:
        session.bind(inputs)()
        facts = session.facts()
        error = compare(session.outputs(), reference_output(PROBLEM, inputs, make_weights(PROBLEM)))
    assert error.worst_row_rel_err < 1e-5
    assert facts.runtime_version == importlib.metadata.version("onnxruntime-gpu")
    assert facts.device == "cpu"


def test_a_sweep_has_unavailable_rows_without_a_latency(tmp_path: Path) -> None:
    from attnbench import api

    run = api.bench(
        variants=["self"], seq_lens=[16], num_heads=[4], head_dims=[16], exporters=["onnx-attention"],
        runtimes=["torch-sdpa", "ort-cuda", "ort-tensorrt"], out=tmp_path / "run", time_budget_s=60.0, threads=1,
    )  # fmt: skip
    rows = {row.runtime: row for row in run.rows}
    assert rows["torch-sdpa"].status == "ok"
    for name in ("ort-cuda", "ort-tensorrt"):
        assert rows[name].status == "unavailable"
        assert "libcuda.so.1 is missing" in rows[name].reason
        assert rows[name].latency_ms_median is None
        assert rows[name].device is None
