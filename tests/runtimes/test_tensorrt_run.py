"""TensorRT and TensorRT-RTX: engines run on doubles that have the real binding's names."""

import contextlib
import ctypes
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench import trt_compiler
from attnbench.errors import ReadBackError, UnsupportedError
from attnbench.interfaces import Artifact, Settings
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_runtimes import cuda_buffers, cuda_driver, tensorrt, tensorrt_engines, tensorrt_session
from attnbench_runtimes.tensorrt_engines import CompiledEngines
from tests.runtimes.binding_doubles import Double, HostDevice, HostEngine, arities, rtx

GPU = Settings(device="cuda:0")
LAYERS = json.dumps({"Layers": [{"Name": "_gemm_mha_v2_myl0_3"}, {"Name": "kgen_add"}]})


class Rig(HostEngine):
    """TensorRT-RTX's module with an engine that computes core attention by the reference, on doubles."""

    def __init__(self, trt: Any, problem: Problem) -> None:
        super().__init__(trt)
        self.problem = problem
        self.built: list[trt_compiler.Compiled] = []
        self.asked: list[dict[str, Any]] = []
        self.gives: tuple[int, ...] = ()  # the shape that the engine says y has; (): the right one
        self.engine = Double(
            trt.ICudaEngine, create_execution_context=self.make_context,
            create_engine_inspector=lambda: Double(trt.EngineInspector, get_engine_information=lambda form: LAYERS),
        )  # fmt: skip
        self.runtime = Double(trt.Runtime, deserialize_cuda_engine=lambda blob: self.engine)
        names = ("ExecutionContextAllocationStrategy", "LayerInformationFormat", "ILogger", "__version__")
        self.logs: list[Any] = []  # of every loader
        self.module = types.SimpleNamespace(**{n: getattr(trt, n) for n in names}, Runtime=self.make_runtime)

    def make_runtime(self, log: Any) -> Double:
        self.logs.append(log)
        return self.runtime

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.gives or self.sized().output_shape()

    def sized(self) -> Problem:
        q, k = self.shapes["q"], self.shapes["k"]
        return self.problem.at(q_len=q[2], kv_len=k[2], batch_size=q[0])

    def execute(self, stream: int) -> bool:
        assert stream == HostDevice.stream

        def view(name: str, shape: tuple[int, ...]) -> Any:
            count = int(np.prod(shape))
            return np.ctypeslib.as_array((ctypes.c_float * count).from_address(self.places[name])).reshape(shape)

        inputs = {name: view(name, shape) for name, shape in self.shapes.items()}
        y = reference_output(self.sized(), inputs, {}).astype(np.float32)
        view("y", y.shape)[...] = y
        return True


PROBLEM = Problem.make(part="core", seq_len=6, num_heads=2, head_dim=8)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rig]:
    """The doubles in place of the module, the driver and the compiler."""
    made = Rig(rtx(), PROBLEM)

    def compile_onnx(source: Path, **asked: Any) -> trt_compiler.Compiled:
        found = trt_compiler.Compiled(
            version="1.7", arch="", engine=json.dumps([str(asked["shapes"])]).encode(), planned_activation_bytes=64,
            build_ms=12.5, attention_decomposed=False, timing_cache=b"timing",
        )  # fmt: skip
        made.built.append(found)
        made.asked.append(asked)
        return found

    monkeypatch.setattr(trt_compiler, "load_module", lambda name: made.module)
    monkeypatch.setattr(trt_compiler, "compile_onnx", compile_onnx)
    monkeypatch.setattr(cuda_driver, "device_name", lambda index: "NVIDIA Test")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return made


def open_session(device: HostDevice, *, sha256: str = "ab", **options: str) -> tensorrt_session.TensorrtSession:
    runtime = tensorrt.TensorrtRtx()
    artifact = Artifact(path=Path("m.onnx"), exporter="e", opset=23, sha256=sha256, size_bytes=1, problem=PROBLEM)
    settings = Settings(device="cuda:0", options=options)
    asked = {k: v for k, v in runtime._asked(settings).items() if k != "arch"}
    engines = CompiledEngines(runtime, PROBLEM, artifact, settings, asked)
    return tensorrt_session.TensorrtSession(engines, PROBLEM, asked, device)  # type: ignore[arg-type]


def inputs_at(problem: Problem) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in problem.input_shapes().items()}


@pytest.mark.parametrize("graph", ["off", "on"])
def test_an_engine_runs_on_its_own_stream_with_memory_for_exactly_these_shapes(rig: Rig, graph: str) -> None:
    device = HostDevice()
    session = open_session(device, cuda_graph=graph)
    inputs = inputs_at(PROBLEM)
    call = session.bind(inputs)
    with pytest.raises(Exception, match="has not run yet"):
        session.outputs()
    call()
    np.testing.assert_allclose(session.outputs(), reference_output(PROBLEM, inputs, {}), rtol=1e-5, atol=1e-6)
    given = [arguments for name, arguments in rig.contexts[0].calls if name == "set_device_memory"]
    assert [size for _, size in given] == [512]
    assert device.captures == (graph == "on")
    facts = session.facts()
    assert (facts.device, facts.device_name, facts.build_ms) == ("cuda:0", "NVIDIA Test", 12.5)
    assert (facts.attention_kernel, facts.kernel_evidence) == ("fused", "compiler")
    assert facts.detail["activation_bytes_at_bound_shapes"] == 512
    assert facts.detail["layers"] == ["_gemm_mha_v2_myl0_3", "kgen_add"]
    assert facts.detail["attention"] == "strict"


@pytest.mark.parametrize(("graph", "replays"), [("off", False), ("on", True)])
def test_its_work_can_be_queued_without_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, graph: str, replays: bool
) -> None:
    device, waits, inputs = HostDevice(), [], inputs_at(PROBLEM)
    session = open_session(device, cuda_graph=graph)
    call = session.bind(inputs)
    monkeypatch.setattr(device, "synchronize", lambda: waits.append(device.stream))
    session.enqueue()
    np.testing.assert_allclose(session.outputs(), reference_output(PROBLEM, inputs, {}), rtol=1e-5, atol=1e-6)
    assert waits == []
    call()
    assert (waits, session.stream, session.replays_graph) == ([7], 7, replays)


def test_a_gpu_that_is_here_is_compiled_for_whatever_the_default_architecture(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = HostDevice()
    monkeypatch.setattr(cuda_driver, "why_no_gpu", lambda: "")
    monkeypatch.setattr(cuda_driver, "devices", lambda: ("cuda:0",))
    monkeypatch.setattr(cuda_buffers, "opened", lambda index: contextlib.nullcontext(device))
    artifact = Artifact(path=Path("m.onnx"), exporter="e", opset=23, sha256="ab", size_bytes=1, problem=PROBLEM)
    with tensorrt.TensorrtRtx().load(PROBLEM, artifact, GPU) as session:
        session.bind(inputs_at(PROBLEM))()
    assert [asked["arch"] for asked in rig.asked] == [None]
    assert [asked["strict"] for asked in rig.asked] == [True]
    named = Settings(device="cuda:0", options={"arch": "sm120"})
    with (
        pytest.raises(UnsupportedError, match="leave arch out"),
        tensorrt.TensorrtRtx().load(PROBLEM, artifact, named),
    ):
        pass


def test_binding_again_gives_the_old_buffers_back(rig: Rig) -> None:
    device = HostDevice()
    session = open_session(device)
    session.bind(inputs_at(PROBLEM))
    before = len(device.held)
    session.bind(inputs_at(PROBLEM))
    assert len(device.held) == before


def test_an_exact_engine_is_one_per_size_and_a_range_one_for_all(rig: Rig) -> None:
    small = PROBLEM.at(q_len=3, kv_len=3)
    for profile, builds in (("exact", 2), ("range", 1)):
        rig.built.clear()
        session = open_session(HostDevice(), profile=profile)
        session.bind(inputs_at(PROBLEM))()
        session.bind(inputs_at(small))()
        assert len(rig.built) == builds
        assert session.outputs().shape == (1, 2, 3, 8)


def test_a_second_session_takes_the_engine_from_the_cache_and_builds_nothing(rig: Rig) -> None:
    open_session(HostDevice(), cache="on")
    again = open_session(HostDevice(), cache="on")
    assert len(rig.built) == 1
    assert again.facts().build_ms is None
    open_session(HostDevice(), cache="on", profile="range")  # another profile is another engine
    assert len(rig.built) == 2


def test_two_files_with_one_graph_name_never_share_an_engine(rig: Rig) -> None:
    first, other = (open_session(HostDevice(), sha256=sha256, cache="on") for sha256 in ("ab", "cd"))
    assert len(rig.built) == 2
    names = {open_session(HostDevice(), sha256=s, cache="on").facts().detail["engine_from_cache"] for s in ("ab", "cd")}
    assert len(names) == 2
    assert len(rig.built) == 2
    assert "engine_from_cache" not in {**first.facts().detail, **other.facts().detail}


@pytest.mark.parametrize("blob", [b"", b"cut short", b"an engine of another version"])
def test_a_cached_engine_that_does_not_load_is_built_again_and_told(rig: Rig, tmp_path: Path, blob: bytes) -> None:
    open_session(HostDevice(), cache="on")
    [kept] = tmp_path.rglob("*.engine")
    good = kept.read_bytes()
    kept.write_bytes(blob)
    words = "The engine plan file is not compatible with this version of TensorRT"
    load = rig.runtime._answers["deserialize_cuda_engine"]

    def loads_the_good_one_only(engine: bytes) -> Any:
        if engine == good:
            return load(engine)
        rig.logs[-1].log(rig.trt.ILogger.ERROR, words)
        return None

    rig.runtime._answers["deserialize_cuda_engine"] = loads_the_good_one_only
    again = open_session(HostDevice(), cache="on")
    again.bind(inputs_at(PROBLEM))()
    assert len(rig.built) == 2
    assert kept.read_bytes() == good
    facts = again.facts()
    assert facts.detail["cached_engine_rebuilt"] == f"tensorrt-rtx loads no engine: {words}"
    assert facts.build_ms == 12.5
    later = open_session(HostDevice(), cache="on").facts()
    assert len(rig.built) == 2
    assert (later.detail["engine_from_cache"], "cached_engine_rebuilt" in later.detail) == (kept.name, False)


def test_an_engine_that_was_just_built_and_does_not_load_is_refused(rig: Rig) -> None:
    rig.runtime._answers["deserialize_cuda_engine"] = None
    with pytest.raises(UnsupportedError, match="tensorrt-rtx loads no engine"):
        open_session(HostDevice(), cache="on")
    assert len(rig.built) == 1


def test_the_key_of_the_cache_changes_with_everything_that_makes_the_engine() -> None:
    usual = {
        "sha256": "a", "version": "tensorrt 11", "device_name": "A", "shapes": {"x": (1, 8)},
        "asked": {"profile": "exact"}, "tf32": False,
    }  # fmt: skip
    others = {
        "sha256": "b", "version": "tensorrt 10", "device_name": "B", "shapes": {"x": (1, 9)},
        "asked": {"profile": "range"}, "tf32": True,
    }  # fmt: skip
    keys = {tensorrt_engines.cache_key(**{**usual, name: value}) for name, value in others.items()}  # type: ignore[arg-type]
    assert len({*keys, tensorrt_engines.cache_key(**usual)}) == 7  # type: ignore[arg-type]


def test_an_engine_that_does_not_load_is_refused_in_its_own_words(rig: Rig) -> None:
    rig.runtime._answers["deserialize_cuda_engine"] = None
    with pytest.raises(UnsupportedError, match="tensorrt-rtx loads no engine: it does not say why"):
        open_session(HostDevice())


def test_an_engine_that_gives_more_than_the_output_is_refused_before_it_writes(rig: Rig) -> None:
    rig.gives = (1, 2, 6, 9)
    with pytest.raises(ReadBackError, match=r"y of shape \(1, 2, 6, 9\), the problem's is \(1, 2, 6, 8\)"):
        open_session(HostDevice()).bind(inputs_at(PROBLEM))


def test_a_call_that_fails_is_an_error_and_leaves_no_output(rig: Rig) -> None:
    session = open_session(HostDevice())
    call = session.bind(inputs_at(PROBLEM))
    rig.contexts[0]._answers["execute_async_v3"] = False
    with pytest.raises(UnsupportedError, match="tensorrt-rtx does not run"):
        call()
    with pytest.raises(Exception, match="has not run yet"):
        session.outputs()


def test_a_double_refuses_a_wrong_name_and_a_wrong_number_of_arguments() -> None:
    trt = rtx()
    assert arities(trt.IExecutionContext, "set_device_memory") == {2}
    assert arities(trt.IExecutionContext, "set_input_shape") == {2}
    with pytest.raises(TypeError):
        Double(trt.IExecutionContext).execute_async_v3()
    with pytest.raises(AttributeError):
        Double(trt.IExecutionContext).execute_async_v4(1)


class FakeDriver:
    """CUDA's driver: every function notes its name and gives `status`."""

    def __init__(self, failing: str = "", status: int = 0) -> None:
        self.names: list[str] = []
        self.failing, self.status = failing, status

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.names.append(name)
            return self.status if name == self.failing else 0

        return call


def test_a_device_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    with cuda_buffers.opened(0) as device:
        device.allocate(16)
        device.captured(lambda: None)()
    assert driver.names.count("cuMemAlloc_v2") == driver.names.count("cuMemFree_v2") == 1
    assert driver.names.count("cuGraphInstantiateWithFlags") == driver.names.count("cuGraphExecDestroy") == 1
    assert driver.names[-2:] == ["cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2"]
    assert "cuGraphLaunch" in driver.names


def test_copies_and_the_stream_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, array = FakeDriver(), np.zeros(4, np.float32)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    with cuda_buffers.opened(0) as device:
        device.upload(array, device.allocate(array.nbytes))
        assert driver.names[-2:] == ["cuMemcpyHtoD_v2", "cuCtxSynchronize"]
        device.download(0, array)
        assert driver.names[-2:] == ["cuStreamSynchronize", "cuMemcpyDtoH_v2"]


@pytest.mark.parametrize(("status", "error"), [(2, MemoryError), (999, UnsupportedError)])
def test_a_device_without_memory_is_a_memory_error_and_others_name_the_call(
    status: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver("cuMemAlloc_v2", status))
    with cuda_buffers.opened(0) as device, pytest.raises(error, match="cuMemAlloc_v2"):
        device.allocate(16)
