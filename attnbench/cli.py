"""The `attnbench` command: text in, calls of `attnbench.api`, text and an exit code out."""

import io
import json
import shlex
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench import (
    cli_advise,
    cli_ci,
    cli_conform,
    cli_convert,
    cli_deploy,
    cli_explain,
    cli_fusion,
    cli_model,
    cli_repro,
    cli_runs,
    flags,
    plugins,
)
from attnbench.console import color, complain, note, say, show_run, width
from attnbench.errors import AttnbenchError, InputError, PluginError, UnavailableError
from attnbench.options import (
    DECIDE,
    HOW,
    INSTRUMENT,
    MACHINE,
    RUN,
    WHAT,
    WHERE,
    Json,
    Lists,
    PlainHelp,
    PlainHelpGroup,
    listed,
    single,
    switch,
)

if TYPE_CHECKING:
    from attnbench.sweep.progress import Progress

app = typer.Typer(
    cls=PlainHelpGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Export attention to ONNX and compare runtimes over T: checked in float64, timed fairly, memory measured.",
    epilog="Exit codes: 0 well, 1 something wrong or failed, 2 bad input, 3 nothing measured, 130 interrupted.",
)

FAILED, BAD_INPUT, NOTHING_MEASURED, INTERRUPTED = 1, 2, 3, 130

_ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # click's, or the copy inside newer typers


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", metavar="", show_default=False)
    ] = False,
) -> int:
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
    say(json.dumps(diagnosis.as_dict(), indent=2) if as_json else render(diagnosis, width=width(), color=color()))
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
        str | None,
        typer.Argument(
            help=r"quick, default, full, or a TOML file. [dim]\[default: default][/dim]",
            metavar="SWEEP",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None, single("--preset", help="Shapes of a model; see explain presets.", metavar="NAME", panel=WHAT)
    ] = None,
    variants: Annotated[Lists, listed("--variants", help="self, cross, causal, decode.", default="all")] = None,
    part: Annotated[Lists, listed("--part", "--parts", help="block, core.", default="block")] = None,
    seq_lens: Annotated[
        Lists, listed("-s", "--seq-lens", help="Lengths T.", default="128, 256, 512, 1024, 2048, 4096")
    ] = None,
    kv_lens: Annotated[Lists, listed("--kv-lens", help="Key lengths of cross.", default="T/2")] = None,
    q_lens: Annotated[Lists, listed("--q-lens", help="New tokens of a decode step.")] = None,
    batch_sizes: Annotated[Lists, listed("-b", "--batch-sizes", help="Batch sizes.", default="1")] = None,
    num_heads: Annotated[Lists, listed("--num-heads", "--heads", help="Numbers of heads.", default="8")] = None,
    head_dims: Annotated[Lists, listed("--head-dims", "--head-dim", help="Sizes of a head.", default="64")] = None,
    num_kv_heads: Annotated[Lists, listed("--num-kv-heads", "--kv-heads", help="Heads of keys and values.")] = None,
    v_head_dims: Annotated[Lists, listed("--v-head-dims", "--v-head-dim", help="Sizes of a value head.")] = None,
    masks: Annotated[Lists, listed("--masks", "--mask", help="Such as key_padding, alibi.")] = None,
    scale: Annotated[str | None, single("--scale", help="Of the scores.", metavar="X", panel=WHAT)] = None,
    bias: Annotated[bool, switch("--bias", help="Projections with bias.", panel=WHAT)] = False,
    value_map: Annotated[
        str | None, single("--value-map", help="joint or low_rank.", metavar="NAME", panel=WHAT)
    ] = None,
    dtypes: Annotated[Lists, listed("--dtypes", "--dtype", help="fp32, fp16, bf16.", default="fp32")] = None,
    exporters: Annotated[Lists, listed("--exporters", help="See attnbench list.", default="the built-in ones")] = None,
    runtimes: Annotated[
        Lists,
        listed(
            "--runtimes",
            help="See attnbench list; also NAME@PYTHON.",
            default="torch-eager, torch-sdpa, ort-cpu, openvino",
        ),
    ] = None,
    opset: Annotated[Lists, listed("--opset", "--opsets", help="Opsets to export.", default="the exporter's")] = None,
    options: Annotated[
        Lists, listed("--options", "--option", help="Of a runtime: torch-sdpa:backend=math.", default="none")
    ] = None,
    gpu_archs: Annotated[
        str | None,
        single("--gpu-archs", help="Compile for, without a GPU.", metavar="sm89,sm120", panel=WHAT, default="sm89"),
    ] = None,
    onnx: cli_model.Onnx = None,
    module: cli_model.Module = None,
    inputs: cli_model.Inputs = None,
    engine: cli_model.Engine = None,
    bind: cli_model.Bind = None,
    set_sizes: cli_model.Set = None,
    shapes: cli_model.Shapes = None,
    load_inputs: cli_model.LoadInputs = None,
    save_outputs: cli_model.SaveOutputs = None,
    baseline: Annotated[
        str | None,
        single("--baseline", help="Arm to compare with; NAME:fp32 for dtypes.", metavar="ARM", default="torch-sdpa"),
    ] = None,
    device: Annotated[
        str | None, single("--device", help="auto, cpu or cuda:0.", metavar="NAME", default="CUDA if it works")
    ] = None,
    gpu_workers: Annotated[
        str | None,
        single("--gpu-workers", help="parked, or one-at-a-time on it.", metavar="HOW", default="parked if they fit"),
    ] = None,
    fp32: Annotated[
        str | None, single("--fp32", help="strict, or default: TF32 on GPUs.", metavar="POLICY", default="strict")
    ] = None,
    threads: Annotated[
        str | None, single("--threads", help="Threads of every arm.", metavar="N", default="cores - 1")
    ] = None,
    time_budget: Annotated[
        str | None, single("--time-budget", help="For the whole run.", metavar="315s", default="315s")
    ] = None,
    timeout: Annotated[str | None, single("--timeout", help="For one case.", metavar="60s", default="60s")] = None,
    memory_limit: Annotated[
        str | None, single("--memory-limit", help="Of one worker.", metavar="8GiB", default="none")
    ] = None,
    seed: Annotated[str | None, single("--seed", help="Of inputs and weights.", metavar="N", default="0")] = None,
    require: Annotated[Lists, listed("--require", help="Arms that must be ok, else exit code 1.", panel=HOW)] = None,
    no_oom_skip: Annotated[bool, switch("--no-oom-skip", help="Try larger T after running out of memory.")] = False,
    refine: Annotated[bool, switch("--refine", help="Spend part of the time on T near crossings.")] = False,
    memory_budget: Annotated[
        str | None, single("--memory-budget", help="Report the longest T in it.", metavar="8GiB")
    ] = None,
    measure_frontier: Annotated[bool, switch("--measure-frontier", help="Find that T by trying.")] = False,
    stress: Annotated[bool, switch("--stress", help="Check on inputs that are hard to compute with, too.")] = False,
    dry_run: Annotated[bool, switch("--dry-run", help="Print the plan and stop.")] = False,
    out: Annotated[
        str | None, single("-o", "--out", help="New folder.", metavar="DIR", panel=WHERE, default="results/SWEEP-DATE")
    ] = None,
    resume: Annotated[
        str | None, single("--resume", help="Run to finish; no other settings.", metavar="RUN_DIR", panel=WHERE)
    ] = None,
    as_json: Annotated[bool, switch("--json", help="Print JSON instead of text.", panel=WHERE)] = False,
    quiet: Annotated[bool, switch("-q", "--quiet", help="No progress.", panel=WHERE)] = False,
    junit: cli_ci.Junit = None,
    markdown: cli_ci.Markdown = None,
    metrics: cli_ci.Metrics = None,
) -> int:
    """Compare runtimes over T: right, fast and small at which T. The main job.

    What no flag says comes from SWEEP; the defaults below are those of SWEEP default.

    With --onnx, --module or --engine a model of yours is compared: --bind and --set size its dims.
    """
    is_model = cli_model.is_asked(context.params)
    arguments = (cli_model.arguments if is_model else flags.bench_arguments)(context.params)
    files = cli_ci.parse(context.params, run_dir=arguments.get("out"))
    from attnbench import api, terminal

    if dry_run:
        arguments.pop("out", None)
        plan = api.plan(**arguments)
        say(json.dumps(terminal.plan_as_dict(plan), indent=2) if as_json else terminal.plan_text(plan, width=width()))
        return 0
    run = api.bench(
        **arguments,
        progress=_progress(quiet),
        command=context.obj,
        on_plan=None if quiet else lambda plan: note(terminal.plan_text(plan, width=width())),
    )
    show_run(run, as_json)
    return cli_ci.finish(run, files)


app.command(rich_help_panel=RUN)(cli_deploy.export)
app.command(rich_help_panel=RUN)(cli_deploy.verify)


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


app.command(rich_help_panel=INSTRUMENT)(cli_conform.conform)
app.command(rich_help_panel=DECIDE)(cli_runs.report)
app.command(rich_help_panel=DECIDE)(cli_advise.advise)
app.command(rich_help_panel=DECIDE)(cli_convert.convert)
app.command(rich_help_panel=DECIDE)(cli_runs.diff)
app.command(rich_help_panel=DECIDE)(cli_explain.explain)
app.command(rich_help_panel=DECIDE)(cli_fusion.fusion)
app.command(rich_help_panel=DECIDE)(cli_repro.repro)
app.command("compare", hidden=True)(cli_runs.diff)
for _command in app.registered_commands:
    _command.cls = PlainHelp


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
