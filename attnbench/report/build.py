"""All files of a report, the most precious first; what cannot be made is said, not raised."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnbench.analysis.crossovers import Rounds
from attnbench.analysis.groups import Panel, make_panels
from attnbench.records import COMPILES_ONLY, Record
from attnbench.report import compiled_text, figures, precisions, tables
from attnbench.report.decisions import decisions, read_rounds
from attnbench.report.html import by_interest, render
from attnbench.report.merged import run_names, runs_of
from attnbench.report.page_data import make_explorer
from attnbench.report.pictures import draw_all
from attnbench.report.sections import Section


@dataclass(kw_only=True)
class ReportFiles:
    """Paths of what was written (None: it was not, `problems` says why)."""

    csv: Path | None = None
    parquet: Path | None = None
    samples: Path | None = None
    html: Path | None = None
    plots: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def build_report(
    run_dir: Path, records: list[Record], manifest: Mapping[str, Any], notices: Sequence[str] = (),
    sources: Mapping[str, Path] | None = None,
) -> ReportFiles:  # fmt: skip
    """Write records.csv, records.parquet, samples.parquet, plots/ and report.html into `run_dir`, each atomically.

    Args:
        run_dir: an existing run directory; samples/ in it may be missing or partial.
        records: judged records (verdict and fastest are filled).
        manifest: of the run; every key may be missing.
        notices: what reading the run already had to say; shown in the report.
        sources: of a merged report the run directories, by run_id; their samples are read there and stay there.
    """
    files = ReportFiles()
    files.csv = _attempt(files, run_dir / "records.csv", lambda path: tables.write_csv(path, records))
    files.parquet = _attempt(files, run_dir / "records.parquet", lambda path: tables.write_parquet(path, records))
    problem_ids = {r.problem_id for r in records}

    def merge(path: Path) -> None:
        files.problems += tables.merge_samples(run_dir / "samples", path, problem_ids)

    if sources is None:
        files.samples = _attempt(files, run_dir / "samples.parquet", merge)
    panels = make_panels(records, run_names(manifest))
    pictures = draw_all(run_dir, panels, sources)
    files.problems += pictures.problems
    files.plots = [run_dir / "plots" / f"{p.name}.{ending}" for p in pictures.drawn for ending in ("svg", "png")]
    explorer = None
    if all(panel.has_x for panel in panels):
        shown = [r for r in by_interest(records) if COMPILES_ONLY not in r.flags]
        explorer = make_explorer(run_dir if sources is None else sources, shown, panels, manifest)
        files.problems += [p for p in explorer.problems if p not in files.problems]
    rounds, unread = read_rounds(run_dir if sources is None else sources, panels)
    files.problems += [p for p in unread if p not in files.problems]
    decided = [
        *precisions.sections(records, manifest),
        *_decide(panels, manifest, rounds),
        *_compiled(files, run_dir, records),
    ]
    said = [*notices, *files.problems]
    name = (run_dir if run_dir.name not in ("", "..") else run_dir.resolve()).name  # a link keeps its own
    page = render(name, records, manifest, panels, pictures, said, decided, explorer=explorer)
    files.html = _attempt(files, run_dir / "report.html", lambda path: tables.write_text(path, page))
    return files


def _decide(panels: Sequence[Panel], manifest: Mapping[str, Any], rounds: Rounds) -> list[Section]:
    """The sections; of several runs each run's own, since each has its own noise, peak and limits."""
    runs = runs_of(manifest)
    if not runs:
        return decisions(panels, manifest, rounds)
    found = []
    for i, run in enumerate(runs, 1):
        mine = [panel for panel in panels if panel.facet.run_id == run.manifest["run_id"]]
        sections = decisions(mine, run.manifest, rounds)
        found += [replace(s, id=f"{s.id}-{i}", title=f"{s.title}: {run.name}") for s in sections]
    return found


def _compiled(files: ReportFiles, run_dir: Path, records: Sequence[Record]) -> list[Section]:
    """The section of what was only compiled, with its picture where it can be drawn."""
    section = compiled_text.compiled_section(records)
    if section is None:
        return []
    try:
        with figures.plotting():
            figure = compiled_text.draw(records)
            svg = None if figure is None else figures.save(figure, run_dir / "plots", compiled_text.PICTURE)
    except ImportError as err:
        files.problems.append(f"{err.name} is not installed: no picture of planned memory; pip install {err.name}")
        return [section]
    except OSError as err:
        files.problems.append(f"cannot write the picture of planned memory: {err.strerror or err}")
        return [section]
    if svg is None:
        return [section]
    files.plots += [run_dir / "plots" / f"{compiled_text.PICTURE}.{ending}" for ending in ("svg", "png")]
    return [replace(section, picture=compiled_text.PICTURE, svg=figures.inline_svg(svg, section.title))]


def _attempt(files: ReportFiles, path: Path, write: Callable[[Path], None]) -> Path | None:
    """Write one file; give its path if it is there afterwards."""
    try:
        write(path)
    except ImportError as err:
        files.problems.append(f"{err.name} is not installed: no {path.name}; pip install {err.name}")
        return None
    except OSError as err:
        files.problems.append(
            f"cannot write {path}: {err.strerror or err}; make the folder writable and run report again"
        )
        return None
    return path if path.is_file() else None
