"""Tensors that an ONNX file stores, inside or beside itself: sizes that add up, ranges that are there."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.untrusted.paths import check_name, open_inside
from attnbench.untrusted.wire import Field, Reader

MAX_ELEMENTS = 1 << 36  # of one tensor: 256 GiB in fp32
MAX_RANK = 64
SMALL = 64  # integers of a tensor that are kept, since they may be a shape

_EXTERNAL = 1  # TensorProto.DataLocation
_NUMBER = re.compile(r"[0-9]{1,18}")
_DATA_KEYS = {"location", "offset", "length", "checksum"}
_TYPED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


@dataclass(frozen=True)
class ElementType:
    """How ONNX stores the elements of a type."""

    name: str
    bits: int
    field: str  # of numbers that are not raw bytes
    per_element: int = 1  # numbers


ELEMENT_TYPES = {
    1: ElementType("fp32", 32, "float_data"), 2: ElementType("uint8", 8, "int32_data"),
    3: ElementType("int8", 8, "int32_data"), 4: ElementType("uint16", 16, "int32_data"),
    5: ElementType("int16", 16, "int32_data"), 6: ElementType("int32", 32, "int32_data"),
    7: ElementType("int64", 64, "int64_data"), 8: ElementType("string", 0, "string_data"),
    9: ElementType("bool", 8, "int32_data"), 10: ElementType("fp16", 16, "int32_data"),
    11: ElementType("fp64", 64, "double_data"), 12: ElementType("uint32", 32, "uint64_data"),
    13: ElementType("uint64", 64, "uint64_data"), 14: ElementType("complex64", 64, "float_data", 2),
    15: ElementType("complex128", 128, "double_data", 2), 16: ElementType("bf16", 16, "int32_data"),
    17: ElementType("fp8e4m3fn", 8, "int32_data"), 18: ElementType("fp8e4m3fnuz", 8, "int32_data"),
    19: ElementType("fp8e5m2", 8, "int32_data"), 20: ElementType("fp8e5m2fnuz", 8, "int32_data"),
    21: ElementType("uint4", 4, "int32_data"), 22: ElementType("int4", 4, "int32_data"),
    23: ElementType("fp4e2m1", 4, "int32_data"), 24: ElementType("fp8e8m0", 8, "int32_data"),
    25: ElementType("uint2", 2, "int32_data"), 26: ElementType("int2", 2, "int32_data"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """Numbers that a model keeps."""

    name: str  # of the initializer, of the output of a Constant, or operator.attribute
    dtype: str
    dims: tuple[int, ...]
    size_bytes: int
    location: str | None  # the file beside the model; None: inside
    offset: int | None  # of the raw bytes in that file or the model; None: stored number by number
    values: tuple[int, ...] | None  # up to `SMALL` integers; None: more, of another type, or beside the model


class TensorRules:
    """Checks tensors one by one, and at the end that no two of them share a part of a file."""

    def __init__(self, reader: Reader, folder: Path, max_bytes: int) -> None:
        self._reader = reader
        self._folder = folder
        self._max_bytes = max_bytes
        self.files: dict[str, int] = {}  # size in bytes, of every file beside the model
        self._ranges: dict[str, set[tuple[int, int]]] = defaultdict(set)

    def elements(self, dims: list[int], what: str) -> int:
        """How many elements; every dim and their product within the limits.

        Raises:
            UntrustedModelError: negative dims, too many, or too large.
        """
        total = largest = 1
        for dim in dims[: MAX_RANK + 1]:
            total *= dim
            largest *= max(dim, 1)
        if len(dims) > MAX_RANK or min(dims, default=0) < 0 or largest > MAX_ELEMENTS:
            shown = f"{dims[:8]}{'...' if len(dims) > 8 else ''}"
            raise self._reader.refuse(
                f"{what} has dims {shown}; up to {MAX_RANK} dims of 0 or more and {MAX_ELEMENTS:,} elements are taken"
            )
        return total

    def tensor(self, found: dict[str, list[Any]]) -> StoredTensor:
        """What a TensorProto stores.

        Args:
            found: its fields; numbers that are repeated as `wire.Field`.

        Raises:
            UntrustedModelError: dims, type and data do not fit together, or the data is not where it says.
        """
        name = found.get("name", [""])[0]
        what = f"tensor {name!r}"
        dims = self.dims(found, what)
        count = self.elements(dims, what)
        number = found.get("data_type", [0])[0]
        kind = ELEMENT_TYPES.get(number)
        if kind is None or "segment" in found:
            raise self._reader.refuse(f"{what} has element type {number} or a segment; types 1 to 26 are taken, whole")
        size_bytes = -(-count * kind.bits // 8)
        stored = [field for field in ("raw_data", "string_data", *_TYPED) if field in found]
        if found.get("data_location", [0])[0] == _EXTERNAL:
            if stored or kind.name == "string":
                raise self._reader.refuse(f"{what} has data inside and outside, or text outside; keep it in one place")
            location, offset = self._outside(found.get("external_data", []), size_bytes, what)
            return StoredTensor(
                name=name, dtype=kind.name, dims=tuple(dims), size_bytes=size_bytes, location=location, offset=offset,
                values=None,
            )  # fmt: skip
        if "external_data" in found or found.get("data_location", [0])[0] != 0:
            raise self._reader.refuse(f"{what} names data outside without saying that it is there; save it again")
        self._inside(found, stored, kind, count, what)
        size_bytes = sum(f.size for f in found.get("string_data", [])) if kind.name == "string" else size_bytes
        return StoredTensor(
            name=name, dtype=kind.name, dims=tuple(dims), size_bytes=size_bytes, location=None,
            offset=found["raw_data"][0].start if stored == ["raw_data"] else None,
            values=self._values(found, kind, count),
        )  # fmt: skip

    def dims(self, found: dict[str, list[Any]], what: str) -> list[int]:
        """The dims of a tensor, or of a sparse one.

        Raises:
            UntrustedModelError: too many to be read.
        """
        fields: list[Field] = found.get("dims", [])
        if sum(field.size for field in fields) > 10 * MAX_RANK:
            raise self._reader.refuse(f"{what} has too many dims; up to {MAX_RANK} are taken")
        return [dim for field in fields for dim in self._reader.ints(field)]

    def _inside(self, found: dict[str, list[Any]], stored: list[str], kind: ElementType, count: int, what: str) -> None:
        """The data in the file is as long as dims and type say."""
        if len(stored) > 1 or (stored and stored[0] not in ("raw_data", kind.field)):
            raise self._reader.refuse(f"{what} of {kind.name} keeps its data in {' and '.join(stored)}; save it again")
        if stored == ["raw_data"] and kind.name != "string":
            due, unit = -(-count * kind.bits // 8), "bytes"
            there = found["raw_data"][0].size
        else:
            due = -(-count * kind.bits // 8) if 0 < kind.bits < 8 else count * kind.per_element
            there, unit = sum(self._numbers(field) for field in found.get(kind.field, [])), "numbers"
        if there != due:
            raise self._reader.refuse(
                f"{what} of {kind.name} and {count:,} elements has {there:,} {unit} of data, {due:,} are due"
            )

    def _numbers(self, field: Field) -> int:
        """How many numbers a field of data holds."""
        if field.kind == "blob" or not field.is_packed:
            return 1
        if field.kind != "ints":
            width = 4 if field.kind == "floats" else 8
            return field.size // width if field.size % width == 0 else -1
        return self._reader.count_varints(field)

    def _values(self, found: dict[str, list[Any]], kind: ElementType, count: int) -> tuple[int, ...] | None:
        if count > SMALL or kind.name not in ("int32", "int64"):
            return None
        if "raw_data" in found:
            field = found["raw_data"][0]
            raw = self._reader.read(field.start, field.size)
            return tuple(np.frombuffer(raw, np.dtype(kind.name).newbyteorder("<")).tolist())
        return tuple(value for field in found.get(kind.field, []) for value in self._reader.ints(field))

    def _outside(self, entries: list[dict[str, list[str]]], size_bytes: int, what: str) -> tuple[str, int]:
        """Where data beside the model is: a file in the folder, and a range within it."""
        pairs = [(entry.get("key", [""])[0], entry.get("value", [""])[0]) for entry in entries]
        given = dict(pairs)
        if len(given) != len(pairs) or not {"location"} <= set(given) <= _DATA_KEYS:
            keys = ", ".join(key[:40] for key, _ in pairs[:8])
            raise self._reader.refuse(f"{what} says {keys!r} of its data; location, offset, length, each once, are due")
        location = "/".join(check_name(given["location"]))
        there = self._size(location)
        offset = self._number(given.get("offset", "0"), f"offset of {what}")
        length = self._number(given["length"], f"length of {what}") if "length" in given else there - offset
        if length != size_bytes:
            raise self._reader.refuse(
                f"{what} has {length:,} bytes in {location!r}, its dims and type need {size_bytes:,}"
            )
        if offset + length > there:
            raise self._reader.refuse(f"{what} ends at byte {offset + length:,} of {location!r}, which has {there:,}")
        self._ranges[location].add((offset, offset + length))
        return location, offset

    def _number(self, text: str, what: str) -> int:
        if not _NUMBER.fullmatch(text):
            raise self._reader.refuse(f"{what} is {text[:40]!r}; a whole number of 0 or more, below 10^18, is due")
        return int(text)

    def _size(self, location: str) -> int:
        if location not in self.files:
            with open_inside(self._folder, location) as file:
                self.files[location] = file.seek(0, 2)
            total = self._reader.size + sum(self.files.values())
            if total > self._max_bytes:
                raise self._reader.refuse(f"it has {total:,} bytes with its data; up to {self._max_bytes:,} are taken")
        return self.files[location]

    def finish(self) -> None:
        """No two tensors share a part of a file; the whole of it they may (shared weights).

        Raises:
            UntrustedModelError: two ranges overlap.
        """
        for location, ranges in self._ranges.items():
            last_end = 0
            for start, end in sorted(ranges):
                if start < last_end and end > start:
                    raise self._reader.refuse(
                        f"tensors overlap in {location!r}: one begins at byte {start:,}, another ends at {last_end:,}"
                    )
                last_end = max(last_end, end)
