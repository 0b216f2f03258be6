"""The command that turns a case of a run into a zip to paste upstream."""

import json
from pathlib import Path
from typing import Annotated

import typer

from attnbench import cli_ci, flags
from attnbench.console import say
from attnbench.options import WHERE, Json, single

RunDir = Annotated[str, typer.Argument(help="A folder that bench made.", metavar="RUN", show_default=False)]
CaseName = Annotated[
    str,
    typer.Argument(
        help="case_id of records.csv, or the beginning of one, or ARM:VARIANT:T.", metavar="CASE", show_default=False
    ),
]


def repro(
    run_dir: RunDir,
    case: CaseName,
    out: Annotated[
        str | None, single("-o", "--out", help="The zip.", metavar="FILE", panel=WHERE, default="repro-CASE.zip")
    ] = None,
    as_json: Json = False,
) -> int:
    """Turn a case into a zip to paste upstream: model, inputs, expected output, and run.py that shows the error.

    run.py needs only numpy and the runtime. What is long is drawn again from the seed instead of stored.
    """
    path = flags.parse_run_dir("RUN", run_dir)
    target = None if out is None else flags.parse_file_out("--out", out, example="repro.zip")
    if target is not None:
        cli_ci.check_not_of_the_run("--out", target)
    from attnbench import api
    from attnbench.analysis.lookup import find_case, problem_of
    from attnbench.sweep import repro as bundle

    run = api.open_run(path)
    record = find_case(run.rows, case)
    what = bundle.of_record(record, problem_of(record), path, run.manifest)
    target = target or flags.parse_file_out("--out", f"repro-{record.case_id}.zip")
    names = bundle.write(what, target)
    if as_json:
        say(json.dumps({"path": str(target), "case_id": record.case_id, "arm": record.arm, "files": names}, indent=2))
        return 0
    say(f"{target}: {', '.join(names)} ({Path(target).stat().st_size:,} bytes)")
    say(f"{record.arm}, {what.found}. Unpack it and type: python run.py")
    return 0
