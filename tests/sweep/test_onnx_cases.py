"""onnx's own cases: written whole, and a wrong answer that lacks an attribute is named."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnbench.reference import reference_attention
from attnbench.sweep import onnx_cases


def write_case(folder: Path, **attributes: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    arrays = {name: rng.standard_normal((1, 2, 4, 8)).astype(np.float32) for name in ("Q", "K", "V")}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 2, 4, 8)) for n in ("Q", "K", "V", "Y")}
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], **attributes)
    graph = helper.make_graph([node], "case", [values[name] for name in arrays], [values["Y"]])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]), folder / "model.onnx")
    for number, (name, array) in enumerate(arrays.items()):
        tensor = numpy_helper.from_array(array, name)
        (folder / f"in-{number:02}.pb").write_bytes(tensor.SerializeToString())
    return arrays


@pytest.mark.parametrize(
    ("attributes", "words"),
    [({"softcap": 0.5}, "softcap ignored"), ({"is_causal": 1}, "is_causal ignored"), ({"scale": 2.0}, "scale ignored")],
)
def test_an_output_without_an_attribute_is_named(attributes: dict[str, Any], words: str, tmp_path: Path) -> None:
    arrays = write_case(tmp_path, **attributes)
    plain = reference_attention(arrays["Q"], arrays["K"], arrays["V"]).astype(np.float32)
    assert onnx_cases.ignored_attributes(tmp_path, plain) == words


def test_an_output_that_nothing_explains_is_not_named(tmp_path: Path) -> None:
    arrays = write_case(tmp_path, softcap=0.5)
    assert onnx_cases.ignored_attributes(tmp_path, arrays["V"] + 1) == ""


@pytest.mark.slow
def test_the_cases_of_the_installed_package_are_written_with_all_tensors(tmp_path: Path) -> None:
    cases = onnx_cases.write_cases(tmp_path)
    assert {"attention_4d", "attention_4d_gqa", "attention_4d_softcap_neginf_mask_poison"} <= {c["name"] for c in cases}
    for case in cases:
        graph = onnx.load(Path(case["folder"]) / "model.onnx").graph
        assert [node.op_type for node in graph.node] == ["Attention"]
        assert list(onnx_cases.read_tensors(Path(case["folder"]), "in")) == [value.name for value in graph.input]
        assert list(onnx_cases.read_tensors(Path(case["folder"]), "out")) == [value.name for value in graph.output]
