"""Programs of torch.export from elsewhere.

Loading a .pt2 can run code: `torch.export.load` unpickles whatever is marked as a pickle (with `weights_only=False` for
weights, and as a fallback for example inputs), gives expressions of sizes to sympy, which evaluates them as Python,
writes guards and the names of values into source that it executes, and looks operators up by dotted names below
`torch`. A program passes here if it has no pickle, if its expressions are numbers, symbols and arithmetic, its names
words, its operators those of aten: seen in torch 2.13. Archives of TorchScript (`torch.jit`) always hold code.
"""

import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from attnbench.errors import UntrustedModelError
from attnbench.untrusted.expressions import is_plain_expression
from attnbench.untrusted.paths import open_named
from attnbench.untrusted.zip_end import has_one_list

MAX_BYTES = 64 << 30  # of all members
MAX_JSON_BYTES = 16 << 20  # a block has 40 KiB
MAX_JSON_VALUES = 1_000_000
MAX_JSON_DEPTH = 100
MAX_TEXT_CHARS = 1 << 20  # of expressions and trees in all, those that repeat counted once
MAX_MEMBERS = 100_000

_WEIGHTS, _CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
_MODEL = "models/model.json"
_MEMBERS = re.compile(
    rf"{_MODEL}|{_WEIGHTS}|{_CONSTANTS}|data/weights/weight_\d+|data/constants/tensor_\d+|data/sample_inputs/model\.pt"
    r"|archive_format|archive_version|byteorder|\.data/version|\.data/serialization_id"
)
_OPERATORS = re.compile(
    r"torch\.ops\.aten\.\w+(\.\w+)?|torch\.(sym_(int|float|max|min|not|ite|sum)|_sym_sqrt)|math\.(ceil|floor|trunc)"
    r"|torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond|while_loop|scan)"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
)
_READS_FILES = re.compile(r"torch\.ops\.aten\.(from_file|.*save|.*load)\b.*")
_CALLS = ("target", "as_operator")
_METADATA = {"stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node"}
_KEY, _WORD = re.compile(r"[\w.-]*"), re.compile(r"[\w.+-]*")
_INPUT_SIZE = re.compile(r"L(\['\w+'\]|\[\d+\])+\.((size|stride)\(\)\[\d+\]|storage_offset\(\))")
_ARITHMETIC = re.compile(r"\b(math|torch)\.(floor|ceil|trunc|sqrt|sym_\w+|_sym_sqrt)(?=\()")
_EVALUATED = ("expr_str", "guards_code", "in_spec", "out_spec")
_TREES = (None, "builtins.tuple", "builtins.list", "builtins.dict")


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """What is known of a .pt2 before torch reads it."""

    operators: tuple[str, ...]
    weight_bytes: int
    torch_version: str


def inspect_pt2(path: Path) -> ProgramFacts:
    """Look at a .pt2 and refuse it if loading it could run code.

    Raises:
        UntrustedModelError: with what is wrong.
    """
    with open_named(path) as file:
        if not has_one_list(file):
            _refuse(path, "it is no archive of torch.export: cut off, or with more at its end than one list of members")
        try:
            with zipfile.ZipFile(file) as archive:
                return _inspect(path, archive)
        except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RecursionError) as err:
            _refuse(path, f"it is no archive of torch.export ({str(err)[:80]})")


def _inspect(path: Path, archive: zipfile.ZipFile) -> ProgramFacts:
    infos = archive.infolist()
    roots = {info.filename.partition("/")[0] for info in infos}
    members = {info.filename.partition("/")[2]: info for info in infos}
    if len(roots) != 1 or len(members) != len(infos) or len(infos) > MAX_MEMBERS:
        _refuse(path, "its archive has several folders, a name twice or too many members")
    for name, info in members.items():
        if not _MEMBERS.fullmatch(name):
            _refuse(path, f"it holds {name[:80]!r}, which is no part of a plain program and may be code")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            _refuse(path, f"{name!r} is compressed or encrypted, which torch.export does not do")
    if sum(info.file_size for info in infos) > MAX_BYTES:
        _refuse(path, f"it has over {MAX_BYTES:,} bytes")
    if members.get("data/sample_inputs/model.pt") and members["data/sample_inputs/model.pt"].file_size:
        _refuse(path, "it holds example inputs as a pickle; save it without them (program._example_inputs = None)")
    for config in (_WEIGHTS, _CONSTANTS):
        _check_config(path, _json(path, archive, members, config), members, config)
    model = _json(path, archive, members, _MODEL)
    operators = {str(value) for key, value in _walk(model) if key in _CALLS}
    _check_program(path, model)
    version = model.get("torch_version", "") if isinstance(model, dict) else ""
    weights = sum(
        info.file_size for name, info in members.items() if name.startswith(("data/weights/weight", "data/constants/t"))
    )
    return ProgramFacts(operators=tuple(sorted(operators)), weight_bytes=weights, torch_version=str(version)[:40])


def _json(path: Path, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> Any:
    info = members.get(name)
    if info is None:
        _refuse(path, f"it has no {name}; archives of TorchScript and of packages hold code and are not taken")
    if info.file_size > MAX_JSON_BYTES:
        _refuse(path, f"{name} has {info.file_size:,} bytes; {MAX_JSON_BYTES:,} are taken")
    return _loads(archive.read(info).decode())


def _loads(text: str) -> Any:
    """JSON; refused before it is read where it would hold too much.

    Raises:
        ValueError: it is none, or holds too many values.
    """
    if sum(text.count(mark) for mark in ",[{") > MAX_JSON_VALUES:
        raise ValueError(f"it has over {MAX_JSON_VALUES:,} values")
    return json.loads(text)


def _check_config(path: Path, config: Any, members: dict[str, zipfile.ZipInfo], name: str) -> None:
    """No tensor is a pickle, and each is a member."""
    entries = config.get("config") if isinstance(config, dict) else None
    if not isinstance(entries, dict):
        _refuse(path, f"{name} has no config")
    folder = name.rpartition("/")[0]
    for key, entry in entries.items():
        if not isinstance(entry, dict) or entry.get("use_pickle") is not False:
            _refuse(path, f"{key[:80]!r} is stored as a pickle, or does not say that it is none")
        if f"{folder}/{entry.get('path_name')}" not in members:
            _refuse(path, f"{key[:80]!r} names a file that is not in the archive")


def _walk(value: Any, *, with_metadata: bool = True) -> Iterator[tuple[str, Any]]:
    """Every value below, with the key that it stands under; lists give theirs on.

    Raises:
        ValueError: too deep.
    """
    waiting = [(0, "", value)]
    while waiting:
        depth, key, found = waiting.pop()
        yield key, found
        if depth > MAX_JSON_DEPTH:
            raise ValueError(f"it is nested over {MAX_JSON_DEPTH} deep")
        if isinstance(found, dict):
            pairs: Iterable[tuple[str, Any]] = found.items()
            waiting += [(depth + 1, n, below) for n, below in pairs if with_metadata or not _is_metadata(n, below)]
        elif isinstance(found, list):
            waiting += [(depth + 1, key, below) for below in found]


def _check_program(path: Path, model: Any) -> None:
    """Every text of the program, by the key that it stands under."""
    for name, below in _walk(model):
        words = [name, *below] if isinstance(below, dict) else [name]
        if not all(_KEY.fullmatch(word) for word in words) or name == "as_custom_obj":
            _refuse(path, f"it has the name {name[:80]!r} or names below it, which torch may write into source")
        if _is_metadata(name, below) and not all(
            text.replace("\n", "" if key == "stack_trace" else "\n").isprintable() for key, text in below.items()
        ):
            _refuse(path, "its metadata has line breaks where no stack trace is; save it without metadata")
    texts: set[tuple[str, str]] = set()
    for key, value in _walk(model, with_metadata=False):
        if key in _CALLS and not isinstance(value, list | dict):
            if not isinstance(value, str) or not _OPERATORS.fullmatch(value) or _READS_FILES.fullmatch(value):
                _refuse(path, f"it calls {str(value)[:80]!r}; operators of aten and arithmetic are taken")
        elif isinstance(value, str):
            texts.add((key, value))
    if sum(len(text) for key, text in texts if key in _EVALUATED) > MAX_TEXT_CHARS:
        _refuse(path, f"its expressions have over {MAX_TEXT_CHARS:,} characters")
    for key, text in texts:
        if not _is_plain_text(key, text):
            _refuse(path, f"its {key} {text[:80]!r} is more than is due there, and torch may evaluate it as Python")


def _is_metadata(name: str, value: Any) -> bool:
    """What torch notes of a node, which is text; values of the program may be called metadata too."""
    return (
        name == "metadata"
        and isinstance(value, dict)
        and set(value) <= _METADATA
        and all(isinstance(text, str) for text in value.values())
    )


def _is_plain_text(key: str, text: str) -> bool:
    if key == "expr_str":
        return is_plain_expression(text)
    if key == "guards_code":
        return is_plain_expression(_ARITHMETIC.sub("Max", _INPUT_SIZE.sub("s0", text)))
    if key in ("in_spec", "out_spec"):
        return _is_plain_tree(text)
    if key == "as_string":  # an argument of an operator, as the letters of an einsum
        return text.isprintable() and not set(text) & set("'\"\\{}`")
    return _WORD.fullmatch(text) is not None


def _is_plain_tree(text: str) -> bool:
    """Tensors in tuples, lists and dicts, whose keys are words."""
    for key, value in _walk(_loads(text)):
        if key == "type" and value not in _TREES:
            return False
        if key == "context" and isinstance(value, str):
            inner = _loads(value)
            keys = inner if isinstance(inner, list) else [inner]
            if not all(word is None or (isinstance(word, str) and _WORD.fullmatch(word)) for word in keys):
                return False
    return True


def _refuse(path: Path, rule: str) -> NoReturn:
    raise UntrustedModelError(
        f"{str(path)!r} is refused: {rule}; export the module here instead, or load it only if you trust its maker"
    )
