"""The commands that read finished runs."""

from typing import Annotated

import typer

from attnbench import cli_ci, flags
from attnbench.console import show_run
from attnbench.options import Json


def report(
    run_dir: Annotated[str, typer.Argument(help="A folder that bench made.", metavar="RUN_DIR", show_default=False)],
    as_json: Json = False,
    junit: cli_ci.Junit = None,
    markdown: cli_ci.Markdown = None,
    metrics: cli_ci.Metrics = None,
) -> int:
    """Write CSV, plots and HTML of a run again, from its records."""
    path = flags.parse_run_dir("RUN_DIR", run_dir)
    files = cli_ci.parse({"junit": junit, "markdown": markdown, "metrics": metrics}, run_dir=path)
    from attnbench import api

    run = api.rebuild_report(path)
    show_run(run, as_json)
    return 0 if cli_ci.write(run, files) else 1
