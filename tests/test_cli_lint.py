"""`attnbench fusion --onnx` from its command line."""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import onnx
import pytest

from attnbench.cli import main
from tests.fusion.planted import Layer, encoder


def test_what_is_wrong_with_the_flags_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(b"not looked at")
    for flags, words in {
        ("--fail-on", "unfused"): "--fail-on is about a model of yours; name it with --onnx FILE",
        ("--fail-on", ""): "--fail-on is about a model of yours; name it with --onnx FILE",
        ("--set", "batch=1"): "--set is about a model of yours",
        ("--onnx", "missing.onnx"): "--onnx must be a file that exists, got 'missing.onnx'",
        ("--onnx", "m.onnx", "--full"): "--full is for the matrix, not for a model of yours; leave it out",
        ("--onnx", "m.onnx", "--ask", "fp16"): "--ask is for the matrix",
        ("--onnx", "m.onnx", "--fail-on", "fused"): "--fail-on must be unfused, got 'fused'",
        ("--onnx", "m.onnx", "--set", "batch=1,8"): "--set batch=1,8 has 2 sizes, a model is linted at one",
        ("--onnx", "m.onnx", "--gpu-archs", "sm90"): "--gpu-archs must be of sm75",
        ("--onnx", "m.onnx", "--seq", "64"): "--seq-len must be a whole number between 512 and 65536, got '64'",
    }.items():
        assert main(["fusion", *flags]) == 2, flags
        assert words in capsys.readouterr().err, flags


def test_a_model_is_linted_for_ci(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    onnx.save(encoder([Layer(), Layer(inside=("softcap",))]), tmp_path / "model.onnx")
    flags = ["--set", "batch=1", "--bind", "seq=T", "--fail-on", "unfused", "--sarif", str(tmp_path / "found.sarif")]
    assert main(["fusion", "--onnx", str(tmp_path / "model.onnx"), "--json", *flags]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [region["verdict"] for region in told["regions"]] == ["fused", "unfused"]
    assert told["sentences"][1] == "not fused; without `Tanh` (softcap) it is"
    assert told["seq_lens"] == [2048, 4096]
    written = json.loads((tmp_path / "found.sarif").read_text())
    assert [result["level"] for result in written["runs"][0]["results"]] == ["warning"]


def test_sarif_never_replaces_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(b"a model")
    Path("link.sarif").symlink_to("m.onnx")
    for name in ("m.onnx", "./m.onnx", str(tmp_path / "m.onnx"), "link.sarif"):
        assert main(["fusion", "--onnx", "m.onnx", "--sarif", name]) == 2
        assert "is the model itself and would replace it; name another file" in capsys.readouterr().err
    assert Path("m.onnx").read_bytes() == b"a model"


def test_a_model_of_which_nothing_can_be_judged_is_not_called_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    onnx.save(encoder([Layer()], num_heads=8), tmp_path / "m.onnx")  # 8 is then a length and no length
    assert main(["fusion", "--onnx", str(tmp_path / "m.onnx"), "--set", "seq=8", "--fail-on", "unfused"]) == 3
    out, err = capsys.readouterr()
    assert "cannot be told from planned memory" in " ".join(out.split())
    assert "exit code 3: none of 1 attention regions could be judged" in err


def test_the_line_that_ci_is_told_to_run_does_what_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    page = (Path(__file__).parents[1] / "docs" / "ci.md").read_text(encoding="utf-8").replace("\n    --", " --")
    (line,) = re.findall(r"^ *attnbench (fusion --onnx .*)$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("build").mkdir()
    Path("models").mkdir()
    onnx.save(encoder([Layer(), Layer(inside=("softcap",))]), "models/encoder.onnx")
    assert main(shlex.split(line)) == 1
    assert "1 of 2 attention regions are not fused" in capsys.readouterr().err
    (run,) = json.loads(Path("build/fusion.sarif").read_text(encoding="utf-8"))["runs"]
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/encoder.onnx"
    assert "without `Tanh` (softcap) it is" in result["message"]["text"]
    assert (re.findall(r"sarif_file: (\S+)", page), line.split()[-2]) == (["build/fusion.sarif"], "build/fusion.sarif")


def test_text_fits_into_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    onnx.save(encoder([Layer(inside=("softcap",), returned=True)]), tmp_path / "m.onnx")
    assert main(["fusion", "--onnx", str(tmp_path / "m.onnx"), "--fail-on", "unfused", "-q"]) == 1
    out, err = capsys.readouterr()
    assert "exit code 1: 1 of 1 attention regions are not fused" in err
    assert "returned weights" in " ".join(out.split())
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_without_the_compiler_nothing_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    onnx.save(encoder([Layer()]), tmp_path / "m.onnx")
    assert main(["fusion", "--onnx", str(tmp_path / "m.onnx"), "--fail-on", "unfused"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "tensorrt-rtx is not installed" in err
    assert "pip install tensorrt-rtx" in err
