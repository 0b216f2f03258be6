"""Models from elsewhere: a sound one passes, data outside of the folder does not."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from attnbench.errors import UntrustedModelError
from attnbench.untrusted import inspect_model, snapshot_file
from attnbench.untrusted.wire import SCHEMA
from tests.untrusted_models import WEIGHT, assert_refused, outside, raw_tensor, save, small_model

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


# ---- a file that nobody can look into


def test_a_file_is_copied_through_links_and_never_over_another(tmp_path: Path) -> None:
    (tmp_path / "m.plan").write_bytes(b"engine")
    (tmp_path / "link.plan").symlink_to(tmp_path / "m.plan")
    snapshot_file(tmp_path / "link.plan", tmp_path / "copy", max_bytes=6)
    assert (tmp_path / "copy").read_bytes() == b"engine"
    assert not (tmp_path / "copy").is_symlink()
    with pytest.raises(FileExistsError):
        snapshot_file(tmp_path / "m.plan", tmp_path / "copy")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.mkdir(), "it is a folder, pipe or device"),
        (os.mkfifo, "it is a folder, pipe or device"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a folder, pipe or device"),
        (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels of symbolic links"),
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.write_bytes(b"1234567"), r"m\.plan' is refused: it has over 6 bytes, which is the limit"),
    ],
    ids=["folder", "pipe", "device", "loop", "nothing", "long"],
)
def test_what_is_no_plain_file_of_that_size_is_not_copied(
    tmp_path: Path, make: Callable[[Path], object], told: str
) -> None:
    make(tmp_path / "m.plan")
    with pytest.raises(UntrustedModelError, match=told):
        snapshot_file(tmp_path / "m.plan", tmp_path / "copy", max_bytes=6)
