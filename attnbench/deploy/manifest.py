"""What `bundle.json` says: the problem, the files, how the model was made and what was proved of it."""

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from attnbench.deploy.verify_bundle import digest
from attnbench.errors import InputError
from attnbench.files import write_bytes

SCHEMA_VERSION = 1
MANIFEST = "bundle.json"
GOLDEN = "golden"
VERIFIER = "verify.py"

Dim = str | Annotated[int, Field(ge=0)]


def _inside(name: str) -> str:
    """A relative path of plain names, so that no bundle reaches outside of its folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or "\\" in name or ":" in name or name != str(path) or ".." in path.parts:
        raise ValueError(f"a file of a bundle is named relative to its folder, got {name!r}")
    return name


def _printable(text: str) -> str:
    """Text for one line of a terminal: no line breaks, escape sequences or signs that turn the line around."""
    if not text.isprintable():
        raise ValueError(f"names are printable, got {text!r}")
    return text


def _runtime(runtime: dict[str, Any]) -> dict[str, Any]:
    """Names are text, settings a table, options of providers tables."""
    for key in ("distribution", "module", "version"):
        if not isinstance(runtime.get(key), str) or not runtime[key].isprintable():
            raise ValueError(f"{key} is a printable name, got {runtime.get(key)!r}")
    settings = runtime.get("settings")
    options = settings.get("provider_options", []) if isinstance(settings, dict) else None
    if not isinstance(options, list) or not all(isinstance(table, dict) for table in options):
        raise ValueError("settings are a table, in it provider_options a list of tables")
    return runtime


FileName = Annotated[str, AfterValidator(_inside), AfterValidator(_printable)]
Name = Annotated[str, AfterValidator(_printable)]
Runtime = Annotated[dict[str, Any], AfterValidator(_runtime)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Part):
    """One file of the bundle; every file but bundle.json has an entry."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=0)]


class Tensor(_Part):
    """An input or output of the model."""

    name: Name
    dtype: Literal["fp32", "fp16", "bf16", "bool", "int32", "int64"]
    dims: tuple[Dim, ...]  # a name where the size is free
    means: str = ""  # a sentence for the reader of README.md


class Recipe(_Part):
    """How the model was written, and why so."""

    exporter: str  # of attnbench; empty: the target takes torch's own program
    opset: int | None
    chosen_by: Literal["asked", "measured", "documented"]
    reason: str  # a sentence: what was measured, or why nothing was
    candidates: tuple[dict[str, Any], ...] = ()  # name, status, latency ratio and interval, of `measured`


class Golden(_Part):
    """A case with its expected output: the sizes, the file, what this export's runtime was off by."""

    file: FileName  # golden/NAME.npz: in_INPUT of every input, out_OUTPUT in float64
    sizes: dict[str, int]  # of every free dim
    errors: dict[str, float] = Field(default_factory=dict)  # worst row by output, relative; empty: nothing ran here
    limits: dict[str, float]  # by output, of the worst row
    gain_limits: dict[str, float] = Field(default_factory=dict)  # by output, of the scale; those that are judged so
    reason: str  # of the limits
    reference: str  # what the expected output comes from


class Check(_Part):
    """One thing that was looked at before the bundle was written."""

    name: str
    result: Literal["passed", "not run"]
    detail: str  # what was seen, or why it was not run


class Bundle(_Part):
    """All of bundle.json."""

    schema_version: Literal[1] = 1
    attnbench_version: str
    created_at_utc: str
    target: str
    runtime: Runtime  # name, distribution, module, version, settings that verify.py gives it
    model: FileName  # what the target loads
    problem: dict[str, Any] | None  # of the built-in attention; None: a module of the user
    module: str | None = None  # package.module:Class
    seed: int | None = None  # of the built-in attention's weights
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ranges: dict[str, tuple[int, int]]  # of every free dim: the least and the largest size that was proved
    recipe: Recipe
    files: dict[FileName, File]
    versions: dict[str, str]
    environment: dict[str, Any]
    golden: tuple[Golden, ...]
    checks: tuple[Check, ...]
    conformance: tuple[dict[str, Any], ...] = ()  # probe, verdict and how, of the masks' meaning
    digest: str = ""  # of all this but `files`; write_manifest fills it in


def write_manifest(folder: Path, bundle: Bundle) -> None:
    """Write bundle.json, last of all files, with its digest.

    Raises:
        OSError: it cannot be written.
    """
    fields = bundle.model_dump(mode="json")
    text = json.dumps(fields | {"digest": digest(fields)}, indent=1, ensure_ascii=False)
    write_bytes(folder / MANIFEST, f"{text}\n".encode())


def read_manifest(folder: Path) -> Bundle:
    """The bundle of a folder of yours; nothing but bundle.json is looked at.

    Raises:
        InputError: no bundle, of another version, or damaged.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as err:
        reason = err.strerror or err
        raise InputError(f"{str(folder)!r} is not a bundle: {MANIFEST} cannot be read ({reason})") from err
    return parse_manifest(path, text)


def parse_manifest(path: Path, text: str | bytes) -> Bundle:
    """The bundle that a text says; the path is for messages.

    Raises:
        InputError: it is none, of another version, or damaged.
    """
    try:
        return Bundle.model_validate_json(text)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{str(path)!r} is not a bundle of version {SCHEMA_VERSION}: {where}: {first['msg']}") from err


def describe(path: Path) -> File:
    """Hash and size of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as f:
        return File(sha256=hashlib.file_digest(f, "sha256").hexdigest(), size_bytes=path.stat().st_size)
