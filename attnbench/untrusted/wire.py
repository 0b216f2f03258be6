"""Reading an ONNX file's protobuf without parsing it into memory: fields one by one, payloads skipped.

A file from elsewhere may be a bomb for the parser itself, and a parser of protobuf resolves in silence what two parsers
may resolve differently. Here a field that ONNX does not define, a singular field that occurs twice, a group, a number
beyond 64 bits and a message that is nested too deeply are errors. Memory is one window of the file.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from attnbench.errors import UntrustedModelError

WINDOW_BYTES = 1 << 18
MAX_FIELDS = 2_000_000  # of one file; a language model of 32 layers has a quarter of it
MAX_DEPTH = 80  # of messages in messages; protobuf's own parsers stop at 100
MAX_NAME_BYTES = 1024
MAX_TEXT_BYTES = 1 << 20
MAX_ALL_TEXT_BYTES = 64 << 20

# Also what has no width, breaks lines or turns them around: two names that look alike, lines that say something else.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
# How a kind of field is written; the second is the packed form of a repeated number.
_WIRES = {
    "int": (_VARINT,), "float": (_FIXED32,), "name": (_BYTES,), "text": (_BYTES,), "blob": (_BYTES,),
    "ints": (_VARINT, _BYTES), "floats": (_FIXED32, _BYTES), "doubles": (_FIXED64, _BYTES),
}  # fmt: skip

# Every message of ONNX: the field's number, name and kind. A kind is one of `_WIRES` or another message; * : repeated.
_SCHEMA = """
Model: 1 ir_version int, 8 opset_import Opset*, 2 producer_name name, 3 producer_version name, 4 domain name,
    5 model_version int, 6 doc_string text, 7 graph Graph, 14 metadata_props Entry*, 20 training_info Training*,
    25 functions Function*, 26 configuration DeviceConfiguration*
DeviceConfiguration: 1 name name, 2 num_devices int, 3 device name*
Function: 1 name name, 4 input name*, 5 output name*, 6 attribute name*, 11 attribute_proto Attribute*, 7 node Node*,
    8 doc_string text, 9 opset_import Opset*, 10 domain name, 13 overload name, 12 value_info Value*,
    14 metadata_props Entry*
Entry: 1 key name, 2 value text
Value: 1 name name, 2 type Type, 3 doc_string text, 4 metadata_props Entry*
Type: 1 tensor_type TensorType, 4 sequence_type ElementType, 5 map_type MapType, 9 optional_type ElementType,
    8 sparse_tensor_type TensorType, 7 opaque_type OpaqueType, 6 denotation name
TensorType: 1 elem_type int, 2 shape Shape
ElementType: 1 elem_type Type
MapType: 1 key_type int, 2 value_type Type
OpaqueType: 1 domain name, 2 name name
Shape: 1 dim Dim*
Dim: 1 dim_value int, 2 dim_param name, 3 denotation name
Opset: 1 domain name, 2 version int
Node: 1 input name*, 2 output name*, 3 name name, 4 op_type name, 7 domain name, 8 overload name,
    5 attribute Attribute*, 6 doc_string text, 9 metadata_props Entry*, 10 device_configurations NodeConfiguration*
NodeConfiguration: 1 configuration_id name, 2 sharding_spec Sharding*, 3 pipeline_stage int
Sharding: 1 tensor_name name, 2 device ints*, 3 index_to_device_group_map IntList*, 4 sharded_dim ShardedDim*
ShardedDim: 1 axis int, 2 simple_sharding SimpleSharding*
SimpleSharding: 1 dim_value int, 2 dim_param name, 3 num_shards int
IntList: 1 key int, 2 value ints*
Attribute: 1 name name, 21 ref_attr_name name, 13 doc_string text, 20 type int, 2 f float, 3 i int, 4 s blob,
    5 t Tensor, 6 g Graph, 22 sparse_tensor Sparse, 14 tp Type, 7 floats floats*, 8 ints ints*, 9 strings blob*,
    10 tensors Tensor*, 11 graphs Graph*, 23 sparse_tensors Sparse*, 15 type_protos Type*
Sparse: 1 values Tensor, 2 indices Tensor, 3 dims ints*
Tensor: 1 dims ints*, 2 data_type int, 3 segment Segment, 4 float_data floats*, 5 int32_data ints*,
    6 string_data blob*, 7 int64_data ints*, 8 name name, 12 doc_string text, 9 raw_data blob, 13 external_data Entry*,
    14 data_location int, 10 double_data doubles*, 11 uint64_data ints*, 16 metadata_props Entry*
Segment: 1 begin int, 2 end int
Graph: 1 node Node*, 2 name name, 5 initializer Tensor*, 15 sparse_initializer Sparse*, 10 doc_string text,
    11 input Value*, 12 output Value*, 13 value_info Value*, 14 quantization_annotation Annotation*,
    16 metadata_props Entry*
Annotation: 1 tensor_name name, 2 quant_parameter_tensor_names Entry*
Training: 1 initialization Graph, 2 algorithm Graph, 3 initialization_binding Entry*, 4 update_binding Entry*
"""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What ONNX says of a field."""

    name: str
    kind: str  # of `_WIRES`, or a message
    is_repeated: bool


def _read_schema(text: str) -> dict[str, dict[int, FieldRule]]:
    messages: dict[str, dict[int, FieldRule]] = {}
    for line in text.replace("\n    ", " ").strip().splitlines():
        message, _, fields = line.partition(": ")
        messages[message] = {}
        for field in fields.split(", "):
            number, name, kind = field.split()
            messages[message][int(number)] = FieldRule(name, kind.rstrip("*"), kind.endswith("*"))
    return messages


SCHEMA = _read_schema(_SCHEMA)


class Field(NamedTuple):
    """One field of a message as it stands in the file."""

    name: str
    kind: str
    wire: int
    value: int  # of a number that is not packed; 0 else
    start: int  # of the payload, bytes from the start of the file
    end: int

    @property
    def is_packed(self) -> bool:
        """Several numbers in one payload."""
        return self.wire == _BYTES

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return self.end - self.start


class Reader:
    """An open ONNX file. Counts what was read, so that no file costs more than the limits."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._fd = file.fileno()
        self.size = os.fstat(self._fd).st_size
        self.name = name  # for messages
        self._window = b""
        self._window_at = 0
        self._fields = 0
        self._text_bytes = 0

    def refuse(self, rule: str) -> UntrustedModelError:
        """The error to raise: what is wrong with this file."""
        return UntrustedModelError(f"{self.name!r} is refused: {rule}")

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the file.

        Raises:
            UntrustedModelError: the file ends before; it has become shorter while it was read.
        """
        if not (self._window_at <= start and start + size <= self._window_at + len(self._window)):
            if size > WINDOW_BYTES:
                return self._whole(os.pread(self._fd, size, start), size)
            self._window, self._window_at = os.pread(self._fd, WINDOW_BYTES, start), start
        at = start - self._window_at
        return self._whole(self._window[at : at + size], size)

    def _whole(self, found: bytes, size: int) -> bytes:
        if len(found) != size:
            raise self.refuse("it ends in the middle of a value; it was cut off or is being changed: copy it again")
        return found

    def fields(self, message: str, start: int, end: int, depth: int) -> Iterator[Field]:
        """The fields of a message, checked against ONNX's own definition.

        Raises:
            UntrustedModelError: anything that ONNX does not define, or that two readers may read differently.
        """
        if depth > MAX_DEPTH:
            raise self.refuse(f"messages are nested over {MAX_DEPTH} deep; no model of ours needs a tenth of it")
        rules, seen, at = SCHEMA[message], 0, start
        while at < end:
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise self.refuse(f"it has over {MAX_FIELDS:,} fields, more than any model that is looked at here")
            tag, at = self._varint(at, end)
            field = self._field(message, rules, tag, at, end)
            bit = 1 << (tag >> 3)
            if seen & bit and not rules[tag >> 3].is_repeated:
                raise self.refuse(f"{message}.{field.name} occurs twice, which readers understand differently")
            seen |= bit
            at = field.end
            yield field

    def _field(self, message: str, rules: dict[int, FieldRule], tag: int, at: int, end: int) -> Field:
        number, wire = tag >> 3, tag & 7
        rule = rules.get(number)
        if rule is None:
            raise self.refuse(f"it has a field {number} in {message}, which ONNX does not define; it is no ONNX file")
        if wire not in _WIRES.get(rule.kind, (_BYTES,)):
            raise self.refuse(f"{message}.{rule.name} is written as wire type {wire}, which ONNX does not define")
        value = 0
        if wire == _VARINT:
            value, stop = self._varint(at, end)
            value -= (value >> 63) << 64  # two's complement
        elif wire == _BYTES:
            size, at = self._varint(at, end)
            stop = at + size
        else:
            stop = at + _SIZES[wire]
        if stop > end:
            raise self.refuse(f"{message}.{rule.name} says {stop - at:,} bytes, there are {end - at:,}; it was cut off")
        return Field(rule.name, rule.kind, wire, value, at, stop)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        inside = at - self._window_at
        if 0 <= inside < len(self._window) and at < end and self._window[inside] < 0x80:  # most of them
            return self._window[inside], at + 1
        chunk = self.read(at, min(10, end - at))
        value = 0
        for index, byte in enumerate(chunk):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value >> 64:
                    break
                return value, at + index + 1
        raise self.refuse(f"a number at byte {at} does not end or has over 64 bits; it is no ONNX file, or cut off")

    def text(self, field: Field) -> str:
        """The text of a field of kind name or text.

        Raises:
            UntrustedModelError: too long, not UTF-8, or a name with control characters.
        """
        limit = MAX_NAME_BYTES if field.kind == "name" else MAX_TEXT_BYTES
        self._text_bytes += field.size
        if field.size > limit or self._text_bytes > MAX_ALL_TEXT_BYTES:
            total = "" if field.size > limit else f" of {self._text_bytes:,} in all, and {MAX_ALL_TEXT_BYTES:,} in all"
            raise self.refuse(f"{field.name} has {field.size:,} bytes{total}; at most {limit:,} are read")
        try:
            found = self.read(field.start, field.size).decode()
        except UnicodeDecodeError as err:
            raise self.refuse(f"{field.name} is not UTF-8 ({err.reason})") from err
        if field.kind == "name" and has_control_characters(found):
            raise self.refuse(f"{field.name} {found[:80]!r} has control characters")
        return found

    def ints(self, field: Field) -> list[int]:
        """The numbers of a field of kind ints, packed or not; for few numbers (dims, shapes)."""
        if not field.is_packed:
            return [field.value]
        found, at = [], field.start
        while at < field.end:
            value, at = self._varint(at, field.end)
            found.append(value - ((value >> 63) << 64))
        return found

    def count_varints(self, field: Field) -> int:
        """How many packed numbers a payload holds.

        Raises:
            UntrustedModelError: the last one does not end.
        """
        found, last = 0, 0
        for at in range(field.start, field.end, WINDOW_BYTES):
            chunk = np.frombuffer(self.read(at, min(WINDOW_BYTES, field.end - at)), np.uint8)
            found, last = found + int((chunk < 0x80).sum()), int(chunk[-1])
        if last >= 0x80:
            raise self.refuse(f"{field.name} ends in the middle of a number; it was cut off")
        return found


def has_control_characters(text: str) -> bool:
    """NUL, line breaks, escape sequences, signs of writing direction and the like."""
    return _CONTROL.search(text) is not None
