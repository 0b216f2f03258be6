"""The commands that read finished runs."""

from typing import Annotated

import typer

from attnbench import flags
from attnbench.console import show_run
from attnbench.options import Json


def report(
    run_dir: Annotated[str, typer.Argument(help="A folder that bench made.", metavar="RUN_DIR", show_default=False)],
    as_json: Json = False,
) -> int:
    """Write CSV, plots and HTML of a run again, from its records."""
    path = flags.parse_run_dir("RUN_DIR", run_dir)
    from attnbench import api

    show_run(api.rebuild_report(path), as_json)
    return 0
