"""Weights from .safetensors, the one format that holds numbers and nothing else.

Source of the format: https://huggingface.co/docs/safetensors (8 bytes of header length, JSON, bytes without gaps).
"""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from attnbench.errors import UntrustedModelError
from attnbench.untrusted.formats import refuse_foreign
from attnbench.untrusted.paths import open_named

MAX_HEADER_BYTES = 32 << 20
MAX_TENSORS = 100_000
MAX_NUMBERS = 2_000_000  # of the header
MAX_TENSOR_BYTES = 1 << 40
MAX_RANK = 64


@functools.cache
def dtypes() -> Mapping[str, np.dtype[Any]]:
    """The dtypes of the format, as NumPy has them."""
    import ml_dtypes  # here, because a worker under another interpreter may have NumPy alone

    return {
        "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
        "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
        "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"),
        "BOOL": np.dtype("bool"), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
        "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """Where a tensor is in the file."""

    dtype: str  # a key of `dtypes`
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    size_bytes: int


class _Header(dict[str, Any]):
    """An object of JSON in which no key occurs twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) != len(pairs):
            raise ValueError("a name occurs twice")


def read_safetensors_header(path: Path) -> dict[str, StoredWeight]:
    """What a .safetensors file holds, with every number of its header checked against the file.

    Raises:
        UntrustedModelError: it is another format (a pickle above all), or its header lies.
    """
    with open_named(path) as file:
        return _header(path, file)


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a .safetensors file, bfloat16 and float8 by ml_dtypes; all of them are in memory at once.

    Raises:
        UntrustedModelError: as `read_safetensors_header`.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with open_named(path) as file:
        for name, weight in _header(path, file).items():
            array = np.empty(weight.shape, dtypes()[weight.dtype])
            file.seek(weight.start)
            _fill(file, array, path)
            if weight.dtype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
                _refuse(path, f"{name!r} is of type BOOL and has bytes other than 0 and 1")
            arrays[name] = array
    return arrays


def _fill(file: BinaryIO, array: NDArray[Any], path: Path) -> None:
    view = array.reshape(-1).view(np.uint8).data
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            _refuse(path, "it became shorter while it was read")
        view = view[count:]


def _header(path: Path, file: BinaryIO) -> dict[str, StoredWeight]:
    refuse_foreign(path, file)
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        _refuse(path, f"its header says {length:,} bytes of {size:,}; 2 to {MAX_HEADER_BYTES:,}, within it, are due")
    blob = file.read(length)
    if blob[:1] != b"{" or blob.count(b"{") > MAX_TENSORS + 2 or blob.count(b",") > MAX_NUMBERS:
        _refuse(path, f"its header does not begin with {{ or has over {MAX_TENSORS:,} tensors")
    try:
        entries = json.loads(blob.decode(), object_pairs_hook=_Header, parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        _refuse(path, f"its header is no JSON of the format: {str(err)[:80]}")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(path, "its metadata holds something else than text")
    found = {name: _weight(path, name, entry, 8 + length) for name, entry in entries.items()}
    end = 8 + length
    for name, weight in sorted(found.items(), key=lambda item: (item[1].start, item[1].size_bytes)):
        if weight.start != end:
            _refuse(path, f"{name!r} starts at byte {weight.start:,}, {end:,} is due: no overlap and no gap")
        end += weight.size_bytes
    if end != size:
        _refuse(path, f"its tensors end at byte {end:,}, the file at {size:,}")
    return found


def _weight(path: Path, name: str, entry: Any, data_start: int) -> StoredWeight:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _refuse(path, f"{name[:80]!r} must have dtype, shape and data_offsets, nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes():
        _refuse(path, f"{name[:80]!r} has dtype {str(dtype)[:20]!r}; there are {', '.join(dtypes())}")
    if not _are_sizes(shape) or len(shape) > MAX_RANK or not _are_sizes(offsets) or len(offsets) != 2:
        _refuse(path, f"{name[:80]!r} has a shape or offsets that are no whole numbers of 0 or more")
    bound = dtypes()[dtype].itemsize * math.prod(max(dim, 1) for dim in shape)
    due = dtypes()[dtype].itemsize * math.prod(shape)
    if bound > MAX_TENSOR_BYTES or offsets[1] - offsets[0] != due:
        _refuse(path, f"{name[:80]!r} needs {due:,} bytes by its shape, its offsets say {offsets[1] - offsets[0]:,}")
    return StoredWeight(dtype=dtype, shape=tuple(shape), start=data_start + offsets[0], size_bytes=due)


def _are_sizes(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 48 for number in numbers)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _refuse(path: Path, rule: str) -> NoReturn:
    raise UntrustedModelError(f"{str(path)!r} is refused: {rule}; save the weights again as .safetensors")
