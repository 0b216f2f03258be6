"""The command that writes a run in another tool's format."""

import json
from typing import Annotated, Literal, cast

import typer

from attnbench import cli_ci, flags
from attnbench.console import complain, say
from attnbench.options import WHERE, Json, single


def convert(
    run_dir: Annotated[str, typer.Argument(help="A folder that bench made.", metavar="RUN_DIR", show_default=False)],
    to: Annotated[str, single("--to", help="Format: pyperf.", metavar="FORMAT", panel=WHERE)],
    out: Annotated[str, single("-o", "--out", help="File to write.", metavar="FILE", panel=WHERE)],
    values: Annotated[
        str,
        single(
            "--values",
            help="Of visits: the median of each; or all calls.",
            metavar="KIND",
            panel=WHERE,
            default="visits",
        ),
    ] = "visits",
    as_json: Json = False,
) -> int:
    """Write the samples of a run for another tool: python -m pyperf compare_to, stats, hist.

    One benchmark per case that is ok. pyperf takes a visit of an arm for a run: its value is the median of the calls.
    """
    path = flags.parse_run_dir("RUN_DIR", run_dir)
    flags.parse_known("--to", to, ("pyperf",))
    kind = cast(Literal["visits", "calls"], flags.parse_known("--values", values, ("visits", "calls")))
    target = flags.parse_file_out("--out", out, example="run.json")
    cli_ci.check_not_of_the_run("--out", target)
    from attnbench import api
    from attnbench.report.pyperf import make_suite

    run = api.open_run(path)
    suite = make_suite(path, run.rows, run.manifest, kind)
    suite.write(target)
    for problem in suite.problems:
        complain(problem)
    facts = {"path": str(target), "benchmarks": suite.count, "problems": suite.problems}
    say(json.dumps(facts, indent=2) if as_json else f"{suite.count} benchmarks: {target}")
    return 0
