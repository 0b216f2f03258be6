"""Small files of the user that ask for more memory than there is: a sentence, an exit code, and nothing left behind."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from attnbench import bundles
from attnbench.deploy.targets import find_target
from attnbench.deploy.write import write_bundle
from tests.conftest import Call
from tests.deploy.bundles import Scaled, update_hash
from tests.model_bench import models

pytest.importorskip("onnxruntime")

LIMIT = "3GiB"


def save_late(path: Path) -> Path:
    """What is made has 2^40 times the size of the input: only a call asks for it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]), helper.make_node("Mul", ["sizes", "more"], ["large"]),
        helper.make_node("ConstantOfShape", ["large"], ["big"]),
        helper.make_node("ReduceMax", ["big"], ["most"], keepdims=0), helper.make_node("Add", ["x", "most"], ["y"]),
    ]  # fmt: skip
    floats = TensorProto.FLOAT
    return models.save(
        path, nodes, [models.value("x", floats, ("n", 4096))], [models.value("y", floats, ("n", 4096))],
        {"more": np.array([1 << 16, 1 << 12])},
    )  # fmt: skip


def save_pad(path: Path, more: int) -> Path:
    """x and `more` zeros behind it."""
    weights = {"pads": np.array([0, 0, 0, more])}
    floats = TensorProto.FLOAT
    return models.save(
        path, [helper.make_node("Pad", ["x", "pads"], ["y"])], [models.value("x", floats, ("n", 4096))],
        [models.value("y", floats, ("n", None))], weights,
    )  # fmt: skip


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where all folders are made that are to be gone afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_call_that_asks_for_terabytes_is_one_row(
    run: Callable[..., Call], tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnbench.sweep.runner.PEAK_SECONDS", 0.01)
    file = save_late(tmp_path / "late.onnx")
    code, out, err = run(
        "bench", "--onnx", str(file), "--set", "n=2", "--runtimes", "ort-cpu", "--memory-limit", LIMIT,
        "-o", str(tmp_path / "run"), "-q",
    )  # fmt: skip
    told = " ".join(out.split())
    assert code == 3
    assert "oom: file@ort-cpu" in told
    assert "ConstantOfShape fails in onnxruntime: out of memory for a buffer of" in told
    assert "way out: raise --memory-limit" in told
    assert "/onnxruntime_src/" not in out + err
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("command", ["bench", "fusion"])
def test_a_file_that_says_how_large_it_is_is_refused_before_anything_runs(
    run: Callable[..., Call], tmp_path: Path, temporary: Path, command: str
) -> None:
    if command == "fusion":
        pytest.importorskip("tensorrt_rtx")
    file = save_pad(tmp_path / "pad.onnx", 1 << 40)
    where = ("-o", str(tmp_path / "out")) if command == "bench" else ()
    code, out, err = run(command, "--onnx", str(file), "--set", "n=2", *where)
    assert (code, out) == (2, "")
    assert "operator Pad, by its input 'pads', has dims" in err
    assert "elements are taken" in err
    assert not (tmp_path / "out").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("save", [save_late, lambda path: save_pad(path, 1 << 35)], ids=["late", "pad"])
def test_a_bundle_that_asks_for_terabytes_cannot_be_loaded(
    tmp_path: Path, temporary: Path, save: Callable[[Path], Path]
) -> None:
    folder = tmp_path / "bundle"
    write_bundle(Scaled(), find_target("onnxruntime-cpu"), folder)
    save(folder / "model.onnx")
    update_hash(folder, "model.onnx")
    found = bundles.verify(folder, memory_limit_bytes=3 << 30)
    assert found.exit_code == 5
    assert "model.onnx does not run on golden/least.npz: out of memory: " in found.sentence
    assert "raise it for a bundle that you trust" in found.sentence
    assert "/onnxruntime_src/" not in found.sentence
    assert list(temporary.iterdir()) == []
