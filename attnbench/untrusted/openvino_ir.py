"""OpenVINO's IR from elsewhere: XML that defines nothing of its own, constants that are where they say."""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from attnbench.errors import UntrustedModelError
from attnbench.untrusted.paths import open_inside, open_named
from attnbench.untrusted.tensors import MAX_ELEMENTS, MAX_RANK

MAX_XML_BYTES = 16 << 20
MAX_TAG_BYTES = 1 << 18
MAX_ELEMENTS_OF_XML = 2_000_000
MAX_DEPTH = 100
_NUMBER = re.compile(r"[0-9]{1,18}")
_BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8, "f4e2m1": 4, "nf4": 4,
    "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i4": 4, "u64": 64, "u32": 32, "u16": 16, "u8": 8, "u6": 6, "u4": 4,
    "u3": 3, "u2": 2, "u1": 1, "boolean": 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class IrFacts:
    """What is known of an IR before OpenVINO reads it."""

    operators: Mapping[str, int]  # type of a layer -> how many, in subgraphs too
    constant_bytes: int
    data_bytes: int  # of the .bin; 0: there is none


def inspect_ir(path: Path) -> IrFacts:
    """Look at a model.xml and the model.bin beside it; refuse what could reach outside or ask for the impossible.

    Raises:
        UntrustedModelError: with what is wrong.
    """
    data_bytes = 0
    name = path.with_suffix(".bin").name
    if os.path.lexists(path.with_suffix(".bin")):
        with open_inside(path.parent, name) as file:
            data_bytes = file.seek(0, 2)
    with open_named(path) as file:
        if file.seek(0, 2) > MAX_XML_BYTES:
            _refuse(path, f"it has over {MAX_XML_BYTES:,} bytes")
        file.seek(0)
        return _Walk(path, data_bytes).read(file.read(MAX_XML_BYTES))


class _Walk:
    """Reads the XML once, element by element."""

    def __init__(self, path: Path, data_bytes: int) -> None:
        self._path = path
        self._data_bytes = data_bytes
        self._above: list[tuple[str, str]] = []  # element, and the type of a layer
        self._operators: Counter[str] = Counter()
        self._count = 0
        self._ranges: dict[int, set[int]] = defaultdict(set)  # start -> ends

    def read(self, text: bytes) -> IrFacts:
        if max(map(len, text.split(b"<"))) > MAX_TAG_BYTES:
            _refuse(self._path, f"it has an element of over {MAX_TAG_BYTES:,} bytes")
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = lambda _: self._above.pop()
        try:
            parser.Parse(text, True)
        except (expat.ExpatError, ValueError, LookupError) as err:  # the last two: an encoding that Python lacks
            _refuse(self._path, f"it is no XML: {err}")
        if "Result" not in self._operators:
            _refuse(self._path, "it is no model of OpenVINO: it has no layer of type Result")
        end = total = 0
        for start, ends in sorted(self._ranges.items()):
            if len(ends) > 1 or start < end:
                _refuse(self._path, f"constants overlap at byte {start:,} of its .bin")
            end = max(ends)
            total += end - start
        return IrFacts(
            operators=dict(sorted(self._operators.items())), constant_bytes=total, data_bytes=self._data_bytes
        )

    def _doctype(self, *_: object) -> None:
        _refuse(self._path, "it defines a DOCTYPE, whose entities may read files or grow without end")

    def _start(self, element: str, attributes: dict[str, Any]) -> None:
        self._count += 1
        if self._count > MAX_ELEMENTS_OF_XML or len(self._above) >= MAX_DEPTH:
            _refuse(self._path, f"it has over {MAX_ELEMENTS_OF_XML:,} elements, or is over {MAX_DEPTH} deep")
        if element == "layer":
            self._operators[attributes.get("type", "")] += 1
        # OpenVINO takes Constant, const and the like for Const.
        is_constant = bool(self._above) and self._above[-1][1].casefold() in ("const", "constant")
        if element == "data" and (is_constant or "offset" in attributes):
            self._constant(attributes)
        self._above.append((element, attributes.get("type", "") if element == "layer" else ""))

    def _constant(self, attributes: dict[str, Any]) -> None:
        offset, size = self._number(attributes, "offset"), self._number(attributes, "size")
        if offset + size > self._data_bytes:
            _refuse(self._path, f"a constant ends at byte {offset + size:,}, its .bin has {self._data_bytes:,}")
        kind, dims = (
            attributes.get("element_type", ""),
            [d for d in attributes.get("shape", "").split(",") if d.strip()],
        )
        if not all(_NUMBER.fullmatch(dim.strip()) for dim in dims) or len(dims) > MAX_RANK:
            _refuse(self._path, f"a constant has shape {attributes.get('shape', '')[:80]!r}")
        sizes = [int(dim) for dim in dims]
        if math.prod(max(dim, 1) for dim in sizes) > MAX_ELEMENTS:
            _refuse(self._path, f"a constant has dims {sizes[:8]}; {MAX_ELEMENTS:,} elements are taken")
        if kind not in _BITS:
            _refuse(self._path, f"a constant is of type {kind[:20]!r}; {', '.join(_BITS)} are taken")
        if size != -(-math.prod(sizes) * _BITS[kind] // 8):
            _refuse(self._path, f"a constant of {kind} and dims {sizes[:8]} has {size:,} bytes")
        if size:
            self._ranges[offset].add(offset + size)

    def _number(self, attributes: dict[str, Any], name: str) -> int:
        text = attributes.get(name, "")
        if not _NUMBER.fullmatch(text):
            _refuse(self._path, f"a constant has {name} {text[:40]!r}; a whole number of 0 or more is due")
        return int(text)


def _refuse(path: Path, rule: str) -> NoReturn:
    raise UntrustedModelError(f"{str(path)!r} is refused: {rule}; convert the model again where you trust it")
