"""A run directory: one manifest, records that are only ever appended whole, samples per problem group."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnbench.errors import InputError, RecordsError
from attnbench.files import only_writer, write_atomically, write_bytes
from attnbench.records import SCHEMA_VERSION, Record, append_records, read_records

RECORDS, MANIFEST = "records.jsonl", "manifest.json"
FOLDERS = ("samples", "plots", "artifacts", "logs")
Samples = Mapping[str, Mapping[int, Mapping[int, list[int]]]]  # case_id -> replica -> round -> latency_ns


class RunDirectory:
    """Paths and atomic writes of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records_path = path / RECORDS
        self.manifest_path = path / MANIFEST
        self.work_path = path / "work"  # references of the group in progress; removed when the run ends

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Make the folders.

        Raises:
            InputError: the path is a file, not writable, or holds something else.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise InputError(f"{str(path)!r} is not empty; name a new folder, or --resume it if it is a run")
            for name in (*FOLDERS, "work"):
                (path / name).mkdir()
        except OSError as err:
            raise InputError(
                f"cannot write the run to {str(path)!r}: {err.strerror}; name another folder with --out"
            ) from err
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """An existing run.

        Raises:
            RecordsError: not a run directory.
        """
        if not (path / MANIFEST).is_file():
            raise RecordsError(f"{str(path)!r} has no {MANIFEST}; name a run directory of attnbench")
        return cls(path)

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else runs in this directory meanwhile: see `attnbench.files.only_writer`."""
        return only_writer(self.path)

    def read_manifest(self) -> dict[str, Any]:
        """The manifest.

        Raises:
            RecordsError: unreadable, or of another schema version.
        """
        try:
            manifest = json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as err:
            raise RecordsError(f"cannot read {str(self.manifest_path)!r}: {err}; start a new run") from err
        version = manifest.get("schema_version") if isinstance(manifest, dict) else None
        if version != SCHEMA_VERSION:
            raise RecordsError(
                f"{str(self.manifest_path)!r} has schema_version {version!r}, this attnbench reads {SCHEMA_VERSION}; "
                "use the attnbench version that wrote it"
            )
        result: dict[str, Any] = manifest
        return result

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest as a whole."""
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        # A command line that was not UTF-8 holds surrogates; backslashes make them JSON's own escapes.
        write_bytes(self.manifest_path, text.encode("utf-8", "backslashreplace"))

    def append(self, problem_id: str, records: Iterable[Record], samples: Samples) -> None:
        """A finished group: first its samples file, then its records in one write."""
        if samples:
            self._write_samples(problem_id, samples)
        append_records(self.records_path, records)

    def read(self) -> tuple[list[Record], list[str]]:
        """All records and notices; none when no group has ended yet."""
        if not self.records_path.exists():
            return [], []
        return read_records(self.records_path)

    def keep_only(self, records: Iterable[Record]) -> None:
        """Rewrite the records as a whole (after a crash: without torn groups)."""
        lines = "".join(r.model_dump_json() + "\n" for r in records)
        write_bytes(self.records_path, lines.encode())

    def _write_samples(self, problem_id: str, samples: Samples) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, list[Any]] = {"case_id": [], "replica": [], "round": [], "sample": []}
        latency_ns: list[int] = []
        for case_id, replicas in samples.items():
            for replica, rounds in replicas.items():
                for number, values in rounds.items():
                    columns["case_id"] += [case_id] * len(values)
                    columns["replica"] += [replica] * len(values)
                    columns["round"] += [number] * len(values)
                    columns["sample"] += range(len(values))
                    latency_ns += values
        table = pa.table(
            {
                "case_id": pa.array(columns["case_id"], pa.string()),
                "replica": pa.array(np.array(columns["replica"], np.int8)),
                "round": pa.array(np.array(columns["round"], np.int16)),
                "sample": pa.array(np.array(columns["sample"], np.int32)),
                "latency_ns": pa.array(np.array(latency_ns, np.int64)),
            }
        )
        target = self.path / "samples" / f"{problem_id}.parquet"
        write_atomically(target, lambda temporary: pq.write_table(table, temporary))
