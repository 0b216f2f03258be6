"""`attnbench fusion`: what NVIDIA's compiler fuses, asked without a GPU."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench import cli_lint, flags
from attnbench.console import complain, note, say, width
from attnbench.errors import AttnbenchError, InputError
from attnbench.options import HOW, WHAT, WHERE, Json, single, switch

if TYPE_CHECKING:
    from attnbench.fusion.matrix import Matrix, Plan


def fusion(
    context: typer.Context,
    ask: Annotated[
        str | None,
        single("--ask", help="One question, such as fp16,head_dim=80,causal.", metavar="WORDS", panel=WHAT),
    ] = None,
    full: Annotated[
        bool, switch("--full", help="Everything with everything: over 3000 questions.", panel=WHAT)
    ] = False,
    gpu_archs: Annotated[
        str | None,
        single(
            "--gpu-archs",
            help="Architectures.",
            metavar="A,B,...",
            panel=WHAT,
            default="sm75, sm80, sm89, sm120; with --onnx sm89",
        ),
    ] = None,
    seq_len: Annotated[
        str | None,
        single("-s", "--seq-len", "--seq", help="T; the other is 2T.", metavar="T", panel=HOW, default="2048"),
    ] = None,
    out: Annotated[
        str | None,
        single("-o", "--out", help="New folder.", metavar="DIR", panel=WHERE, default="results/fusion-DATE"),
    ] = None,
    resume: Annotated[
        str | None, single("--resume", help="Matrix to finish; no other settings.", metavar="DIR", panel=WHERE)
    ] = None,
    onnx: cli_lint.Onnx = None,
    set_sizes: cli_lint.Set = None,
    bind: cli_lint.Bind = None,
    fail_on: cli_lint.FailOn = None,
    sarif: cli_lint.Sarif = None,
    as_json: Json = False,
    quiet: Annotated[bool, switch("-q", "--quiet", help="No progress.", panel=WHERE)] = False,
) -> int:
    """Does TensorRT-RTX fuse attention? Compiled at T and 2T; no GPU is needed.

    A graph is fused where it builds and the device memory that the compiler plans grows linearly with T. The second
    witness is a strict build of the Attention node; where the two differ, it is shown. With --onnx: is every attention
    of a model fused, and if not, without what would it be? Exit code 1: a worker failed, or --fail-on. 3: tensorrt-rtx
    is not installed, or no attention of the model could be judged.
    """
    if cli_lint.is_asked(context.params):
        return cli_lint.run(context.params)
    given = {"--ask": ask, "--full": full, "--gpu-archs": gpu_archs, "--seq-len": seq_len, "--out": out}
    if resume is not None and (extra := [flag for flag, value in given.items() if value not in (None, False)]):
        raise InputError(f"--resume takes the settings of the matrix; leave out {', '.join(extra)}")
    if ask is not None and (full or out is not None):
        raise InputError("--ask prints its answer and writes nothing; leave out --full and --out")
    from attnbench.fusion import matrix, text

    tell = (lambda line: None) if quiet else note
    if ask is not None:
        found = matrix.run(_plan(ask, full, gpu_archs, seq_len), None, lambda line: None)
        say(json.dumps(found.as_dict(), indent=2) if as_json else text.ask_text(found, width=width()))
        return found.exit_code
    if resume is not None:
        folder = Path(resume)
        plan = matrix.read_plan(folder / matrix.RECORDS)
    else:
        plan = _plan(None, full, gpu_archs, seq_len)
        folder = flags.make_out("fusion", out)
    try:
        found = matrix.run(plan, folder / matrix.RECORDS, tell)
    except KeyboardInterrupt:
        complain(f"what was answered is kept; go on with {_go_on(folder)}")
        raise
    except OSError as err:
        raise AttnbenchError(_cannot_write(err, folder)) from err
    try:
        return _show(found, folder, as_json)
    except OSError as err:
        raise AttnbenchError(_cannot_write(err, folder)) from err


def _go_on(folder: Path) -> str:
    return f"attnbench fusion --resume {shlex.quote(str(folder))}"


def _cannot_write(err: OSError, folder: Path) -> str:
    return f"cannot write to {str(folder)!r}: {err.strerror or err}; mend that, then go on with {_go_on(folder)}"


def _plan(ask: str | None, full: bool, gpu_archs: str | None, seq_len: str | None) -> "Plan":
    """What is asked, checked before anything is made."""
    from attnbench.fusion import matrix, questions
    from attnbench.trt_compiler import ARCHS, parse_archs

    usual = ARCHS if full else matrix.ARCHS
    least = matrix.MIN_SEQ_LEN
    asked = (
        questions.parse_ask(ask)
        if ask is not None
        else questions.full_questions()
        if full
        else questions.default_questions()
    )
    archs = usual if gpu_archs is None else parse_archs(gpu_archs)
    length = matrix.SEQ_LEN
    if seq_len is not None:
        length = flags.parse_int("--seq-len", seq_len, minimum=least, maximum=1 << 16, example=str(length))
    return matrix.Plan(
        version=matrix.installed_version(), archs=tuple(archs), seq_len=length, questions=tuple(asked)
    )  # fmt: skip


def _show(found: "Matrix", folder: Path, as_json: bool) -> int:
    """Write the files beside the records and print the tables."""
    from attnbench.fusion import page, picture, text
    from attnbench.report import tables

    tables.write_text(folder / "fusion.csv", text.matrix_csv(found))
    tables.write_text(folder / "fusion.json", json.dumps(found.as_dict(), indent=1, ensure_ascii=False))
    tables.write_text(folder / "fusion.html", page.matrix_page(found))
    try:
        picture.save(found, folder)
    except ImportError as err:
        complain(f"{err.name or 'matplotlib'} is not installed: no picture; pip install matplotlib")
    if as_json:
        say(json.dumps({"folder": str(folder), "exit_code": found.exit_code, **found.as_dict()}, indent=2))
    else:
        say(text.matrix_text(found, width=width()))
        say(f"\n{found.seconds:.0f} s; the page: {folder / 'fusion.html'}")
    return found.exit_code
