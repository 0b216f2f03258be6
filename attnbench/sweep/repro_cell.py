"""A cell of a conformance matrix as a zip to paste upstream: the probe's own inputs, the file written again."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench import plugins, probes
from attnbench.errors import InputError, RecordsError
from attnbench.sweep import repro, repro_onnx, repro_run
from attnbench.sweep.conform import ONNX_CASES
from attnbench.sweep.grid import TORCH

MATRIX = "conform.json"
_FIELDS = ("exporter", "runtime", "opset", "error", "limit", "verdict", "how")


def find_cell(folder: Path, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The matrix in a folder and the cell of `ARM:PROBE`, such as `onnx-attention[23]@ort-cpu:block self 5`.

    Raises:
        RecordsError: the matrix cannot be read.
        InputError: no such cell.
    """
    path = folder / MATRIX
    try:
        matrix: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        cells = {f"{cell['arm']}:{cell['probe']}": cell for cell in matrix["cells"]}
        lacking = [name for cell in cells.values() for name in _FIELDS if name not in cell]
        if lacking or not isinstance(matrix["versions"], dict):
            raise ValueError(f"a cell lacks {lacking[0]}" if lacking else "versions are no table")
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise RecordsError(f"cannot read {str(path)!r}: {err}; run attnbench conform again") from err
    if text not in cells:
        close = difflib.get_close_matches(text, cells, n=1)
        example = (close or list(cells)[:1] or ["none: the matrix is empty"])[0]
        raise InputError(f"CASE of a matrix must be ARM:PROBE, got {text!r}; for example {example!r}")
    return matrix, cells[text]


def of_cell(cell: Mapping[str, Any], versions: Mapping[str, Any], folder: Path) -> repro.Bundle:
    """The reproduction of a cell; its file is written into `folder`.

    Raises:
        InputError: a runtime without a script, an arm that has no file, or a probe of another version.
        AttnbenchError: the export fails; its own words.
    """
    runtime, exporter = cell["runtime"], cell["exporter"]
    if runtime not in repro_run.RUNNERS:
        raise InputError(f"there is no script for runtime {runtime}; there is one for {', '.join(repro_run.RUNNERS)}")
    if exporter == ONNX_CASES:
        return repro_onnx.of_cell(cell, versions, folder)
    probe = next((probe for probe in probes.all_probes() if probe.name == cell["probe"]), None)
    if probe is None:
        raise InputError(f"this attnbench has no probe {cell['probe']!r}; run attnbench conform again")
    model = None
    if exporter != TORCH:
        writer = plugins.load_exporter(exporter)
        support = writer.supports(probe.problem, cell["opset"])
        if not support.ok:
            raise InputError(f"{cell['arm']} has no file for {cell['probe']!r}: {support.reason}")
        model = writer.export(probe.problem, cell["opset"], folder / "model.onnx", seed=0).path
    return repro.Reproduction(
        problem=probe.problem, arm=cell["arm"], runtime=runtime, threads=1, seed=0, input_class=probe.fill, model=model,
        error=cell["error"], limit=cell["limit"] or probes.LIMITS[probe.problem.dtype], gain_limit=None,
        found=repro.found_in(cell),
        versions={"plug-ins": dict(versions)},
        inputs=probes.make_probe_inputs(probe.problem, probe.fill, seed=0),
        rows=probes.judged_rows(probe.problem, probe.fill),
    )  # fmt: skip
