"""What an ONNX file from elsewhere holds, found without a runtime and without trusting a word of it."""

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from attnbench.untrusted.asked import ASKING, sizes_asked
from attnbench.untrusted.formats import refuse_foreign
from attnbench.untrusted.functions import CallKey, expanded_nodes
from attnbench.untrusted.paths import open_named
from attnbench.untrusted.tensors import ELEMENT_TYPES, StoredTensor, TensorRules
from attnbench.untrusted.wire import SCHEMA, Field, Reader

MAX_MODEL_BYTES = (1 << 31) - 1  # of the .onnx alone: no protobuf message is longer
MAX_BYTES = 64 << 30  # with the data beside it
MAX_SHAPE_BYTES = 1024  # of an attribute's integers that are kept
MAX_COMBINATIONS = 1000  # of what names that functions share may mean, for operators that several inputs tell
MAX_VERSION = 99  # of the format and of opsets
MAX_EXPANDED_NODES = 2_000_000  # with every function written out

STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
# Operators that carry a program: an engine compiled elsewhere, or the name of Python code.
CODE_OPERATORS = ("EPContext", "PythonOp", "PythonOpGrad", "PyOp", "ATen")
_SHAPE_ATTRIBUTES = ("RandomNormal", "RandomUniform")  # operators that say what they make in an attribute
_NOT_KEPT = ("node", "value_info", "quantization_annotation", "device_configurations")  # looked at and counted
_ONE_OF_TYPE = ("tensor_type", "sequence_type", "map_type", "optional_type", "sparse_tensor_type", "opaque_type")


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """An input or output as the file declares it."""

    name: str
    dtype: str  # as in `tensors.ELEMENT_TYPES`; "unknown" where it is no tensor
    dims: tuple[int | str | None, ...] | None  # a name where the size is free, None: free without one; None: not said


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is known of a model before anything loads it."""

    sha256: str  # of the .onnx
    size_bytes: int  # of the .onnx
    ir_version: int
    opsets: Mapping[str, int]  # by domain, the default one empty
    producer: str
    inputs: tuple[Value, ...]  # without those that an initializer gives
    outputs: tuple[Value, ...]
    operators: Mapping[str, int]  # "domain::Op" -> nodes, those in subgraphs and functions too
    custom_domains: tuple[str, ...]  # of operators that are neither ONNX's nor a function of the file
    functions: tuple[str, ...]  # "domain::Name" of the file's own
    initializer_bytes: int  # of all stored tensors, inside and outside, shared ones each time
    files: Mapping[str, int]  # beside the model: name -> bytes
    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]


def inspect_model(path: Path, *, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> ModelFacts:
    """Look at an ONNX file and refuse it if loading it could reach outside, crash a parser or ask for the impossible.

    What is on disk may change until a runtime opens it: inspect a copy of your own (`snapshot.snapshot_model`).
    Values of tensors are not looked at, except for small shapes; a graph may still ask for much memory while it runs,
    so load it in a worker with a limit. A file made to be slow costs some seconds and below 0.5 GiB; a
    `checksum` of data is not compared.

    Args:
        path: the .onnx.
        folder: that holds the data it names; its own if not given.
        max_bytes: of the .onnx and all its data together.

    Raises:
        UntrustedModelError: with what is wrong and what to do.
    """
    with open_named(path) as file:
        refuse_foreign(path, file)
        reader = Reader(file, str(path))
        if not 0 < reader.size <= min(MAX_MODEL_BYTES, max_bytes):
            limit = min(MAX_MODEL_BYTES, max_bytes)
            raise reader.refuse(f"it has {reader.size:,} bytes; 1 to {limit:,} are taken, larger weights beside it")
        before = os.fstat(file.fileno())
        facts = _Walk(reader, folder or path.parent, max_bytes).model(_sha256(file))
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise reader.refuse("it was changed while it was read; make a copy that nobody writes to")
        return facts


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Attribute:
    name: str
    tensors: tuple[StoredTensor, ...]
    ints: tuple[int, ...]  # of i or ints, where they are few


class _Walk:
    """Reads every message of a model once; what is kept is small."""

    def __init__(self, reader: Reader, folder: Path, max_bytes: int) -> None:
        self._reader = reader
        self._rules = TensorRules(reader, folder, max_bytes)
        self._tensors: list[StoredTensor] = []
        self._shapes: dict[str, list[tuple[int, ...]]] = {}  # small integer tensors by name
        self._asked: list[tuple[str, list[str]]] = []  # operator, and what tells it how large its output is
        self._bodies: dict[CallKey, Counter[CallKey]] = {}  # nodes of every function
        self._nodes: Counter[CallKey] = Counter()  # of the graph, or of the function that is being read
        self._written: set[str] = set()  # by nodes of the graph or function that is being read
        self._handlers: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
            "Tensor": self._rules.tensor, "Sparse": self._sparse, "Value": self._value, "Type": self._type,
            "TensorType": self._tensor_type, "Dim": self._dim, "Attribute": self._attribute, "Node": self._node,
            "Graph": self._graph, "Function": self._function,
        }  # fmt: skip

    def _read(self, message: str, start: int, end: int, depth: int) -> Any:
        found: dict[str, list[Any]] = {}
        outer, written = self._nodes, self._written
        if message == "Function":
            self._nodes = Counter()
        if message in ("Function", "Graph"):
            self._written = set()
        for field in self._reader.fields(message, start, end, depth):
            value: Any
            if field.kind in SCHEMA:
                value = self._read(field.kind, field.start, field.end, depth + 1)
            elif field.kind in ("name", "text"):
                value = self._reader.text(field)
            else:
                value = field.value if field.kind == "int" else field
            if field.name not in _NOT_KEPT and (field.name != "metadata_props" or message == "Model"):
                found.setdefault(field.name, []).append(value)
        handler = self._handlers.get(message)
        made = handler(found) if handler else found
        self._nodes, self._written = outer, written
        return made

    def model(self, sha256: str) -> ModelFacts:
        """The whole file."""
        found = self._read("Model", 0, self._reader.size, 0)
        opsets = self._opsets(found.get("opset_import", []))
        self._version(found.get("ir_version", [0])[0], "the format")
        if "graph" not in found:
            raise self._reader.refuse("it has no graph; it is no ONNX model")
        inputs, outputs = found["graph"][0]
        expanded = expanded_nodes(self._nodes, self._bodies, self._reader.refuse)
        if expanded > MAX_EXPANDED_NODES:
            raise self._reader.refuse(
                f"its functions write out to {expanded:,} nodes; {MAX_EXPANDED_NODES:,} are taken"
            )
        self._rules.finish()
        self._refuse_large_shapes()
        operators: Counter[str] = Counter()
        domains: set[str] = set()
        for nodes in (self._nodes, *self._bodies.values()):
            domains |= {key[0] for key in nodes if key not in self._bodies}
            for key, count in nodes.items():
                operators[_shown(key)] += count
        return ModelFacts(
            sha256=sha256, size_bytes=self._reader.size, ir_version=found.get("ir_version", [0])[0], opsets=opsets,
            producer=" ".join(found.get("producer_name", []) + found.get("producer_version", [])),
            inputs=inputs, outputs=outputs, operators=dict(sorted(operators.items())),
            custom_domains=tuple(sorted(domains - {*STANDARD_DOMAINS})),
            functions=tuple(sorted(map(_shown, self._bodies))),
            initializer_bytes=sum(tensor.size_bytes for tensor in self._tensors), files=dict(self._rules.files),
            tensors=tuple(self._tensors), metadata=_pairs(found.get("metadata_props", [])),
        )  # fmt: skip

    def _opsets(self, entries: list[dict[str, list[Any]]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in entries:
            domain = _plain_domain(entry.get("domain", [""])[0])
            if domain in found:
                raise self._reader.refuse(f"it imports the opset of domain {domain!r} twice; one is due")
            found[domain] = self._version(entry.get("version", [0])[0], f"the opset of domain {domain!r}")
        return found

    def _version(self, version: int, what: str) -> int:
        if not 1 <= version <= MAX_VERSION:
            raise self._reader.refuse(f"it says version {version} of {what}; 1 to {MAX_VERSION} are taken")
        return version

    def _graph(self, found: dict[str, list[Any]]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        initializers: list[StoredTensor] = found.get("initializer", [])
        for tensor in initializers:
            self._keep(tensor, tensor.name)
        given = {tensor.name for tensor in initializers}
        self._refuse_twice([tensor.name for tensor in initializers], "two initializers are")
        for part in ("input", "output"):
            self._refuse_twice([value.name for value in found.get(part, [])], f"two {part}s are")
        self._refuse_twice([*self._written, *given], "a node's output and an initializer are")
        self._refuse_twice(
            [*self._written, *(v.name for v in found.get("input", []))], "a node's output and an input are"
        )
        inputs = tuple(value for value in found.get("input", []) if value.name not in given)
        return inputs, tuple(found.get("output", []))

    def _refuse_twice(self, names: list[str], who: str) -> None:
        if len(set(names)) != len(names):
            name = Counter(names).most_common(1)[0][0]
            raise self._reader.refuse(f"{who} called {name!r}; readers understand that differently")

    def _function(self, found: dict[str, list[Any]]) -> None:
        domain, name, overload = (found.get(part, [""])[0] for part in ("domain", "name", "overload"))
        self._opsets(found.get("opset_import", []))
        for attribute in found.get("attribute_proto", []):
            for tensor in attribute.tensors:
                self._keep(tensor, f"{name}.{attribute.name}")
        key = (_plain_domain(domain), name, overload)
        if key[0] in STANDARD_DOMAINS:
            raise self._reader.refuse(
                f"it defines {_shown(key)!r} itself, which is ONNX's own; readers take one or other"
            )
        if key in self._bodies:
            raise self._reader.refuse(f"two functions are called {_shown(key)!r}; readers understand that differently")
        self._bodies[key] = self._nodes

    def _node(self, found: dict[str, list[Any]]) -> None:
        domain, op, overload = (found.get(part, [""])[0] for part in ("domain", "op_type", "overload"))
        if op in CODE_OPERATORS:
            raise self._reader.refuse(
                f"its operator {op!r} carries a program, not mathematics; ask for plain operators"
            )
        attributes: list[_Attribute] = found.get("attribute", [])
        outputs, inputs = found.get("output", []), found.get("input", [])
        self._refuse_twice([*filter(None, outputs)], "two outputs of a node are")
        if again := self._written.intersection(outputs):
            raise self._reader.refuse(f"two nodes write {min(again)!r}; readers understand that differently")
        self._written.update(filter(None, outputs))
        for attribute in attributes:
            name = outputs[0] if op == "Constant" and outputs else f"{op}.{attribute.name}"
            for tensor in attribute.tensors:
                self._keep(tensor, name)
            if op == "Constant" and attribute.ints:
                self._shapes.setdefault(name, []).append(attribute.ints)
            if op in _SHAPE_ATTRIBUTES and attribute.name == "shape":
                self._rules.elements(list(attribute.ints), f"operator {op}")
        if op in ASKING and len(inputs) > max(ASKING[op]):
            self._asked.append((op, [inputs[index] for index in ASKING[op]]))
        self._nodes[_plain_domain(domain), op, overload] += 1

    def _attribute(self, found: dict[str, list[Any]]) -> _Attribute:
        dense = [*found.get("t", []), *found.get("tensors", [])]
        numbers: list[Field | int] = [*found.get("i", []), *found.get("ints", [])]
        if sum(1 if isinstance(number, int) else number.size for number in numbers) > MAX_SHAPE_BYTES:
            numbers = []  # no shape
        ints = [n for f in numbers for n in ([f] if isinstance(f, int) else self._reader.ints(f))]
        return _Attribute(found.get("name", [""])[0], tuple(dense), tuple(ints))

    def _sparse(self, found: dict[str, list[Any]]) -> None:
        """Sizes fit together; where the indices point is for the runtime to check."""
        dims = self._rules.dims(found, "a sparse tensor")
        self._rules.elements(dims, "a sparse tensor")
        parts: list[list[StoredTensor]] = [found.get("values", []), found.get("indices", [])]
        if not all(parts):
            raise self._reader.refuse("a sparse tensor has no values or no indices")
        values, indices = parts[0][0], parts[1][0]
        if indices.dims not in (values.dims, (*values.dims, len(dims))) or len(values.dims) != 1:
            raise self._reader.refuse(
                f"a sparse tensor has values of dims {list(values.dims)} and indices of {list(indices.dims)}; "
                f"[N] and [N] or [N, {len(dims)}] are due"
            )
        for tensor in (values, indices):
            self._keep(tensor, tensor.name)

    def _keep(self, tensor: StoredTensor, name: str) -> None:
        self._tensors.append(replace(tensor, name=name))
        if tensor.values is not None:
            self._shapes.setdefault(name, []).append(tensor.values)

    def _refuse_large_shapes(self) -> None:
        for op, names in self._asked:
            by = ", ".join(map(repr, names))
            every = itertools.product(*(self._shapes.get(name, []) for name in names))
            for told in every if len(names) == 1 else itertools.islice(every, MAX_COMBINATIONS):
                self._rules.elements(sizes_asked(op, told), f"operator {op}, by its input {by},")

    def _value(self, found: dict[str, list[Any]]) -> Value:
        name = found.get("name", [""])[0]
        dtype, dims = found["type"][0] if "type" in found else ("unknown", None)
        if dims is not None:
            self._rules.elements([dim for dim in dims if isinstance(dim, int)], f"value {name!r}")
        return Value(name=name, dtype=dtype, dims=dims)

    def _type(self, found: dict[str, list[Any]]) -> tuple[str, tuple[int | str | None, ...] | None]:
        kinds = [kind for kind in _ONE_OF_TYPE if kind in found]
        if len(kinds) > 1:
            raise self._reader.refuse(f"a value has the types {' and '.join(kinds)}; one is due")
        if kinds == ["tensor_type"]:
            tensor: tuple[str, tuple[int | str | None, ...] | None] = found["tensor_type"][0]
            return tensor
        return "unknown", None

    def _tensor_type(self, found: dict[str, list[Any]]) -> tuple[str, tuple[int | str | None, ...] | None]:
        kind = ELEMENT_TYPES.get(found.get("elem_type", [0])[0])
        shape = found.get("shape")
        return kind.name if kind else "unknown", None if shape is None else tuple(shape[0].get("dim", []))

    def _dim(self, found: dict[str, list[Any]]) -> int | str | None:
        if "dim_value" in found and "dim_param" in found:
            raise self._reader.refuse("a dim is a number and a name at once; one is due")
        dim: int | str | None = found.get("dim_value", found.get("dim_param", [None]))[0]
        return dim or None if isinstance(dim, str) else dim


def _plain_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _shown(key: CallKey) -> str:
    return f"{key[0]}::{key[1]}"


def _pairs(entries: list[dict[str, list[str]]]) -> dict[str, str]:
    return {entry.get("key", [""])[0]: entry.get("value", [""])[0] for entry in entries}
