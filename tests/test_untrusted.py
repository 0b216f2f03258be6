"""Models from elsewhere: what is refused before any runtime sees it, and that a sound model passes."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attnbench.errors import UntrustedModelError
from attnbench.untrusted import inspect_model
from attnbench.untrusted.wire import SCHEMA

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


# ---- what is right


def test_the_facts_of_a_sound_model_are_those_that_onnx_reads(tmp_path: Path) -> None:
    model = small_model(outside(), outside("shared"), helper.make_tensor("t", TensorProto.INT64, [2], [3, -1]))
    model.producer_name, model.producer_version = "maker", "1.5"
    model.metadata_props.add(key="about", value="nothing")
    facts = inspect_model(save(tmp_path, model))
    assert facts.opsets == {"": 20, "own": 1}
    assert (facts.ir_version, facts.producer, facts.metadata) == (10, "maker 1.5", {"about": "nothing"})
    assert [(v.name, v.dtype, v.dims) for v in facts.inputs] == [("x", "fp32", ("batch_size", "seq_len", 4))]
    assert [(v.name, v.dtype, v.dims) for v in facts.outputs] == [("y", "fp32", ("batch_size", "seq_len", 4))]
    assert facts.operators == {"::Add": 1}
    assert facts.files == {"w.data": 32}
    assert facts.initializer_bytes == 4 * 16
    assert [tensor.name for tensor in facts.tensors] == ["w", "v", "shared", "t"]
    assert facts.tensors[3].values == (3, -1)
    raw = (tmp_path / "m.onnx").read_bytes()
    assert raw[facts.tensors[0].offset or 0 :][:16] == WEIGHT.tobytes()


def test_the_schema_is_that_of_the_onnx_package() -> None:
    kinds = {1: "doubles", 2: "float", 3: "int", 4: "int", 5: "int", 9: "text", 12: "blob", 14: "int"}
    waiting, seen = [(onnx.ModelProto.DESCRIPTOR, "Model")], set()
    while waiting:
        message, ours = waiting.pop()
        seen.add(ours)
        assert {field.number for field in message.fields} == set(SCHEMA[ours]), ours
        for field in message.fields:
            rule = SCHEMA[ours][field.number]
            assert (rule.name, rule.is_repeated) == (field.name, field.is_repeated)
            if field.message_type is not None:
                waiting += [(field.message_type, rule.kind)] if rule.kind not in seen else []
                continue
            due = kinds[field.type]
            assert rule.kind in (due, f"{due}s", "name" if due == "text" else due), (ours, rule)
            assert field.is_repeated or rule.kind == due or rule.kind == "name"
    assert seen == set(SCHEMA)


def test_custom_domains_are_facts_and_own_functions_are_not_custom(tmp_path: Path) -> None:
    body = helper.make_function("own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [])
    nodes = [
        helper.make_node("Twice", ["x"], ["z"], domain="own"),
        helper.make_node("Fancy", ["x"], ["f"], domain="vendor.ops"),
        helper.make_node("Abs", ["x"], ["g"], domain="ai.onnx"),
    ]
    facts = inspect_model(save(tmp_path, small_model(nodes=nodes, functions=[body])))
    assert facts.custom_domains == ("vendor.ops",)
    assert facts.functions == ("own::Twice",)
    assert facts.operators == {"::Abs": 1, "::Add": 2, "own::Twice": 1, "vendor.ops::Fancy": 1}


def test_every_element_type_of_numbers_is_measured_as_onnx_stores_it(tmp_path: Path) -> None:
    numbers = [value for name, value in TensorProto.DataType.items() if 0 < value <= 26 and name != "STRING"]
    tensors = [helper.make_tensor(f"t{number}", number, [3], [1, 0, 1]) for number in numbers]
    tensors.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"ab", b""]))
    facts = inspect_model(save(tmp_path, small_model(*tensors)))
    sizes = {tensor.name: tensor.size_bytes for tensor in facts.tensors}
    for number in numbers:
        bits = {25: 2, 26: 2, 21: 4, 22: 4, 23: 4}.get(number)
        due = 3 * helper.tensor_dtype_to_np_dtype(number).itemsize if bits is None else -(-3 * bits // 8)
        assert sizes[f"t{number}"] == due, number
    assert sizes["words"] == 2


# ---- data outside

SECRET = b"0123456789abcdef"

OUTSIDE_NAMES: dict[str, Callable[[Path], str]] = {
    "the folder above": lambda folder: "../secret.bin",
    "absolute": lambda folder: str(folder.parent / "secret.bin"),
    "down and up": lambda folder: "sub/../../secret.bin",
    "a drive": lambda folder: "C:secret.bin",
    "a backslash": lambda folder: "sub\\..\\..\\secret.bin",
    "NUL": lambda folder: "w.data\0.txt",
    "a line break": lambda folder: "w\n.data",
    "too long": lambda folder: "w" * 256,
    "a path too long": lambda folder: "/".join(["w" * 100] * 20),
    "empty": lambda folder: "",
    "a part that is empty": lambda folder: "sub//w.data",
    "the folder itself": lambda folder: ".",
    "an address": lambda folder: "*/_ORT_MEM_ADDR_/*",
}


@pytest.mark.parametrize("make", OUTSIDE_NAMES.values(), ids=OUTSIDE_NAMES)
def test_data_named_outside_of_the_folder_is_refused(tmp_path: Path, make: Callable[[Path], str]) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(SECRET)
    with pytest.raises(UntrustedModelError, match=r"file name|bytes"):
        inspect_model(save(folder, small_model(outside(location=make(folder)))))


def test_an_address_is_refused_even_where_such_a_file_exists(tmp_path: Path) -> None:
    (tmp_path / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (tmp_path / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(SECRET)
    assert_refused(save(tmp_path, small_model(outside(location="*/_ORT_MEM_ADDR_/*"))), "an address in memory")


def link_file(folder: Path) -> None:
    (folder / "w.data").symlink_to(folder.parent / "secret.bin")


def link_inside(folder: Path) -> None:
    (folder / "other").write_bytes(SECRET)
    (folder / "w.data").symlink_to("other")


def hard_link(folder: Path) -> None:
    os.link(folder.parent / "secret.bin", folder / "w.data")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "w.data")


def directory(folder: Path) -> None:
    (folder / "w.data").mkdir()


@pytest.mark.parametrize(
    ("make", "rule"),
    [(link_file, "a link"), (link_inside, "a link"), (hard_link, "2 names"), (pipe, "pipe"), (directory, "a folder")],
)
def test_data_that_is_no_plain_file_of_its_own_is_refused(
    tmp_path: Path, make: Callable[[Path], None], rule: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(SECRET)
    make(folder)
    (folder / "m.onnx").write_bytes(small_model(outside()).SerializeToString())
    assert_refused(folder / "m.onnx", rule)


def test_a_folder_on_the_way_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "w.data").write_bytes(SECRET)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "sub").symlink_to(tmp_path / "elsewhere")
    assert_refused(save(tmp_path / "model", small_model(outside(location="sub/w.data"))), "a link")


def test_data_in_a_folder_below_passes(tmp_path: Path) -> None:
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "sub dir" / "wéights, 1.data").write_bytes(SECRET)
    facts = inspect_model(save(tmp_path, small_model(outside(location="./sub dir/wéights, 1.data"))))
    assert facts.files == {"sub dir/wéights, 1.data": 16}


def test_missing_data_is_refused(tmp_path: Path) -> None:
    assert_refused(save(tmp_path, small_model(outside(location="none.data"))), "No such file")


BAD_ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "negative offset": ({"offset": -1}, "whole number"),
    "offset of 10 TB": ({"offset": 10**13}, "ends at byte"),
    "offset beyond 64 bits": ({"offset": 2**64}, "whole number"),
    "offset in words": ({"offset": "0x10"}, "whole number"),
    "offset in other digits": ({"offset": "١٦"}, "whole number"),
    "offset with a blank": ({"offset": " 1"}, "whole number"),
    "negative length": ({"length": -16}, "whole number"),
    "length beyond the file": ({"length": 10**6}, "dims and type need 16"),
    "length of other dims": ({"length": 12}, "dims and type need 16"),
    "the last bytes missing": ({"offset": 20}, "ends at byte 36"),
    "no length, more data": ({"length": None}, "has 32 bytes"),
    "an unknown key": ({"prepacked_0": "x"}, "each once"),
    "no location": ({"location": None}, "each once"),
}


@pytest.mark.parametrize(("entries", "rule"), BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_a_range_that_is_not_there_is_refused(tmp_path: Path, entries: dict[str, Any], rule: str) -> None:
    assert_refused(save(tmp_path, small_model(outside(**entries))), rule)


def test_a_range_without_offset_and_length_is_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(SECRET)
    facts = inspect_model(save(tmp_path, small_model(outside(offset=None, length=None))))
    assert (facts.tensors[1].offset, facts.tensors[1].size_bytes) == (0, 16)


def test_a_location_given_twice_is_refused(tmp_path: Path) -> None:
    tensor = outside()
    tensor.external_data.add(key="location", value="other.data")
    assert_refused(save(tmp_path, small_model(tensor)), "each once")


def test_two_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    assert_refused(save(tmp_path, small_model(outside("a"), outside("b", offset=8))), "overlap")


def test_tensors_side_by_side_pass(tmp_path: Path) -> None:
    facts = inspect_model(save(tmp_path, small_model(outside("a", offset=16), outside("b"))))
    assert facts.files == {"w.data": 32}


def test_data_inside_and_outside_at_once_is_refused(tmp_path: Path) -> None:
    both = outside()
    both.raw_data = WEIGHT.tobytes()
    assert_refused(save(tmp_path, small_model(both)), "inside and outside")
    silent = raw_tensor("v")
    silent.external_data.add(key="location", value="../secret.bin")
    assert_refused(save(tmp_path, small_model(silent)), "without saying")


def test_all_data_together_is_limited(tmp_path: Path) -> None:
    path = save(tmp_path, small_model(outside()))
    with pytest.raises(UntrustedModelError, match="with its data"):
        inspect_model(path, max_bytes=path.stat().st_size + 31)
    assert inspect_model(path, max_bytes=path.stat().st_size + 32).files == {"w.data": 32}


# ---- wherever a tensor can be

BAD = outside("evil", "../secret.bin")


def in_attribute() -> Model:
    return small_model(nodes=[helper.make_node("Constant", [], ["c"], value=BAD)])


def in_attribute_list() -> Model:
    node = helper.make_node("Fancy", [], ["c"], domain="vendor")
    node.attribute.add(name="many", type=onnx.AttributeProto.TENSORS).tensors.append(BAD)
    return small_model(nodes=[node])


def in_subgraph(depth: int = 1) -> Model:
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=BAD)], "in", [], [])
    for _ in range(depth):
        loop = helper.make_node("Loop", ["x"], ["c"], body=inner)
        inner = helper.make_graph([loop], "in", [], [])
    return small_model(nodes=[loop])


def in_subgraph_initializer() -> Model:
    inner = helper.make_graph([], "in", [], [], [BAD])
    return small_model(nodes=[helper.make_node("Loop", ["x"], ["c"], body=inner)])


def in_function() -> Model:
    body = helper.make_function("own", "F", [], ["c"], [helper.make_node("Constant", [], ["c"], value=BAD)], [])
    return small_model(functions=[body])


def in_function_default() -> Model:
    body = helper.make_function("own", "F", [], ["c"], [helper.make_node("Constant", [], ["c"])], [])
    body.attribute_proto.append(helper.make_attribute("value", BAD))
    return small_model(functions=[body])


def in_sparse(field: str = "values") -> Model:
    model = small_model()
    sparse = model.graph.sparse_initializer.add(dims=[10])
    sparse.values.CopyFrom(BAD if field == "values" else raw_tensor("v"))
    good = helper.make_tensor("i", TensorProto.INT64, [4], [0, 1, 2, 3])
    sparse.indices.CopyFrom(BAD if field == "indices" else good)
    return model


def in_sparse_attribute() -> Model:
    node = helper.make_node("Constant", [], ["c"])
    node.attribute.add(name="sparse_value", type=11).sparse_tensor.CopyFrom(in_sparse().graph.sparse_initializer[0])
    return small_model(nodes=[node])


def in_training() -> Model:
    model = small_model()
    model.training_info.add().algorithm.initializer.append(BAD)
    return model


@pytest.mark.parametrize(
    "make",
    [
        in_attribute, in_attribute_list, in_subgraph, lambda: in_subgraph(3), in_subgraph_initializer, in_function,
        in_function_default, in_sparse, lambda: in_sparse("indices"), in_sparse_attribute, in_training,
    ],
)  # fmt: skip
def test_a_tensor_outside_is_found_wherever_it_hides(tmp_path: Path, make: Callable[[], Model]) -> None:
    assert_refused(save(tmp_path, make()), "must stay inside the folder")


# ---- sizes


def tensor(**fields: Any) -> Any:
    return TensorProto(name="big", data_type=fields.pop("data_type", TensorProto.FLOAT), **fields)


BAD_TENSORS = {
    "no data": (tensor(dims=[10**3, 10**3]), "0 numbers of data, 1,000,000 are due"),
    "a million times a million": (tensor(dims=[10**6, 10**6]), "dims [1000000, 1000000]"),
    "a product beyond 64 bits": (tensor(dims=[2**32, 2**32]), "dims [4294967296, 4294967296]"),
    "a product that wraps to zero": (tensor(dims=[0, 2**62, 4]), "dims [0, 4611686018427387904, 4]"),
    "a negative dim": (tensor(dims=[-1, -4], raw_data=b"0" * 16), "dims [-1, -4]"),
    "too many dims": (tensor(dims=[1] * 65, raw_data=b"0000"), "dims"),
    "raw bytes too few": (tensor(dims=[4], raw_data=b"0" * 15), "15 bytes of data, 16 are due"),
    "raw bytes too many": (tensor(dims=[4], raw_data=b"0" * 17), "17 bytes of data, 16 are due"),
    "numbers too few": (tensor(dims=[4], float_data=[1, 2, 3]), "3 numbers of data, 4 are due"),
    "numbers of another type": (tensor(dims=[1], int64_data=[1]), "keeps its data in int64_data"),
    "two kinds of data": (tensor(dims=[1], float_data=[1], raw_data=b"0000"), "raw_data and float_data"),
    "no element type": (tensor(dims=[1], data_type=0), "element type 0"),
    "an element type of the future": (tensor(dims=[1], data_type=99, raw_data=b"0"), "element type 99"),
}


@pytest.mark.parametrize(("bad", "rule"), BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_a_tensor_whose_sizes_do_not_add_up_is_refused(tmp_path: Path, bad: Any, rule: str) -> None:
    assert_refused(save(tmp_path, small_model(bad)), rule)


def shape_bombs() -> dict[str, Model]:
    big = helper.make_tensor("shape", TensorProto.INT64, [1], [1 << 44])
    raw = onnx.numpy_helper.from_array(np.array([1 << 20, 1 << 24]), "shape")
    fill = helper.make_node("ConstantOfShape", ["shape"], ["big"])
    return {
        "numbers": small_model(big, nodes=[fill]),
        "raw": small_model(raw, nodes=[fill]),
        "a Constant": small_model(nodes=[helper.make_node("Constant", [], ["shape"], value=big), fill]),
        "a list": small_model(nodes=[helper.make_node("Constant", [], ["shape"], value_ints=[1 << 44]), fill]),
        "Expand": small_model(big, nodes=[helper.make_node("Expand", ["x", "shape"], ["big"])]),
        "Tile": small_model(raw, nodes=[helper.make_node("Tile", ["x", "shape"], ["big"])]),
        "an attribute": small_model(nodes=[helper.make_node("RandomNormal", [], ["big"], shape=[1 << 20, 1 << 24])]),
        "an input": small_model(),
        "in a function": small_model(
            functions=[
                helper.make_function(
                    "own", "F", [], ["b"],
                    [helper.make_node("Constant", [], ["shape"], value=big), fill], [helper.make_opsetid("", 20)],
                )
            ]
        ),
    }  # fmt: skip


@pytest.mark.parametrize("which", shape_bombs())
def test_a_shape_that_asks_for_terabytes_is_refused(tmp_path: Path, which: str) -> None:
    model = shape_bombs()[which]
    if which == "an input":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 44
    assert_refused(save(tmp_path, model), "elements are taken")


def test_an_empty_or_oversized_file_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, b"")
    assert_refused(path, "0 bytes")
    with path.open("wb") as file:
        file.truncate(1 << 31)  # a hole: nothing is written
    assert_refused(path, "larger weights beside it")


def test_oversized_metadata_and_names_are_refused(tmp_path: Path) -> None:
    model = small_model()
    model.metadata_props.add(key="k", value="v" * (1 << 20))
    assert inspect_model(save(tmp_path, model)).metadata["k"].startswith("vvv")
    model.metadata_props[0].value += "v"
    assert_refused(save(tmp_path, model), "at most 1,048,576 are read")
    model = small_model()
    model.graph.node[0].name = "n" * 1025
    assert_refused(save(tmp_path, model), "at most 1,024 are read")


def test_text_is_limited_in_all_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.untrusted.wire.MAX_ALL_TEXT_BYTES", 1000)
    model = small_model()
    for index in range(10):
        model.metadata_props.add(key=str(index), value="v" * 99)
    assert_refused(save(tmp_path, model), "in all")


# ---- structure


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    assert_refused(save(tmp_path, in_subgraph(28)), "nested over 80 deep")
    model = small_model()
    kind = model.graph.input[0].type
    kind.Clear()
    for _ in range(42):
        kind = kind.sequence_type.elem_type
    kind.tensor_type.elem_type = TensorProto.FLOAT
    assert_refused(save(tmp_path, model), "nested over 80 deep")


def function(name: str, *calls: str) -> Any:
    nodes = [helper.make_node(call, ["a"], ["b"], domain="own") for call in calls]
    return helper.make_function("own", name, ["a"], ["b"], nodes, [helper.make_opsetid("own", 1)])


def test_functions_that_call_themselves_are_refused(tmp_path: Path) -> None:
    assert_refused(save(tmp_path, small_model(functions=[function("F", "F")])), "calls itself")
    assert_refused(save(tmp_path, small_model(functions=[function("F", "G"), function("G", "F")])), "calls itself")


def test_functions_that_write_out_to_billions_are_refused(tmp_path: Path) -> None:
    doubling = [function(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(30)]
    node = helper.make_node("F0", ["x"], ["z"], domain="own")
    assert_refused(save(tmp_path, small_model(nodes=[node], functions=doubling)), "write out to 1,073,741,825 nodes")
    chain = [function(f"F{i}", f"F{i + 1}") for i in range(80)]
    assert_refused(save(tmp_path, small_model(functions=chain)), "over 64 deep")


def test_two_functions_tensors_or_opsets_of_one_name_are_refused(tmp_path: Path) -> None:
    assert_refused(save(tmp_path, small_model(outside("w"))), "two initializers are called 'w'")
    assert_refused(save(tmp_path, small_model(functions=[function("F"), function("F")])), "two functions")
    model = small_model()
    model.opset_import.add(domain="ai.onnx", version=11)
    assert_refused(save(tmp_path, model), "twice")


@pytest.mark.parametrize("op", ["EPContext", "PyOp"])
def test_an_operator_that_carries_a_program_is_refused(tmp_path: Path, op: str) -> None:
    node = helper.make_node(op, ["x"], ["z"], domain="com.microsoft", embed_mode=0, ep_cache_context="../engine.bin")
    assert_refused(save(tmp_path, small_model(nodes=[node])), "carries a program")


def test_what_two_readers_may_read_differently_is_refused(tmp_path: Path) -> None:
    blob = small_model().SerializeToString()
    assert_refused(save(tmp_path, blob + blob), "occurs twice")
    assert_refused(save(tmp_path, blob + b"\xf2\x06\x01x"), "field 110 in Model")
    assert_refused(save(tmp_path, blob + b"\x0b\x0c"), "wire type 3")
    assert_refused(save(tmp_path, blob + b"\x08" + b"\xff" * 11), "does not end")
    assert_refused(save(tmp_path, blob[:-3]), "it was cut off")


# ---- what is no ONNX file

FOREIGN = {
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix",
    "a zip": b"PK\x03\x04\x00\x00\x08\x08archive/data.pkl",
    "text of a pickle": b"cos\nsystem\n(S'true'\ntR.",
    "ORT's own": b"\x18\x00\x00\x00ORTM\x00\x00",
    "a program": b"\x7fELF\x02\x01\x01",
    "text": b"hello, this is no model\n",
}


@pytest.mark.parametrize("blob", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_something_else_is_refused_whatever_its_name(tmp_path: Path, blob: bytes) -> None:
    assert_refused(save(tmp_path, blob), "is refused")


@pytest.mark.parametrize("suffix", [".pkl", ".pt", ".bin", ".ckpt", ".pth", ".PTH"])
def test_a_pickle_by_its_name_is_refused_with_the_way_out(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(small_model().SerializeToString())
    assert_refused(path, ".safetensors")


def test_a_model_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none.onnx", "No such file")
    assert_refused(tmp_path, "a folder")
    os.mkfifo(tmp_path / "p.onnx")
    assert_refused(tmp_path / "p.onnx", "pipe")
    assert_refused(tmp_path / "a\0b.onnx", "no path")


# ---- mutations


def rich_model() -> Model:
    """Something of everything: data outside, a function, a subgraph, a sparse tensor, metadata."""
    body = helper.make_function("own", "F", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [])
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=raw_tensor("k"))], "in", [], [])
    nodes = [
        helper.make_node("Loop", ["x"], ["l"], body=inner),
        helper.make_node("F", ["x"], ["f"], domain="own"),
        helper.make_node("ConstantOfShape", ["shape"], ["z"]),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [3, 4])
    model = small_model(outside(), shape, nodes=nodes, functions=[body])
    sparse = model.graph.sparse_initializer.add(dims=[10])
    sparse.values.CopyFrom(raw_tensor("sparse"))
    sparse.indices.CopyFrom(helper.make_tensor("at", TensorProto.INT64, [4], [0, 1, 2, 3]))
    model.metadata_props.add(key="k", value="v")
    return model


def mutated(blob: bytes, draw: np.random.Generator) -> bytes:
    """Bits flipped, bytes put in, taken out and repeated, or the end cut off."""
    data = bytearray(blob)
    for _ in range(int(draw.integers(1, 6))):
        at, count = int(draw.integers(len(data))), int(draw.integers(1, 60))
        kind = int(draw.integers(5))
        if kind == 0:
            data[at] ^= 1 << int(draw.integers(8))
        elif kind == 1:
            data[at:at] = draw.bytes(count)
        elif kind == 2 and len(data) > count:
            del data[at : at + count]
        elif kind == 3:
            data[at:at] = data[at : at + count] * 3
        elif at > 0:
            del data[at:]
        if not data:
            break
    return bytes(data)


def test_500_mutations_give_facts_that_onnx_reads_too_or_a_named_error(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    blob = rich_model().SerializeToString()
    assert inspect_model(save(tmp_path, blob)).operators["own::F"] == 1
    refused = 0
    for _ in range(500):
        path = save(tmp_path, mutated(blob, draw))
        try:
            facts = inspect_model(path)
        except UntrustedModelError:
            refused += 1
            continue
        model = onnx.load(path, load_external_data=False)
        assert [value.name for value in facts.outputs] == [value.name for value in model.graph.output]
        assert facts.opsets.get("own") == next((o.version for o in model.opset_import if o.domain == "own"), None)
    assert 300 < refused < 500
