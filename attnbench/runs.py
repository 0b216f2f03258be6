"""A run directory, read: what `attnbench.api` gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.analysis.groups import make_panels
from attnbench.analysis.kernels import with_kernels
from attnbench.errors import InputError, RecordsError
from attnbench.measure import verdicts
from attnbench.records import FAILED, Record
from attnbench.sweep.rundir import RunDirectory

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from attnbench.analysis.arm_laws import ArmLaws
    from attnbench.analysis.crossovers import Pair, Rounds


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run directory, read. Verdicts are computed from its records when it is opened."""

    path: Path
    rows: list[Record]
    manifest: Mapping[str, Any]
    notices: list[str] = field(default_factory=list)
    is_reported: bool = True  # False: records.csv or report.html could not be written; `notices` say why
    sources: Mapping[str, Path] = field(default_factory=dict)  # of a merged report: run directories by run_id

    @property
    def records(self) -> "pd.DataFrame":
        """One row per case, the columns of records.csv."""
        import pandas as pd

        return pd.DataFrame([r.model_dump() for r in self.rows], columns=list(Record.model_fields))

    def samples(self, case_id: str, run_id: str | None = None) -> "pd.DataFrame":
        """Raw samples of a case: replica, round, sample, latency_ns.

        Args:
            case_id: of the records.
            run_id: of which run, in a merged report where several have the case.

        Raises:
            InputError: no such case, several, or it was not timed.
        """
        import pandas as pd

        rows = [r for r in self.rows if r.case_id == case_id and run_id in (None, r.run_id)]
        if not rows:
            where = f" of run {run_id!r}" if run_id else ""
            raise InputError(f"no case {case_id!r}{where} in {self.path}; the column case_id of records names them")
        if len(rows) > 1:
            raise InputError(
                f"several runs have case {case_id!r}; give run_id too: {', '.join(r.run_id for r in rows)}"
            )
        row = rows[0]
        path = self.sources.get(row.run_id, self.path) / "samples" / f"{row.problem_id}.parquet"
        if row.sample_count is None or not path.exists():
            raise InputError(f"case {case_id!r} has no samples: status {row.status}, {row.reason or 'not timed'}")
        table = pd.read_parquet(path)
        return table[table["case_id"] == case_id].drop(columns="case_id").reset_index(drop=True)

    def block_medians(self) -> "Rounds":
        """(run_id, case_id) -> round -> median of the visit in ns; what cannot be read is left out."""
        from attnbench.report.decisions import read_rounds

        return read_rounds(self.sources or self.path, make_panels(self.rows), most=None)[0]

    def laws(self) -> "dict[tuple[int, str], ArmLaws]":
        """(number of the chart in the report, arm) -> its laws of latency and memory over T."""
        from attnbench.analysis.arm_laws import arm_laws

        floor = self.manifest.get("noise_floor")
        return {(p.number, arm): law for p in make_panels(self.rows) for arm, law in arm_laws(p, floor).items()}

    def crossovers(self) -> "dict[int, list[Pair]]":
        """Number of the chart in the report -> the pairs that matter, with their differences and crossings."""
        from attnbench.analysis.crossovers import pairs

        rounds, floor = self.block_medians(), self.manifest.get("noise_floor")
        return {p.number: pairs(p, floor, rounds) for p in make_panels(self.rows)}

    def plot(self, kind: str = "latency", variant: str | None = None) -> "Figure":
        """A matplotlib figure of the run: `latency`, `memory`, `error` or `roofline` against T.

        Raises:
            InputError: an unknown kind, or a variant that the run does not have.
        """
        from attnbench.report.merged import run_names
        from attnbench.report.pictures import plot

        return plot(self.rows, kind, variant, run_names(self.manifest))

    @property
    def missing(self) -> list[Record]:
        """Rows of what was asked for by name and is unavailable: a runtime of --runtimes, an engine."""
        names = (self.manifest.get("sweep") or {}).get("runtimes", ())
        return [r for r in self.rows if r.status == "unavailable" and (r.runtime in names or r.exporter == "engine")]

    @property
    def exit_code(self) -> int:
        """0 decided; 1 a failure, a required arm not ok, or no report; 3 nothing measured; 130 interrupted."""
        if self.manifest["interrupted"]:
            return 130
        if not self.is_reported:
            return 1
        sweep = self.manifest["sweep"]
        if self.missing or not any(r.status in ("ok", "mismatch", "compiled") for r in self.rows):
            return 3
        if any(r.status in FAILED for r in self.rows):
            return 1
        for name in sweep["require"]:
            if any(r.status != "ok" for r in self.rows if name in (r.arm, r.runtime)):
                return 1
        return 0


def open_run(path: str | Path) -> Run:
    """Read a run directory.

    Raises:
        RecordsError: not a run, of another version, or damaged.
    """
    run_dir = RunDirectory.open(Path(path))
    manifest = run_dir.read_manifest()
    records, notices = run_dir.read()
    unique = {r.case_id: r for r in records}
    if len(unique) != len(records):
        raise RecordsError(f"{run_dir.records_path} has a case twice; start a new run")
    judged, floor = verdicts.judge(verdicts.with_peak_fraction(records, manifest["machine_peak"]))
    judged = with_kernels(judged)
    manifest |= {"noise_floor": floor.floor, "delta": floor.delta, "noise_pairs": floor.pairs}
    return Run(path=Path(path), rows=judged, manifest=manifest, notices=notices)
