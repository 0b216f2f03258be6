"""Weights and copies of models from elsewhere: formats that lie are refused, a swap changes nothing."""

import hashlib
import json
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attnbench.errors import UntrustedModelError
from attnbench.untrusted import (
    read_safetensors,
    read_safetensors_header,
    snapshot,
    snapshot_files,
    snapshot_model,
)


def write_safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


# ---- safetensors


def test_sound_weights_are_read_to_the_bit(tmp_path: Path) -> None:
    a = np.array([[1.5, -2.0]], np.float32)
    header = {
        "__metadata__": {"format": "pt"},
        "half": entry("BF16", (2,), (8, 12)),
        "a": entry("F32", (1, 2), (0, 8)),
        "none": entry("F32", (0, 3), (12, 12)),
        "scalar": entry("I64", (), (12, 20)),
        "flag": entry("BOOL", (2,), (20, 22)),
    }
    bits = np.array([0x3F80, 0xC000], "<u2").tobytes()  # 1.0 and -2.0
    data = a.tobytes() + bits + np.array(7, "<i8").tobytes() + b"\x00\x01"
    found = read_safetensors(write_safetensors(tmp_path / "w.safetensors", header, data))
    assert found["a"].tolist() == [[1.5, -2.0]]
    assert found["half"].astype(np.float64).tolist() == [1.0, -2.0]
    assert (found["none"].shape, found["scalar"].item(), found["flag"].tolist()) == ((0, 3), 7, [False, True])
    assert read_safetensors_header(tmp_path / "w.safetensors")["a"].size_bytes == 8


LIES: dict[str, tuple[Any, bytes, str]] = {
    "beyond the file": ({"a": entry()}, b"0" * 4, "end at byte"),
    "more in the file": ({"a": entry()}, b"0" * 12, "end at byte"),
    "overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, b"0" * 12, "no overlap and no gap"),
    "the same bytes twice": ({"a": entry(), "b": entry()}, b"0" * 8, "no overlap and no gap"),
    "a gap": ({"a": entry(), "b": entry(offsets=(12, 20))}, b"0" * 20, "no overlap and no gap"),
    "shape and offsets disagree": ({"a": entry(shape=(3,))}, b"0" * 8, "needs 12 bytes"),
    "backwards": ({"a": entry(shape=(0,), offsets=(8, 0))}, b"0" * 8, "say -8"),
    "negative": ({"a": entry(offsets=(-8, 0))}, b"0" * 8, "no whole numbers"),
    "a negative dim": ({"a": entry(shape=(-1, -2))}, b"0" * 8, "no whole numbers"),
    "a dim of true": ({"a": entry(shape=(True, 2))}, b"0" * 8, "no whole numbers"),
    "a dim of 2.0": ({"a": entry(shape=(2.0,))}, b"0" * 8, "no whole numbers"),
    "a product beyond all": ({"a": entry(shape=(1 << 40, 1 << 40, 0), offsets=(0, 0))}, b"", "by its shape"),
    "an unknown dtype": ({"a": entry(dtype="O")}, b"0" * 8, "has dtype 'O'"),
    "more keys": ({"a": {**entry(), "x": 1}}, b"0" * 8, "nothing else"),
    "no entry": ({"a": 3}, b"", "nothing else"),
    "metadata that is no text": ({"__metadata__": {"a": [1]}}, b"", "metadata"),
    "a list": ([1], b"", "does not begin with {"),
    "a name twice": (b'{"a": 1, "a": 2}', b"", "occurs twice"),
    "NaN": (b'{"a": NaN}', b"", "no number"),
    "deep": (b'{"a":' + b"[" * 100_000, b"", "no JSON"),
    "a long number": (b'{"a":' + b"9" * 5000 + b"}", b"", "no JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "no JSON"),
}


@pytest.mark.parametrize(("header", "data", "rule"), LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: Any, data: bytes, rule: str) -> None:
    path = write_safetensors(tmp_path / "w.safetensors", header, data)
    with pytest.raises(UntrustedModelError, match=re.escape(rule)):
        read_safetensors(path)


@pytest.mark.parametrize(
    "header", [b'  {"w": 1}', "{}".encode("utf-16"), b'{"a": {}, ' + b'"b": {}, ' * 100_002 + b"}"]
)
def test_a_header_of_other_text_or_too_many_tensors_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UntrustedModelError, match=r"does not begin with \{"):
        read_safetensors(path)


@pytest.mark.parametrize("length", [0, 1, 1 << 31, (1 << 64) - 1])
def test_a_header_length_that_cannot_be_is_refused(tmp_path: Path, length: int) -> None:
    path = write_safetensors(tmp_path / "w.safetensors", {"a": entry()}, b"0" * 8, length)
    with pytest.raises(UntrustedModelError, match="header says"):
        read_safetensors_header(path)


@pytest.mark.parametrize("blob", [b"\x80\x02}q\x00.", b"PK\x03\x04archive/data.pkl", b"", b"1234567"])
def test_a_pickle_called_safetensors_is_refused(tmp_path: Path, blob: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(blob)
    with pytest.raises(UntrustedModelError, match="is refused"):
        read_safetensors_header(path)


def test_a_bool_that_is_neither_is_refused(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "w.safetensors", {"a": entry("BOOL", (2,), (0, 2))}, b"\x01\x02")
    with pytest.raises(UntrustedModelError, match="other than 0 and 1"):
        read_safetensors(path)


# ---- copies


def model_with_data(folder: Path, location: str = "w.data") -> Path:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [tensor],
    )
    folder.mkdir(exist_ok=True)
    (folder / location).parent.mkdir(exist_ok=True)
    (folder / location).write_bytes(np.ones(4, np.float32).tobytes())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def test_a_copy_is_private_whole_and_loads_by_itself(tmp_path: Path) -> None:
    path = model_with_data(tmp_path / "from", "sub/w.data")
    copy, facts = snapshot_model(path, tmp_path / "into")
    assert stat.S_IMODE((tmp_path / "into").stat().st_mode) == 0o700
    assert facts.files == {"sub/w.data": 16}
    assert sorted(p.name for p in (tmp_path / "into").rglob("*")) == ["m.onnx", "sub", "w.data"]
    for file in (path, path.parent / "sub" / "w.data"):
        file.unlink()
    loaded = onnx.load(copy)
    assert onnx.numpy_helper.to_array(loaded.graph.initializer[0]).tolist() == [1, 1, 1, 1]


def test_a_copy_never_goes_into_a_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        snapshot_model(model_with_data(tmp_path / "from"), tmp_path)


def test_data_swapped_for_a_link_between_check_and_copy_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_with_data(tmp_path / "from")
    (tmp_path / "secret").write_bytes(b"0123456789abcdef")
    inspect = snapshot.inspect_model

    def inspect_then_swap(*args: Any, **options: Any) -> Any:
        facts = inspect(*args, **options)
        (path.parent / "w.data").unlink()
        (path.parent / "w.data").symlink_to(tmp_path / "secret")
        return facts

    monkeypatch.setattr(snapshot, "inspect_model", inspect_then_swap)
    with pytest.raises(UntrustedModelError, match="a link"):
        snapshot_model(path, tmp_path / "into")


def test_data_that_grew_between_check_and_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_with_data(tmp_path / "from")
    inspect = snapshot.inspect_model

    def inspect_then_grow(*args: Any, **options: Any) -> Any:
        facts = inspect(*args, **options)
        (path.parent / "w.data").write_bytes(bytes(17))
        return facts

    monkeypatch.setattr(snapshot, "inspect_model", inspect_then_grow)
    with pytest.raises(UntrustedModelError, match="over 16 bytes"):
        snapshot_model(path, tmp_path / "into")


def test_a_model_swapped_after_the_copy_is_not_what_is_loaded(tmp_path: Path) -> None:
    path = model_with_data(tmp_path / "from")
    copy, facts = snapshot_model(path, tmp_path / "into")
    path.write_bytes(b"something else")
    assert facts.sha256 == hashlib.sha256(copy.read_bytes()).hexdigest()


def test_a_model_that_names_itself_as_its_data_is_refused(tmp_path: Path) -> None:
    path = model_with_data(tmp_path / "from", "other.data")
    blob = path.read_bytes().replace(b"other.data", b"me_me.onnx")
    (path.parent / "me_me.onnx").write_bytes(blob)
    with pytest.raises(UntrustedModelError, match="names itself"):
        snapshot_model(path.parent / "me_me.onnx", tmp_path / "into")


def test_named_files_are_copied_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    (folder / "golden").mkdir(parents=True)
    for name in ("bundle.json", "golden/a.npz", "more"):
        (folder / name).write_text(name)
    snapshot_files(folder, ("bundle.json", "golden/a.npz"), tmp_path / "into")
    found = {p.relative_to(tmp_path / "into").as_posix() for p in (tmp_path / "into").rglob("*") if p.is_file()}
    assert found == {"bundle.json", "golden/a.npz"}
    assert (tmp_path / "into" / "golden" / "a.npz").read_text() == "golden/a.npz"
    (folder / "link").symlink_to("more")
    for name, rule in (("../x", "stay inside"), ("link", "a link"), ("golden", "a folder")):
        with pytest.raises(UntrustedModelError, match=rule):
            snapshot_files(folder, (name,), tmp_path / f"into-{len(rule)}-{len(name)}")
    with pytest.raises(UntrustedModelError, match="over 4 bytes"):
        snapshot_files(folder, ("more", "bundle.json"), tmp_path / "little", max_bytes=8)
