"""What `bench` and `report` leave for CI: three more files, and one sentence for an exit code that is not 0."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attnbench import flags
from attnbench.console import complain
from attnbench.errors import InputError
from attnbench.options import WHERE, single

if TYPE_CHECKING:
    from attnbench.api import Run
    from attnbench.report.ci import Kind

Junit = Annotated[str | None, single("--junit", help="JUnit XML to write.", metavar="FILE", panel=WHERE)]
Markdown = Annotated[str | None, single("--markdown", help="Summary to write.", metavar="FILE", panel=WHERE)]
Metrics = Annotated[str | None, single("--metrics", help="Flat JSON to write.", metavar="FILE", panel=WHERE)]

Files = Mapping["Kind", Path]
_EXAMPLES: Mapping["Kind", str] = {"junit": "attnbench.xml", "markdown": "summary.md", "metrics": "metrics.json"}


def parse(params: Mapping[str, Any], *, run_dir: Path | None) -> Files:
    """The files that were asked for, checked before anything runs.

    Args:
        params: `junit`, `markdown` and `metrics`, as typer gives them; None: not asked for.
        run_dir: of the run; a file may lie in it before it is made, and must not be one of its own.

    Raises:
        InputError: a place that cannot be written to, a file of the run itself, or one file for two flags.
    """
    found: dict[Kind, Path] = {}
    for kind, example in _EXAMPLES.items():
        if (text := params.get(kind)) is None:
            continue
        path = flags.parse_file_out(f"--{kind}", text, example=example, new_folder=run_dir)
        check_not_of_the_run(f"--{kind}", path)
        for other, taken in found.items():
            if taken.absolute() == path.absolute():
                raise InputError(f"--{other} and --{kind} are both {text!r}; give each a file of its own")
        found[kind] = path
    return found


def write(run: "Run", files: Files) -> bool:
    """Write the files, also of a run with failures; False when one could not be written, which is told."""
    from attnbench.report import ci

    is_written = True
    for kind, path in files.items():
        try:
            ci.write(kind, path, run.rows, run.manifest, shlex.quote(str(run.path)))
        except OSError as err:
            complain(f"cannot write --{kind} {str(path)!r}: {err.strerror or err}; write it again with report")
            is_written = False
    return is_written


def finish(run: "Run", files: Files) -> int:
    """Write the files of a bench, say why its exit code is not 0, and give the code."""
    from attnbench.terminal import exit_sentence

    is_written = write(run, files)
    if sentence := exit_sentence(run):
        complain(sentence)
    return run.exit_code or int(not is_written)


def check_not_of_the_run(flag: str, path: Path) -> None:
    """Refuse to write over what a run consists of.

    Raises:
        InputError: the file is called as one of a run's own.
    """
    from attnbench.sweep.rundir import FOLDERS, MANIFEST, RECORDS

    own = {MANIFEST, RECORDS, "records.csv", "records.parquet", "samples.parquet", "report.html", "work", *FOLDERS}
    if path.name in own:
        raise InputError(f"{flag} must not be called {path.name!r}, as a file of a run is; name another file")
