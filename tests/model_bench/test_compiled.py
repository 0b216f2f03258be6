"""A model of the user where TensorRT-RTX is installed and no GPU is: rows of what is only compiled."""

import dataclasses
import functools
import hashlib
import json
import types
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from attnbench import api, trt_compiler
from attnbench.errors import UnavailableError, UnsupportedError
from attnbench.fusion.kernels import count_verdicts
from attnbench.interfaces import Artifact, Settings
from attnbench.model_bench import kernels
from attnbench.model_bench.prepare import _filled
from attnbench.model_bench.request import ModelRequest
from attnbench.model_problem import ModelProblem, TensorSpec
from attnbench.sweep import compile_task
from attnbench.sweep.arm import Arm
from attnbench.sweep.artifacts import artifact_as_dict
from attnbench.sweep.grid import Sweep
from attnbench_runtimes import cuda_driver, tensorrt
from tests.model_bench import models
from tests.runtimes.engine_rig import save_plan

pytest.importorskip("onnxruntime")
pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


pytestmark = pytest.mark.usefixtures("little_timing")


@pytest.fixture(autouse=True)
def without_gpu() -> None:
    """Where a GPU is, nothing is only compiled."""
    if not cuda_driver.why_no_gpu():
        pytest.skip("there is a GPU here, on which tensorrt-rtx runs")


def bench(tmp_path: Path, file: Path, **more: Any) -> api.Run:
    return api.bench(onnx=file, bind={"seq": "T"}, out=tmp_path / "run", time_budget_s=1000.0, **more)


def test_a_file_is_compiled_at_every_size_beside_those_that_run_it(tmp_path: Path) -> None:
    file = models.save_attention(tmp_path / "attn.onnx")
    run = bench(tmp_path, file, sizes={"batch": 2}, seq_lens=[64, 1024], runtimes=["ort-cpu", "tensorrt-rtx"])
    assert [(r.arm, r.q_len, r.status) for r in run.rows] == [
        ("file@ort-cpu", 64, "ok"), ("file@tensorrt-rtx", 64, "compiled"),
        ("file@ort-cpu", 1024, "ok"), ("file@tensorrt-rtx", 1024, "compiled"),
    ]  # fmt: skip
    short, long = (r for r in run.rows if r.status == "compiled")
    assert short.planned_activation_bytes is not None
    assert long.planned_activation_bytes is not None
    # x, q, k, v and o are 2 x 1024 x 64 numbers of two bytes each: 256 KiB
    assert long.planned_activation_bytes > 256 << 10
    assert long.planned_activation_bytes > short.planned_activation_bytes
    for row in (short, long):
        assert (row.device, row.compute_precision, row.latency_ms_median) == ("sm89", "fp16", None)
        assert (row.attention_kernel, row.kernel_evidence) == ("fused", "compiler")
        assert "1 of 1 attentions of the file are fused" in row.facts["attention"]
        assert row.flags == ["compiles_only"]  # it gives nothing that could be judged
        assert row.artifact_bytes is not None
        assert row.build_ms is not None
        assert row.build_ms > 0
        assert "libcuda" in row.reason
    assert run.exit_code == 0


@pytest.mark.parametrize(
    ("save", "bind", "kernel", "told"),
    [
        # TensorRT-RTX has fused kernels for fp16 and none for fp32
        (
            functools.partial(models.save_attention, kind=TensorProto.FLOAT),
            {"seq": "T"},
            "unfused",
            "0 of 1 attentions",
        ),
        (models.save_attention, {"seq": "T"}, "fused", "1 of 1 attentions"),
        (models.save_two, {"seq": "T"}, "unknown", "no attention was found in the file"),
        (models.save_attention, {"seq": "T", "batch": "T/3"}, "unknown", "is no whole number at T = 2048"),
    ],
)
def test_attention_is_fused_or_not_whatever_the_length_of_the_row(
    tmp_path: Path, save: Any, bind: dict[str, str], kernel: str, told: str
) -> None:
    sent: list[Any] = []

    class Here:
        """What a worker does, in this process."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *rest: object) -> None:
            pass

        def ask(self, op: str, *, timeout_s: float, **given: Any) -> dict[str, Any]:
            assert op == "attnbench.fusion.kernels:count_verdicts"
            sent.append(given)
            return count_verdicts(**given)

    file = save(tmp_path / "m.onnx")
    dims = ("batch", "seq", 64)
    model = dataclasses.replace(
        MODEL, sizes={"batch": 1, "seq": 8}, inputs=(dataclasses.replace(X, dims=dims),), bound="seq"
    )
    bench: Any = types.SimpleNamespace(
        worker=lambda server, name: Here(), servers=types.SimpleNamespace(get=lambda preload: None),
        sweep=types.SimpleNamespace(timeout_s=60.0),
    )  # fmt: skip
    found = kernels.ask(bench, Arm(exporter="file", runtime="tensorrt-rtx"), str(file), model, bind)
    assert found.kernel == kernel
    assert told in found.told
    if sent:
        assert sent[0]["sizes"] == [{"batch": 1, "seq": 2048}, {"batch": 1, "seq": 4096}]
        assert sent[0]["arch"] == "sm89"
    facts = found.facts({"attention_kernel": "unknown", "kernel_evidence": "", "detail": {"why_unknown": "?"}})
    assert facts["kernel_evidence"] == ("" if kernel == "unknown" else "compiler")
    assert ("why_unknown" in facts["detail"]) == (kernel == "unknown")


def test_one_attention_that_is_not_fused_makes_a_file_unfused() -> None:
    assert kernels.of_verdicts({"fused": 11, "unfused": 1}, "T = 2048").kernel == "unfused"
    assert kernels.of_verdicts({"fused": 11, "refused": 1}, "T = 2048").kernel == "unknown"
    assert kernels.of_verdicts({"fused": 12}, "T = 2048").kernel == "fused"
    assert kernels.of_verdicts({"fused": 11, "unknown": 1}, "T = 2048").told.startswith("11 of 12 attentions")


def test_a_file_that_the_compiler_refuses_is_unsupported_in_its_words(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(models.save_fixed(tmp_path / "fixed.onnx"))
    model.graph.node[0].domain, model.graph.node[0].op_type = "nobody.knows", "Unknown"
    model.opset_import.append(onnx.helper.make_opsetid("nobody.knows", 1))
    onnx.save(model, tmp_path / "custom.onnx")
    run = api.bench(onnx=tmp_path / "custom.onnx", runtimes=["tensorrt-rtx"], out=tmp_path / "run")
    (row,) = run.rows
    assert row.status == "unsupported"
    assert row.reason.startswith("the parser of tensorrt-rtx")
    assert "node Unknown" in row.reason


def test_a_module_is_compiled_from_what_the_exporters_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = models.save_module(tmp_path, "headed")
    run = api.bench(
        module="headed:Head", inputs=inputs, bind={"seq": "T"}, sizes={"batch": 1}, seq_lens=[8], out=tmp_path / "run",
        exporters=["onnx-decomposed"], runtimes=["torch-eager", "tensorrt-rtx"],
    )  # fmt: skip
    assert {r.arm: r.status for r in run.rows} == {
        "torch-eager": "ok", "onnx-decomposed@tensorrt-rtx": "compiled"
    }  # fmt: skip


FILE = ModelRequest(onnx=Path("m.onnx"))


def test_the_compiler_is_added_where_an_architecture_is_asked_and_not_else() -> None:
    assert _filled(Sweep(), FILE).runtimes == ("ort-cpu", "openvino")
    asked = Sweep(options=("tensorrt-rtx:arch=sm120",))
    assert _filled(asked, FILE).runtimes == ("ort-cpu", "openvino", "tensorrt-rtx")
    named = Sweep(runtimes=("ort-cpu",), options=("tensorrt-rtx:arch=sm120",))
    assert _filled(named, FILE).runtimes == ("ort-cpu",)


def test_a_run_that_only_compiles_has_a_row_for_each_architecture_and_no_more(tmp_path: Path) -> None:
    plan = api.plan(
        onnx=models.save_attention(tmp_path / "m.onnx"), bind={"seq": "T"}, sizes={"batch": 1}, seq_lens=[8],
        runtimes=["tensorrt-rtx"], options=["tensorrt-rtx:arch=sm89", "tensorrt-rtx:arch=sm120"],
    )  # fmt: skip
    assert plan.arms == ("file@tensorrt-rtx[arch=sm89]", "file@tensorrt-rtx[arch=sm120]")


X = TensorSpec(name="x", dtype="fp32", dims=("b", 4))
MODEL = ModelProblem(
    name="m", sizes={"b": 2}, inputs=(X,), outputs=(dataclasses.replace(X, name="y"),)
)  # fmt: skip


def asked(path: Path, runtime: str) -> dict[str, Any]:
    """What a worker is asked, as the parent sends it."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = Artifact(
        path=path, exporter="file", opset=17, sha256=digest, size_bytes=path.stat().st_size, problem=MODEL
    )  # fmt: skip
    sent = {"problem": MODEL.as_dict(), "artifact": artifact_as_dict(file), "settings": dataclasses.asdict(Settings())}
    return {"runtime": runtime, **json.loads(json.dumps(sent))}


def test_an_engine_is_not_compiled_again(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="runs nothing here, and an engine is compiled already"):
        compile_task.compile_file(**asked(save_plan(tmp_path / "m.plan"), "tensorrt-rtx"))


def test_a_compiler_of_attention_only_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tensorrt.TensorrtRtx, "compile_model")
    with pytest.raises(UnsupportedError, match=r"it can only compile here, and has no compile_model\(\)"):
        compile_task.compile_file(**asked(save_plan(tmp_path / "m.plan"), "tensorrt-rtx"))


def test_the_precision_of_a_file_is_that_of_its_weights(tmp_path: Path) -> None:
    half = dataclasses.replace(MODEL, precision="fp16")
    made = trt_compiler.Compiled(version="1", arch="sm89", engine=b"e", planned_activation_bytes=1)
    for model, fp32, due in ((MODEL, "strict", "fp32"), (MODEL, "default", "tf32"), (half, "default", "fp16")):
        facts = tensorrt._compiled_facts(made, model.coarsest, Settings(fp32=fp32), "unknown", {})
        assert facts.compute_precision == due
