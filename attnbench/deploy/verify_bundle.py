"""Checks this bundle: its files first, then its outputs in the runtime that it is for, against golden cases.

Needs Python 3.10 or newer, numpy and the runtime that bundle.json names, nothing else:

    python verify.py                              one line per golden case, and what it means
    python verify.py --option KEY=VALUE           the same with a setting of the runtime changed

Exit codes: 0 right; 2 bad usage; 3 numerics drifted; 4 a file is changed or missing; 5 the runtime cannot load it.
Arrays are .npz without pickle: in_INPUT and, in float64, out_OUTPUT; bfloat16 is kept as its 16 bits in uint16.
"""

import argparse
import hashlib
import json
import math
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from attnbench.deploy.verify_runtimes import (
    CANNOT_LOAD,
    CHANGED,
    DRIFTED,
    RAW,
    RIGHT,
    USAGE,
    Arrays,
    Fault,
    Run,
    failures,
    kinds_of,
    load,
    read_case,
    spoken,
)

SCHEMA_VERSION = 1
OWN_FILES = ("README.md", "verify.py")  # of every bundle
MAX_MANIFEST_BYTES = 4 << 20  # one of 6 golden cases has 8 KB
# Messages of ONNX that may hold a tensor: number of a field -> what it is.
PARTS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
}
# ---- files


def read_bundle(folder: Path) -> dict[str, Any]:
    """What bundle.json says.

    Raises:
        Fault: it is missing, damaged, changed, or of another version.
    """
    path = inside(folder, "bundle.json")
    try:
        with path.open("rb") as f:
            text = f.read(MAX_MANIFEST_BYTES + 1)
        if len(text) > MAX_MANIFEST_BYTES:
            raise Fault(CHANGED, f"bundle.json has over {MAX_MANIFEST_BYTES:,} bytes, which no bundle needs")
        bundle = json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant)
    except OSError as err:
        raise Fault(CHANGED, f"bundle.json cannot be read: {err.strerror or err}") from err
    except (ValueError, RecursionError) as err:
        raise Fault(CHANGED, f"bundle.json is damaged: {err}") from err
    if not isinstance(bundle, dict) or bundle.get("digest") != digest(bundle):
        raise Fault(CHANGED, "bundle.json was changed: its own digest is another one")
    if bundle.get("schema_version") != SCHEMA_VERSION:
        found = bundle.get("schema_version")
        raise Fault(CANNOT_LOAD, f"bundle.json has version {found}, this script reads {SCHEMA_VERSION}")
    return bundle


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON in which no key occurs twice.

    Raises:
        ValueError: one does; readers take the one or the other.
    """
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return dict(pairs)


def refuse_constant(text: str) -> Any:
    """NaN and infinities are no JSON, and everything is within a limit of them.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{text} is no number of JSON")


def digest(bundle: Mapping[str, Any]) -> str:
    """SHA-256 of all that bundle.json says but `files`, whose hashes speak for themselves."""
    rest = {key: value for key, value in bundle.items() if key not in ("digest", "files")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_files(folder: Path, bundle: Mapping[str, Any]) -> None:
    """Every file that is listed is there as it was.

    Raises:
        Fault: with the file's name.
    """
    files = bundle["files"]
    for name in (bundle["model"], *OWN_FILES, *(case["file"] for case in bundle["golden"])):
        if name not in files:
            raise Fault(CHANGED, f"bundle.json lists no hash of {name!r}")
    for name, due in files.items():
        path = inside(folder, name)
        size_bytes = path.stat().st_size
        if size_bytes != due["size_bytes"]:
            raise Fault(CHANGED, f"{name} has {size_bytes} bytes, bundle.json says {due['size_bytes']}")
        if (found := sha256(path)) != due["sha256"]:
            raise Fault(
                CHANGED, f"{name} was changed: sha256 {found[:12]}..., bundle.json says {due['sha256'][:12]}..."
            )


def check_claims(bundle: Mapping[str, Any]) -> None:
    """There are cases, they span the ranges, and every output of each has a limit.

    Raises:
        Fault: bundle.json contradicts itself.
    """
    if not bundle["golden"]:
        raise Fault(CHANGED, "bundle.json has no golden case, so that nothing is proved")
    for dim, (least, most) in bundle["ranges"].items():
        seen = [case["sizes"][dim] for case in bundle["golden"]]
        if [least, most] != [min(seen), max(seen)]:
            raise Fault(CHANGED, f"bundle.json has ranges that its golden cases do not span: {dim}")
    for case in bundle["golden"]:
        for tensor in bundle["outputs"]:
            limit = case["limits"].get(tensor["name"])
            if not isinstance(limit, float | int) or not 0.0 <= limit < math.inf:
                raise Fault(CHANGED, f"{case['file']} has no limit of {tensor['name']}, but {limit!r}")


def unlisted(folder: Path, bundle: Mapping[str, Any]) -> list[str]:
    """A line where the folder holds files of somebody else; nothing of them was looked at, and nothing is loaded."""
    known = {"bundle.json", *bundle["files"]}
    others = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink())
    others = [name for name in others if name not in known]
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    shown = ", ".join(others[:3]).encode("ascii", "backslashreplace").decode()
    line = f"not looked at, because bundle.json does not list it: {shown}{more}"
    return ["".join(char if char.isprintable() else repr(char)[1:-1] for char in line)] if others else []


def read_checked(folder: Path, *, with_model: bool = True) -> dict[str, Any]:
    """What bundle.json says, after all files were looked at; an ONNX model must ask for no other files.

    Raises:
        Fault: a file is missing or changed.
    """
    bundle = read_bundle(folder)
    try:
        check_files(folder, bundle)
        check_claims(bundle)
        if with_model and bundle["model"].endswith(".onnx"):
            check_external(inside(folder, bundle["model"]).read_bytes(), bundle["files"])
    except (KeyError, TypeError, AttributeError) as err:
        raise Fault(CHANGED, f"bundle.json is damaged: it does not have what a bundle has ({err!r})") from err
    return bundle


def inside(folder: Path, name: str) -> Path:
    """The regular file of that name in the folder.

    Raises:
        Fault: a name that leads elsewhere, a link, or no file.
    """
    parts = PurePosixPath(name).parts
    is_plain = name.isprintable() and "\\" not in name and ":" not in name
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or not is_plain:
        raise Fault(CHANGED, f"{name!r} is no name of a file inside the bundle")
    path = folder
    for part in parts:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except OSError as err:
            raise Fault(CHANGED, f"{name[:200]} is missing: {err.strerror or err}") from err
        if stat.S_ISLNK(mode):
            raise Fault(CHANGED, f"{name} is a symbolic link; a bundle has none")
    if not stat.S_ISREG(mode):
        raise Fault(CHANGED, f"{name} is not a file")
    return path


def sha256(path: Path) -> str:
    """Of a file, read in pieces."""
    found = hashlib.sha256()
    with path.open("rb") as f:
        while piece := f.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def check_external(blob: bytes, files: Mapping[str, Any]) -> None:
    """Tensors of an ONNX model lie in it or in files that are listed.

    Raises:
        Fault: another location, or bytes that are no ONNX model.
    """
    try:
        locations = set(external_files(memoryview(blob), "model"))
    except (ValueError, IndexError, RecursionError) as err:
        raise Fault(CANNOT_LOAD, f"the model is no ONNX file: {err}") from err
    for name in sorted(locations):
        if name not in files:
            raise Fault(CHANGED, f"the model asks for the file {name!r}, which bundle.json does not list")


def external_files(blob: memoryview, kind: str) -> Iterator[str]:
    """The locations of external data in a message of ONNX."""
    for number, content in length_delimited(blob):
        part = PARTS[kind].get(number)
        if part == "external":
            entry = dict(length_delimited(content))
            if bytes(entry.get(1, b"")) == b"location":
                yield bytes(entry.get(2, b"")).decode()
        elif part is not None:
            yield from external_files(content, part)


def length_delimited(blob: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of the fields of a protobuf message that are bytes, text or messages."""
    at = 0
    while at < len(blob):
        tag, at = varint(blob, at)
        kind, size = tag & 7, 0
        if kind in (0, 2):
            size, at = varint(blob, at)
            size = size if kind == 2 else 0
        else:
            size = {1: 8, 5: 4}.get(kind, len(blob))
        if at + size > len(blob):
            raise ValueError(f"a field ends behind its message, at byte {at}")
        if kind == 2:
            yield tag >> 3, blob[at : at + size]
        at += size


def varint(blob: memoryview, at: int) -> tuple[int, int]:
    """A number of protobuf and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (blob[at] & 0x7F) << shift
        at += 1
        if not blob[at - 1] & 0x80:
            return value, at
    raise ValueError(f"a number of more than ten bytes, at byte {at}")


# ---- the comparison


def compare(found: Any, expected: Any) -> tuple[float, float]:
    """Error of the worst row (a vector along the last axis), and of the scale; NaN where one side has a NaN."""
    width = expected.shape[-1] if expected.ndim else 1
    found, expected = found.astype(np.float64).reshape(-1, width), expected.reshape(-1, width)
    if not expected.size:
        return 0.0, 0.0
    finite = np.where(np.isfinite(expected), expected, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.sqrt((finite**2).sum(axis=1))
        typical = math.sqrt(float((sizes**2).mean())) or 1.0  # stands in for a row of zeros
        gap = np.where(found == expected, 0.0, found - expected)  # equal infinities agree
        errors = np.sqrt((gap**2).sum(axis=1)) / np.where(sizes == 0.0, typical, sizes)
        square = float((finite**2).sum())
        gain = abs(float((gap * finite).sum()) / square) if square else float(np.abs(gap).max())
    return float(errors[np.argmax(np.where(np.isnan(errors), np.inf, errors))]), gain


def as_numbers(array: Any, kind: str) -> Any:
    """The numbers that an array means."""
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else array


def judge(
    case: Mapping[str, Any], kinds: Mapping[str, str], found: Arrays, expected: Arrays
) -> tuple[dict[str, float], list[str]]:
    """Error of every output's worst row, and what is wrong in sentences."""
    errors, faults = {}, []
    for name, due in expected.items():
        array, limit, gain_limit = found[name], case["limits"][name], case["gain_limits"].get(name)
        if array.shape != due.shape or array.dtype != RAW[kinds[name]]:
            faults.append(f"{name} is {array.dtype} of shape {array.shape}, it should be {kinds[name]} of {due.shape}")
            errors[name] = math.inf
            continue
        errors[name], gain = compare(as_numbers(array, kinds[name]), due)
        if not errors[name] <= limit:
            faults.append(f"{name} is off by {errors[name]:.3g} in its worst row, {limit:.3g} is allowed")
        elif gain_limit is not None and not gain <= gain_limit:
            faults.append(f"{name} is scaled wrong by {gain:.3g}, {gain_limit:.3g} is allowed")
    return errors, faults


def run_cases(
    folder: Path, bundle: Mapping[str, Any], run: Run
) -> Iterator[tuple[dict[str, Any], dict[str, float], list[str]]]:
    """Every golden case with its errors and what is wrong.

    Raises:
        Fault: the runtime cannot run the model.
    """
    kinds = kinds_of(bundle)
    for case in bundle["golden"]:
        inputs, shapes, expected = read_case(folder, case)
        try:
            found = run(inputs, shapes)
        except failures() as err:
            raise Fault(CANNOT_LOAD, f"{bundle['model']} does not run on {case['file']}: {spoken(err)}") from err
        yield case, *judge(case, kinds, found, expected)


def verify(folder: Path, options: Mapping[str, str], say: Callable[[str], object]) -> int:
    """Check the files, then run every case; tells one line each and what it means, and gives the exit code."""
    try:
        bundle = read_checked(folder)
        wrong, count = 0, 0
        for case, errors, faults in run_cases(folder, bundle, load(folder, bundle, options)):
            shown = ", ".join(f"{n} {e:.3g} of {case['limits'][n]:.3g}" for n, e in errors.items())
            say(f"{case['file']}: {'WRONG: ' + '; '.join(faults) if faults else shown}")
            wrong, count = wrong + bool(faults), count + 1
        for line in unlisted(folder, bundle):
            say(line)
    except Fault as err:
        say(f"{ {USAGE: 'usage', CHANGED: 'changed', CANNOT_LOAD: 'cannot load'}[err.code] }: {err}")
        return err.code
    say(f"drifted: {wrong} of {count} cases are wrong" if wrong else f"right: {count} cases, errors within the limits")
    return DRIFTED if wrong else RIGHT


def parse_options(given: list[str]) -> dict[str, str]:
    """Settings from KEY=VALUE.

    Raises:
        Fault: something else.
    """
    for text in given:
        if not text.partition("=")[0] or "=" not in text:
            raise Fault(USAGE, f"--option must be KEY=VALUE, got {text!r}")
    return dict(text.split("=", 1) for text in given)


def main(arguments: list[str]) -> int:
    """Verify the bundle that this file lies in."""
    parser = argparse.ArgumentParser(description="Check this bundle; exit code 0: right.", epilog="See README.md.")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="setting of the runtime")
    try:
        options = parse_options(parser.parse_args(arguments).option)
    except Fault as err:
        parser.error(str(err))
    return verify(Path(__file__).resolve().parent, options, lambda line: print(line, flush=True))  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
