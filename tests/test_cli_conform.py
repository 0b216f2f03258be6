"""attnbench conform: files, exit codes and words for bad input."""

import csv
import json
import os
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.sweep import conform_run


def test_one_exporter_on_one_runtime_gives_a_folder_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "matrix"
    code = main(
        [
            "conform",
            "--exporters",
            "onnx-contrib",
            "--opsets",
            "first",
            "--runtimes",
            "ort-cpu",
            "-q",
            "-o",
            os.fspath(out),
        ]
    )
    found = json.loads((out / "conform.json").read_text(encoding="utf-8"))
    verdicts = {cell["verdict"] for cell in found["cells"]}
    assert code == int("differs" in verdicts)
    with (out / "conform.csv").open(encoding="utf-8", newline="") as f:
        assert len(list(csv.DictReader(f))) == len(found["cells"])
    assert "<title>What attention means here</title>" in (out / "conform.html").read_text(encoding="utf-8")
    by_probe = {cell["probe"]: cell for cell in found["cells"]}
    assert by_probe["causal top-left 4x4"]["verdict"] == "conforms"
    assert by_probe["causal top-left 3x7"]["verdict"] == "unsupported"
    assert by_probe["attention_4d"]["verdict"] == "conforms"
    printed = capsys.readouterr()
    assert "onnx-contrib[20]@ort-cpu" in printed.out
    assert all(len(line) <= 80 for line in printed.out.splitlines() if "the page:" not in line)
    assert printed.err == ""


@pytest.mark.parametrize(
    ("arguments", "opsets"),
    [([], "all"), (["--opsets", "all"], "all"), (["--opsets", "first"], "first"), (["--opsets", "20,23"], [20, 23])],
)
def test_every_opset_is_asked_unless_told_otherwise(
    arguments: list[str], opsets: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def conform(**fields: object) -> conform_run.Matrix:
        asked.append(fields["opsets"])
        return conform_run.Matrix(cells=[], versions={}, notices=[], seconds=1.0)

    monkeypatch.setattr(conform_run, "conform", conform)
    assert main(["conform", *arguments, "-q", "-o", os.fspath(tmp_path / "matrix")]) == 3
    assert asked == [opsets]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--runtimes", "ort-cpx"], "no runtime 'ort-cpx'"),
        (["--opsets", "many"], "--opsets must be a whole number"),
        (["--exporters", "onnx"], "no exporter 'onnx'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_opsets_of_nobody_leave_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "matrix"
    asked = ["--exporters", "onnx-attention", "--runtimes", "torch-sdpa", "--opsets", "12"]
    assert main(["conform", *asked, "-o", os.fspath(out)]) == 2
    assert "--opsets 12 is of no exporter of the selection: onnx-attention writes 23, 24" in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert main(["conform", "-o", os.fspath(tmp_path)]) == 2
    assert "must be a new or empty folder" in capsys.readouterr().err
