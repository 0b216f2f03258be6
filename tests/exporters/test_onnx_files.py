"""How a file is written: in one step, with nothing left over, wherever it is asked to go."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from attnbench.errors import ArtifactError, ExportError
from attnbench.inputs import make_inputs, make_weights
from attnbench.measure.numerics import compare
from attnbench.problem import Problem, Variant
from attnbench.reference import reference_output
from attnbench_exporters import onnx_files
from attnbench_exporters.contrib import OnnxContrib
from attnbench_exporters.decomposed import OnnxDecomposed

ODD_NAMES = (
    "with space", "Grüße-注意力", "%20#", "a,b;c", "it's \"quoted\"", "line\nbreak", "-dash", "~x", "x" * 240, "dot.",
)  # fmt: skip
PROBLEM = Problem.make(seq_len=16, num_heads=4, head_dim=16)


@pytest.fixture
def always_external(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights go to a file of their own, as beyond 1 GiB."""
    monkeypatch.setattr(onnx_files, "EXTERNAL_DATA_BYTES", 0)


def worst_row(path: Path, *, seed: int, problem: Problem = PROBLEM) -> float:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    inputs = make_inputs(problem)
    output = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
    expected = reference_output(problem, inputs, make_weights(problem, seed=seed))
    return compare(output, expected).worst_row_rel_err


def folder_size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_small_weights_stay_in_the_file(tmp_path: Path) -> None:
    artifact = OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=0)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert artifact.size_bytes == (tmp_path / "m.onnx").stat().st_size
    assert onnx_files.external_files(artifact.path) == set()


@pytest.mark.usefixtures("always_external")
@pytest.mark.parametrize("exporter", [OnnxContrib(), OnnxDecomposed()], ids=["contrib", "decomposed"])
def test_exporting_three_times_never_grows_the_weights(exporter: OnnxContrib | OnnxDecomposed, tmp_path: Path) -> None:
    sizes = set()
    for _ in range(3):
        artifact = exporter.export(PROBLEM, 20, tmp_path / "m.onnx", seed=0)
        sizes.add(folder_size_bytes(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    assert sizes == {artifact.size_bytes}
    assert artifact.size_bytes > 4 * 64 * 64 * 4  # four weights of 64 x 64 in fp32


@pytest.mark.usefixtures("always_external")
def test_other_weights_replace_the_old_weights_file(tmp_path: Path) -> None:
    for seed in (0, 1):
        OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=seed)
    assert len(list(tmp_path.iterdir())) == 2
    assert worst_row(tmp_path / "m.onnx", seed=1) < 1e-5


@pytest.mark.usefixtures("always_external")
def test_weights_that_a_copy_still_needs_are_kept(tmp_path: Path) -> None:
    artifact = OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=0)
    (tmp_path / "copy.onnx").write_bytes(artifact.path.read_bytes())
    OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=1)
    assert worst_row(tmp_path / "copy.onnx", seed=0) < 1e-5


@pytest.mark.usefixtures("always_external")
def test_a_folder_with_external_weights_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    OnnxContrib().export(PROBLEM, 20, tmp_path / "old" / "m.onnx", seed=3)
    (tmp_path / "old").rename(tmp_path / "new")
    assert worst_row(tmp_path / "new" / "m.onnx", seed=3) < 1e-5


@pytest.mark.usefixtures("always_external")
def test_a_relative_path_from_another_directory_leaves_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    artifact = OnnxContrib().export(PROBLEM, 20, Path("..") / "out" / "m.onnx", seed=0)
    assert list((tmp_path / "cwd").iterdir()) == []
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert worst_row(artifact.path, seed=0) < 1e-5


@pytest.mark.usefixtures("always_external")
def test_parallel_exports_into_one_folder_keep_their_own_weights(tmp_path: Path) -> None:
    start = threading.Barrier(4)

    def export(seed: int) -> Path:
        start.wait()
        return OnnxContrib().export(PROBLEM, 20, tmp_path / f"m{seed}.onnx", seed=seed).path

    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(export, range(4)))
    assert [worst_row(path, seed=seed) < 1e-5 for seed, path in enumerate(paths)] == [True] * 4
    assert worst_row(paths[0], seed=1) > 0.1  # the seeds do differ


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
@pytest.mark.parametrize("external_bytes", [0, 1 << 30], ids=["external", "inside"])
def test_odd_folders_and_names_work(
    name: str, external_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_files, "EXTERNAL_DATA_BYTES", external_bytes)
    folder = tmp_path / name
    folder.mkdir()
    artifact = OnnxContrib().export(PROBLEM, 20, folder / f"{name}.onnx", seed=0)
    assert worst_row(artifact.path, seed=0) < 1e-5
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert folder_size_bytes(folder) == artifact.size_bytes


@pytest.mark.usefixtures("always_external")
def test_a_file_that_the_checker_refuses_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=0)
    files = sorted(tmp_path.iterdir())

    def refuse(path: object, full_check: bool) -> None:
        raise onnx.checker.ValidationError("no")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(ArtifactError, match="checker refuses the exported file: no"):
        OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=1)
    assert sorted(tmp_path.iterdir()) == files
    assert worst_row(before.path, seed=0) < 1e-5


@pytest.mark.parametrize("kind", ["missing folder", "file as folder", "folder as file"])
def test_a_path_that_cannot_be_written_is_one_sentence(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.onnx").mkdir()
    path = {
        "missing folder": tmp_path / "no" / "m.onnx",
        "file as folder": tmp_path / "file" / "m.onnx",
        "folder as file": tmp_path / "folder.onnx",
    }[kind]
    with pytest.raises(ExportError, match=r"cannot write .* name a folder that can be written"):
        OnnxContrib().export(PROBLEM, 20, path, seed=0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.onnx"]


def test_the_file_gets_the_permissions_of_the_umask(tmp_path: Path) -> None:
    artifact = OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=0)
    (tmp_path / "plain").touch()
    assert artifact.path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    OnnxContrib().export(PROBLEM, 20, tmp_path / "m.onnx", seed=7)
    told = {entry.key: entry.value for entry in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert told["attnbench.seed"] == "7"
    assert told["attnbench.exporter"] == "onnx-contrib"
    assert told["attnbench.onnx"] == onnx.__version__


@pytest.mark.parametrize("variant", ["self", "causal"])  # three matrices, and one packed
def test_weights_are_bit_for_bit_those_of_the_problem(variant: Variant, tmp_path: Path) -> None:
    problem = Problem.make(variant=variant, seq_len=8, num_heads=4, head_dim=16)
    artifact = OnnxContrib().export(problem, 20, tmp_path / "m.onnx", seed=4)
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(os.fspath(artifact.path)).graph.initializer}
    weights = make_weights(problem, seed=4)
    np.testing.assert_array_equal(tensors["w_o"], weights["w_o"])
    found = tensors["w_qkv"][:, 64:128] if variant == "causal" else tensors["w_k"]
    np.testing.assert_array_equal(found, weights["w_k"])
