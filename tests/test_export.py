"""`attnbench export` for real: one file, verified, at its place and nowhere else."""

import hashlib
from pathlib import Path

import pytest

from attnbench import api
from attnbench.cli import main
from attnbench.errors import ExportError, InputError
from tests.conftest import InstallPlugin

SMALL = {"num_heads": 2, "head_dim": 8}
QUICK = {**SMALL, "exporter": "onnx-contrib"}  # is written without torch

ELSEWHERE = """
import hashlib
from attnbench.interfaces import SUPPORTED, Artifact, Probe

class Elsewhere:
    name = "elsewhere"
    opsets = (20,)
    preload = ()
    def probe(self):
        return Probe(available=True, version="1")
    def supports(self, problem, opset):
        return SUPPORTED
    def export(self, problem, opset, path, *, seed):
        other = path.parents[2] / "precious" / "model.onnx"
        return Artifact(path=other, exporter=self.name, opset=opset, problem=problem, size_bytes=1,
                        sha256=hashlib.sha256(other.read_bytes()).hexdigest())
"""


def test_export_writes_one_verified_file_and_replaces_it(tmp_path: Path) -> None:
    out = tmp_path / "a b.onnx"
    first = api.export(out=out, **QUICK)  # type: ignore[arg-type]
    second = api.export(out=out, seed=1, **QUICK)  # type: ignore[arg-type]
    assert first.path == second.path == out
    assert first.sha256 != second.sha256 == hashlib.sha256(out.read_bytes()).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["a b.onnx"]


def test_export_takes_every_form_of_the_problem_from_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--variant causal --heads 4 --head-dim 8 --kv-heads 2 --v-head-dim 4 --mask causal_top_left+key_padding"
    out = tmp_path / "x.onnx"
    asked = ["export", "--exporter", "onnx-decomposed", *flags.split(), "--scale", "0.5", "--bias"]
    assert main([*asked, "--value-map", "low_rank", "-o", str(out)]) == 0
    assert " at T = " in capsys.readouterr().out  # judged with these forms by the oracle
    joint = api.export(
        exporter="onnx-decomposed", variant="causal", num_heads=4, head_dim=8, num_kv_heads=2, v_head_dim=4,
        mask="causal_top_left+key_padding", scale=0.5, bias=True, out=tmp_path / "y.onnx",
    )  # fmt: skip
    assert joint.sha256 != hashlib.sha256(out.read_bytes()).hexdigest()
    assert main([*asked, "--value-map", "nope", "-o", str(out)]) == 2


def test_an_opset_that_the_exporter_does_not_write_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="onnx-attention writes opset 23, 24, got 99"):
        api.export(out=tmp_path / "x.onnx", opset=99)
    assert list(tmp_path.iterdir()) == []


def test_an_exporter_that_wrote_elsewhere_is_refused_and_nothing_is_moved(
    install_plugin: InstallPlugin, tmp_path: Path
) -> None:
    install_plugin(exporters={"elsewhere": "elsewhere:Elsewhere"}, modules={"elsewhere": ELSEWHERE})
    work = tmp_path / "work"
    precious = work / "precious"
    precious.mkdir(parents=True)
    (precious / "model.onnx").write_bytes(b"mine")
    (precious / "thesis.tex").write_bytes(b"mine too")
    with pytest.raises(ExportError, match=r"was asked to write .* it says that it wrote"):
        api.export(exporter="elsewhere", out=work / "x.onnx", **SMALL)  # type: ignore[arg-type]
    assert sorted(path.name for path in precious.iterdir()) == ["model.onnx", "thesis.tex"]
