"""An ONNX file's graph where the onnx package is not installed: names, operators and types, no contents of tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench.untrusted.wire import SCHEMA, Reader

_BULK = frozenset({"blob", "ints", "floats", "doubles"})
_EMPTY: Mapping[str, Any] = {"int": 0, "float": 0.0, "name": "", "text": ""}


class Message:
    """A protobuf message: fields as attributes; one that is not in the file is empty, as in onnx's own classes.

    Numbers that come in bulk, and floats, are never read: asking for them is an AttributeError.
    """

    def __init__(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._rules = {rule.name: rule for rule in SCHEMA[kind].values() if rule.kind not in _BULK | {"float"}}
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        """A field."""
        rule = self._rules.get(name)
        if rule is None:
            raise AttributeError(f"no field {name!r} of this message is read")
        if name in self._fields:
            return self._fields[name]
        if rule.is_repeated:
            return []
        return _EMPTY[rule.kind] if rule.kind in _EMPTY else Message(rule.kind, {})


def read_model(path: Path) -> Message:
    """The Model message of a file.

    Raises:
        UntrustedModelError: it is no ONNX file.
    """
    with path.open("rb") as file:
        reader = Reader(file, path.name)
        return _read(reader, "Model", 0, reader.size, 0)


def _read(reader: Reader, kind: str, start: int, end: int, depth: int) -> Message:
    fields: dict[str, Any] = {}
    repeated = {rule.name for rule in SCHEMA[kind].values() if rule.is_repeated}
    for field in reader.fields(kind, start, end, depth):
        if field.kind in _BULK or field.kind == "float":
            continue
        value: Any
        if field.kind == "int":
            value = field.value
        elif field.kind in ("name", "text"):
            value = reader.text(field)
        else:
            value = _read(reader, field.kind, field.start, field.end, depth + 1)
        if field.name in repeated:
            fields.setdefault(field.name, []).append(value)
        else:
            fields[field.name] = value
    return Message(kind, fields)
