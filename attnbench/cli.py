"""The `attnbench` command: text in, calls of `attnbench.api`, text and an exit code out."""

import io
import json
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import flags, plugins
from attnbench.errors import AttnbenchError, InputError, PluginError, UnavailableError

if TYPE_CHECKING:
    from attnbench.api import Run
    from attnbench.sweep.progress import Progress

MACHINE, INSTRUMENT, RUN = "Is my machine right", "Is the instrument right", "Run"
WHAT, HOW, WHERE = "What is compared", "How it is run", "Where it goes"

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Export attention to ONNX and compare runtimes over T: checked in float64, timed fairly, memory measured.",
    epilog="Exit codes: 0 well, 1 something wrong or failed, 2 bad input, 3 nothing measured, 130 interrupted.",
)

FAILED, BAD_INPUT, NOTHING_MEASURED, INTERRUPTED = 1, 2, 3, 130

_ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # click's, or the copy inside newer typers

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Lists = list[str] | None


def _listed(*names: str, help: str, panel: str = WHAT) -> Any:
    return typer.Option(*names, help=help, metavar="A,B,...", rich_help_panel=panel, show_default=False)


def _single(*names: str, help: str, metavar: str, panel: str = HOW) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


def _switch(*names: str, help: str, panel: str = HOW) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> int:
    if version:
        from attnbench import __version__

        say(f"attnbench {__version__}")
    return 0


@app.command(rich_help_panel=MACHINE)
def doctor(as_json: Json = False) -> int:
    """Machine, versions, every runtime and exporter: available, or why not and what fixes it.

    Exit code 1 when packages are in conflict or nothing could be measured here.
    """
    from attnbench.doctor import diagnose, render

    diagnosis = diagnose()
    say(json.dumps(diagnosis.as_dict(), indent=2) if as_json else render(diagnosis, width=_width(), color=_color()))
    return diagnosis.exit_code


@app.command(rich_help_panel=INSTRUMENT)
def selftest(as_json: Json = False) -> int:
    """The instrument proves itself on this machine: noise, a known difference, memory, overhead (3 minutes)."""
    from attnbench import selftest as instrument

    result = instrument.run(note)
    say(json.dumps(result.as_dict(), indent=2) if as_json else result.text())
    return result.exit_code


@app.command(rich_help_panel=RUN)
def bench(
    context: typer.Context,
    sweep: Annotated[
        str | None, typer.Argument(help="quick, default, full, or a TOML file.", metavar="SWEEP", show_default=False)
    ] = None,
    variants: Annotated[Lists, _listed("--variants", help="self, cross, causal.")] = None,
    part: Annotated[Lists, _listed("--part", "--parts", help="block, core.")] = None,
    seq_lens: Annotated[Lists, _listed("-s", "--seq-lens", help="Lengths T.")] = None,
    kv_lens: Annotated[Lists, _listed("--kv-lens", help="Key lengths of cross; T/2 unless given.")] = None,
    batch_sizes: Annotated[Lists, _listed("-b", "--batch-sizes", help="Batch sizes.")] = None,
    num_heads: Annotated[Lists, _listed("--num-heads", "--heads", help="Numbers of heads.")] = None,
    head_dims: Annotated[Lists, _listed("--head-dims", "--head-dim", help="Sizes of a head.")] = None,
    dtypes: Annotated[Lists, _listed("--dtypes", "--dtype", help="fp32, fp16, bf16.")] = None,
    exporters: Annotated[Lists, _listed("--exporters", help="See attnbench list.")] = None,
    runtimes: Annotated[Lists, _listed("--runtimes", help="See attnbench list.")] = None,
    opset: Annotated[Lists, _listed("--opset", "--opsets", help="Opsets to export; else the exporter's.")] = None,
    baseline: Annotated[str | None, _single("--baseline", help="Arm to compare with.", metavar="ARM")] = None,
    threads: Annotated[str | None, _single("--threads", help="Threads of every arm.", metavar="N")] = None,
    time_budget: Annotated[str | None, _single("--time-budget", help="For the whole run.", metavar="300s")] = None,
    timeout: Annotated[str | None, _single("--timeout", help="For one case.", metavar="60s")] = None,
    memory_limit: Annotated[str | None, _single("--memory-limit", help="Of one worker.", metavar="8GiB")] = None,
    seed: Annotated[str | None, _single("--seed", help="Of inputs and weights.", metavar="N")] = None,
    require: Annotated[Lists, _listed("--require", help="Arms that must be ok, else exit code 1.", panel=HOW)] = None,
    no_oom_skip: Annotated[bool, _switch("--no-oom-skip", help="Try larger T after running out of memory.")] = False,
    dry_run: Annotated[bool, _switch("--dry-run", help="Print the plan and stop.")] = False,
    out: Annotated[str | None, _single("-o", "--out", help="New folder.", metavar="DIR", panel=WHERE)] = None,
    resume: Annotated[
        str | None, _single("--resume", help="Run to finish; no other settings.", metavar="RUN_DIR", panel=WHERE)
    ] = None,
    as_json: Annotated[bool, _switch("--json", help="Print JSON instead of text.", panel=WHERE)] = False,
    quiet: Annotated[bool, _switch("-q", "--quiet", help="No progress.", panel=WHERE)] = False,
) -> int:
    """Compare runtimes over T: right, fast and small at which T. The main job."""
    arguments = flags.bench_arguments(context.params)
    from attnbench import api, terminal

    if dry_run:
        arguments.pop("out", None)
        plan = api.plan(**arguments)
        say(json.dumps(terminal.plan_as_dict(plan), indent=2) if as_json else terminal.plan_text(plan, width=_width()))
        return 0
    run = api.bench(
        **arguments,
        progress=_progress(quiet),
        command=context.obj,
        on_plan=None if quiet else lambda plan: note(terminal.plan_text(plan, width=_width())),
    )
    _show(run, as_json)
    return run.exit_code


@app.command(rich_help_panel=RUN)
def export(
    exporter: Annotated[str, _single("--exporter", help="See attnbench list.", metavar="NAME", panel=WHAT)],
    out: Annotated[str, _single("-o", "--out", help="The .onnx file to write.", metavar="FILE", panel=WHERE)],
    part: Annotated[str, _single("--part", help="block or core.", metavar="PART", panel=WHAT)] = "block",
    variant: Annotated[str, _single("--variant", help="self, cross or causal.", metavar="NAME", panel=WHAT)] = "self",
    num_heads: Annotated[str, _single("--num-heads", "--heads", help="Heads.", metavar="N", panel=WHAT)] = "8",
    head_dim: Annotated[str, _single("--head-dim", help="Size of a head.", metavar="N", panel=WHAT)] = "64",
    dtype: Annotated[str, _single("--dtype", help="fp32, fp16 or bf16.", metavar="DTYPE", panel=WHAT)] = "fp32",
    opset: Annotated[str | None, _single("--opset", help="Else the exporter's.", metavar="N", panel=WHAT)] = None,
    seed: Annotated[str, _single("--seed", help="Of the weights.", metavar="N")] = "0",
    as_json: Annotated[bool, _switch("--json", help="Print JSON instead of text.", panel=WHERE)] = False,
) -> int:
    """Write one attention problem as an ONNX file whose batch size and lengths stay free."""
    arguments: dict[str, Any] = {
        "exporter": flags.parse_plugins("--exporter", "exporter", [exporter]),
        "part": flags.parse_choices("--part", [part], "part"),
        "variant": flags.parse_choices("--variant", [variant], "variant"),
        "num_heads": flags.parse_sizes("--num-heads", [num_heads]),
        "head_dim": flags.parse_sizes("--head-dim", [head_dim]),
        "dtype": flags.parse_choices("--dtype", [dtype], "dtype"),
        "opset": flags.parse_sizes("--opset", None if opset is None else [opset]),
    }
    arguments = {key: flags.only_one(key, values) for key, values in arguments.items()}
    arguments["seed"] = flags.parse_int("--seed", seed, minimum=0, example="0")
    arguments["out"] = flags.parse_file_out("--out", out)
    from attnbench import api

    made = api.export(**arguments)
    facts = {"path": str(made.path), "exporter": made.exporter, "opset": made.opset, "size_bytes": made.size_bytes,
             "sha256": made.sha256, "verified": made.verified, "operators": dict(made.operators)}  # fmt: skip
    say(json.dumps(facts, indent=2) if as_json else "\n".join(f"{key:12}{value}" for key, value in facts.items()))
    return 0


@app.command(rich_help_panel=RUN)
def report(
    run_dir: Annotated[str, typer.Argument(help="A folder that bench made.", metavar="RUN_DIR", show_default=False)],
    as_json: Json = False,
) -> int:
    """Write CSV, plots and HTML of a run again, from its records."""
    path = flags.parse_run_dir("RUN_DIR", run_dir)
    from attnbench import api

    _show(api.rebuild_report(path), as_json)
    return 0


@app.command("list", rich_help_panel=RUN)
def list_plugins(as_json: Json = False) -> int:
    """Exporters and runtimes that are installed, without importing them."""
    groups = {"exporters": plugins.exporters(), "runtimes": plugins.runtimes()}
    if as_json:
        say(
            json.dumps(
                {kind: [asdict(plugin) for plugin in found.values()] for kind, found in groups.items()}, indent=2
            )
        )
        return 0
    for kind, found in groups.items():
        say(kind)
        width = max(map(len, found))
        for plugin in found.values():
            say(f"  {plugin.name:{width}}  {plugin.distribution} {plugin.version}  {plugin.value}")
    say("attnbench doctor tells which of them work on this machine.")
    return 0


def say(text: str) -> None:
    """Print a line; a reader that has gone away, or a closed stdout, is not an error."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (stdout of what is left of this process)


def note(text: str) -> None:
    """Lines on stderr, beside the results on stdout."""
    if sys.stderr is None:
        return
    with suppress(BrokenPipeError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def complain(text: str) -> None:
    """One line on stderr."""
    note("attnbench: " + " ".join(text.split("\n")))


def _show(run: "Run", as_json: bool) -> None:
    from attnbench import terminal

    if as_json:
        say(json.dumps(terminal.run_as_dict(run), indent=2))
        return
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    say(terminal.run_text(run, width=_width(), color=_color(), encoding=encoding))


def _progress(quiet: bool) -> "Progress":
    """A bar in a terminal, a line per finished problem elsewhere; on stderr."""
    from attnbench.sweep.progress import Bar, Lines, Silent

    if quiet:
        return Silent()
    if not sys.stderr.isatty():
        return Lines(note)
    from rich.console import Console

    return Bar(Console(stderr=True))


def _one_sentence(err: Exception) -> str:
    """What click has to say about the command line, with the way out."""
    context = getattr(err, "ctx", None)
    command = getattr(context, "command_path", "attnbench")
    message = err.format_message() if hasattr(err, "format_message") else str(err)
    return f"{message.rstrip('.').strip()}; see {command} --help"


def _width() -> int:
    """Columns of the terminal; 80 without one."""
    return max(40, shutil.get_terminal_size((80, 24)).columns if _is_terminal() else 80)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _color() -> bool:
    return _is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def main(argv: list[str] | None = None) -> int:
    """Run a command; gives the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # A batch system's stop is an interrupt at every stage: what is finished is kept, the exit code is 130.
    with suppress(ValueError):  # not the main thread: the caller owns the signals
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(
            args=argv or ["--help"], prog_name="attnbench", standalone_mode=False, obj=shlex.join(["attnbench", *argv])
        )
    except _ClickException as err:
        complain(_one_sentence(err))
        return BAD_INPUT
    except (InputError, PluginError) as err:
        complain(str(err))
        return BAD_INPUT
    except UnavailableError as err:
        complain(str(err))
        return NOTHING_MEASURED
    except (AttnbenchError, OSError) as err:
        complain(str(err))
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        complain("interrupted")
    return int(code or 0)
