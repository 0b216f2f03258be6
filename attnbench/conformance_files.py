"""The part of `attnbench.conformance` that looks at exported files."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnbench.errors import AttnbenchError
from attnbench.interfaces import Artifact, Exporter
from attnbench.problem import Problem

Require = Callable[[object, str, str], None]
IMPOSSIBLE_OPSET = 99


def check_artifact(
    where: str, exporter: Exporter, artifact: Artifact, problem: Problem, opset: int, require: Require
) -> None:
    """The artifact describes the file, and the file has the opset, names and symbols that were promised."""
    require(artifact.exporter == exporter.name, where, f"artifact.exporter is {artifact.exporter!r}")
    require(artifact.opset == opset, where, f"opset {opset} was asked, artifact.opset is {artifact.opset}")
    require(artifact.path.is_file(), where, f"there is no file at {artifact.path}")
    same = artifact.problem.static_key() == problem.static_key()
    require(same, where, "artifact.problem is another problem than the one asked")
    digest = hashlib.sha256(artifact.path.read_bytes()).hexdigest()
    require(artifact.sha256 == digest, where, f"artifact.sha256 is {artifact.sha256}, the file has {digest}")
    size = sum(file.stat().st_size for file in artifact.path.parent.iterdir())
    words = f"artifact.size_bytes is {artifact.size_bytes}, the folder holds {size} bytes: something else was left"
    require(artifact.size_bytes == size, where, words)
    require(artifact.operators, where, "artifact.operators is empty")
    if artifact.path.suffix == ".onnx":
        _check_onnx(where, artifact, problem, opset, require)


def _check_onnx(where: str, artifact: Artifact, problem: Problem, opset: int, require: Require) -> None:
    import onnx

    model = onnx.load(artifact.path, load_external_data=False)
    found = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    require(found == [opset], where, f"opset {opset} was asked, the file has {found}")
    dims = {value.name: _dims(value) for value in [*model.graph.input, *model.graph.output]}
    promised = problem.symbolic_dims()
    require(list(dims.items()) == list(promised.items()), where, f"the file has {dims}, promised was {promised}")
    counts: dict[str, int] = {}
    for node in model.graph.node:
        key = f"{'' if node.domain == 'ai.onnx' else node.domain}::{node.op_type}"
        counts[key] = counts.get(key, 0) + 1
    words = f"artifact.operators is {dict(artifact.operators)}, the file has {counts}"
    require(dict(artifact.operators) == counts, where, words)


def _dims(value: Any) -> tuple[str | int, ...]:
    return tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)


def check_again(where: str, exporter: Exporter, artifact: Artifact, seed: int, require: Require) -> None:
    """The same request gives the same bytes and leaves nothing more; another seed gives other weights."""
    before = {file.name for file in artifact.path.parent.iterdir()}
    problem = artifact.problem
    assert isinstance(problem, Problem)  # what `export` was given
    again = exporter.export(problem, artifact.opset, artifact.path, seed=seed)
    require(again.sha256 == artifact.sha256, where, "the same request gave other bytes the second time")
    after = {file.name for file in artifact.path.parent.iterdir()}
    require(after == before, where, f"exporting again left {sorted(after - before)} behind")
    if problem.part == "block":
        other = artifact.path.with_name("other-seed.onnx")
        changed = exporter.export(problem, artifact.opset, other, seed=seed + 1)
        require(changed.sha256 != artifact.sha256, where, "another seed gave the same weights")
        for name in {file.name for file in other.parent.iterdir()} - before:
            other.with_name(name).unlink()


def check_refusals(where: str, exporter: Exporter, problem: Problem, folder: Path, require: Require) -> None:
    """An opset that nobody has is refused, in supports() and in export(), and nothing is left behind."""
    support = exporter.supports(problem, IMPOSSIBLE_OPSET)
    refused = not support.ok and bool(support.reason)
    require(refused, where, f"supports() must refuse opset {IMPOSSIBLE_OPSET} with a reason, got {support}")
    before = sorted(folder.iterdir())
    for opset, path in ((IMPOSSIBLE_OPSET, folder / "x.onnx"), (exporter.opsets[0], folder / "missing" / "x.onnx")):
        try:
            exporter.export(problem, opset, path, seed=0)
        except AttnbenchError:
            pass
        else:
            require(False, where, f"export() at opset {opset} to {path} must raise an ExportError")
        require(sorted(folder.iterdir()) == before, where, f"a failed export left files in {folder}")
