"""Inputs of a model from a .npz of the user."""

import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from attnbench.errors import InputError
from attnbench.model_problem import TensorSpec
from attnbench.sweep.model_arrays import array_shapes, load_arrays

IDS = TensorSpec(name="ids", dtype="int64", dims=("batch", "seq"))
X = TensorSpec(name="x", dtype="fp32", dims=("batch", 2))
SHAPES = {"ids": (1, 3), "x": (1, 2)}
ARRAYS = {"x": np.array([[0.5, -1.0]], np.float32), "ids": np.array([[3, 1, 2]], np.int64)}


def saved(path: Path, **arrays: object) -> Path:
    np.savez(path / "in.npz", allow_pickle=True, **arrays)  # type: ignore[arg-type]
    return path / "in.npz"


def refusal(path: Path, shapes: dict[str, tuple[int, ...]] = SHAPES) -> str:
    with pytest.raises(InputError) as caught:
        load_arrays(path, [IDS, X], shapes)
    return str(caught.value)


def test_arrays_come_by_name_in_the_order_of_the_model(tmp_path: Path) -> None:
    path = saved(tmp_path, **ARRAYS)
    found = load_arrays(path, [IDS, X], SHAPES)
    assert list(found) == ["ids", "x"]
    np.testing.assert_array_equal(found["ids"], [[3, 1, 2]])
    np.testing.assert_array_equal(found["x"], [[0.5, -1.0]])
    assert array_shapes(path) == SHAPES


def test_the_other_byte_order_and_compression_are_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez_compressed(path, x=ARRAYS["x"].astype(">f4"), ids=np.asfortranarray(ARRAYS["ids"].astype(">i8")))
    found = load_arrays(path, [IDS, X], SHAPES)
    assert [array.dtype for array in found.values()] == [np.dtype("<i8"), np.dtype("<f4")]
    np.testing.assert_array_equal(found["ids"], [[3, 1, 2]])
    np.testing.assert_array_equal(found["x"], [[0.5, -1.0]])


def test_bfloat16_is_read_from_its_bits(tmp_path: Path) -> None:
    bits = np.array([1.5, -2.0], ml_dtypes.bfloat16).view(np.uint16)
    spec = TensorSpec(name="h", dtype="bf16", dims=(2,))
    found = load_arrays(saved(tmp_path, h=bits), [spec], {"h": (2,)})
    assert found["h"].astype(np.float32).tolist() == [1.5, -2.0]
    with pytest.raises(InputError, match="h is float32, the model takes bf16 as its bits in uint16"):
        load_arrays(saved(tmp_path, h=np.zeros(2, np.float32)), [spec], {"h": (2,)})


def test_names_that_do_not_match_are_told_with_both_sides(tmp_path: Path) -> None:
    told = refusal(saved(tmp_path, x=ARRAYS["x"], idx=ARRAYS["ids"]))
    assert "lacks ids; its arrays are x, idx, the model takes ids, x" in told
    assert "has extra, which the model does not take" in refusal(saved(tmp_path, **ARRAYS, extra=np.zeros(1)))


def test_another_dtype_or_shape_is_refused(tmp_path: Path) -> None:
    told = refusal(saved(tmp_path, x=ARRAYS["x"].astype(np.float64), ids=ARRAYS["ids"]))
    assert "x is float64, the model takes fp32; save it as float32" in told
    path = saved(tmp_path, **ARRAYS)
    assert "x has shape (1, 2), the model is run at (4, 2)" in refusal(path, {**SHAPES, "x": (4, 2)})


def test_a_pickle_is_refused_and_never_read(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (mark,)

    told = refusal(saved(tmp_path, x=np.array([Evil()], object), ids=ARRAYS["ids"]))
    assert "'x.npy' holds Python objects, and a pickle runs code when it is read" in told
    assert not mark.exists()


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "in.npz"
    text.write_text("x = 1")
    assert "cannot be read: File is not a zip file; write it with np.savez" in refusal(text)
    assert "No such file or directory" in refusal(tmp_path / "none.npz")
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("x.npy", b"no array")
        archive.writestr("ids.npy", b"no array")
    assert "'x.npy' is no array" in refusal(text)


def test_a_header_that_promises_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, **ARRAYS)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ids.npy", parts["ids.npy"])
        archive.writestr("x.npy", parts["x.npy"][:-4])
    assert "'x.npy' has another size than its header says" in refusal(path)
