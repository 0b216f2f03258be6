"""A case of the onnx package, which a runtime differs on or refuses, as a zip to paste upstream."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.errors import InputError
from attnbench.interfaces import Array
from attnbench.probes import LIMITS
from attnbench.sweep import onnx_cases, repro, repro_run
from attnbench.sweep.repro_text import readme

_KINDS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "bool", "int64": "int64"}


@dataclass(frozen=True, kw_only=True)
class OnnxReproduction:
    """What goes into the zip."""

    arm: str
    runtime: str
    name: str  # of the case
    folder: Path  # that holds its model and tensors
    found: str  # what was found, in a sentence
    versions: Mapping[str, Any]
    elsewhere: Mapping[str, str] | None = None  # a matrix asks our own interpreter

    def files(self) -> Iterator[tuple[str, bytes | Path]]:
        """Every file of the zip."""
        inputs, expected = (onnx_cases.read_tensors(self.folder, kind) for kind in ("in", "out"))
        case = {
            "label": f"case {self.name} of the onnx package", "arm": self.arm, "runtime": self.runtime,
            "part": None, "dtype": "fp32", "threads": 1, "options": {}, "stored": True, "weights": {},
            "inputs": {name: _spec(array) for name, array in inputs.items()},
            "outputs": {name: {**_spec(array), "limit": _limit(array)} for name, array in expected.items()},
        }  # fmt: skip
        yield "README.md", readme(self.found, case, has_model=True).encode()
        yield "run.py", Path(repro_run.__file__).read_bytes()
        yield "case.json", repro.as_json(case)
        yield "versions.json", repro.as_json(self.versions)
        yield "inputs.npz", repro.as_npz(inputs)
        yield "expected.npz", repro.as_npz(expected)
        yield "model.onnx", self.folder / "model.onnx"


def of_cell(cell: Mapping[str, Any], versions: Mapping[str, Any], folder: Path) -> OnnxReproduction:
    """The reproduction of a cell whose file is the package's own; the case is written into `folder`.

    Raises:
        InputError: the installed onnx package has no such case.
    """
    found = onnx_cases.write_cases(folder, only=cell["probe"])
    if not found:
        raise InputError(f"the installed onnx has no case {cell['probe']!r} of Attention; run attnbench conform again")
    return OnnxReproduction(
        arm=cell["arm"], runtime=cell["runtime"], name=cell["probe"], folder=Path(found[0]["folder"]),
        found=repro.found_in(cell), versions={"plug-ins": dict(versions)},
    )  # fmt: skip


def _spec(array: Array) -> dict[str, Any]:
    return {"shape": list(array.shape), "kind": _KINDS[np.dtype(array.dtype).name]}


def _limit(array: Array) -> float:
    """Of the largest difference to this expected output, as conform allows it."""
    return LIMITS[_KINDS[array.dtype.name]]
