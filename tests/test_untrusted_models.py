"""Models from elsewhere: what hides inside the file, sizes that lie, bombs, foreign formats, mutations."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attnbench.errors import UntrustedModelError
from attnbench.untrusted import inspect_model
from tests.untrusted_models import Model, assert_refused, outside, raw_tensor, save, small_model

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
    pads = helper.make_tensor("pads", TensorProto.INT64, [4], [0, 1 << 43, 0, 1 << 43])
    depth = helper.make_tensor("depth", TensorProto.INT64, [], [1 << 44])
    numbers = [
        helper.make_tensor(name, TensorProto.INT64, [], [value])
        for name, value in (("from", 1 << 50), ("to", 0), ("by", -3))
    ]
    return {
        "numbers": small_model(big, nodes=[fill]),
        "raw": small_model(raw, nodes=[fill]),
        "a Constant": small_model(nodes=[helper.make_node("Constant", [], ["shape"], value=big), fill]),
        "a list": small_model(nodes=[helper.make_node("Constant", [], ["shape"], value_ints=[1 << 44]), fill]),
        "Expand": small_model(big, nodes=[helper.make_node("Expand", ["x", "shape"], ["big"])]),
        "Tile": small_model(raw, nodes=[helper.make_node("Tile", ["x", "shape"], ["big"])]),
        "Pad": small_model(pads, nodes=[helper.make_node("Pad", ["x", "pads"], ["big"])]),
        "OneHot": small_model(depth, nodes=[helper.make_node("OneHot", ["x", "depth", "w"], ["big"])]),
        "Range": small_model(
            *numbers, nodes=[helper.make_node("Range", ["from", "to", "by"], ["big"])],
        ),
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
    nodes = [helper.make_node(call, ["a"], [f"b{i or ''}"], domain="own") for i, call in enumerate(calls)]
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


def test_names_that_are_written_twice_are_refused(tmp_path: Path) -> None:
    """ONNX Runtime refuses some of them, OpenVINO takes the one or the other."""
    twice = [helper.make_node(op, ["x"], ["z"]) for op in ("Neg", "Abs")]
    assert_refused(save(tmp_path, small_model(nodes=twice)), "two nodes write 'z'")
    assert_refused(save(tmp_path, small_model(nodes=[helper.make_node("Split", ["x"], ["z", "z"])])), "two outputs")
    inside = helper.make_graph(twice, "g", [], [])
    branches = helper.make_node("If", ["x"], ["z"], then_branch=inside, else_branch=inside)
    assert_refused(save(tmp_path, small_model(nodes=[branches])), "two nodes write 'z'")
    made = [helper.make_node("Neg", ["x"], ["w"])]
    assert_refused(save(tmp_path, small_model(nodes=made)), "a node's output and an initializer are")
    assert_refused(save(tmp_path, small_model(nodes=[helper.make_node("Neg", ["x"], ["x"])])), "and an input are")
    for part in ("input", "output"):
        model = small_model()
        getattr(model.graph, part).append(getattr(model.graph, part)[0])
        assert_refused(save(tmp_path, model), f"two {part}s are")


def test_branches_may_write_the_same_names_and_skip_outputs(tmp_path: Path) -> None:
    inside = helper.make_graph([helper.make_node("Neg", ["x"], ["n", "", ""])], "g", [], [])
    facts = inspect_model(save(tmp_path, small_model(nodes=[
        helper.make_node("If", ["x"], ["z"], then_branch=inside, else_branch=inside),
    ])))  # fmt: skip
    assert (facts.operators["::If"], facts.operators["::Neg"]) == (1, 2)


@pytest.mark.parametrize("domain", ["", "ai.onnx", "ai.onnx.ml"])
def test_a_function_in_place_of_one_of_onnx_is_refused(tmp_path: Path, domain: str) -> None:
    own = helper.make_function(domain, "MatMul", ["a"], ["b"], [], [helper.make_opsetid("", 20)])
    assert_refused(save(tmp_path, small_model(functions=[own])), "which is ONNX's own")


@pytest.mark.parametrize("version", [-1, 0, 100, 1 << 40])
def test_a_version_that_cannot_be_is_refused(tmp_path: Path, version: int) -> None:
    """OpenVINO takes any."""
    model = small_model()
    model.opset_import[0].version = version
    assert_refused(save(tmp_path, model), "of the opset of domain ''")
    model = small_model()
    model.ir_version = version
    assert_refused(save(tmp_path, model), "of the format")


@pytest.mark.parametrize("sign", ["\u202e", "\u2028", "\u200b", "\ufeff", "\x9b", "\n"])
def test_names_that_steer_a_terminal_are_refused(tmp_path: Path, sign: str) -> None:
    for node in (helper.make_node("Neg", [f"x{sign}"], ["z"]), helper.make_node("Neg", ["x"], ["z"], name=sign)):
        assert_refused(save(tmp_path, small_model(nodes=[node])), "has control characters")
    assert_refused(save(tmp_path, small_model(outside("w", f"w{sign}.data"))), "has control characters")


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
