"""`ort-cuda` and `ort-tensorrt` without a GPU: what is asked, and that another provider's answer is caught.

Sessions are doubles specified by the real onnxruntime.InferenceSession; what they answer has the shape that the real
one was seen to answer on the CPU. The real onnxruntime-gpu is asked in tests/gpu_wheels.
"""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import onnxruntime
import pytest

from attnbench.errors import NotRunError, ReadBackError, UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact, Settings
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters.contrib import OnnxContrib
from attnbench_runtimes import cuda_buffers, cuda_driver, elf_needs, gpu_stack, ort_gpu, ort_loaded, tf32
from attnbench_runtimes.ort import OrtCpu, OrtSession
from attnbench_runtimes.ort_gpu import CUDA, TENSORRT, OrtCuda, OrtTensorRt

CPU = "CPUExecutionProvider"
CUDA_0 = Settings(device="cuda:0")
Node = tuple[str, str, str]  # provider, operator, name
Answer = Callable[..., None]


def small(variant: str = "self", dtype: str = "fp32") -> Problem:
    return Problem.make(variant=variant, seq_len=16, num_heads=4, head_dim=16, dtype=dtype)  # type: ignore[arg-type]


def a_file(folder: Path, sha256: str = "0" * 64, dtype: str = "fp32") -> Artifact:
    return Artifact(
        path=folder / "m.onnx", exporter="onnx-attention", opset=23, sha256=sha256, size_bytes=1,
        problem=small(dtype=dtype),
    )  # fmt: skip


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Make onnxruntime answer with a session of these providers, nodes and options in force."""
    monkeypatch.setenv(tf32.OVERRIDE, "0")  # so that it is as before afterwards
    monkeypatch.setattr(cuda_driver, "device_name", lambda index: f"NVIDIA Double {index}")

    def answer(providers: Sequence[str], nodes: Sequence[Node], options: dict[str, Any] | None = None) -> None:
        session = create_autospec(onnxruntime.InferenceSession, instance=True)
        told = onnxruntime.SessionOptions()
        told.intra_op_num_threads, told.inter_op_num_threads = 1, 1
        session.get_session_options.return_value = told
        session.get_providers.return_value = list(providers)
        by_provider: dict[str, list[Any]] = {}
        for provider, operator, name in nodes:
            domain, _, op_type = operator.rpartition("::")
            by_provider.setdefault(provider, []).append(SimpleNamespace(domain=domain, op_type=op_type, name=name))
        session.get_provider_graph_assignment_info.return_value = [
            SimpleNamespace(ep_name=provider, get_nodes=lambda found=found: found)
            for provider, found in by_provider.items()
        ]

        def opened(asked: ort_loaded.Asked, artifact: Artifact, _: Any) -> Any:
            in_force = {name: dict(of) for name, of in asked if name in providers}
            session.get_provider_options.return_value = in_force if options is None else options
            return session

        monkeypatch.setattr(ort_loaded, "_open", opened)

    return answer


def load(runtime: OrtCuda, folder: Path, settings: Settings = CUDA_0) -> ort_loaded.Facts:
    with runtime.load(small(), a_file(folder), settings) as session:
        return session.facts()


def test_tensorrt_that_is_answered_by_cuda_is_an_error(answering: Answer, tmp_path: Path) -> None:
    answering([CUDA, CPU], [(CUDA, "::Attention", "attention")])
    with pytest.raises(ReadBackError, match=r"\['TensorrtExecutionProvider', 'CUDAExecutionProvider'\] were asked"):
        load(OrtTensorRt(), tmp_path)


@pytest.mark.parametrize("runtime", [OrtCuda(), OrtTensorRt()], ids=lambda r: r.name)
def test_a_gpu_that_is_answered_by_the_cpu_is_an_error(runtime: OrtCuda, answering: Answer, tmp_path: Path) -> None:
    answering([CPU], [(CPU, "::Attention", "attention")])
    with pytest.raises(ReadBackError, match=r"were asked, onnxruntime uses \['CPUExecutionProvider'\]"):
        load(runtime, tmp_path)


def test_an_attention_node_that_fell_to_the_cpu_is_named(answering: Answer, tmp_path: Path) -> None:
    """What onnxruntime 1.24 did with Attention of opset 24, without a word."""
    answering([CUDA, CPU], [(CUDA, "::MatMul", "project"), (CPU, "::Attention", "block/attention")])
    words = r"asked on CUDAExecutionProvider, onnxruntime placed Attention \(node block/attention\) on CPUExecution"
    with pytest.raises(ReadBackError, match=words):
        load(OrtCuda(), tmp_path)


@pytest.mark.parametrize("operator", ["::MatMul", "::Softmax", "::Transpose", "com.microsoft::MultiHeadAttention"])
def test_a_heavy_node_that_tensorrt_left_to_cuda_is_named(operator: str, answering: Answer, tmp_path: Path) -> None:
    answering([TENSORRT, CUDA, CPU], [(TENSORRT, "::MatMul", "a"), (CUDA, operator, "left")])
    with pytest.raises(ReadBackError, match=rf"{operator.removeprefix('::')} \(node left\) on {CUDA}"):
        load(OrtTensorRt(), tmp_path)


def test_arithmetic_on_shapes_may_stay_on_the_cpu(answering: Answer, tmp_path: Path) -> None:
    answering([TENSORRT, CUDA, CPU], [(TENSORRT, "::MatMul", "a"), (CPU, "::Shape", "s"), (CPU, "::Gather", "g")])
    facts = load(OrtTensorRt(), tmp_path)
    assert (facts.device, facts.device_name) == ("cuda:0", "NVIDIA Double 0")
    assert facts.detail["placement"] == {TENSORRT: {"::MatMul": 1}, CPU: {"::Gather": 1, "::Shape": 1}}
    assert (facts.attention_kernel, facts.compute_precision) == ("unknown", "unknown")


def test_an_option_that_is_not_in_force_is_an_error(answering: Answer, tmp_path: Path) -> None:
    answering([CUDA, CPU], [(CUDA, "::MatMul", "a")], {CUDA: {"device_id": "0", "use_tf32": "1"}, CPU: {}})
    with pytest.raises(ReadBackError, match="use_tf32=0 was asked of CUDAExecutionProvider, in force is 1"):
        load(OrtCuda(), tmp_path)


def test_the_first_build_is_told_again_when_the_engine_is_only_loaded(
    answering: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering([TENSORRT, CUDA, CPU], [(TENSORRT, "::MatMul", "a")])
    built = load(OrtTensorRt(), tmp_path).build_ms
    monkeypatch.setattr(ort_loaded.time, "perf_counter_ns", iter(range(0, 10**12, 10**9)).__next__)
    assert load(OrtTensorRt(), tmp_path).build_ms == built
    assert load(OrtTensorRt(), tmp_path, replace(CUDA_0, options={"profile": "exact"})).build_ms == 1000.0


@pytest.mark.parametrize(
    ("policy", "options", "use_tf32", "override"),
    [
        ("strict", {}, "0", "0"),
        ("default", {}, "1", None),
        ("strict", {"use_tf32": "on"}, "1", None),
        ("default", {"use_tf32": "off"}, "0", "0"),
    ],
)
def test_one_word_sets_tf32(
    policy: str, options: dict[str, str], use_tf32: str, override: str | None,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(tf32.OVERRIDE, "1")
    settings = replace(CUDA_0, fp32=policy, options=options)
    ((provider, asked),) = OrtCuda().asked(small(), a_file(tmp_path), settings)
    assert (provider, asked["use_tf32"], os.environ.get(tf32.OVERRIDE)) == (CUDA, use_tf32, override)


def test_options_become_those_of_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tf32.OVERRIDE, "0")
    options = {"cuda_graph": "on", "arena": "same_as_requested", "sdpa_kernel": "cudnn"}
    ((_, asked),) = OrtCuda().asked(small(), a_file(tmp_path), replace(CUDA_0, device="cuda:3", options=options))
    assert asked == {
        "device_id": "3", "use_tf32": "0", "arena_extend_strategy": "kSameAsRequested", "sdpa_kernel": "8",
        "enable_cuda_graph": "1",
    }  # fmt: skip


def test_tensorrt_gets_profiles_precision_and_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tf32.OVERRIDE, "0")
    problem = small("cross", "fp16").at(q_len=16, kv_len=24, batch_size=3)
    (name, asked), (after, _) = OrtTensorRt().asked(problem, a_file(tmp_path, dtype="fp16"), CUDA_0)
    assert (name, after) == (TENSORRT, CUDA)
    assert asked["trt_profile_min_shapes"] == "query:1x1x64,context:1x1x64"
    assert asked["trt_profile_opt_shapes"] == asked["trt_profile_max_shapes"] == "query:3x16x64,context:3x24x64"
    assert (asked["trt_fp16_enable"], asked["trt_bf16_enable"]) == ("1", "0")
    assert asked["trt_engine_cache_path"] == asked["trt_timing_cache_path"]
    assert Path(asked["trt_engine_cache_path"]).is_dir()
    exact = replace(CUDA_0, options={"profile": "exact"})
    (_, asked), _ = OrtTensorRt().asked(problem, a_file(tmp_path), exact)
    assert asked["trt_profile_min_shapes"] == asked["trt_profile_max_shapes"]


def test_engines_of_other_weights_flags_or_policies_lie_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tf32.OVERRIDE, "0")

    def folder(sha256: str = "a", **settings: Any) -> str:
        (_, asked), _ = OrtTensorRt().asked(small(), a_file(tmp_path, sha256), replace(CUDA_0, **settings))
        return asked["trt_engine_cache_path"]

    ways = [folder(), folder("b"), folder(fp32="default"), folder(options={"cuda_graph": "on"})]
    assert len(set(ways)) == len(ways)
    assert folder() == ways[0]


def test_a_graph_is_captured_anew_for_every_binding() -> None:
    graph = replace(CUDA_0, options={"cuda_graph": "on"})
    entries = [OrtCuda().run_options(graph, n).get_run_config_entry("gpu_graph_id") for n in (1, 2)]
    assert entries == ["1", "2"]
    assert OrtCuda().run_options(CUDA_0, 1) is None


@pytest.mark.parametrize("settings", [Settings(), replace(CUDA_0, fp32="loose"), replace(CUDA_0, device="cuda")])
def test_another_device_or_policy_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"runs on (a )?device|fp32 is one of strict, default"):
        load(OrtCuda(), tmp_path, settings)


@pytest.mark.parametrize(("variant", "dtype"), [("self", "fp32"), ("self", "fp16"), ("cross", "fp32")])
def test_buffers_of_a_device_give_the_same_output(variant: str, dtype: str, tmp_path: Path) -> None:
    """The path of every device, with the CPU as the device: addresses are bound, outputs copied back from there."""
    problem = small(variant, dtype)
    artifact = OnnxContrib().export(problem, 20, tmp_path / "m.onnx", seed=0)
    inputs = make_inputs(problem)
    with OrtCpu().load(problem, artifact, Settings()) as session:
        session.bind(inputs)()
        expected = session.outputs()
        session._settings = replace(session._settings, device="cpu:0")
        for _ in range(2):
            session.bind(inputs)()
            np.testing.assert_array_equal(session.outputs(), expected)
            assert session.outputs().dtype == expected.dtype


def test_a_cache_on_a_device_is_written_in_place(tmp_path: Path) -> None:
    problem = Problem.make(variant="decode", seq_len=12, q_len=2, batch_size=2, num_heads=4, head_dim=8)
    artifact = OnnxContrib().export(problem, 20, tmp_path / "m.onnx", seed=0)
    inputs = make_inputs(problem)
    with OrtCpu().load(problem, artifact, Settings()) as session:
        session._settings = replace(session._settings, device="cpu:0")
        call = session.bind(inputs)
        for _ in range(2):
            call()
        expected = reference_output(problem, inputs, make_weights(problem))
        np.testing.assert_allclose(session.outputs(), expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(session.cache()["present_key"][:, :, :10], inputs["past_key"])


def test_bfloat16_is_bound_by_its_bytes() -> None:
    import ml_dtypes
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.BFLOAT16, [4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[CPU])
    array = np.array([1.5, -2, 3, 0.25], ml_dtypes.bfloat16)
    io = session.io_binding()
    from attnbench_runtimes.ort_device import Buffers

    buffers = Buffers(io, "cpu")
    buffers.bind_input("x", array, TensorProto.BFLOAT16)
    buffers.bind_output("y", np.zeros_like(array), TensorProto.BFLOAT16)
    session.run_with_iobinding(io)
    assert buffers.read("y").dtype == array.dtype
    assert buffers.read("y").tolist() == [1.5, -2, 3, 0.25]


def test_without_a_driver_the_reason_is_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert cuda_driver.why_no_gpu() == "there is no NVIDIA driver: libcuda.so.1 is missing"
    assert cuda_driver.devices() == ()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the words are those of Linux's loader")
def test_a_driver_that_is_a_text_file_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("installed by a script that failed\n")
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from attnbench_runtimes import cuda_driver; print(cuda_driver.why_no_gpu())"],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("NVIDIA's driver does not load: ")
    assert "libcuda.so.1" in done.stdout


def test_a_library_without_the_functions_of_a_driver_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert cuda_driver.why_no_gpu().startswith("libcuda.so.1 is no driver of NVIDIA: ")
    assert gpu_stack.cuda_version() is None
    answer = OrtCuda().probe()
    assert not answer.available
    assert "libcuda.so.1 is no driver of NVIDIA" in answer.reason


def test_a_driver_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    never, asked = threading.Event(), []

    class Hanging:
        def cuInit(self, flags: int) -> int:
            asked.append(flags)
            never.wait(60.0)
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Hanging())
    monkeypatch.setattr(cuda_driver, "_asked", [])
    monkeypatch.setattr(cuda_driver, "ANSWER_S", 0.05)
    cuda_driver.begin()
    for _ in range(3):
        assert "driver hangs: cuInit had not answered after 0.05 s" in cuda_driver.why_no_gpu()
    never.set()
    assert asked == [0]


class Driver:
    """libcuda.so.1 of a machine whose GPUs are hidden."""

    def cuInit(self, flags: int) -> int:
        return 100

    def cuGetErrorName(self, status: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_NO_DEVICE"
        return 0


def test_hidden_gpus_are_told_with_the_variable_that_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    why = "NVIDIA's driver finds no GPU: CUDA_ERROR_NO_DEVICE (100); CUDA_VISIBLE_DEVICES is ''"
    assert cuda_driver.why_no_gpu() == why


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF is the format of Linux")
def test_every_missing_library_is_named_not_only_the_first(tmp_path: Path) -> None:
    library = Path(onnxruntime.__file__).parent / "capi/libonnxruntime_providers_shared.so"
    assert "libc.so.6" in elf_needs.needed(library)
    assert elf_needs.missing_libraries(library) == []
    changed = tmp_path / "lib.so"
    changed.write_bytes(library.read_bytes().replace(b"\0libc.so.6\0", b"\0libQ.so.7\0"))
    assert elf_needs.missing_libraries(changed) == ["libQ.so.7"]


def test_a_file_that_is_no_library_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"not an ELF file at all")
    assert elf_needs.needed(tmp_path / "x") == []


def test_what_to_install_is_named_by_the_libraries_that_are_missing() -> None:
    assert ort_gpu._installs(["libcublasLt.so.13"]) == ["pip install 'onnxruntime-gpu[cuda,cudnn]'"]
    assert ort_gpu._installs(["libnvinfer.so.10"]) == ["pip install tensorrt==10.*"]


def test_a_session_on_a_gpu_works_on_the_stream_that_it_tells(
    answering: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = create_autospec(cuda_buffers.Device, instance=True)
    gpu.stream = 4711
    opened = create_autospec(cuda_buffers.opened)
    opened.return_value.__enter__.return_value = gpu
    monkeypatch.setattr(cuda_buffers, "opened", opened)
    monkeypatch.setattr(cuda_driver, "why_no_gpu", lambda: "")
    monkeypatch.setattr(cuda_driver, "devices", lambda: ("cuda:0", "cuda:1", "cuda:2"))
    bound: list[Any] = []
    monkeypatch.setattr(OrtSession, "_bound_on_device", lambda session, io, elements, element: bound.append(io))
    answering([CUDA, CPU], [(CUDA, "::MatMul", "a")])
    settings = Settings(device="cuda:2", options={"cuda_graph": "on"})
    with OrtCuda().load(small(), a_file(tmp_path), settings) as session:
        opened.assert_called_once_with(2)
        assert (session.stream, session.replays_graph) == (4711, True)
        assert dict(session._asked)[CUDA]["user_compute_stream"] == "4711"
        with pytest.raises(NotRunError):
            session.enqueue()
        call = session.bind(make_inputs(small()))
        run = session._session.run_with_iobinding
        session.enqueue()
        io, options = run.call_args.args
        assert io is bound[0]
        waits = "disable_synchronize_execution_providers"
        assert (options.get_run_config_entry(waits), options.get_run_config_entry("gpu_graph_id")) == ("1", "1")
        gpu.synchronize.assert_not_called()
        session.synchronize()
        gpu.synchronize.assert_called_once_with()
        call()  # onnxruntime waits by itself, and replays the same graph
        _, options = run.call_args.args
        assert options.get_run_config_entry("gpu_graph_id") == "1"
        with pytest.raises(RuntimeError):
            options.get_run_config_entry(waits)
