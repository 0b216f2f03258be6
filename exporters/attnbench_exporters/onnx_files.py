"""Checking and writing ONNX files: what every exporter does after it has a graph.

A file is written only when the opset is the one asked for, inputs, outputs and dims are what the problem promises and
the checker passes. It appears in one step (a temporary file beside it, then `os.replace`), so that a reader sees the
old file or the new one and a failure leaves nothing behind. The bytes depend on the request alone.
"""

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import ArtifactError, ExportError, FrozenDimError, OpsetError
from attnbench.interfaces import Artifact, Probe
from attnbench.model_problem import ModelProblem
from attnbench.problem import Problem

# Larger models keep their weights in a file beside the .onnx: a protobuf message cannot pass 2 GiB.
EXTERNAL_DATA_BYTES = 1 << 30
_EXTERNAL_TENSOR_BYTES = 1024  # smaller tensors stay in the .onnx, where shape inference needs them
_WEIGHTS_NAME = re.compile(r"weights-[0-9a-f]{16}\.data")

# Oldest releases whose export was seen to be right; 0.5 of onnxscript fails on every export with this torch.
MINIMUM_VERSIONS = {"onnx": "1.19", "onnxscript": "0.6", "torch": "2.9"}


def probe_packages(names: Sequence[str], modules: Sequence[str]) -> Probe:
    """Are the distributions there, new enough and importable? The version is that of the first.

    Args:
        names: distributions, each with an entry in `MINIMUM_VERSIONS`.
        modules: imported one by one, so that a broken package is found here.
    """
    fix = "pip install " + " ".join(f"'{name}>={MINIMUM_VERSIONS[name]}'" for name in names)
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return Probe(available=False, reason=f"the package {name} is not installed", fix=fix)
        if _release(versions[name]) < _release(MINIMUM_VERSIONS[name]):
            reason = f"{name} {versions[name]} is too old; at least {MINIMUM_VERSIONS[name]} is needed"
            return Probe(available=False, version=versions[names[0]], reason=reason, fix=fix)
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as err:  # OSError: a shared library that cannot be loaded
            reason = f"{module} cannot be imported: {err}"
            return Probe(available=False, version=versions[names[0]], reason=reason, fix=fix)
    return Probe(available=True, version=versions[names[0]])


def _release(version: str) -> tuple[int, ...]:
    """(2, 13, 0) of `2.13.0+cpu`; what follows the numbers does not count."""
    return tuple(int(n) for n in re.findall(r"\d+", re.split(r"[+a-z]", version, maxsplit=1)[0])[:3])


def write_artifact(
    model: Any, path: Path, *, exporter: str, problem: Problem | ModelProblem, opset: int, seed: int
) -> Artifact:
    """Check the model, write it at `path` in one step and say what was written.

    Args:
        model: an onnx.ModelProto; it is normalised in place.
        path: where the .onnx goes; its folder exists.
        exporter: its name.
        problem: what the file must compute; batch_size, q_len and kv_len must be symbols in it.
        opset: of the default domain.
        seed: of the weights.

    Raises:
        OpsetError: the model has another opset.
        FrozenDimError: a dim is a number that must be a symbol, or two lengths share one.
        ArtifactError: names, types or the checker disagree.
        ExportError: the file cannot be written.
    """
    check_opset(model, opset)
    rename_dims(model, problem)
    _normalise(model, exporter=exporter, problem=problem, seed=seed)
    try:
        size_bytes, digest = _write(model, path)
    except OSError as err:
        reason = err.strerror or err
        raise ExportError(f"cannot write {str(path)!r}: {reason}; name a folder that can be written") from err
    return Artifact(
        path=path, exporter=exporter, opset=opset, sha256=digest, size_bytes=size_bytes, problem=problem,
        operators=operator_counts(model),
    )  # fmt: skip


def check_opset(model: Any, opset: int) -> None:
    """The default-domain opset in the file is the one asked for.

    Raises:
        OpsetError: with both numbers (torch.onnx answers 13, 26 or 99 with a file of opset 18).
    """
    found = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if found != [opset]:
        inside = " and ".join(map(str, found)) or "none"
        raise OpsetError(f"opset {opset} was asked, the exported file has {inside}; ask for one that is supported")


def set_opset(model: Any, opset: int) -> None:
    """Declare another opset of the default domain; the checker tells whether the operators are of it."""
    for entry in model.opset_import:
        entry.version = opset if entry.domain == "" else entry.version


def operator_counts(model: Any) -> dict[str, int]:
    """How many nodes of each operator, keyed `domain::Op`, the default domain empty."""
    domains = (("" if node.domain == "ai.onnx" else node.domain, node.op_type) for node in model.graph.node)
    return dict(sorted(Counter(f"{domain}::{op}" for domain, op in domains).items()))


def rename_dims(model: Any, problem: Problem | ModelProblem) -> None:
    """Give every dynamic dim the name the problem promises; what is not as promised is an error.

    Raises:
        ArtifactError: other inputs or outputs, element types or fixed sizes than promised.
        FrozenDimError: a number where a symbol is due, or one symbol for two lengths.
    """
    promised = problem.symbolic_dims()
    defaults = {tensor.name for tensor in model.graph.initializer}  # inputs that need not be given
    values = [*(value for value in model.graph.input if value.name not in defaults), *model.graph.output]
    names = [value.name for value in values]
    if names != list(promised):
        raise ArtifactError(f"the file has inputs and output {names}, promised were {list(promised)}")
    renamed: dict[str, str] = {}
    for value in values:
        dims = value.type.tensor_type.shape.dim
        if len(dims) != len(promised[value.name]):
            raise ArtifactError(f"{value.name} has {len(dims)} dims in the file, promised {promised[value.name]}")
        for axis, (dim, due) in enumerate(zip(dims, promised[value.name], strict=True)):
            _rename_dim(dim, due, f"{value.name}, axis {axis}", renamed)


def _rename_dim(dim: Any, due: str | int, where: str, renamed: dict[str, str]) -> None:
    found = dim.dim_param or dim.dim_value
    if isinstance(due, int):
        if found != due:
            raise ArtifactError(f"{where}: the file says {found!r}, promised was {due}")
        return
    if not dim.dim_param:
        raise FrozenDimError(f"{where}: {due} is the number {dim.dim_value} in the file, it must be a symbol")
    if renamed.setdefault(dim.dim_param, due) != due:
        raise FrozenDimError(f"{where}: {due} and {renamed[dim.dim_param]} are one symbol {found!r} in the file")
    dim.dim_param = due


def _normalise(model: Any, *, exporter: str, problem: Problem | ModelProblem, seed: int) -> None:
    """Drop stack traces, paths and shapes in the exporter's own symbols; say what the file is."""
    del model.graph.value_info[:]
    model.doc_string = model.graph.doc_string = ""
    model.graph.name = "attnbench"
    holders = [model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output]
    for holder in [*holders, *model.graph.initializer]:
        del holder.metadata_props[:]
        holder.doc_string = ""
    sizes = ("batch_size", "q_len", "kv_len")
    fixed = {key: value for key, value in problem.as_dict().items() if key not in sizes}
    facts = {"exporter": exporter, "problem": json.dumps(fixed, sort_keys=True), "seed": str(seed)}
    facts |= {package: importlib.metadata.version(package) for package in MINIMUM_VERSIONS}
    for key, text in sorted(facts.items()):
        entry = model.metadata_props.add()
        entry.key, entry.value = f"attnbench.{key}", text


def _write(model: Any, path: Path) -> tuple[int, str]:
    """Write and check; sizes with external data, and the SHA-256 of the .onnx (which names its data by hash)."""
    old_weights = external_files(path)
    new_weights: set[str] = set()
    weights_size = 0
    with contextlib.ExitStack() as undo:
        if weights_bytes(model) > EXTERNAL_DATA_BYTES:
            weights_path, weights_size = _write_weights(model, path)
            new_weights = {weights_path.name}
            if not new_weights & old_weights:
                undo.callback(weights_path.unlink, missing_ok=True)
        blob = model.SerializeToString(deterministic=True)
        with _atomic(path) as temporary:
            temporary.write_bytes(blob)
            _check(temporary)
        undo.pop_all()
    _remove_weights(path, old_weights - new_weights)
    return len(blob) + weights_size, hashlib.sha256(blob).hexdigest()


def _check(path: Path) -> None:
    """Run onnx's checker with shape inference on the file.

    Raises:
        ArtifactError: with the first line of what it says.
    """
    import onnx

    try:
        onnx.checker.check_model(os.fspath(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as err:
        raise ArtifactError(f"onnx's checker refuses the exported file: {str(err).strip().splitlines()[0]}") from err


@contextlib.contextmanager
def _atomic(path: Path) -> Iterator[Path]:
    """A temporary file in the folder of `path` that takes its place when the block ends well, else is removed."""
    temporary = path.with_name(f".attnbench-{secrets.token_hex(8)}.tmp")
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def weights_bytes(model: Any) -> int:
    """Bytes of all initializers."""
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def _write_weights(model: Any, path: Path) -> tuple[Path, int]:
    """Move large tensors to a file beside `path`, named by its content and by `path`; its path and size.

    The name is plain ASCII whatever the .onnx is called, and two models in one folder never share a file.
    """
    from onnx import TensorProto

    tensors = [t for t in model.graph.initializer if len(t.raw_data) >= _EXTERNAL_TENSOR_BYTES]
    digest = hashlib.sha256(os.fsencode(path.name))
    for tensor in tensors:
        digest.update(tensor.raw_data)
    target = path.with_name(f"weights-{digest.hexdigest()[:16]}.data")
    offset = 0
    with _atomic(target) as temporary, temporary.open("wb") as f:
        for tensor in tensors:
            length = f.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            _set_entries(tensor.external_data, location=target.name, offset=str(offset), length=str(length))
            offset += length
        f.flush()
    return target, offset


def _set_entries(entries: Any, **values: str) -> None:
    del entries[:]
    for key, value in values.items():
        entry = entries.add()
        entry.key, entry.value = key, value


def external_files(path: Path) -> set[str]:
    """Names of the weight files that the .onnx at `path` refers to; empty where there is none or no ONNX file."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        tensors: Iterable[Any] = onnx.load(path, load_external_data=False).graph.initializer
    except (OSError, DecodeError):
        return set()
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}


def _remove_weights(path: Path, names: Iterable[str]) -> None:
    """Remove the weights that the file at `path` used before, unless another model in the folder needs them."""
    for name in names:
        neighbours = (other for other in path.parent.glob("*.onnx") if other != path)
        if _WEIGHTS_NAME.fullmatch(name) and not any(name in external_files(other) for other in neighbours):
            path.with_name(name).unlink(missing_ok=True)
