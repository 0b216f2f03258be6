"""ONNX Runtime: what is asked is read back, and the graph that runs says its kernel and precision."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from attnbench.errors import ArtifactError, ProblemError, ReadBackError, UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact, Settings
from attnbench.measure.numerics import compare
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters import onnx_files
from attnbench_exporters.contrib import OnnxContrib
from attnbench_runtimes import ort
from attnbench_runtimes.ort import OrtCpu, OrtRuntime

Exported = Callable[..., Artifact]


def small(variant: str = "self", dtype: str = "fp32", part: str = "block") -> Problem:
    return Problem.make(part=part, variant=variant, seq_len=16, num_heads=4, head_dim=16, dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exporter", "kernel"), [("onnx-decomposed", "unfused"), ("onnx-attention", "fused"), ("onnx-contrib", "fused")]
)
def test_the_kernel_is_read_from_the_optimised_graph(exported: Exported, exporter: str, kernel: str) -> None:
    problem = small("causal")
    with OrtCpu().load(problem, exported(exporter, problem), Settings()) as session:
        facts = session.facts()
    assert (facts.attention_kernel, facts.kernel_evidence) == (kernel, "graph")
    assert facts.compute_precision == "fp32"
    assert list(facts.detail["placement"]) == ["CPUExecutionProvider"]


def test_attention_of_opset_25_is_told_as_the_unfused_graph_it_becomes(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime 1.32 has no kernel for it and expands the function: the operator in the file proves nothing."""
    from attnbench_exporters.attention import OnnxAttention

    monkeypatch.setattr(OnnxAttention, "opsets", (25,))
    problem = small("causal")
    artifact = OnnxAttention().export(problem, 25, tmp_path / "m.onnx", seed=0)
    assert artifact.operators["::Attention"] == 1
    with OrtCpu().load(problem, artifact, Settings()) as session:
        facts = session.facts()
    expanded = "::Attention" not in facts.detail["optimised_operators"]
    assert facts.attention_kernel == ("unfused" if expanded else "fused")


@pytest.mark.parametrize("exporter", ["onnx-decomposed", "onnx-contrib"])
def test_fp16_that_is_cast_to_fp32_is_labelled_fp32(exported: Exported, exporter: str) -> None:
    problem = small("causal", "fp16")
    with OrtCpu().load(problem, exported(exporter, problem), Settings()) as session:
        facts = session.facts()
    assert facts.detail["casts"] >= 2
    assert facts.compute_precision == "fp32"


def test_precision_is_that_of_the_coarsest_product() -> None:
    """Attention keeps fp16 between casts of its neighbours; types are followed, and a Shape gives no float."""
    from onnx import TensorProto, helper

    from attnbench_runtimes.ort_graph import read_graph

    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["wide", "w"], ["product"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["product", "shape"], ["again"]),
        helper.make_node("Cast", ["again"], ["narrow"], to=TensorProto.FLOAT16),
        helper.make_node("Attention", ["narrow", "narrow", "narrow"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, [1, 2, 4, 8]) for n in "xy")
    graph = read_graph(helper.make_model(helper.make_graph(nodes, "g", [x], [y])))
    assert graph.precisions == {"::Attention": {"fp16": 1}, "::MatMul": {"fp32": 1}}
    assert (graph.compute_precision, graph.kernel, graph.casts) == ("fp16", "fused", 2)


def test_bf16_is_unsupported_in_a_sentence_whose_cause_is_onnxruntimes_own_words(exported: Exported) -> None:
    problem = small(dtype="bf16")
    artifact = exported("onnx-decomposed", problem)
    words = "^onnxruntime has no kernel for MatMul of opset 13, which this bf16 file needs"
    with pytest.raises(UnsupportedError, match=words) as caught:
        OrtCpu().load(problem, artifact, Settings()).__enter__()
    assert "NOT_IMPLEMENTED" in str(caught.value.__cause__)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_read_back(exported: Exported, threads: int) -> None:
    problem = small()
    with OrtCpu().load(problem, exported("onnx-contrib", problem), Settings(threads=threads)) as session:
        assert session.facts().threads == threads
        assert session.facts().detail["inter_op_threads"] == 1


def test_a_provider_that_is_not_there_is_an_error_not_a_cpu_run(exported: Exported) -> None:
    """onnxruntime itself falls back with a warning, for invented names too."""

    class Invented(OrtRuntime):
        name = "ort-invented"
        providers = (("CUDAExecutionProvider", {}),)

    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    problem = small()
    probe = Invented().probe()
    assert not probe.available
    assert "has no CUDAExecutionProvider" in probe.reason
    artifact = exported("onnx-contrib", problem)
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(ReadBackError, match=r"CUDAExecutionProvider.* were asked, onnxruntime uses .*CPU"),
        Invented().load(problem, artifact, Settings()),
    ):
        pass


def test_both_onnxruntime_packages_at_once_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ort.importlib.metadata.version
    monkeypatch.setattr(
        ort.importlib.metadata, "version", lambda name: "1.31.1" if name == "onnxruntime-gpu" else real(name)
    )
    probe = OrtCpu().probe()
    assert not probe.available
    assert "onnxruntime-gpu 1.31.1 are both installed" in probe.reason
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in probe.fix


def test_a_missing_onnxruntime_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise ort.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(ort.importlib.metadata, "version", nothing)
    probe = OrtCpu().probe()
    assert (probe.available, probe.fix) == (False, "pip install onnxruntime")


def test_an_onnxruntime_that_does_not_import_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "cannot be imported" in OrtCpu().probe().reason


def test_a_file_of_a_future_opset_is_unsupported_not_broken(exported: Exported, tmp_path: Path) -> None:
    problem = small()
    artifact = exported("onnx-decomposed", problem)
    model = onnx.load(artifact.path)
    model.opset_import[0].version = 99
    onnx.save(model, tmp_path / "m.onnx")
    future = Artifact(
        path=tmp_path / "m.onnx", exporter="x", opset=99, sha256="", size_bytes=0, problem=problem, operators={}
    )
    with pytest.raises(UnsupportedError, match="99"), OrtCpu().load(problem, future, Settings()):
        pass


@pytest.mark.parametrize("name", ["m.onnx", "exporter-opset20-0.onnx"])
def test_a_file_that_is_no_model_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not a model at all")
    artifact = Artifact(path=tmp_path / name, exporter="x", opset=20, sha256="", size_bytes=0, problem=small())
    with pytest.raises(ArtifactError, match=f"onnxruntime cannot load '{name}'"):
        OrtCpu().load(small(), artifact, Settings()).__enter__()


@pytest.mark.parametrize("place", ["../secret.bin", "absolute", "sub/../../secret.bin", "symlink"])
def test_weights_outside_the_models_folder_are_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_files, "EXTERNAL_DATA_BYTES", 0)
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    artifact = OnnxContrib().export(small(), 20, folder / "m.onnx", seed=0)
    (weights,) = folder.glob("*.data")
    weights.rename(tmp_path / "secret.bin")
    location = {"absolute": str(tmp_path / "secret.bin"), "symlink": "link.bin"}.get(place, place)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    model = onnx.load(artifact.path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location if entry.key == "location" else entry.value
    artifact.path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=r"onnxruntime cannot load 'm.onnx'"):
        OrtCpu().load(small(), artifact, Settings()).__enter__()


def test_a_memory_bomb_is_out_of_memory(tmp_path: Path) -> None:
    """A model of some hundred bytes asks for 64 TiB: onnxruntime's RuntimeError becomes a MemoryError."""
    from onnx import TensorProto, helper

    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [1 << 44])
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["total"]),
        helper.make_node("Add", ["x", "total"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", "t", 64]) for n in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [shape]), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )
    onnx.save(model, tmp_path / "m.onnx")
    artifact = Artifact(path=tmp_path / "m.onnx", exporter="x", opset=20, sha256="", size_bytes=0, problem=small())
    with (
        OrtCpu().load(small(), artifact, Settings()) as session,
        pytest.raises(MemoryError, match="70368744177664"),
    ):
        session.bind(make_inputs(small()))()


def test_rebinding_does_not_leak(exported: Exported) -> None:
    problem = small().at(q_len=4096)  # 1 MiB in, 1 MiB out
    inputs = make_inputs(problem)
    with OrtCpu().load(problem, exported("onnx-contrib", problem), Settings()) as session:
        for _ in range(5):
            session.bind(inputs)
        before = psutil.Process().memory_info().rss
        for _ in range(100):
            session.bind(inputs)
        assert psutil.Process().memory_info().rss - before < 20 << 20


def test_inputs_that_do_not_fit_the_problem_are_refused(exported: Exported) -> None:
    problem = small("cross")
    inputs = make_inputs(problem)
    with OrtCpu().load(problem, exported("onnx-contrib", problem), Settings()) as session:
        with pytest.raises(ProblemError, match="query, context in this order, got context, query"):
            session.bind(dict(reversed(inputs.items())))
        with pytest.raises(ProblemError, match="query must be float32"):
            session.bind({**inputs, "query": inputs["query"].astype(np.float64)})
        with pytest.raises(ProblemError, match=r"context must have shape .*batch_size.*got \(2, 8, 64\)"):
            session.bind({**inputs, "context": np.zeros((2, 8, 64), np.float32)})


def test_keys_and_values_of_two_lengths_are_refused() -> None:
    from attnbench_runtimes import binding

    problem = small("cross", part="core")
    inputs = make_inputs(problem)
    inputs["v"] = inputs["v"][:, :, :-1]
    with pytest.raises(ProblemError, match="v must have shape"):
        binding.own_inputs(problem, inputs)


def test_an_odd_path_loads(tmp_path: Path) -> None:
    folder = tmp_path / "注意 'quoted'\nline"
    folder.mkdir()
    problem = small()
    artifact = OnnxContrib().export(problem, 20, folder / "ü %20#.onnx", seed=0)
    inputs = make_inputs(problem)
    with OrtCpu().load(problem, artifact, Settings()) as session:
        session.bind(inputs)()
        assert session.facts().attention_kernel == "fused"
        error = compare(session.outputs(), reference_output(problem, inputs, make_weights(problem)))
    assert error.worst_row_rel_err < 1e-5
