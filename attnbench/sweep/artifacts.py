"""Exported files as the parent and its workers tell each other of them."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnbench.errors import AttnbenchError
from attnbench.interfaces import Artifact
from attnbench.model_problem import problem_from_dict


def written_opset(path: Path) -> int | None:
    """The opset of the default domain that a file declares; None: it declares none."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)


def artifact_as_dict(artifact: Artifact) -> dict[str, Any]:
    """The artifact as JSON, with the sha256 of the file as it is on disk.

    Raises:
        AttnbenchError: the exporter's sha256 is not that of the file, or the file is larger than it says.
    """
    found = hashlib.sha256(artifact.path.read_bytes()).hexdigest()
    if artifact.sha256 != found:
        raise AttnbenchError(f"exporter {artifact.exporter} says sha256 {artifact.sha256}, the file has {found}")
    size_bytes = artifact.path.stat().st_size
    if type(artifact.size_bytes) is not int or artifact.size_bytes < size_bytes:
        raise AttnbenchError(
            f"exporter {artifact.exporter} says {artifact.size_bytes} bytes, the file has {size_bytes}"
        )
    return {**asdict(artifact), "path": str(artifact.path), "problem": artifact.problem.as_dict()}


def artifact_from_dict(fields: dict[str, Any] | None) -> Artifact | None:
    """The inverse of `artifact_as_dict`; None stays None."""
    if fields is None:
        return None
    return Artifact(**{**fields, "path": Path(fields["path"]), "problem": problem_from_dict(fields["problem"])})
