"""TensorRT and TensorRT-RTX: compiled for real without a GPU."""

import types
from pathlib import Path
from typing import Any

import pytest

from attnbench.errors import UnsupportedError
from attnbench.interfaces import Artifact, Settings
from attnbench.problem import Problem
from attnbench_exporters.attention import OnnxAttention
from attnbench_exporters.blocked import OnnxBlocked
from attnbench_exporters.contrib import OnnxContrib
from attnbench_exporters.decomposed import OnnxDecomposed
from attnbench_runtimes import binding, cuda_driver, gpu_stack, tensorrt
from tests.runtimes.binding_doubles import rtx

EXPORTERS = {e.name: e for e in (OnnxDecomposed, OnnxAttention, OnnxContrib, OnnxBlocked)}
GPU = Settings(device="cuda:0")


def exported(exporter: str, problem: Problem, folder: Path) -> Artifact:
    """A file of the exporter, at small sizes."""
    plugin = EXPORTERS[exporter]()
    example = problem.at(q_len=8, kv_len=8, batch_size=2)
    opset = next(o for o in plugin.opsets if plugin.supports(example, o).ok)
    return plugin.export(example, opset, folder / f"{exporter}.onnx", seed=0)


REFUSED = {  # exporter -> what the words must have, whatever the dtype
    "onnx-contrib": ("the parser of tensorrt-rtx", "node "),
    "onnx-blocked": ("the compiler of tensorrt-rtx", "Error Code 2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("variant", ["self", "cross", "causal"])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_file_compiles_or_is_refused_in_words(exporter: str, variant: Any, dtype: Any, tmp_path: Path) -> None:
    rtx()
    problem = Problem.make(variant=variant, seq_len=256, dtype=dtype)
    if not any(EXPORTERS[exporter]().supports(problem, o).ok for o in EXPORTERS[exporter].opsets):
        assert (exporter, dtype) == ("onnx-contrib", "bf16")
        return
    artifact = exported(exporter, problem, tmp_path)
    words = REFUSED.get(exporter, ())
    if (exporter, variant, dtype) == ("onnx-attention", "causal", "fp32"):
        words = ("the compiler of tensorrt-rtx", "not supported by a dedicated kernel", "attention=decomposable")
    if words:
        with pytest.raises(UnsupportedError) as caught:
            tensorrt.TensorrtRtx().compile(problem, artifact, Settings())
        assert all(word in str(caught.value) for word in words), str(caught.value)
        return
    facts = tensorrt.TensorrtRtx().compile(problem, artifact, Settings())
    assert (facts.device, facts.compute_precision) == ("sm89", dtype)
    assert facts.attention_kernel == ("unfused" if dtype == "fp32" else "fused")
    assert facts.kernel_evidence == "compiler"
    assert facts.planned_activation_bytes > 0
    assert facts.artifact_bytes > 0


def test_planned_bytes_of_fused_attention_are_linear_and_of_unfused_quadratic(tmp_path: Path) -> None:
    rtx()
    planned: dict[tuple[str, int], int] = {}
    for dtype in ("fp16", "fp32"):
        artifact = exported("onnx-decomposed", Problem.make(seq_len=8, dtype=dtype), tmp_path)  # type: ignore[arg-type]
        for length in (4096, 8192):
            problem = Problem.make(seq_len=length, dtype=dtype)  # type: ignore[arg-type]
            facts = tensorrt.TensorrtRtx().compile(problem, artifact, Settings())
            planned[dtype, length] = facts.planned_activation_bytes
    assert planned["fp16", 8192] < 2 * planned["fp16", 4096]
    assert planned["fp32", 8192] > 3.8 * planned["fp32", 4096]
    assert planned["fp32", 8192] == pytest.approx(4.37e9, rel=0.05)


def test_attention_may_be_taken_apart_when_asked_and_another_architecture_be_named(tmp_path: Path) -> None:
    rtx()
    problem = Problem.make(variant="causal", seq_len=128)
    artifact = exported("onnx-attention", problem, tmp_path)
    asked = Settings(options={"attention": "decomposable", "arch": "sm120"})
    facts = tensorrt.TensorrtRtx().compile(problem, artifact, asked)
    assert facts.device == "sm120"
    assert facts.attention_kernel == "unfused"
    assert facts.detail["attention_decomposed"] is True


@pytest.mark.parametrize(
    ("planned", "kernel"),
    [((100, 190), "fused"), ((100, 200), "fused"), ((0, 10**9), "unfused"), ((0, 200_000_000), "unknown"),
     ((None, 5), "unknown")],
)  # fmt: skip
def test_fused_is_what_holds_no_score_matrix(
    planned: tuple[int | None, int], kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(planned)  # one score matrix of fp16 at T = 4096 with eight heads has 268 MB
    monkeypatch.setattr(tensorrt, "planned_at", lambda *arguments: next(answers))
    problem = Problem.make(seq_len=128, dtype="fp16")
    artifact = Artifact(path=tmp_path, exporter="e", opset=23, sha256="0", size_bytes=1, problem=problem)
    found, told = tensorrt.attention_growth(
        tensorrt.TensorrtRtx(), artifact, problem, {"attention": "strict"}, tf32=False
    )
    assert found == kernel
    assert ("why_unknown" in told) == (planned[0] is None)


def test_a_decode_step_says_why_nothing_is_known_of_its_kernel(tmp_path: Path) -> None:
    problem = Problem.make(variant="decode", seq_len=128)
    artifact = Artifact(path=tmp_path, exporter="e", opset=23, sha256="0", size_bytes=1, problem=problem)
    found, told = tensorrt.attention_growth(
        tensorrt.TensorrtRtx(), artifact, problem, {"attention": "strict"}, tf32=False
    )
    assert found == "unknown"
    assert "decode" in told["why_unknown"]


def test_an_option_that_there_is_not_is_refused_with_those_there_are(tmp_path: Path) -> None:
    problem = Problem.make(seq_len=8)
    artifact = Artifact(path=tmp_path / "m.onnx", exporter="e", opset=23, sha256="0", size_bytes=1, problem=problem)
    with pytest.raises(UnsupportedError, match="attention is one of strict, decomposable, got 'maybe'"):
        tensorrt.TensorrtRtx().compile(problem, artifact, Settings(options={"attention": "maybe"}))
    with pytest.raises(UnsupportedError, match="tensorrt has no option 'arch'"):
        tensorrt.Tensorrt()._asked(Settings(options={"arch": "sm89"}))


def test_without_a_gpu_rtx_compiles_only_and_tensorrt_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "there is no NVIDIA driver: libcuda.so.1 is missing"
    monkeypatch.setattr(cuda_driver, "why_no_gpu", lambda: why)
    monkeypatch.setattr(binding, "probe_package", lambda package, module: binding.Probe(available=True, version="1"))
    rtx_probe, trt_probe = tensorrt.TensorrtRtx().probe(), tensorrt.Tensorrt().probe()
    assert rtx_probe.available
    assert rtx_probe.compiles_only == f"{why}, so tensorrt-rtx compiles and runs nothing"
    assert (trt_probe.available, trt_probe.reason, trt_probe.compiles_only) == (False, why, "")
    problem = Problem.make(seq_len=8)
    artifact = Artifact(path=Path("m.onnx"), exporter="e", opset=23, sha256="0", size_bytes=1, problem=problem)
    with (
        pytest.raises(UnsupportedError, match=r"libcuda\.so\.1 is missing, so tensorrt-rtx runs nothing here"),
        tensorrt.TensorrtRtx().load(problem, artifact, Settings()),
    ):
        pass


@pytest.mark.parametrize(
    ("cuda", "arch", "rtx_words", "trt_words"),
    [
        ((13, 0), "sm90", "; this GPU is sm90, so tensorrt-rtx compiles and runs nothing", ""),
        ((13, 0), "sm89", "", ""),
        ((12, 8), "sm89", "CUDA 12.8, tensorrt-rtx 1.7 needs CUDA 13", "tensorrt 10.14 needs CUDA 13"),
    ],
)
def test_a_driver_or_gpu_that_does_not_fit_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, cuda: tuple[int, int], arch: str, rtx_words: str, trt_words: str
) -> None:
    installed = {"tensorrt_rtx_cu13": "1.7", "tensorrt_cu13": "10.14"}
    packages = [types.SimpleNamespace(name=name, version=version) for name, version in installed.items()]
    monkeypatch.setattr(gpu_stack.importlib.metadata, "distributions", lambda: packages)
    monkeypatch.setattr(cuda_driver, "why_no_gpu", lambda: "")
    monkeypatch.setattr(cuda_driver, "devices", lambda: ("cuda:0",))
    monkeypatch.setattr(gpu_stack, "cuda_version", lambda: cuda)
    monkeypatch.setattr(gpu_stack, "architecture", lambda: arch)
    monkeypatch.setattr(binding, "probe_package", lambda package, module: binding.Probe(available=True, version="1"))
    rtx_probe, trt_probe = tensorrt.TensorrtRtx().probe(), tensorrt.Tensorrt().probe()
    assert rtx_probe.available
    assert rtx_words in rtx_probe.compiles_only
    assert bool(rtx_probe.compiles_only) is bool(rtx_words)
    assert rtx_probe.devices == (("cpu",) if rtx_words else ("cuda:0",))
    assert trt_probe.available is not bool(trt_words)
    assert trt_words in trt_probe.reason
    assert trt_probe.fix == ("update NVIDIA's driver to 580 or newer" if trt_words else "")
