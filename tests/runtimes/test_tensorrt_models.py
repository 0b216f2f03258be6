"""Models of users under TensorRT: engines and ONNX files, run on doubles that have the real binding's names."""

import contextlib
import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench import trt_compiler
from attnbench.engine_facts import EngineFacts
from attnbench.errors import InputError, NotRunError, UnavailableError, UnsupportedError
from attnbench.inputs import make_inputs
from attnbench.interfaces import Artifact, Settings
from attnbench.model_problem import ModelProblem, TensorSpec
from attnbench.sweep import judging, model_runs, tasks
from attnbench_runtimes import cuda_driver, tensorrt
from attnbench_runtimes.tensorrt_engines import loader_of
from tests.runtimes.binding_doubles import rtx
from tests.runtimes.engine_rig import EngineRig, header, save_plan

GPU = Settings(device="cuda:0")
X = TensorSpec(name="x", dtype="fp32", dims=("b", "t", 4))
MODEL = ModelProblem(
    name="m", sizes={"b": 2, "t": 8}, bound="t", inputs=(X,),
    outputs=(TensorSpec(name="y", dtype="fp32", dims=("b", "t", 4)),
             TensorSpec(name="best", dtype="int64", dims=("b", "t"))),
)  # fmt: skip


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> EngineRig:
    made = EngineRig(rtx())
    made.install(monkeypatch)
    return made


def artifact(path: Path) -> Artifact:
    return Artifact(path=path, exporter="engine", opset=0, sha256="ab", size_bytes=64, problem=MODEL)


def plan(folder: Path, tag: bytes = b"vtrt") -> Path:
    return save_plan(folder / "m.plan", tag)


def numbers(batch: int, length: int) -> Any:
    return np.random.default_rng(0).standard_normal((batch, length, 4)).astype(np.float32)


def read(path: Path) -> EngineFacts:
    return tensorrt.TensorrtRtx().read_engine(path, "cuda:0")


@pytest.mark.parametrize("graph", ["off", "on"])
def test_an_engine_runs_and_gives_every_output_by_name(rig: EngineRig, tmp_path: Path, graph: str) -> None:
    file, x = artifact(plan(tmp_path)), numbers(2, 8)
    settings = dataclasses.replace(GPU, options={"cuda_graph": graph})
    with tensorrt.TensorrtRtx().load_model(MODEL, file, settings) as session:
        call = session.bind({"x": x.copy()})
        with pytest.raises(NotRunError, match="has not run yet"):
            session.outputs_by_name()
        call()
        found = session.outputs_by_name()
        assert list(found) == ["y", "best"]
        np.testing.assert_array_equal(found["y"], x * 2 + 1)
        np.testing.assert_array_equal(found["best"], x.argmax(-1))
        assert found["best"].dtype == np.int64
        facts = session.facts()
        assert (facts.device_name, facts.compute_precision, facts.build_ms) == ("NVIDIA Test", "unknown", None)
        assert facts.attention_kernel == "fused"
        assert facts.detail["compiled_by"] == "1.7.1.116"
        session.bind({"x": numbers(3, 5)})()
        assert session.outputs_by_name()["y"].shape == (3, 5, 4)
    assert rig.blobs == [file.path.read_bytes()]
    assert rig.device.captures == 2 * (graph == "on")


def test_the_first_profile_that_holds_the_sizes_is_taken(rig: EngineRig, tmp_path: Path) -> None:
    rig.profiles.append({"x": ((1, 17, 4), (1, 32, 4), (1, 64, 4))})
    with tensorrt.TensorrtRtx().load_model(MODEL, artifact(plan(tmp_path)), GPU) as session:
        session.bind({"x": numbers(1, 16)})()
        assert "set_optimization_profile_async" not in [name for name, _ in rig.contexts[-1].calls]
        session.bind({"x": numbers(1, 17)})()
        names = [name for name, _ in rig.contexts[-1].calls]
        assert names.index("set_optimization_profile_async") < names.index("set_input_shape")
        assert ("set_optimization_profile_async", (1, 7)) in rig.contexts[-1].calls
        told = (
            r"x of shape 1x65x4 is outside of the engine's 2 profiles: x from 1x1x4 to 4x16x4; x from 1x17x4 to 1x64x4"
        )
        with pytest.raises(UnsupportedError, match=told):
            session.bind({"x": numbers(1, 65)})


def test_an_engine_is_read_with_its_free_dims_and_profiles(rig: EngineRig, tmp_path: Path) -> None:
    rig.profiles.append({"x": ((1, 17, 4), (1, 32, 4), (1, 64, 4))})
    found = read(plan(tmp_path))
    assert found.inputs == (TensorSpec(name="x", dtype="fp32", dims=("x_dim0", "x_dim1", 4)),)
    assert [(t.name, t.dtype, t.dims) for t in found.outputs] == [
        ("y", "fp32", ("y_dim0", "y_dim1", 4)), ("best", "int64", ("best_dim0", "best_dim1")),
    ]  # fmt: skip
    assert found.version == "1.7.1.116"
    assert [found.profile_for({"x": shape}) for shape in ((4, 16, 4), (1, 64, 4), (2, 64, 4), (1, 65, 4))] == [
        0, 1, None, None,
    ]  # fmt: skip
    assert EngineFacts.from_dict(found.as_dict()) == found


def test_a_free_dim_of_one_size_in_all_profiles_is_fixed(rig: EngineRig, tmp_path: Path) -> None:
    rig.profiles = [{"x": ((2, 1, 4), (2, 8, 4), (2, 16, 4))}]
    assert read(plan(tmp_path)).inputs[0].dims == (2, "x_dim1", 4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"form": "CHW4"}, "input 'x' of the engine has format CHW4; only LINEAR"),
        ({"dtype": "INT8"}, "input 'x' of the engine is of INT8; engines with"),
        ({"dtype": "FP8"}, "input 'x' of the engine is of FP8"),
        ({"location": "HOST"}, "input 'x' of the engine is a shape tensor"),
    ],
)
def test_what_cannot_be_bound_is_refused_by_name(
    rig: EngineRig, tmp_path: Path, change: dict[str, str], told: str
) -> None:
    rig.tensors["x"] = dataclasses.replace(rig.tensors["x"], **change)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=told):
        read(plan(tmp_path))


def test_an_output_whose_shape_depends_on_values_is_refused_by_name(rig: EngineRig, tmp_path: Path) -> None:
    rig.gives["best"] = (2, -1)
    told = r"output 'best' of the engine has shape 2x\?, which depends on values"
    with pytest.raises(UnsupportedError, match=told):
        read(plan(tmp_path))
    with (
        tensorrt.TensorrtRtx().load_model(MODEL, artifact(plan(tmp_path)), GPU) as session,
        pytest.raises(UnsupportedError, match=told),
    ):
        session.bind({"x": numbers(2, 8)})


def test_an_engine_of_another_model_is_refused(rig: EngineRig, tmp_path: Path) -> None:
    rig.tensors["x"] = dataclasses.replace(rig.tensors["x"], dtype="HALF")
    with (
        pytest.raises(InputError, match="the engine's inputs are x fp16 of 3 dims, the model's are x fp32 of 3 dims"),
        tensorrt.TensorrtRtx().load_model(MODEL, artifact(plan(tmp_path)), GPU),
    ):
        pass


def test_code_for_the_host_that_an_engine_carries_is_not_allowed() -> None:
    trt = rtx()
    found = loader_of(trt, trt_compiler.new_log(trt))
    assert type(found) is trt.Runtime
    assert found.engine_host_code_allowed is False
    opened = loader_of(
        type("Open", (), {"Runtime": lambda log: type("R", (), {"engine_host_code_allowed": True})()}), None
    )
    assert opened.engine_host_code_allowed is False


def test_nvidias_own_words_say_why_an_engine_does_not_open(rig: EngineRig, tmp_path: Path) -> None:
    rig.words = ["The engine was built for sm120", "Error Code 1: Serialization"]
    told = (
        r"tensorrt-rtx 1\.\S+ does not open '.*m\.plan', which was compiled by 1\.7\.1\.116: The engine was built for "
        r"sm120; Error Code 1: Serialization; an engine is for one version and kind of GPU"
    )
    with pytest.raises(UnsupportedError, match=told):
        read(plan(tmp_path))


def test_what_was_settled_at_compiling_is_not_asked_again(rig: EngineRig, tmp_path: Path) -> None:
    settings = dataclasses.replace(GPU, options={"profile": "range", "cuda_graph": "on"})
    with (
        pytest.raises(UnsupportedError, match="profile was settled when the engine was compiled; it has cuda_graph"),
        tensorrt.TensorrtRtx().load_model(MODEL, artifact(plan(tmp_path)), settings),
    ):
        pass


@pytest.mark.parametrize(
    ("blob", "told"),
    [
        (b"", r"is no engine: it has 0 bytes; engines begin so: those of TensorRT with b'ftrt', those of TensorRT-RTX"),
        (b"\x08\x07\x12\x07pytorch", r"is no engine: it begins with b'\\x08\\x07\\x12\\x07pyto'.*goes with --onnx"),
        (b"vtrt", "is not whole: it has 4 bytes; copy or compile it again"),
        (header(b"vtrt", 9999) + bytes(36), "is not whole: it has 64 bytes, and its header says 9999"),
        (header(b"ftrt", 0, (10, 14, 1, 48)) + bytes(36),
         r"is an engine of TensorRT 10\.14\.1\.48, which tensorrt-rtx does not open; name --runtimes tensorrt$"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_engine_is_refused_without_a_gpu(tmp_path: Path, blob: bytes, told: str) -> None:
    path = tmp_path / "mÿ plan.plan"
    path.write_bytes(blob)
    with pytest.raises(InputError, match=told):
        read(path)


def test_an_engine_of_rtx_is_not_for_tensorrt(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"an engine of TensorRT-RTX 1\.7\.1\.116, which tensorrt does not open"):
        tensorrt.Tensorrt().read_engine(plan(tmp_path), "cuda:0")


def test_without_a_package_or_a_gpu_an_engine_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trt_compiler, "is_installed", lambda name: False)
    with pytest.raises(UnavailableError, match="needs TensorRT and an NVIDIA GPU, and the package tensorrt is not"):
        tensorrt.Tensorrt().read_engine(plan(tmp_path, b"ftrt"), "cuda:0")
    monkeypatch.undo()
    rtx()
    monkeypatch.setattr(cuda_driver, "why_no_gpu", lambda: "there is no NVIDIA driver")
    with pytest.raises(UnavailableError, match="opens on the GPU that it was compiled for only: there is no NVIDIA dr"):
        read(plan(tmp_path))


def test_the_real_compiler_writes_the_header_that_engines_are_known_by(tmp_path: Path) -> None:
    module = rtx()
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["b", "t", 4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    made = trt_compiler.compile_onnx(model.SerializeToString(), shapes={"x": ((1, 1, 4), (1, 8, 4), (2, 16, 4))})
    assert made.engine is not None
    path = tmp_path / "real.engine"
    path.write_bytes(made.engine[:-1])
    with pytest.raises(InputError, match=rf"has {len(made.engine) - 1} bytes, and its header says {len(made.engine)}"):
        read(path)
    path.write_bytes(made.engine)
    with pytest.raises(InputError, match=rf"TensorRT-RTX {module.__version__}, which tensorrt does not open"):
        tensorrt.Tensorrt().read_engine(path, "cuda:0")


def test_a_file_is_compiled_at_its_sizes_and_for_each_others(
    rig: EngineRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def compile_onnx(source: Path, **given: Any) -> trt_compiler.Compiled:
        asked.append(given["shapes"])
        return trt_compiler.Compiled(
            version="1.7", arch="", engine=b"made", planned_activation_bytes=64, build_ms=3.0
        )  # fmt: skip

    monkeypatch.setattr(trt_compiler, "compile_onnx", compile_onnx)
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07")
    for profile, shapes in (
        ("exact", [{"x": (2, 8, 4)}, {"x": (2, 3, 4)}]), ("range", [{"x": ((1, 1, 4), (2, 8, 4), (2, 8, 4))}]),
    ):  # fmt: skip
        asked.clear()
        settings = dataclasses.replace(GPU, options={"profile": profile})
        with tensorrt.TensorrtRtx().load_model(MODEL, artifact(tmp_path / "m.onnx"), settings) as session:
            for length in (8, 3):
                x = numbers(2, length)
                session.bind({"x": x.copy()})()
                np.testing.assert_array_equal(session.outputs_by_name()["y"], x * 2 + 1)
            facts = session.facts()
        assert asked == shapes
        assert (facts.build_ms, facts.compute_precision) == (3.0, "fp32")


@pytest.mark.parametrize("wrong", [False, True])
def test_a_worker_judges_an_engine_by_what_the_file_gave(
    rig: EngineRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """Everything that a worker asks of a session, in this process; the device's own clock is not asked."""
    monkeypatch.setattr(tasks, "DeviceWork", lambda device, timed: types.SimpleNamespace(require=lambda session: None))
    file = {**dataclasses.asdict(artifact(plan(tmp_path))), "path": str(tmp_path / "m.plan")}
    x = make_inputs(MODEL, seed=0)["x"]
    due = {"y": (x * 2 + 1).astype(np.float64), "best": (x * 2 + 1).argmax(-1)}
    model_runs.save_reference(MODEL, due, tmp_path / "due.npz")
    if wrong:
        monkeypatch.setattr(rig, "execute", lambda stream: True)  # says that it ran, and wrote nothing
    told = {"problem": MODEL.as_dict(), "reference": str(tmp_path / "due.npz"), "rows": None}
    limits = {name: {"worst_row": 1e-6, "gain": 1e-6, "reason": "test"} for name in due}
    with contextlib.ExitStack() as stack:
        worker = tasks.Tasks(stack)
        sent = {"problem": MODEL.as_dict(), "artifact": {**file, "problem": MODEL.as_dict()}}
        worker.load(runtime="tensorrt-rtx", settings=dataclasses.asdict(GPU), **sent)
        if wrong:
            with pytest.raises(judging.WrongOutputError, match="output best: "):
                worker.check(input_class="normal", limits=limits, **told)
            return
        found = worker.check(input_class="normal", limits=limits, **told)
        assert found["agreement"]["worst_row_rel_err"] < 1e-6
        assert worker.recheck(limits=limits, **told)["agreement"]["nan_count"] == 0
        worker.save_outputs(path=str(tmp_path / "kept.npz"))
    with np.load(tmp_path / "kept.npz") as kept:
        np.testing.assert_array_equal(kept["best"], due["best"])


@pytest.mark.parametrize(
    ("policy", "weights", "due", "tf32"),
    [("strict", "", "fp32", False), ("default", "", "tf32", True), ("default", "fp16", "fp16", True)],
)
def test_products_of_a_file_are_computed_as_the_policy_says(
    rig: EngineRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, weights: str, due: str, tf32: bool
) -> None:
    asked: list[Any] = []

    def compile_onnx(source: Path, **given: Any) -> trt_compiler.Compiled:
        asked.append(given["tf32"])
        return trt_compiler.Compiled(version="1.7", arch="", engine=b"made", planned_activation_bytes=64)

    monkeypatch.setattr(trt_compiler, "compile_onnx", compile_onnx)
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07")
    model = dataclasses.replace(MODEL, precision=weights)
    settings = dataclasses.replace(GPU, fp32=policy)
    with tensorrt.TensorrtRtx().load_model(model, artifact(tmp_path / "m.onnx"), settings) as session:
        assert session.facts().compute_precision == due
    assert asked == [tf32]


def test_without_a_gpu_no_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "why_no_gpu", lambda: "there is no NVIDIA driver")
    with (
        pytest.raises(UnsupportedError, match="there is no NVIDIA driver, so tensorrt-rtx runs nothing here"),
        tensorrt.TensorrtRtx().load_model(MODEL, artifact(plan(tmp_path)), GPU),
    ):
        pass


def test_a_file_of_another_kind_is_named(rig: EngineRig, tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"PK")
    with (
        pytest.raises(UnsupportedError, match=r"tensorrt-rtx runs ONNX files, 'm\.pt2' is none"),
        tensorrt.TensorrtRtx().load_model(MODEL, artifact(tmp_path / "m.pt2"), GPU),
    ):
        pass
