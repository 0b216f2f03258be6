"""The onnx evaluator as a runtime: right numbers, never timed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from attnbench import conformance
from attnbench.errors import ArtifactError, UnsupportedError
from attnbench.interfaces import Artifact, Settings
from attnbench.problem import Problem
from attnbench_exporters.contrib import OnnxContrib
from attnbench_runtimes.onnx_reference import OnnxReference

PROBLEM = Problem.make(seq_len=24, num_heads=4, head_dim=16)


def test_the_evaluator_keeps_the_contract_of_a_runtime() -> None:
    conformance.check_runtime(OnnxReference(), [PROBLEM])


def test_the_evaluator_runs_only_when_named_and_is_not_timed() -> None:
    assert OnnxReference().opt_in
    assert OnnxReference().checks_only


def test_an_operator_that_onnx_does_not_have_is_refused_in_its_words(tmp_path: Path) -> None:
    artifact = OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=0)
    with pytest.raises(UnsupportedError, match="microsoft"), OnnxReference().load(PROBLEM, artifact, Settings()):
        pass


def test_what_is_no_onnx_file_is_refused(exported: Callable[..., Artifact], tmp_path: Path) -> None:
    from dataclasses import replace

    path = tmp_path / "m.onnx"
    path.write_bytes(b"no protobuf")
    artifact = replace(exported("onnx-decomposed", PROBLEM, None), path=path)
    with pytest.raises(ArtifactError, match="cannot read"), OnnxReference().load(PROBLEM, artifact, Settings()):
        pass


def test_any_file_can_be_run(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "a"], ["b"])], "double",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    found = OnnxReference().run_model(tmp_path / "m.onnx", {"a": np.array([1.5, 2.0], np.float32)})
    np.testing.assert_array_equal(found["b"], [3.0, 4.0])
