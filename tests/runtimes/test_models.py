"""Models of the user in each runtime: every kind of input and output, by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from attnbench.errors import NotRunError, ProblemError, UnsupportedError
from attnbench.interfaces import Artifact, Settings, numpy_dtype
from attnbench.model_problem import ANY_RANK, ModelProblem, TensorSpec
from attnbench_runtimes.openvino import OpenVino
from attnbench_runtimes.ort import OrtCpu
from attnbench_runtimes.torch_arms import TorchCompile, TorchEager, TorchSdpa
from tests.model_bench import models

BF16 = numpy_dtype("bf16")
RUNTIMES = [pytest.param(OrtCpu, id="ort-cpu"), pytest.param(OpenVino, id="openvino")]
ODD = ModelProblem(
    name="odd.onnx", sizes={"n": 3}, bound="n",
    inputs=(
        TensorSpec(name="x", dtype="bf16", dims=("n", 4)), TensorSpec(name="s", dtype="fp32", dims=()),
        TensorSpec(name="count", dtype="int32", dims=("n",)),
    ),
    outputs=(
        TensorSpec(name="y", dtype="bf16", dims=ANY_RANK), TensorSpec(name="places", dtype="int64", dims=(2, "k")),
        TensorSpec(name="above", dtype="bool", dims=("n", 4)), TensorSpec(name="total", dtype="fp32", dims=()),
        TensorSpec(name="next", dtype="int32", dims=("n",)),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _needs_both() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")


def artifact(path: Path, problem: ModelProblem) -> Artifact:
    """A file as the bench hands it to runtimes."""
    return Artifact(path=path, exporter="file", opset=17, sha256="", size_bytes=path.stat().st_size, problem=problem)


def save_odd(path: Path) -> Path:
    """y = bf16(x) * s; where x > s, and at which places; the sum; count + count."""
    node = helper.make_node
    nodes = [
        node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT), node("Mul", ["wide", "s"], ["scaled"]),
        node("Cast", ["scaled"], ["y"], to=TensorProto.BFLOAT16), node("Greater", ["wide", "s"], ["above"]),
        node("NonZero", ["above"], ["places"]), node("ReduceSum", ["scaled"], ["total"], keepdims=0),
        node("Add", ["count", "count"], ["next"]),
    ]  # fmt: skip
    kinds = {"x": TensorProto.BFLOAT16, "s": TensorProto.FLOAT, "count": TensorProto.INT32, "y": TensorProto.BFLOAT16,
             "places": TensorProto.INT64, "above": TensorProto.BOOL, "total": TensorProto.FLOAT,
             "next": TensorProto.INT32}  # fmt: skip
    dims: dict[str, Any] = {"x": ("n", 4), "s": (), "count": ("n",), "y": ("n", 4), "places": (2, "k"),
                            "above": ("n", 4), "total": (), "next": ("n",)}  # fmt: skip
    values = {name: models.value(name, kind, dims[name]) for name, kind in kinds.items()}
    inputs = [values.pop(name) for name in ("x", "s", "count")]
    return models.save(path, nodes, inputs, list(values.values()), {})


def inputs_of(rows: int) -> dict[str, Any]:
    x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4) - 2.0
    return {"x": x.astype(BF16), "s": np.array(1.5, np.float32), "count": np.arange(rows, dtype=np.int32)}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_outputs_of_every_kind_and_size_are_given_by_name(runtime: Any, tmp_path: Path) -> None:
    file = artifact(save_odd(tmp_path / "odd.onnx"), ODD)
    with runtime().load_model(ODD, file, Settings()) as session:
        for rows in (3, 1, 5):  # the place of an output of another size is not that of the last one
            given = inputs_of(rows)
            call = session.bind({name: array.copy() for name, array in given.items()})
            with pytest.raises(NotRunError):
                session.outputs_by_name()
            call()
            call()
            found = session.outputs_by_name()
            wide = given["x"].astype(np.float32)
            assert list(found) == ["y", "places", "above", "total", "next"]
            assert found["y"].dtype == BF16
            np.testing.assert_array_equal(found["y"], (wide * 1.5).astype(BF16))
            np.testing.assert_array_equal(found["places"], np.array(np.nonzero(wide > 1.5)))
            np.testing.assert_array_equal(found["above"], wide > 1.5)
            np.testing.assert_allclose(found["total"], wide.sum() * 1.5, rtol=1e-6)
            np.testing.assert_array_equal(found["next"], 2 * given["count"])
            assert (found["next"].dtype, found["above"].dtype) == (np.int32, np.bool_)


def test_openvino_never_compiles_a_model_for_one_token(tmp_path: Path) -> None:
    file = artifact(save_odd(tmp_path / "odd.onnx"), ODD)
    with OpenVino().load_model(ODD, file, Settings()) as session:
        given = inputs_of(1)
        session.bind(given)()
        assert session.facts().detail["primed_with_two_keys"] is True
        np.testing.assert_array_equal(session.outputs_by_name()["above"], given["x"].astype(np.float32) > 1.5)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_is_bound_must_be_what_the_model_takes(runtime: Any, tmp_path: Path) -> None:
    file = artifact(save_odd(tmp_path / "odd.onnx"), ODD)
    with runtime().load_model(ODD, file, Settings()) as session:
        with pytest.raises(ProblemError, match="count must be int32"):
            session.bind({**inputs_of(3), "count": np.arange(3)})
        with pytest.raises(ProblemError, match="count must have shape"):
            session.bind({**inputs_of(3), "count": np.arange(2, dtype=np.int32)})


def save_program(path: Path) -> Path:
    """x (seq, 4) + 1 and its sum over rows, traced for seq from 2 to 8."""
    import torch

    from attnbench.deploy import models as deployed

    class Plus(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x + 1.0, x.sum(0)

    seq = torch.export.Dim("seq", min=2, max=8)
    program = torch.export.export(Plus(), (torch.zeros(3, 4),), dynamic_shapes=({0: seq},))
    deployed.save_program(program, path)
    return path


PLUS = ModelProblem(
    name="blocks:Plus", sizes={"seq": 3}, bound="seq", inputs=(TensorSpec(name="x", dtype="fp32", dims=("seq", 4)),),
    outputs=(TensorSpec(name="y", dtype="fp32", dims=("seq", 4)), TensorSpec(name="sum", dtype="fp32", dims=(4,))),
)  # fmt: skip


@pytest.mark.parametrize("runtime", [TorchEager, TorchCompile])
def test_a_traced_module_runs_without_the_checks_of_its_trace(runtime: Any, tmp_path: Path) -> None:
    if not (probe := runtime().probe()).available:
        pytest.skip(probe.reason)
    file = artifact(save_program(tmp_path / "program.pt2"), PLUS)
    with runtime().load_model(PLUS, file, Settings()) as session:
        for rows in (3, 12):  # 12 is outside the range: the checks that would say so take longer than small modules
            x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
            call = session.bind({"x": x.copy()})
            with pytest.raises(NotRunError):
                session.outputs_by_name()
            call()
            found = session.outputs_by_name()
            np.testing.assert_array_equal(found["y"], x + 1.0)
            np.testing.assert_array_equal(found["sum"], x.sum(0))
        facts = session.facts()
        assert (facts.threads, facts.compute_precision) == (1, "fp32")


def test_a_runtime_says_which_files_it_runs(tmp_path: Path) -> None:
    onnx = artifact(models.save_fixed(tmp_path / "fixed.onnx"), PLUS)
    program = artifact(save_program(tmp_path / "program.pt2"), PLUS)
    for runtime, file in ((OrtCpu(), program), (OpenVino(), program), (TorchEager(), onnx)):
        with (
            pytest.raises(UnsupportedError, match=r"none"),
            runtime.load_model(PLUS, file, Settings()),
        ):
            pass
    assert not hasattr(TorchSdpa(), "load_model")  # a module has its own attention
