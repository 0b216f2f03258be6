"""The command that turns a case of a run into a zip to paste upstream."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench import cli_ci, flags
from attnbench.console import say
from attnbench.options import WHERE, Json, single

if TYPE_CHECKING:
    from attnbench.sweep.repro import Bundle

RunDir = Annotated[str, typer.Argument(help="A folder that bench or conform made.", metavar="RUN", show_default=False)]
CaseName = Annotated[
    str,
    typer.Argument(help="Which; see above.", metavar="CASE", show_default=False),
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

    CASE is a case_id, its beginning, or ARM:VARIANT:T; of a folder that conform wrote it is ARM:PROBE.
    run.py needs only numpy and the runtime. What is long is drawn again from the seed instead of stored.
    """
    target = None if out is None else flags.parse_file_out("--out", out, example="repro.zip")
    if target is not None:
        cli_ci.check_not_of_the_run("--out", target)
    from attnbench.sweep import repro_cell

    if (Path(run_dir) / repro_cell.MATRIX).is_file():
        return _of_matrix(Path(run_dir), case, target, as_json)
    path = flags.parse_run_dir("RUN", run_dir)
    from attnbench import api
    from attnbench.analysis.lookup import find_case, problem_of
    from attnbench.sweep import repro as bundle

    run = api.open_run(path)
    record = find_case(run.rows, case)
    what = bundle.of_record(record, problem_of(record), path, run.manifest)
    return _write(what, target, record.case_id, as_json)


def _of_matrix(folder: Path, case: str, target: Path | None, as_json: bool) -> int:
    """A cell of a matrix, by ARM:PROBE."""
    import tempfile

    from attnbench.problem import digest
    from attnbench.sweep import repro_cell

    matrix, cell = repro_cell.find_cell(folder, case)
    with tempfile.TemporaryDirectory(prefix="attnbench-repro-") as scratch:
        what = repro_cell.of_cell(cell, matrix["versions"], Path(scratch))
        return _write(what, target, digest([cell["arm"], cell["probe"]]), as_json)


def _write(what: "Bundle", target: Path | None, case_id: str, as_json: bool) -> int:
    from attnbench.sweep import repro as bundle

    target = target or flags.parse_file_out("--out", f"repro-{case_id}.zip")
    names = bundle.write(what, target)
    if as_json:
        say(json.dumps({"path": str(target), "case_id": case_id, "arm": what.arm, "files": names}, indent=2))
        return 0
    say(f"{target}: {', '.join(names)} ({target.stat().st_size:,} bytes)")
    python = "python" if what.elsewhere is None else shlex.quote(what.elsewhere["python"])
    say(f"{what.arm}, {what.found}. Unpack it and type: {python} run.py")
    return 0
