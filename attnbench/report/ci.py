"""What a CI system or an experiment tracker wants of a run: three files, each written whole or not at all."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attnbench.records import Record
from attnbench.report import tables
from attnbench.report.junit import junit_xml
from attnbench.report.markdown import markdown_summary
from attnbench.report.metrics import flat_metrics

Kind = Literal["junit", "markdown", "metrics"]


def write(kind: Kind, path: Path, records: Sequence[Record], manifest: Mapping[str, Any], run_dir: str) -> None:
    """Write one of the files, also of a run that was interrupted or has failures.

    Args:
        kind: which.
        path: the file; replaced as a whole.
        records: judged records.
        manifest: of the run; every key may be missing.
        run_dir: where the run lies, as a person would type it.

    Raises:
        OSError: it cannot be written; an old file stays as it was.
    """
    makers: dict[Kind, Callable[[], str]] = {
        "junit": lambda: junit_xml(records, manifest, run_dir),
        "markdown": lambda: markdown_summary(records, manifest, run_dir),
        "metrics": lambda: json.dumps(flat_metrics(records, manifest), indent=1) + "\n",
    }
    tables.write_text(path, makers[kind]())
