"""Inputs of a model from a .npz of the user: looked at before any of it is read, never a pickle."""

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from attnbench.errors import InputError
from attnbench.interfaces import Array, numpy_dtype
from attnbench.model_problem import FLOATS, TensorSpec

FLAG = "--load-inputs"
_STORED = {"bf16": "uint16"}  # NumPy has no bfloat16: its 16 bits, as in every .npz that attnbench writes


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every array in a .npz, from the headers alone.

    Raises:
        InputError: it cannot be read, or is no .npz of plain arrays.
    """
    return {name: shape for name, (shape, _) in _headers(path).items()}


def load_arrays(
    path: Path, inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], *, shown: Path | None = None
) -> dict[str, Array]:
    """Every input of a model, in the order of `inputs`; bfloat16 from its 16 bits in uint16.

    Args:
        path: the .npz.
        inputs: of the model.
        shapes: that they must have.
        shown: what messages call the file, where `path` is a copy of it.

    Raises:
        InputError: one is missing, unknown, or of another dtype or shape, or the file cannot be read.
    """
    shown = path if shown is None else shown
    found = _headers(path)
    _check_names(shown, list(found), [tensor.name for tensor in inputs])
    for tensor in inputs:
        shape, dtype = found[tensor.name]
        wanted = _STORED.get(tensor.dtype) or _dtype_of(tensor).name
        if dtype.name != wanted:
            takes = f"{tensor.dtype} as its bits in uint16" if tensor.dtype == "bf16" else tensor.dtype
            raise InputError(
                f"{FLAG} {str(shown)!r}: {tensor.name} is {dtype.name}, the model takes {takes}; save it as {wanted}"
            )
        if shape != shapes[tensor.name]:
            raise InputError(
                f"{FLAG} {str(shown)!r}: {tensor.name} has shape {shape}, the model is run at {shapes[tensor.name]}"
            )
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {tensor.name: _array(stored[tensor.name], tensor) for tensor in inputs}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as err:
        raise InputError(f"{FLAG} {str(path)!r} cannot be read: {err}; save it again with np.savez") from err


def _array(stored: Array, tensor: TensorSpec) -> Array:
    """In the byte order of this machine, as the dtype of the input."""
    if tensor.dtype == "bf16":
        return stored.astype(np.uint16, copy=False).view(numpy_dtype("bf16"))
    return stored.astype(_dtype_of(tensor), copy=False)


def _dtype_of(tensor: TensorSpec) -> "np.dtype[np.generic]":
    return numpy_dtype(tensor.dtype) if tensor.dtype in FLOATS else np.dtype(tensor.dtype)


def _headers(path: Path) -> "dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]":
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise InputError(f"{FLAG} {str(path)!r} has an array twice; save it again with np.savez")
            return {name.removesuffix(".npy"): _header(path, archive, name) for name in names}
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as err:
        why = getattr(err, "strerror", None) or str(err)
        raise InputError(f"{FLAG} {str(path)!r} cannot be read: {why}; write it with np.savez") from err


def _header(path: Path, archive: zipfile.ZipFile, name: str) -> "tuple[tuple[int, ...], np.dtype[np.generic]]":
    """Shape and dtype of one array."""
    with archive.open(name) as part:
        try:
            shape, dtype = _read_header(part)
            size_bytes = part.tell() + math.prod(shape) * dtype.itemsize
        except ValueError as err:
            raise InputError(f"{FLAG} {str(path)!r}: {name!r} is no array: {err}; write it with np.savez") from err
    if dtype.hasobject:
        raise InputError(
            f"{FLAG} {str(path)!r}: {name!r} holds Python objects, and a pickle runs code when it is read; save numbers"
        )
    if archive.getinfo(name).file_size != size_bytes:
        raise InputError(f"{FLAG} {str(path)!r}: {name!r} has another size than its header says; write it again")
    return shape, dtype


def _read_header(part: IO[bytes]) -> "tuple[tuple[int, ...], np.dtype[np.generic]]":
    version = np.lib.format.read_magic(part)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the format")
    shape, _, dtype = read(part)
    return shape, dtype


def _check_names(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    if missing or unknown:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which the model does not take"
        raise InputError(
            f"{FLAG} {str(path)!r} {what}; its arrays are {', '.join(found) or 'none'}, the model takes "
            f"{', '.join(wanted)}: name them so, as in np.savez(FILE, {wanted[0] if wanted else 'x'}=...)"
        )
