"""One case of a run as a zip to paste upstream: model, inputs, expected output, a script without attnbench."""

import io
import json
import math
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from attnbench import interpreters
from attnbench.errors import InputError, RecordsError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Array
from attnbench.measure import numerics
from attnbench.problem import Problem
from attnbench.reference import reference_new_cache, reference_output, sample_rows
from attnbench.sweep import repro_run
from attnbench.sweep.oracle import judged_rows
from attnbench.sweep.repro_text import readme

MAX_STORED_BYTES = 50_000_000  # of inputs and weights; beyond they are drawn from the seed
MAX_EXPECTED_BYTES = 25_000_000
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same case gives the same bytes


class Bundle(Protocol):
    """What `write` makes a zip of."""

    @property
    def elsewhere(self) -> Mapping[str, str] | None:
        """The interpreter that ran it, where it is not ours."""

    @property
    def arm(self) -> str:
        """What ran it."""

    @property
    def found(self) -> str:
        """What was found, in a sentence."""

    def files(self) -> Iterator[tuple[str, bytes | Path]]:
        """Name and content of every file inside."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What goes into the zip."""

    problem: Problem
    arm: str
    runtime: str
    threads: int
    seed: int
    input_class: str
    model: Path | None  # None: torch runs the block
    error: float | None  # as recorded
    limit: float
    gain_limit: float | None
    found: str  # what was found, in a sentence
    versions: Mapping[str, Any]
    inputs: Mapping[str, Array] | None = None  # None: drawn from the seed and the class
    options: Mapping[str, str] = field(default_factory=dict)  # that the runtime was asked for
    rows: Sequence[int] | None = None  # that are judged; None: as the judge of a run
    elsewhere: Mapping[str, str] | None = None  # where another interpreter ran it: its python, and versions

    def files(self) -> Iterator[tuple[str, bytes | Path]]:
        """Every file of the zip."""
        return _files(self)


def found_in(cell: Mapping[str, Any]) -> str:
    """What a matrix found in a cell, in a sentence."""
    return f"{cell['verdict']}: {cell['how']}" if cell["how"] else str(cell["verdict"])


def of_record(record: Any, problem: Problem, run_dir: Path, manifest: Mapping[str, Any]) -> Reproduction:
    """The reproduction of a row of a run.

    Raises:
        InputError: a runtime or device without a script, or a case that never had a file.
        RecordsError: the file of the run is gone or another one.
    """
    r = record
    plugin = interpreters.base(r.runtime)
    if plugin not in repro_run.RUNNERS:
        known = ", ".join(repro_run.RUNNERS)
        raise InputError(f"case {r.case_id} ran in {plugin}, for which there is no script; there is one for {known}")
    if r.device not in (None, "cpu"):
        raise InputError(
            f"case {r.case_id} ran on {r.device}, and run.py computes on the CPU, where it would show nothing of that; "
            "bench it with --device cpu and name that case"
        )
    elsewhere = _elsewhere(r, manifest)
    input_class = _input_class(r)
    is_peaked = input_class == "peaked"
    limit = r.peaked_worst_row_limit if is_peaked else r.worst_row_limit
    if limit is None:
        limit = numerics.tolerances()[r.part, r.dtype, input_class].ceiling
    environment = manifest.get("environment") or {}
    return Reproduction(
        problem=problem, arm=r.arm, runtime=plugin, threads=r.threads or manifest.get("threads") or 1, seed=r.seed,
        input_class=input_class, model=_model(r, problem, run_dir),
        error=r.peaked_worst_row_rel_err if is_peaked else r.worst_row_rel_err, limit=limit,
        gain_limit=None if is_peaked else r.gain_limit,
        options=r.runtime_options, elsewhere=elsewhere, found=f"{r.status}: {r.reason}" if r.reason else r.status,
        versions={
            "attnbench": r.attnbench_version, plugin: r.runtime_version, **_packages(r, manifest),
            "machine": environment.get("machine"), "os": environment.get("os"), "device_name": r.device_name,
        },
    )  # fmt: skip


def _interpreter(r: Any, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the run noted of the interpreter that a row ran under; empty for our own."""
    row = (manifest.get("runtimes") or {}).get(r.runtime) or {}
    found: Mapping[str, Any] = row.get(interpreters.TRAIT) or {}
    return found


def _elsewhere(r: Any, manifest: Mapping[str, Any]) -> dict[str, str] | None:
    _, python = interpreters.split(r.runtime)
    if not python:
        return None
    told = _interpreter(r, manifest).get("python_version") or "not noted"
    return {"python": python, "python_version": told, "runtime_version": r.runtime_version or ""}


def _packages(r: Any, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The versions that were there: where another interpreter ran it, those of its environment."""
    if not interpreters.split(r.runtime)[1]:
        return {"packages": manifest.get("versions") or {}}
    found = _interpreter(r, manifest)
    return {"packages": dict(found.get("versions") or {}), "python": found.get("python_version")}


def _input_class(r: Any) -> str:
    """The class of inputs that shows the fault: peaked ones where only they do."""

    def is_over(error: float | None, limit: float | None) -> bool:
        return error is not None and limit is not None and not error <= limit

    normal_is_over = is_over(r.worst_row_rel_err, r.worst_row_limit) or is_over(r.gain_err, r.gain_limit)
    return (
        "peaked" if is_over(r.peaked_worst_row_rel_err, r.peaked_worst_row_limit) and not normal_is_over else "normal"
    )


def _model(r: Any, problem: Problem, run_dir: Path) -> Path | None:
    """The file that the arm ran, which must still be the one of the record."""
    import hashlib

    if r.exporter == "torch":
        return None
    path = run_dir / "artifacts" / f"{r.exporter}-opset{r.opset}-{problem.static_key()}.onnx"
    if r.artifact_sha256 is None:
        raise InputError(f"case {r.case_id} never had a file: {r.status}, {r.reason or 'no reason was kept'}")
    if not path.is_file():
        raise RecordsError(
            f"the file of case {r.case_id} is not in the run: {str(path)!r}; run bench again to write it"
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != r.artifact_sha256:
        raise RecordsError(f"{str(path)!r} has sha256 {found}, the record {r.artifact_sha256}; run bench again")
    return path


def write(what: Bundle, target: Path) -> list[str]:
    """Write the zip, whole or not at all; gives the names inside.

    Raises:
        OSError: the file cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name[:50]}-") as folder:
        temporary = Path(folder) / "repro.zip"
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, content in what.files():
                _add(archive, name, content, zipfile.ZIP_DEFLATED)
            names = archive.namelist()
        temporary.chmod(0o644)
        temporary.replace(target)
    return names


def _files(what: Reproduction) -> Iterator[tuple[str, bytes | Path]]:
    inputs = what.inputs
    if inputs is None:
        inputs = make_inputs(what.problem, seed=what.seed, input_class=what.input_class)
    weights = make_weights(what.problem, seed=what.seed)
    needed = weights if what.model is None else {}
    size = sum(array.nbytes for array in (*inputs.values(), *needed.values()))
    case = _case(what, is_stored=what.inputs is not None or size <= MAX_STORED_BYTES, weights=needed)
    yield "README.md", readme(what.found, case, what.model is not None, what.elsewhere).encode()
    yield "run.py", Path(repro_run.__file__).read_bytes()
    yield "case.json", as_json(case)
    yield "versions.json", as_json(what.versions)
    if case["stored"]:
        yield "inputs.npz", as_npz(inputs)
        if needed:
            yield "weights.npz", as_npz(needed)
    else:
        _require_same(case, {"inputs": inputs, "weights": needed})
    rows = _rows(what.problem) if what.rows is None else np.array(what.rows)
    expected = reference_output(what.problem, inputs, weights, rows=rows)
    is_decode = what.problem.variant == "decode"
    cache = reference_new_cache(what.problem, inputs, weights) if is_decode else {}
    yield "expected.npz", as_npz({"y": expected, "rows": rows, **cache})
    if what.model is not None:
        yield "model.onnx", what.model
        for data in _external(what.model):
            yield data.name, data


def _case(what: Reproduction, *, is_stored: bool, weights: Mapping[str, Array]) -> dict[str, Any]:
    """What run.py reads."""
    p, mask = what.problem, what.problem.masking
    cache_limit = numerics.tolerances()["block", p.dtype, "normal"].ceiling
    factor = 2.0 if what.input_class == "peaked" else 1.0
    specs = {
        name: {"shape": list(shape), "kind": kind, "draw": "normal", "std": 1.0 if name in ("v", "mask") else factor}
        for (name, shape), kind in zip(p.input_shapes().items(), p.input_kinds().values(), strict=True)
    }
    if mask.form is not None:
        specs["mask"]["draw"] = "bool" if mask.form.is_bool else "alibi" if mask.tensor == "alibi" else "normal"
    return {
        "label": f"{p.label()}, H={p.num_heads} D={p.head_dim}, {what.input_class} inputs, seed {what.seed}",
        "arm": what.arm, "runtime": what.runtime, "threads": what.threads, "options": dict(what.options),
        "dtype": p.dtype, "part": p.part, "variant": p.variant,
        "mask": p.mask, "rule": mask.rule if mask.position else "", "window": mask.window,
        "scale": p.scale, "value_map": p.value_map, "num_heads": p.num_heads,
        "num_kv_heads": p.num_kv_heads, "seed": what.seed,
        "attention": "eager" if what.runtime == "torch-eager" else "sdpa", "compiled": what.runtime == "torch-compile",
        "stored": is_stored, "inputs": specs, "weights": {name: _weight(array, p) for name, array in weights.items()},
        "outputs": {
            name: {"shape": list(shape), "kind": p.dtype, "limit": cache_limit}
            for name, shape in p.output_shapes().items()
        },
        "recorded_error": what.error, "limit": what.limit, "gain_limit": what.gain_limit,
    }  # fmt: skip


def _weight(array: Array, problem: Problem) -> dict[str, Any]:
    std = 0.5 if array.ndim == 1 else 1.0 / math.sqrt(array.shape[0])
    return {"shape": list(array.shape), "kind": problem.dtype, "draw": "normal", "std": std}


def _require_same(case: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Array]]) -> None:
    """What run.py draws from the seed is what was run, bit for bit."""
    for which, of_kind in arrays.items():
        for name, array in of_kind.items():
            drawn = repro_run.draw(case["seed"], name, case[which][name])
            if drawn.tobytes() != array.tobytes():
                raise InputError(f"{name} cannot be drawn again from seed {case['seed']}; use a shorter T")


def _rows(problem: Problem) -> Array:
    """The query positions whose output is expected: those that the judge looked at, fewer where they are too large."""
    rows = judged_rows(problem)
    count = problem.q_len if rows is None else len(rows)
    row_bytes = 8 * math.prod(problem.output_shape()) // problem.q_len
    most = max(2, MAX_EXPECTED_BYTES // row_bytes)
    if count > most:
        return sample_rows(problem.q_len, most)
    return np.arange(problem.q_len) if rows is None else rows


def as_npz(arrays: Mapping[str, Array]) -> bytes:
    """As np.savez, the same bytes for the same arrays: no date, rows first; bfloat16 as its bits."""
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w") as archive:
        for name, array in arrays.items():
            part = io.BytesIO()
            plain = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            np.lib.format.write_array(part, np.asarray(plain, order="C"), allow_pickle=False)
            _add(archive, f"{name}.npy", part.getvalue(), zipfile.ZIP_STORED)
    return blob.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes | Path, compression: int) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr, info.compress_type = 0o644 << 16, compression
    with archive.open(info, "w", force_zip64=True) as f:
        if isinstance(content, bytes):
            f.write(content)
            return
        with content.open("rb") as source:
            while piece := source.read(1 << 20):
                f.write(piece)


def _external(model: Path) -> list[Path]:
    """Files of weights beside the model that it names."""
    blob = model.read_bytes()
    return sorted(data for data in model.parent.glob("*.data") if data.name.encode() in blob)


def as_json(value: Any) -> bytes:
    """In UTF-8, whatever the text holds."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
