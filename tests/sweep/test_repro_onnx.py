"""A file with expected outputs as a zip: each output is judged, in every type."""

import subprocess
import sys
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from attnbench.sweep import repro, repro_onnx, repro_run


def said_of(folder: Path, arrays: dict[str, np.ndarray], expected: dict[str, np.ndarray], runtime: str) -> str:
    """What run.py says of a file that gives every input back as the output of the same number."""
    values = {
        name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in {**arrays, **expected}.items()
    }
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in zip(arrays, expected, strict=True)]
    graph = helper.make_graph(nodes, "case", [values[name] for name in arrays], [values[name] for name in expected])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]), folder / "model.onnx")
    for kind, tensors in (("in", arrays), ("out", expected)):
        for number, (name, array) in enumerate(tensors.items()):
            tensor = numpy_helper.from_array(array, name)
            (folder / f"{kind}-{number:02}.pb").write_bytes(tensor.SerializeToString())
    what = repro_onnx.OnnxReproduction(
        arm=f"onnx[23]@{runtime}", runtime=runtime, name="attention_4d", folder=folder, found="differs", versions={}
    )
    repro.write(what, folder / "case.zip")
    with zipfile.ZipFile(folder / "case.zip") as archive:
        archive.extractall(folder / "case")
    command = [sys.executable, "-I", "run.py"]
    done = subprocess.run(command, cwd=folder / "case", capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == (1 if "WRONG" in done.stdout else 0), done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("runtime", ["ort-cpu", "openvino", "onnx-reference"])
def test_the_second_output_is_judged_too(tmp_path: Path, runtime: str) -> None:
    arrays = {"a": np.float32([[1.0, 2.0]]), "b": np.float16([[1.0, 4.0]])}
    said = said_of(tmp_path, arrays, {"x": np.float32([[1.0, 2.0]]), "y": np.float16([[1.0, 5.0]])}, runtime)
    assert "x is off by 0 of the largest expected value" in said
    assert "WRONG: y is off by 0.2 of the largest expected value" in said


@pytest.mark.parametrize("runtime", ["ort-cpu", "openvino", "onnx-reference"])
def test_every_type_of_the_package_is_taken(tmp_path: Path, runtime: str) -> None:
    arrays = {
        "f": np.float32([[1.5]]), "h": np.float16([[0.5]]), "b": np.array([[2.5]], ml_dtypes.bfloat16),
    }  # fmt: skip
    said = said_of(tmp_path, arrays, {f"{name}_out": array for name, array in arrays.items()}, runtime)
    assert said.endswith("\nright\n")
    readme = (tmp_path / "case" / "README.md").read_text()
    assert "case attention_4d of the onnx package" in readme
    assert "bfloat16 is kept as its 16 bits" in readme


def test_infinity_elsewhere_is_counted(tmp_path: Path) -> None:
    arrays = {"a": np.float32([[1.0, -3e38, np.inf]])}
    said = said_of(tmp_path, arrays, {"x": np.float32([[1.0, -np.inf, np.inf]])}, "ort-cpu")
    assert "WRONG: x has 1 infinities and 0 NaN among 3 numbers, 2 infinities and 0 NaN are expected" in said


@pytest.mark.parametrize(
    ("found", "error"),
    [([1.0, -np.inf], 0.0), ([1.0, -3e38], np.inf), ([np.nan, -np.inf], np.nan), ([1.5, -np.inf], 0.5)],
)
def test_infinity_and_nan_must_be_where_they_are_expected(found: list[float], error: float) -> None:
    np.testing.assert_equal(repro_run.largest_error(np.array(found), np.array([1.0, -np.inf])), error)
