"""An export that is killed, or has no room, costs nothing but itself."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench import cli
from attnbench.deploy import place
from attnbench.errors import InputError
from tests.deploy.bundles import names_in

# An export that says where it is and then waits, or dies, or dies while it swaps.
CHILD = """
import os, signal, sys
from pathlib import Path
from attnbench.deploy import place

what, out = sys.argv[1], Path(sys.argv[2])

def moved_away(new, target, work):
    target.rename(work / "old0")
    os.kill(os.getpid(), signal.SIGKILL)

if what == "swap":
    place._swap = moved_away
with place.replacing(out) as folder:
    (folder / "model.onnx").write_bytes(b"half")
    print(folder, flush=True)
    if what == "wait":
        sys.stdin.read()
    elif what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def start(what: str, out: Path) -> subprocess.Popen[str]:
    """The child, when it is in the middle of its export."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, what, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip().endswith("/new")
    return child


def kill(what: str, out: Path) -> None:
    with start(what, out) as child:
        child.wait(timeout=30)
    assert child.returncode == -signal.SIGKILL


def make(out: Path, text: str = "new") -> None:
    with place.replacing(out) as folder:
        (folder / "bundle.json").write_text(f'{{"files": {{}}, "text": "{text}"}}', encoding="utf-8")


def test_what_a_killed_export_left_is_gone_after_the_next_to_the_same_place(tmp_path: Path) -> None:
    kill("die", tmp_path / "bundle")
    (left,) = tmp_path.iterdir()
    assert (left / "new" / "model.onnx").read_bytes() == b"half"
    make(tmp_path / "other")
    assert left.exists()  # that was another place
    make(tmp_path / "bundle")
    assert names_in(tmp_path) == ["bundle/bundle.json", "other/bundle.json"]


def test_an_export_that_runs_keeps_its_folder_while_others_come_and_go(tmp_path: Path) -> None:
    with start("wait", tmp_path / "bundle") as child:
        make(tmp_path / "bundle")
        kill("die", tmp_path / "bundle")
        make(tmp_path / "bundle")
        (running,) = (path for path in tmp_path.iterdir() if path.name != "bundle")
        assert (running / "new" / "model.onnx").read_bytes() == b"half"
        (running / "new" / "bundle.json").write_text('{"files": {"model.onnx": {}}}', encoding="utf-8")
        child.communicate(timeout=30)
    assert child.returncode == 0
    assert names_in(tmp_path) == ["bundle/bundle.json", "bundle/model.onnx"]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_bundle_that_was_moved_away_when_the_export_died_gets_its_name_back(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    make(out, "first")
    kill("swap", out)
    assert not out.exists()

    def fail() -> None:
        with place.replacing(out):
            raise RuntimeError("this export fails")

    with pytest.raises(RuntimeError, match="this export fails"):
        fail()
    assert "first" in (out / "bundle.json").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_folders_of_the_user_are_never_taken_for_what_was_left_behind(tmp_path: Path) -> None:
    theirs = [".attnbench-export-bundle-notes", ".attnbench-export-other-abcdefgh", ".bundle-abcdefgh"]
    for name in theirs:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".attnbench-export-bundle-abcdefgh").symlink_to(tmp_path / "elsewhere")
    make(tmp_path / "bundle")
    assert all((tmp_path / name / "mine").exists() for name in theirs)
    assert (tmp_path / "elsewhere").is_dir()


@pytest.mark.parametrize(
    ("name", "words"),
    [("a" * 300, "File name too long"), ("bad\udcff", "surrogates not allowed"), ("nul\0", "null")],
    ids=["long", "bytes", "nul"],
)
def test_a_name_that_no_folder_can_have_is_refused_before_anything_is_made(
    tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught, place.replacing(tmp_path / name):
        pytest.fail("it was let in")
    assert "take another name" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "näme", "new\nline", "ä" * 120, 'quote\'s "$x"', "-o", ".attnbench-export-"])
def test_every_name_that_a_folder_can_have_is_taken(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        make(tmp_path / name)
        assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_parent_that_takes_no_files_is_named() -> None:
    if not Path("/sys/kernel").is_dir():
        pytest.skip("there is no /sys, which nobody can write to")
    with (
        pytest.raises(InputError, match=r"cannot write to '/sys': .*; name another folder"),
        place.replacing(Path("/sys/bundle")),
    ):
        pytest.fail("it was let in")


def test_the_root_of_all_folders_is_refused_without_being_walked() -> None:
    with pytest.raises(InputError, match="'/' has files in it and is no bundle"), place.replacing(Path("/")):
        pytest.fail("it was let in")


def test_a_disk_that_takes_no_more_bytes_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """Real writes that the kernel refuses; every worker inherits the limit."""
    pytest.importorskip("torch")
    argv = ["torch", "--heads", "8", "--head-dim", "32", "--max-len", "17", "-o", str(tmp_path / "bundle")]
    code = f"import sys; from attnbench import cli; sys.exit(cli.main(['export', '--target', *{argv!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)),
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "attnbench: cannot write model.pt2: File too large; name a folder with more room"
    assert list(tmp_path.iterdir()) == []


def test_the_command_that_verifies_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "sp ace'd"
    argv = ["--target", "onnxruntime-cpu", "--heads", "2", "--head-dim", "8", "--max-len", "17", "-o", str(out)]
    assert cli.main(["export", *argv]) == 0
    command = capsys.readouterr().out.rsplit("Verify it anywhere: python ", 1)[1]
    done = subprocess.run(f"{sys.executable} {command}", shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert os.listdir(tmp_path) == ["sp ace'd"]  # noqa: PTH208 - the name as it is
