"""Models from elsewhere are loaded in a worker that may die, never in this process."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnbench.deploy.foreign import load_foreign
from attnbench.deploy.shop import Shop, open_shop
from attnbench.errors import InputError, UnsupportedError, UntrustedModelError, WorkerOutOfMemory
from attnbench.untrusted import inspect_model


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with open_shop(2 << 30) as found:
        yield found


def save(path: Path, nodes: list[Any], constants: dict[str, Any], tensors: list[Any] | None = None) -> Path:
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [*stored, *(tensors or [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


def sound(path: Path) -> Path:
    return save(path, [helper.make_node("Add", ["x", "w"], ["y"])], {"w": np.arange(4, dtype=np.float32)})


@pytest.mark.parametrize("module", ["onnxruntime", "openvino", None])
def test_a_sound_model_is_loaded_from_its_copy(shop: Shop, tmp_path: Path, module: str | None) -> None:
    path = sound(tmp_path / "m.onnx")
    copy, facts = load_foreign(shop, path, tmp_path / "into", module=module)
    assert copy == tmp_path / "into" / "m.onnx"
    assert facts == inspect_model(copy)
    assert copy.read_bytes() == path.read_bytes()


def test_a_model_that_reaches_outside_is_refused_by_name_and_nothing_is_loaded(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"0123456789abcdef")
    (tmp_path / "model").mkdir()
    evil = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    evil.external_data.add(key="location", value="../secret.bin")
    path = save(tmp_path / "model" / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], {}, [evil])
    with pytest.raises(UntrustedModelError, match="must stay inside the folder"):
        load_foreign(shop, path, tmp_path / "into", module="onnxruntime")
    assert not list((tmp_path / "into").glob("*.bin"))


def test_a_bomb_that_only_shows_while_loading_ends_in_its_worker(shop: Shop, tmp_path: Path) -> None:
    """Its size is a product, which inspection does not work out and OpenVINO's constant folding does."""
    nodes = [
        helper.make_node("Mul", ["a", "a"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"a": np.array([1 << 20])})
    assert inspect_model(path).size_bytes < 1000
    with pytest.raises(WorkerOutOfMemory, match="openvino loads"):
        load_foreign(shop, path, tmp_path / "into", module="openvino")
    copy, _ = load_foreign(shop, sound(tmp_path / "good.onnx"), tmp_path / "again", module="openvino")
    assert copy.is_file()


def test_what_a_runtime_does_not_load_is_told_in_its_words(shop: Shop, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("NoSuchOp", ["x"], ["y"], domain="vendor")], {})
    with pytest.raises(UnsupportedError, match=r"onnxruntime does not load 'm\.onnx'"):
        load_foreign(shop, path, tmp_path / "into", module="onnxruntime")


def test_this_process_imports_no_runtime(shop: Shop, tmp_path: Path) -> None:
    known = set(sys.modules)
    load_foreign(shop, sound(tmp_path / "m.onnx"), tmp_path / "into", module="openvino")
    assert not {"openvino", "onnxruntime"} & (set(sys.modules) - known)


def test_a_copy_that_cannot_be_written_is_told(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be copied"):
        load_foreign(shop, sound(tmp_path / "m.onnx"), tmp_path / "none" / "into")
