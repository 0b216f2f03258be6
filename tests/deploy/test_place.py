"""A bundle is whole at its place or not there, whatever happens while it is made."""

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attnbench import cli
from attnbench.deploy import place, write
from attnbench.deploy.targets import find_target
from attnbench.errors import ArtifactError, AttnbenchError, InputError
from tests.deploy.bundles import Scaled, names_in, verify_here

pytest.importorskip("onnxruntime")
TARGET = find_target("onnxruntime-cpu")
FILES = ["README.md", "bundle.json", "golden/least.npz", "model.onnx", "verify.py"]


def make(source, out):
    return write.write_bundle(source, TARGET, out, recipe="onnx-decomposed")


def test_a_relative_path_is_that_of_the_working_folder_and_a_moved_bundle_verifies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    make(Scaled(data_bytes=1000), place.Path("sub/näme 1"))
    assert names_in(tmp_path) == sorted(f"sub/näme 1/{name}" for name in [*FILES, "model.onnx.data"])
    moved = shutil.move("sub/näme 1", tmp_path / "moved")
    assert verify_here(moved)[0] == 0


def test_exporting_again_replaces_all_and_never_grows(tmp_path):
    out = tmp_path / "bundle"
    make(Scaled(data_bytes=1000, files=("least", "more")), out)
    assert (out / "golden/more.npz").is_file()
    sizes = set()
    for _ in range(3):
        make(Scaled(data_bytes=1000), out)
        assert names_in(tmp_path) == sorted(f"bundle/{name}" for name in [*FILES, "model.onnx.data"])
        sizes.add((out / "model.onnx.data").stat().st_size)
    assert sizes == {4 * 4096}
    make(Scaled(), out)
    assert names_in(out) == FILES


def test_exports_side_by_side_keep_their_own_weights(tmp_path):
    factors = (2.0, 3.0, 5.0)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda factor: make(Scaled(factor, data_bytes=1000), tmp_path / f"x{factor:g}"), factors))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x2", "x3", "x5"]
    for factor in factors:
        assert verify_here(tmp_path / f"x{factor:g}")[0] == 0
        assert set(np.fromfile(tmp_path / f"x{factor:g}" / "model.onnx.data", np.float32)) == {factor}


def test_a_wrong_model_leaves_the_old_bundle_and_nothing_else(tmp_path):
    out = tmp_path / "bundle"
    make(Scaled(), out)
    before = {name: (out / name).read_bytes() for name in names_in(out)}
    with pytest.raises(ArtifactError, match=r"computes something else .* off by 0\.01"):
        make(Scaled(2.0, model_factor=2.02), out)
    assert {name: (out / name).read_bytes() for name in names_in(out)} == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_what_the_runtime_has_no_kernel_for_leaves_nothing(tmp_path):
    """ONNX Runtime's CPU has bitwise operators for integers only."""
    with pytest.raises(AttnbenchError, match="BitwiseAnd"):
        make(Scaled(operator="BitwiseAnd"), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_the_old_bundle_or_nothing(tmp_path, monkeypatch, there):
    out = tmp_path / "bundle"
    if there:
        with place.replacing(out) as folder:
            (folder / "bundle.json").write_text('{"files": {}}', encoding="utf-8")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write, "write_manifest", full)
    with pytest.raises(OSError, match="No space left"):
        make(Scaled(), out)
    assert names_in(tmp_path) == (["bundle/bundle.json"] if there else [])
    assert len(list(tmp_path.iterdir())) == there


def test_a_disk_that_is_full_is_one_line(tmp_path, monkeypatch, capsys):
    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write, "write_bundle", full)
    assert cli.main(["export", "--target", "torch", "-o", str(tmp_path / "x")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_only_a_bundle_is_replaced(tmp_path):
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="has files in it and is no bundle"), place.replacing(thesis):
        pytest.fail("it was let in")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"), place.replacing(tmp_path / "file"):
        pytest.fail("it was let in")
    with place.replacing(tmp_path / "bundle") as folder:
        (folder / "bundle.json").write_text('{"files": {}}', encoding="utf-8")
    (tmp_path / "bundle" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds notes\.txt, which is not of its bundle"):
        make(Scaled(), tmp_path / "bundle")
    assert names_in(tmp_path) == ["bundle/bundle.json", "bundle/notes.txt", "file", "thesis/thesis.tex"]


def test_what_came_meanwhile_is_replaced_only_if_it_is_a_bundle(tmp_path):
    out = tmp_path / "bundle"

    def replace():
        with place.replacing(out) as folder:
            (folder / "bundle.json").write_text('{"files": {}}', encoding="utf-8")
            out.mkdir()
            (out / "mine").touch()

    with pytest.raises(InputError, match="has files in it and is no bundle"):
        replace()
    assert names_in(tmp_path) == ["bundle/mine"]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with place.replacing(tmp_path / "link") as folder:
        (folder / "bundle.json").write_text('{"files": {}}', encoding="utf-8")
    assert (tmp_path / "link").is_symlink()
    assert names_in(tmp_path / "real") == ["bundle.json"]


def test_an_interrupt_leaves_nothing(tmp_path):
    def stop():
        with place.replacing(tmp_path / "bundle") as folder:
            (folder / "model.onnx").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert list(tmp_path.iterdir()) == []
