"""The commands that read finished runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from attnbench import cli_ci, flags
from attnbench.console import complain, say, show_run, width
from attnbench.errors import InputError
from attnbench.options import WHERE, Json, Lists, listed, single


def report(
    run_dirs: Annotated[
        list[str], typer.Argument(help="Folders that bench made.", metavar="RUN_DIR...", show_default=False)
    ],
    out: Annotated[
        str | None, single("-o", "--out", help="A new folder, for several runs.", metavar="DIR", panel=WHERE)
    ] = None,
    as_json: Json = False,
    junit: cli_ci.Junit = None,
    markdown: cli_ci.Markdown = None,
    metrics: cli_ci.Metrics = None,
) -> int:
    """Write CSV, plots and HTML of a run again, from its records; of several runs into one new folder."""
    paths = [flags.parse_run_dir("RUN_DIR", text) for text in run_dirs]
    for_ci = {"junit": junit, "markdown": markdown, "metrics": metrics}
    if len(paths) > 1:
        return _merged_report(paths, out, [f"--{name}" for name, value in for_ci.items() if value], as_json)
    if out is not None:
        raise InputError(f"--out is for several runs, got {out!r}; the report of one run is written into the run")
    files = cli_ci.parse(for_ci, run_dir=paths[0])
    from attnbench import api

    run = api.rebuild_report(paths[0])
    show_run(run, as_json)
    return 0 if cli_ci.write(run, files) else 1


def _merged_report(paths: list[Path], out: str | None, for_one: list[str], as_json: bool) -> int:
    if for_one:
        raise InputError(f"{', '.join(for_one)} is for one run, got {len(paths)} runs; write it for each run")
    target = flags.parse_out("--out", out)
    if target is None:
        raise InputError(
            f"a report of {len(paths)} runs needs a folder of its own; add -o DIR, the runs stay as they are"
        )
    from attnbench.merging import merge

    run = merge(paths, target)
    show_run(run, as_json)
    return 0 if run.is_reported else 1


def diff(
    old: Annotated[str, typer.Argument(help="The run to compare with.", metavar="OLD", show_default=False)],
    new: Annotated[str, typer.Argument(help="The run that is judged.", metavar="NEW", show_default=False)],
    fail_on: Annotated[Lists, listed("--fail-on", help="Exit code 1 when one of these got worse; see above.")] = None,
    as_json: Json = False,
    markdown: Annotated[
        str | None, single("--markdown", help="For a pull request.", metavar="FILE", panel=WHERE)
    ] = None,
) -> int:
    """What changed between two runs: latency beyond noise, wrong answers, memory, kernels, status.

    Categories of --fail-on:
    mismatch: a new wrong answer; status: ran before, does not run now;
    slower: beyond noise; memory: a larger peak; numeric: an error doubled;
    kernel: another kernel, placement or setting of the runtime;
    missing: measured before, not now; drift: most runtimes are slower together.

    Exit code 1: one of them happened. 3: nothing can be compared, or no latency for slower.
    """
    paths = [flags.parse_run_dir(name, text) for name, text in (("OLD", old), ("NEW", new))]
    from attnbench.analysis.diff import CATEGORIES

    categories = flags.parse_names("--fail-on", fail_on, CATEGORIES) or []
    target = None if markdown is None else flags.parse_file_out("--markdown", markdown, example="diff.md")
    from attnbench import api
    from attnbench.report import diff_text

    found = api.diff(*paths)
    if as_json:
        say(json.dumps(diff_text.as_dict(found, categories), indent=2))
    else:
        say(diff_text.terminal_text(found, width=width()))
    is_written = target is None or _write_text(target, diff_text.markdown(found))
    return found.exit_code(categories) or int(not is_written)


def _write_text(path: Path, text: str) -> bool:
    """Write a file; False, and told, when that does not work."""
    from attnbench.report.tables import write_text

    try:
        write_text(path, text)
    except OSError as err:
        complain(f"cannot write {str(path)!r}: {err.strerror or err}; name another file")
        return False
    return True
