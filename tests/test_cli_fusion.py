"""attnbench fusion: words for bad input, and what is shown and written of a matrix."""

import csv
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.errors import UnavailableError
from attnbench.fusion import matrix
from attnbench.report import tables
from tests.fusion.matrices import made_matrix


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ask", "fp17"], "--ask knows no 'fp17'"),
        (["--ask", ""], "--ask '' asks nothing"),
        (["--resume", "x", "--ask", ""], "--resume takes the settings of the matrix; leave out --ask"),
        (["--ask", "fp16", "--full"], "leave out --full and --out"),
        (["--ask", "fp16", "-o", "x"], "leave out --full and --out"),
        (["--resume", "x", "--full"], "--resume takes the settings of the matrix; leave out --full"),
        (["--resume", "x"], "name a folder of attnbench fusion"),
        (["--gpu-archs", "sm90"], "--gpu-archs must be of sm75"),
        (["--seq-len", "8"], "--seq-len"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fusion", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_the_compiler_the_exit_code_is_3_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> str:
        raise UnavailableError("tensorrt-rtx is not installed; pip install tensorrt-rtx")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(matrix, "installed_version", missing)
    for arguments in ([], ["--ask", "fp16"]):
        assert main(["fusion", *arguments]) == 3
        assert "pip install tensorrt-rtx" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[matrix.Plan]:
    """Plans that were run; every run gives the made matrix."""
    plans: list[matrix.Plan] = []

    def run(plan: matrix.Plan, records: Path | None, say: Callable[[str], object]) -> matrix.Matrix:
        plans.append(plan)
        return made_matrix()

    monkeypatch.setattr(matrix, "run", run)
    monkeypatch.setattr(matrix, "installed_version", lambda: "9.9")
    return plans


def test_a_matrix_leaves_a_table_a_page_a_picture_and_its_numbers(
    tmp_path: Path, asked: list[matrix.Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fusion", "-q", "-o", os.fspath(tmp_path / "m")]) == 0
    assert {path.name for path in (tmp_path / "m").iterdir()} == {
        "fusion.csv", "fusion.json", "fusion.html", "fusion.png", "fusion.svg",
    }  # fmt: skip
    with (tmp_path / "m" / "fusion.csv").open(encoding="utf-8", newline="") as f:
        assert len(list(csv.DictReader(f))) == len(made_matrix().answers)
    printed = capsys.readouterr()
    assert "head_dim 512" in printed.out
    assert printed.err == ""
    assert (asked[0].archs, asked[0].seq_len) == (matrix.ARCHS, 2048)


@pytest.mark.parametrize("full_at", ["records", "files"])
def test_a_full_disk_is_told_with_the_folder_and_how_to_go_on(
    tmp_path: Path, asked: list[matrix.Plan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    full_at: str,
) -> None:  # fmt: skip
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((matrix, "run") if full_at == "records" else (tables, "write_text")), full)
    assert main(["fusion", "-q", "-o", os.fspath(tmp_path / "my run")]) == 1
    told = capsys.readouterr().err
    assert f"cannot write to '{tmp_path / 'my run'}': No space left on device; mend that" in told
    assert f"go on with attnbench fusion --resume '{tmp_path / 'my run'}'" in told


def test_full_asks_every_architecture_and_more_questions(tmp_path: Path, asked: list[matrix.Plan]) -> None:
    assert main(["fusion", "-q", "-o", os.fspath(tmp_path / "a")]) == 0
    assert main(["fusion", "-q", "--full", "-o", os.fspath(tmp_path / "b")]) == 0
    assert len(asked[1].archs) == 6
    assert len(asked[1].questions) > 10 * len(asked[0].questions)
