"""The torch arms: kernels proved by a profile, precision and threads read back."""

import os
import shutil
import sysconfig
from collections.abc import Iterator
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch

from attnbench.errors import ProblemError, ReadBackError, UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Settings
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_runtimes import tf32, torch_settings
from attnbench_runtimes.torch_arms import TorchCompile, TorchEager, TorchSdpa


def small(variant: str = "self", dtype: str = "fp32", part: str = "block") -> Problem:
    return Problem.make(part=part, variant=variant, seq_len=16, num_heads=4, head_dim=16, dtype=dtype)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("part", ["block", "core"])
@pytest.mark.parametrize(("runtime", "kernel"), [(TorchEager(), "math"), (TorchSdpa(), "flash")])
def test_the_kernel_is_proved_by_a_profile(runtime: TorchSdpa, kernel: str, part: str) -> None:
    problem = small("causal", part=part)
    with runtime.load(problem, None, Settings()) as session:
        session.bind(make_inputs(problem))()
        facts = session.facts()
    assert (facts.attention_kernel, facts.kernel_evidence) == (kernel, "profile")
    seen = facts.detail["profiled_operators"]
    assert ("aten::_softmax" in seen) == (kernel == "math")
    assert ("aten::_scaled_dot_product_flash_attention_for_cpu" in seen) == (kernel == "flash")


def test_sdpa_pinned_to_math_is_told_as_math() -> None:
    problem = small()
    with TorchSdpa().load(problem, None, Settings()) as session:
        session.bind(make_inputs(problem))()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            assert session.facts().attention_kernel == "math"


def test_before_anything_is_bound_the_kernel_is_unknown() -> None:
    with TorchSdpa().load(small(), None, Settings()) as session:
        facts = session.facts()
    assert (facts.attention_kernel, facts.kernel_evidence) == ("unknown", "")


def test_profiling_for_facts_writes_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with TorchSdpa().load(small(), None, Settings()) as session:
        session.bind(make_inputs(small()))()
        assert session.facts().attention_kernel == "flash"
    assert capfd.readouterr().err == ""


def test_facts_leaves_the_output_of_the_last_call() -> None:
    with TorchEager().load(small(), None, Settings()) as session:
        session.bind(make_inputs(small()))()
        before = session.outputs()
        session.facts()
        np.testing.assert_array_equal(session.outputs(), before)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_precision_is_that_of_the_weights_and_inputs(dtype: str) -> None:
    with TorchSdpa().load(small(dtype=dtype), None, Settings()) as session:
        session.bind(make_inputs(small(dtype=dtype)))
        assert session.facts().compute_precision == dtype


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_set_and_read_back(threads: int) -> None:
    with TorchSdpa().load(small(), None, Settings(threads=threads)) as session:
        assert torch.get_num_threads() == threads
        assert session.facts().threads == threads


def test_threads_changed_behind_our_back_are_found_out() -> None:
    with TorchSdpa().load(small(), None, Settings(threads=1)) as session:
        torch.set_num_threads(2)
        with pytest.raises(ReadBackError, match="threads 1 were asked, torch has 2"):
            session.facts()


def test_products_allowed_in_bf16_are_not_measured_as_fp32() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(ReadBackError, match="float32_matmul_precision 'medium'"):
            TorchSdpa().load(small(), None, Settings()).__enter__()
    finally:
        torch.set_float32_matmul_precision(before)


def test_keys_and_values_of_two_lengths_are_refused() -> None:
    """scaled_dot_product_attention itself would read past the end of the shorter one."""
    problem = small("cross", part="core")
    inputs = make_inputs(problem)
    inputs["v"] = inputs["v"][:, :, :-1]
    with (
        TorchSdpa().load(problem, None, Settings()) as session,
        pytest.raises(ProblemError, match="v must have shape"),
    ):
        session.bind(inputs)


def test_another_device_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="runs on device cpu or cuda, not 'npu:0'"):
        TorchEager().load(small(), None, Settings(device="npu:0")).__enter__()


def test_compile_is_opt_in_and_says_that_it_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TorchCompile().opt_in
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    probe = TorchCompile().probe()
    assert not probe.available
    assert "needs a C++ compiler, 'g++' is not on the PATH" in probe.reason
    assert probe.fix


def test_compile_says_that_it_needs_the_headers_of_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/g++")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: os.fspath(tmp_path))
    assert "Python.h is missing" in TorchCompile().probe().reason


def test_compiling_is_measured_apart_from_calls() -> None:
    if not TorchCompile().probe().available:
        pytest.skip(TorchCompile().probe().reason)
    problem = small()
    with TorchCompile().load(problem, None, Settings()) as session:
        session.bind(make_inputs(problem))()
        facts = session.facts()
    assert facts.build_ms is not None
    assert facts.build_ms > 0
    assert facts.attention_kernel == "flash"
    with TorchSdpa().load(problem, None, Settings()) as session:
        assert session.facts().build_ms is None


@pytest.mark.parametrize("runtime", [TorchEager(), TorchSdpa()], ids=lambda r: r.name)
@pytest.mark.parametrize("mask", ["", "causal_bottom_right+key_padding"])
def test_a_decode_step_writes_into_its_cache_and_is_right_every_time(runtime, mask):
    problem = Problem.make(
        variant="decode", seq_len=40, q_len=3, batch_size=2, num_heads=4, num_kv_heads=2, head_dim=8, mask=mask
    )
    inputs = make_inputs(problem)
    expected = reference_output(problem, inputs, make_weights(problem))
    with runtime.load(problem, None, Settings()) as session:
        call = session.bind(inputs)
        for _ in range(3):
            call()
            np.testing.assert_allclose(session.outputs(), expected, rtol=0, atol=1e-5)
        assert session.facts().detail["cache"] == "written in place"
        sized = problem.at(q_len=1, kv_len=9, batch_size=1)
        again = make_inputs(sized)
        session.bind(again)()
        wanted = reference_output(sized, again, make_weights(sized))
        np.testing.assert_allclose(session.outputs(), wanted, rtol=0, atol=1e-5)


def test_the_stream_is_the_one_that_torch_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    current = create_autospec(torch.cuda.current_stream)
    current.return_value.cuda_stream = 0x77
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    assert torch_settings.stream(Settings(device="cuda:1")) == 0x77
    current.assert_called_once_with("cuda:1")


def test_queueing_a_call_is_the_call_without_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, waits = small(), []
    with TorchSdpa().load(problem, None, Settings()) as session:
        session.bind(make_inputs(problem))()
        expected = session.outputs()
        monkeypatch.setattr(torch_settings, "waiting", lambda settings: lambda: waits.append(settings.device))
        session._settings = Settings(device="cuda:0")  # where a call waits; its tensors stay where they are
        monkeypatch.setattr(session, "_placed", lambda inputs: session._tensors)
        call = session.bind(make_inputs(problem))
        session.enqueue()
        assert (waits, np.array_equal(session.outputs(), expected)) == ([], True)
        session.synchronize()
        call()
        assert waits == ["cuda:0", "cuda:0"]


def test_without_cuda_the_probe_says_why_and_leaves_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    probe = TorchSdpa().probe()
    assert (probe.available, probe.devices) == (True, ("cpu",))
    assert "is built without CUDA" in probe.no_cuda or "NVIDIA" in probe.no_cuda


@pytest.mark.parametrize("runtime", [TorchEager(), TorchSdpa(), TorchCompile()], ids=lambda r: r.name)
def test_cuda_that_is_not_there_is_refused_in_a_sentence(runtime: TorchSdpa) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with (
        pytest.raises(UnsupportedError, match=r"torch has no device cuda:0 here: .*(CUDA|NVIDIA)"),
        runtime.load(small(), None, Settings(device="cuda:0")),
    ):
        pass


def test_tensors_on_another_device_than_asked_are_an_error() -> None:
    with pytest.raises(ReadBackError, match="device cuda:0 was asked, torch has tensors on cpu"):
        torch_settings.check_device([torch.zeros(1)], Settings(device="cuda:0"))


def test_a_call_on_a_gpu_waits_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = create_autospec(torch.cuda.synchronize)
    monkeypatch.setattr(torch.cuda, "synchronize", waited)
    torch_settings.waiting(Settings(device="cuda:1"))()
    waited.assert_called_once_with("cuda:1")
    torch_settings.waiting(Settings())()
    waited.assert_called_once()


def test_the_policy_for_fp32_is_torchs_for_as_long_as_something_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_settings, "_why_no_cuda", lambda version: "")
    monkeypatch.setenv(tf32.OVERRIDE, "1")
    with torch_settings.in_force(Settings(device="cuda:0", fp32="default")):
        assert torch.backends.cuda.matmul.allow_tf32
        assert tf32.OVERRIDE not in os.environ
        assert torch_settings.check_matmul_precision(tf32_allowed=True) == "high"
        with pytest.raises(ReadBackError, match="in full precision were asked"):
            torch_settings.check_matmul_precision()
    assert torch_settings.check_matmul_precision() == "highest"
    with torch_settings.in_force(Settings(device="cuda:0")):
        assert not torch.backends.cuda.matmul.allow_tf32
        assert os.environ[tf32.OVERRIDE] == "0"


@pytest.mark.parametrize(
    ("dtypes", "settings", "precision"),
    [
        ({"fp32"}, Settings(device="cuda:0"), "fp32"),
        ({"fp32"}, Settings(device="cuda:0", fp32="default"), "tf32"),
        ({"fp16"}, Settings(device="cuda:0", fp32="default"), "fp16"),
        ({"fp32"}, Settings(fp32="default"), "fp32"),  # a CPU has no TF32
        ({"fp32", "fp16"}, Settings(), "unknown"),
    ],
)
def test_precision_is_told_by_dtype_device_and_policy(dtypes: set[str], settings: Settings, precision: str) -> None:
    assert torch_settings.precision(dtypes, settings) == precision
