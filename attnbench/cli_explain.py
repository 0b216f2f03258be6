"""The command that explains: one row of a run in sentences, or how attention works, with numbers."""

import json
from pathlib import Path
from typing import Annotated

import typer

from attnbench import flags
from attnbench.console import say, width
from attnbench.errors import InputError
from attnbench.options import Json


def explain(
    words: Annotated[
        list[str] | None, typer.Argument(help="RUN CASE: one row of a run.", metavar="[RUN CASE]", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Tell one row of a run in sentences: what ran, is it right, how fast, why this verdict, what is empty.

    CASE is a case_id, its beginning, or ARM:VARIANT:T.
    """
    if words is None or len(words) != 2:
        raise InputError(f"explain takes a run and a case, got {' '.join(words or []) or 'nothing'!r}; add RUN CASE")
    return _explain_case(words[0], words[1], as_json)


def _explain_case(run_dir: str, case: str, as_json: bool) -> int:
    path: Path = flags.parse_run_dir("RUN", run_dir)
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
