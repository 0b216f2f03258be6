"""The command that explains: one row of a run in sentences, or how attention works, with numbers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench import flags
from attnbench.console import say, width
from attnbench.errors import InputError
from attnbench.options import HOW, WHAT, WHERE, Json, Lists, listed, single

if TYPE_CHECKING:
    from attnbench.explain.shapes import Subject


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="A topic, or RUN CASE; nothing: all topics.", metavar="[TOPIC | RUN CASE]", show_default=False
        ),
    ] = None,
    preset: Annotated[
        str | None, single("--preset", help="Shape to count.", metavar="NAME", panel=WHAT, default="gpt3")
    ] = None,
    num_heads: Annotated[
        str | None, single("--num-heads", "--heads", help="Or heads.", metavar="N", panel=WHAT)
    ] = None,
    head_dim: Annotated[str | None, single("--head-dim", help="Size of a head.", metavar="N", panel=WHAT)] = None,
    num_kv_heads: Annotated[
        str | None, single("--num-kv-heads", "--kv-heads", help="Heads of keys and values.", metavar="N", panel=WHAT)
    ] = None,
    seq_lens: Annotated[
        Lists, listed("-s", "--seq-lens", help="Lengths T of topic grid.", default="1000, 10000, 100000")
    ] = None,
    seed: Annotated[str | None, single("--seed", help="Of what is drawn.", metavar="N", panel=HOW, default="0")] = None,
    out: Annotated[
        str | None, single("-o", "--out", help="Write PNG and HTML there.", metavar="DIR", panel=WHERE)
    ] = None,
    as_json: Json = False,
) -> int:
    """How attention works, with numbers that are computed here; or one row of a run in sentences.

    RUN CASE tells what ran, is it right, how fast, why this verdict, and why cells are empty; CASE is a case_id, its
    beginning, or ARM:VARIANT:T. Topics: example, scale, mask, parameters, low-rank, grid, presets.
    """
    given = {"--preset": preset, "--num-heads": num_heads, "--head-dim": head_dim, "--num-kv-heads": num_kv_heads,
             "--seq-lens": seq_lens, "--seed": seed, "--out": out}  # fmt: skip
    if words and len(words) == 2:
        if extra := [flag for flag, value in given.items() if value]:
            raise InputError(f"explain RUN CASE takes no {', '.join(extra)}; leave it out, or name a topic")
        return _explain_case(words[0], words[1], as_json)
    if as_json:
        raise InputError("--json is for explain RUN CASE; leave it out for a topic")
    from attnbench.explain import shapes, topics

    if words and len(words) == 1 and words[0] not in topics.TOPICS and Path(words[0]).is_dir():
        raise InputError(_which_case(words[0]))
    if words and (len(words) > 2 or words[0] not in topics.TOPICS):
        known = ", ".join(topics.TOPICS)
        raise InputError(f"explain takes a topic ({known}), or a run and a case, got {' '.join(words)!r}")
    subject = shapes.make_subject(
        preset,
        lengths=_lengths(seq_lens),
        seed=_number("--seed", seed, 0),
        num_heads=_number("--num-heads", num_heads),
        head_dim=_number("--head-dim", head_dim),
        num_kv_heads=_number("--num-kv-heads", num_kv_heads),
    )
    return _explain_topics(words or [], subject, out)


def _explain_topics(words: list[str], subject: "Subject", out: str | None) -> int:
    from attnbench.explain import pictures, topics

    names = words or list(topics.TOPICS)
    folder = None if out is None else _folder(out)
    say("\n\n".join([*([] if words else [topics.contents()]), *(topics.screen(name, subject) for name in names)]))
    if folder is not None:
        say("\nwritten: " + ", ".join(str(path) for path in pictures.write(folder, subject, names)))
    return 0


def _number(flag: str, text: str | None, minimum: int = 1) -> int | None:
    return None if text is None else flags.parse_int(flag, text, minimum=minimum, example="8")


def _lengths(given: Lists) -> tuple[int, ...] | None:
    sizes = flags.parse_sizes("--seq-lens", given)
    return None if sizes is None else tuple(sizes)


def _folder(text: str) -> Path:
    """A folder to write into, which may have other things in it; made where it is not there.

    Raises:
        InputError: a file, or no place to write.
    """
    path = flags.parse_file_out("--out", str(Path(text) / "lesson.html"), new_folder=Path(text)).parent
    try:
        path.mkdir(exist_ok=True)
    except OSError as err:
        raise InputError(f"--out {text!r} cannot be made: {err.strerror}; name another folder") from err
    return path


def _which_case(run_dir: str) -> str:
    """How to name a case of a run.

    Raises:
        InputError: the folder is not a run, or has no case.
    """
    path = _run_dir(run_dir)
    from attnbench import api
    from attnbench.analysis.lookup import short_name

    rows = api.open_run(path).rows
    if not rows:
        raise InputError(f"run {run_dir!r} has no case to explain; finish it with attnbench bench --resume")
    return (
        f"explain {run_dir} needs a CASE too: a case_id, from records.csv or the table of all cases in report.html, or "
        f"ARM:VARIANT:T; for example {rows[0].case_id} or {short_name(rows[0])}"
    )


def _run_dir(text: str) -> Path:
    """A folder of bench; one of conform has other cells and another command.

    Raises:
        InputError: it is neither.
    """
    if (Path(text) / "conform.json").is_file():
        raise InputError(
            f"{text!r} is a matrix of conform, whose cells conform.html explains; attnbench repro {text} ARM:PROBE "
            "makes a zip of one"
        )
    path: Path = flags.parse_run_dir("RUN", text)
    return path


def _explain_case(run_dir: str, case: str, as_json: bool) -> int:
    path = _run_dir(run_dir)
    from attnbench import api
    from attnbench.analysis.lookup import find_case
    from attnbench.report import case_text

    run = api.open_run(path)
    record = find_case(run.rows, case)
    if as_json:
        say(json.dumps(case_text.as_dict(record, run.manifest, run_dir), indent=2))
    else:
        say(case_text.case_text(record, run.manifest, run_dir, width=width()))
    return 0
