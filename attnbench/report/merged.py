"""Several runs in one report: a manifest that holds each run's own, and how the parts of a report find theirs."""

import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.records import SCHEMA_VERSION, Record


class MergedRun(NamedTuple):
    """One of the runs of a merged report."""

    name: str
    folder: str  # as a person would type it
    manifest: Mapping[str, Any]
    records: Sequence[Record]


def merged_manifest(runs: Mapping[Path, Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """The manifest of a report over several runs: what a part of it says of one run is looked up in `merged`.

    Args:
        runs: judged manifests by run directory, in the order in which they are shown.
        more: further keys, such as the command.
    """
    names = run_folder_names(list(runs))
    manifests = list(runs.values())
    floors = [m["noise_floor"] for m in manifests if m.get("noise_floor") is not None]
    deltas = [m["delta"] for m in manifests if m.get("delta") is not None]
    baselines = {m.get("baseline_arm") for m in manifests}
    return {
        "schema_version": SCHEMA_VERSION,
        "merged": [
            {"run_id": m["run_id"], "name": names[path], "folder": shlex.quote(str(path)), "manifest": m}
            for path, m in runs.items()
        ],
        "interrupted": False,
        "sweep": {"name": "merged", "runtimes": [], "require": []},
        "baseline_arm": baselines.pop() if len(baselines) == 1 else None,
        # One figure for what looks at no run in particular: nothing that any of the runs would not call a difference.
        "noise_floor": max(floors) if len(floors) == len(manifests) else None,
        "delta": max(deltas, default=None),
        "noise_pairs": sum(m.get("noise_pairs") or 0 for m in manifests),
        "notices": [f"{names[path]}: {text}" for path, m in runs.items() for text in m.get("notices") or []],
        **more,
    }


def run_folder_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Each folder's name, with as many of its parents as it takes to tell the folders apart."""
    whole = {path: Path(os.path.abspath(path)).parts for path in paths}  # noqa: PTH100 (links stay as they are named)
    names = {path: parts[-1] for path, parts in whole.items()}
    for depth in range(2, max(map(len, whole.values()), default=0) + 1):
        taken = list(names.values())
        for path in paths:
            if taken.count(names[path]) > 1:
                names[path] = "/".join(whole[path][-depth:])
    return names


def run_names(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What the runs of a merged report are called, by run_id; empty for a single run."""
    return {run["run_id"]: run["name"] for run in manifest.get("merged") or ()}


def manifest_of(manifest: Mapping[str, Any], run_id: str | None) -> Mapping[str, Any]:
    """The run's own manifest: its noise floor, machine peak, runtimes; the given one where it is of a single run."""
    for run in manifest.get("merged") or ():
        if run["run_id"] == run_id:
            own: Mapping[str, Any] = run["manifest"]
            return own
    return manifest


def folder_of(manifest: Mapping[str, Any], run_id: str, otherwise: str) -> str:
    """Where a run of a merged report lies, as a person would type it; of a single run what is given."""
    return next((run["folder"] for run in manifest.get("merged") or () if run["run_id"] == run_id), otherwise)


def runs_of(manifest: Mapping[str, Any], records: Iterable[Record] = ()) -> list[MergedRun]:
    """The runs of a merged report, each with its own records; none for a single run."""
    rows: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        rows[record.run_id].append(record)
    return [
        MergedRun(run["name"], run["folder"], run["manifest"], rows[run["run_id"]])
        for run in manifest.get("merged") or ()
    ]
