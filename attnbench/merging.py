"""Several finished runs, of one machine or of several, in one report."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from attnbench.api import Run, open_run
from attnbench.errors import InputError
from attnbench.report.merged import merged_manifest


def merge(paths: Sequence[str | Path], out: str | Path) -> Run:
    """One report of several runs in a new folder: records.csv, records.parquet, plots/, report.html.

    Every run keeps its own noise floor, verdicts and sets of fastest arms; runs never share a chart. The run
    directories are only read.

    Raises:
        InputError: fewer than two runs, a run twice, or a folder that cannot be made or has something in it.
        RecordsError: not a run, of another version, or damaged.
    """
    from attnbench.report.build import build_report

    runs = [open_run(path) for path in paths]
    sources = _sources(runs)
    folder = Path(out)
    _make_merged_folder(folder, sources.values())
    command = shlex.join(["attnbench", "report", *(str(run.path) for run in runs), "-o", str(folder)])
    manifest = merged_manifest({run.path: run.manifest for run in runs}, command=command)
    names = {run["run_id"]: run["name"] for run in manifest["merged"]}
    notices = [f"{names[run.manifest['run_id']]}: {notice}" for run in runs for notice in run.notices]
    rows = [row for run in runs for row in run.rows]
    files = build_report(folder, rows, manifest, notices, sources)
    return Run(
        path=folder, rows=rows, manifest=manifest, notices=[*notices, *files.problems], sources=sources,
        is_reported=files.csv is not None and files.html is not None,
    )  # fmt: skip


def _sources(runs: Sequence[Run]) -> dict[str, Path]:
    """The run directories by run_id.

    Raises:
        InputError: fewer than two, or the same run twice.
    """
    if len(runs) < 2:
        raise InputError(f"a merged report needs at least two runs, got {len(runs)}; rebuild_report is for one")
    sources: dict[str, Path] = {}
    for run in runs:
        run_id = run.manifest["run_id"]
        if run_id in sources:
            raise InputError(
                f"{str(sources[run_id])!r} and {str(run.path)!r} are the same run ({run_id}); name each run once"
            )
        sources[run_id] = run.path
    return sources


def _make_merged_folder(folder: Path, sources: Iterable[Path]) -> None:
    """Make the folder of a merged report.

    Raises:
        InputError: it lies in one of the runs, has something in it, or cannot be made.
    """
    for source in sources:
        if folder.resolve().is_relative_to(source.resolve()):
            raise InputError(
                f"{str(folder)!r} lies in the run {str(source)!r}, which is only read; name another folder"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{str(folder)!r} is not empty; name a new folder for the report")
    except OSError as err:
        raise InputError(f"cannot write the report to {str(folder)!r}: {err.strerror}; name another folder") from err
