"""Block medians of a run, read back from its samples."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def block_medians(
    folder: Path, run_id: str, problem_ids: Iterable[str]
) -> tuple[dict[tuple[str, str], dict[int, float]], list[str]]:
    """(run_id, case_id) -> round -> median of the visit in ns, of each case's first worker; what could not be read.

    Args:
        folder: `samples/` of a run; a problem without a file there has no rounds.
        run_id: of the run.
        problem_ids: which problems to read.

    Raises:
        ImportError: pandas or pyarrow is missing.
    """
    import pandas as pd

    found: dict[tuple[str, str], dict[int, float]] = {}
    problems: list[str] = []
    for problem_id in dict.fromkeys(problem_ids):
        path = folder / f"{problem_id}.parquet"
        if not path.is_file():
            continue
        try:
            table = pd.read_parquet(path, columns=["case_id", "replica", "round", "latency_ns"])
        except (OSError, ValueError, KeyError) as err:
            problems.append(
                f"{path.name}: cannot be read ({str(err).splitlines()[0]}); intervals of the records are used"
            )
            continue
        medians = _medians(table[table["replica"] == 0])
        found |= {(run_id, case_id): of_round for case_id, of_round in medians.items()}
    return found, problems


def _medians(table: "pd.DataFrame") -> dict[str, dict[int, float]]:
    medians = table.groupby(["case_id", "round"])["latency_ns"].median()
    found: dict[str, dict[int, float]] = {}
    for (case_id, number), median in zip(medians.index, medians.to_numpy(), strict=True):
        found.setdefault(str(case_id), {})[int(number)] = float(median)
    return found
