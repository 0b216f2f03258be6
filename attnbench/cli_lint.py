"""`attnbench fusion --onnx MODEL.onnx`: its flags, and what it prints and writes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attnbench import flags
from attnbench.console import complain, note, say, width
from attnbench.errors import InputError
from attnbench.model_flags import parse_bind, parse_set
from attnbench.options import Lists, repeated, single

if TYPE_CHECKING:
    from attnbench.fusion.lint_report import LintReport

LINT = "A model of your own instead"
FAIL_ON = ("unfused",)
MIN_SEQ_LEN, MAX_SEQ_LEN = 512, 1 << 16  # below, one matrix of scores is no more than what is beside it
BAD_FILE = 1

Onnx = Annotated[str | None, single("--onnx", help="An ONNX file to lint.", metavar="FILE", panel=LINT)]
Set = Annotated[Lists, repeated("--set", help="A free dim has this size; a batch is 1.", metavar="NAME=8", panel=LINT)]
Bind = Annotated[Lists, repeated("--bind", help="A free dim follows T: T, T/2, T+1.", metavar="NAME=T", panel=LINT)]
FailOn = Annotated[
    str | None, single("--fail-on", help="Exit code 1 where attention is unfused.", metavar="unfused", panel=LINT)
]
Sarif = Annotated[str | None, single("--sarif", help="SARIF 2.1.0 to write.", metavar="FILE", panel=LINT)]

_BESIDE = {"set_sizes": "--set", "bind": "--bind", "fail_on": "--fail-on", "sarif": "--sarif"}
_OF_MATRIX = {"ask": "--ask", "full": "--full", "out": "--out", "resume": "--resume"}


def is_asked(params: Mapping[str, Any]) -> bool:
    """Is a model named?

    Raises:
        InputError: something is said about a model that is not named, or about the matrix beside one.
    """
    beside = [flag for name, flag in _BESIDE.items() if params[name] not in (None, [], ())]
    if params["onnx"] is None and beside:
        raise InputError(f"{', '.join(beside)} is about a model of yours; name it with --onnx FILE")
    others = [flag for name, flag in _OF_MATRIX.items() if params[name] not in (None, False)]
    if params["onnx"] is not None and others:
        raise InputError(f"{', '.join(others)} is for the matrix, not for a model of yours; leave it out")
    return params["onnx"] is not None


def run(params: Mapping[str, Any]) -> int:
    """Lint the model, print what was found, and give the exit code.

    Raises:
        InputError: the first flag that is wrong, or sizes that the model cannot have.
        AttnbenchError: as `attnbench.fusion.linter.lint`.
    """
    path = flags.parse_path("--onnx", params["onnx"])
    if not path.is_file():
        raise InputError(f"--onnx must be a file that exists, got {params['onnx']!r}; name an ONNX file")
    fail_on = params["fail_on"]
    if fail_on is not None and fail_on not in FAIL_ON:
        raise InputError(f"--fail-on must be {', '.join(FAIL_ON)}, got {fail_on!r}; write --fail-on unfused")
    sarif = _sarif(params["sarif"], path)
    options = _options(params)
    from attnbench.fusion.linter import lint

    report = lint(path, _sizes(params["set_sizes"]), say=(lambda line: None) if params["quiet"] else note, **options)
    say(json.dumps(report.as_dict(), indent=2) if params["as_json"] else report.text(width()))
    code = report.exit_code(fail_on)
    if code and not params["as_json"]:
        complain(_why(report))
    return code if sarif is None or _write_sarif(report, sarif) else code or BAD_FILE


def _sarif(given: str | None, model: Path) -> Path | None:
    """Where SARIF goes.

    Raises:
        InputError: no file can be there, or the model is.
    """
    if given is None:
        return None
    path = flags.parse_file_out("--sarif", given, example="fusion.sarif")
    if path.exists() and path.samefile(model):
        raise InputError(f"--sarif {given!r} is the model itself and would replace it; name another file")
    return path


def _options(params: Mapping[str, Any]) -> dict[str, Any]:
    from attnbench.trt_compiler import parse_archs

    found: dict[str, Any] = {"bind": parse_bind(params["bind"])}
    if params["gpu_archs"] is not None:
        found["archs"] = parse_archs(params["gpu_archs"])
    if params["seq_len"] is not None:
        found["seq_len"] = flags.parse_int(
            "--seq-len", params["seq_len"], minimum=MIN_SEQ_LEN, maximum=MAX_SEQ_LEN, example="2048"
        )
    return found


def _sizes(given: Sequence[str] | None) -> dict[str, int]:
    """One size for every free dim that is set.

    Raises:
        InputError: several.
    """
    found = parse_set(given)
    for name, sizes in found.items():
        if len(sizes) > 1:
            shown = ",".join(map(str, sizes))
            raise InputError(f"--set {name}={shown} has {len(sizes)} sizes, a model is linted at one; give one of them")
    return {name: sizes[0] for name, sizes in found.items()}


def _why(report: "LintReport") -> str:
    """One sentence for an exit code that is not 0."""
    bad = [region for region in report.regions if region.verdict in ("unfused", "refused")]
    if not report.regions:
        return "exit code 3: no attention was found, so nothing was judged"
    if not any(region.verdict != "unknown" for region in report.regions):
        return f"exit code 3: none of {len(report.regions)} attention regions could be judged; see the notes above"
    return f"exit code 1: {len(bad)} of {len(report.regions)} attention regions are not fused"


def _write_sarif(report: "LintReport", path: Path) -> bool:
    """False: it could not be written, which is told."""
    from attnbench.files import write_bytes
    from attnbench.fusion.sarif import as_sarif

    try:
        write_bytes(path, json.dumps(as_sarif(report), indent=1).encode())
    except OSError as err:
        complain(f"cannot write --sarif {str(path)!r}: {err.strerror or err}; name another file")
        return False
    return True
