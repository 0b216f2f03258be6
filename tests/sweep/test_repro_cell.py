"""A cell of a conformance matrix as a zip: the probe's inputs, the file written again, the same answer."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attnbench.cli import main
from attnbench.errors import InputError, RecordsError
from attnbench.probes import all_probes, make_probe_inputs
from attnbench.sweep import repro, repro_cell


def make_cell(probe, exporter="torch", runtime="torch-sdpa", opset=None, **fields):
    arm = runtime if exporter == "torch" else f"{exporter}[{opset}]@{runtime}"
    return {"arm": arm, "exporter": exporter, "opset": opset, "runtime": runtime, "probe": probe, "shows": "",
            "problem": "", "verdict": "conforms", "how": "", "error": 1e-7, "limit": 5e-5, "expected": "", "got": "",
            **fields}  # fmt: skip


def run_of(cell, folder):
    """What run.py of a cell's zip says."""
    repro.write(repro_cell.of_cell(cell, {"onnx": "1"}, folder), folder / "case.zip")
    with zipfile.ZipFile(folder / "case.zip") as archive:
        archive.extractall(folder / "case")
    command = [sys.executable, "-I", "run.py"]
    return subprocess.run(command, cwd=folder / "case", capture_output=True, text=True, check=False, timeout=120)


# One probe of every fill, a decode step, and a problem in half precision.
@pytest.mark.parametrize(
    "probe",
    ["uniform 3x7", "causal top-left poison", "bool_b1qk no key for a row", "key_padding no key for a sample",
     "grouped heads 4/2 by value", "fp16 2048 keys", "block causal poison", "block decode 3 of 9"],
)  # fmt: skip
def test_a_cell_that_conforms_is_right_in_its_zip(tmp_path: Path, probe: str) -> None:
    done = run_of(make_cell(probe, runtime="torch-eager"), tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    with np.load(tmp_path / "case" / "inputs.npz", allow_pickle=False) as stored:
        wanted = next(p for p in all_probes() if p.name == probe)
        for name, array in make_probe_inputs(wanted.problem, wanted.fill, seed=0).items():
            np.testing.assert_array_equal(stored[name], array)


def test_the_file_of_a_cell_is_written_again(tmp_path: Path) -> None:
    cell = make_cell("causal bottom-right 3x7", "onnx-decomposed", "ort-cpu", 20)
    done = run_of(cell, tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert (tmp_path / "case" / "model.onnx").stat().st_size > 0


def test_a_cell_that_differs_is_wrong_in_its_zip(tmp_path: Path) -> None:
    """onnx's evaluator sums fp16 in fp16 and gives zeros for 70,000 keys; see attnbench conform."""
    arm = ("onnx-decomposed", "onnx-reference", 20)
    done = run_of(make_cell("fp16 70000 keys", *arm, verdict="differs", how="zeros instead of values"), tmp_path)
    assert done.returncode == 1, done.stderr + done.stdout
    assert "WRONG" in done.stdout
    assert "Found: differs: zeros instead of values" in (tmp_path / "case" / "README.md").read_text()


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (make_cell("uniform 3x7", runtime="ort-cuda"), "there is no script for runtime ort-cuda"),
        (make_cell("of another version"), "this attnbench has no probe"),
        (make_cell("grouped heads 4/2 normal", "onnx-contrib", "ort-cpu", 20), "has no file for"),
    ],
)
def test_a_cell_that_cannot_be_reproduced_says_why(tmp_path: Path, cell: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        repro_cell.of_cell(cell, {}, tmp_path)


@pytest.mark.slow
def test_a_case_of_the_onnx_package_is_judged_by_every_output_in_its_zip(tmp_path: Path) -> None:
    cell = make_cell("attention_4d_with_past_and_present_qk_matmul", "onnx", "onnx-reference", 23)
    done = run_of(cell, tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    for name in ("Y", "present_key", "present_value", "qk_matmul_output"):
        assert f"{name} is off by 0 of the largest expected value" in done.stdout
    with zipfile.ZipFile(tmp_path / "case.zip") as archive:
        assert {"model.onnx", "inputs.npz", "expected.npz", "run.py", "README.md"} <= set(archive.namelist())


@pytest.mark.slow
def test_a_case_that_the_installed_onnx_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the installed onnx has no case 'attention_4e'"):
        repro_cell.of_cell(make_cell("attention_4e", "onnx", "ort-cpu", 23), {}, tmp_path)


def test_a_cell_is_named_by_arm_and_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [make_cell("uniform 3x7"), make_cell("normal 5x9")]
    (tmp_path / "conform.json").write_text(json.dumps({"versions": {}, "cells": cells}))
    out = tmp_path / "out.zip"
    assert main(["repro", str(tmp_path), "torch-sdpa:normal 5x9", "-o", str(out)]) == 0
    assert "torch-sdpa, conforms" in capsys.readouterr().out
    with zipfile.ZipFile(out) as archive:
        assert "model.onnx" not in archive.namelist()
    assert main(["repro", str(tmp_path), "torch-sdpa:normal 5x8"]) == 2
    assert "for example 'torch-sdpa:normal 5x9'" in capsys.readouterr().err


def test_a_matrix_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    whole = {"versions": {}, "cells": [make_cell("block self 5")]}
    lacking = [{**whole, "cells": [{"arm": "a", "probe": "b"}]}, {"cells": whole["cells"]}, {**whole, "versions": 1}]
    for text in ("{", "[]", '{"cells": 3}', '{"cells": [{}]}', *map(json.dumps, lacking)):
        (tmp_path / "conform.json").write_text(text)
        with pytest.raises(RecordsError, match="run attnbench conform again"):
            repro_cell.find_cell(tmp_path, "a:b")
