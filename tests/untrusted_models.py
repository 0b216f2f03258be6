"""Small models, sound and hostile, for the tests of `attnbench.untrusted`."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attnbench.errors import UntrustedModelError
from attnbench.untrusted import inspect_model

Model = Any  # onnx.ModelProto
WEIGHT = np.arange(4, dtype=np.float32)


def small_model(*initializers: Any, nodes: list[Any] | None = None, functions: list[Any] | None = None) -> Model:
    """y = x + w, with w and whatever is added among the initializers."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"]), *(nodes or [])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch_size", "seq_len", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch_size", "seq_len", 4])],
        [raw_tensor("w"), *initializers],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def raw_tensor(name: str) -> Any:
    return onnx.numpy_helper.from_array(WEIGHT, name)


def outside(name: str = "v", location: str = "w.data", **entries: Any) -> Any:
    """A tensor of 16 bytes whose data is beside the model."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": 0, "length": 16, **entries}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def save(folder: Path, model: Model) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    if not (folder / "w.data").exists():
        (folder / "w.data").write_bytes(WEIGHT.tobytes() * 2)
    return path


def assert_refused(path: Path, rule: str) -> None:
    with pytest.raises(UntrustedModelError, match=re.escape(rule)):
        inspect_model(path)
