"""Folders and files named on the command line: refused in one sentence, or fine however odd."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnbench import flags
from tests.conftest import Call, assert_one_sentence


def test_out_that_is_a_file_is_refused(run: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    assert_one_sentence(run("bench", "-o", str(tmp_path / "taken")), "--out must be a folder", "is a file")
    assert_one_sentence(run("bench", "-o", str(tmp_path / "taken" / "below")), "is a file; name another folder")
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


def test_out_with_something_else_in_it_is_refused(run: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert_one_sentence(run("bench", "-o", str(tmp_path)), "--out must be a new or empty folder")


def test_out_that_holds_a_run_is_refused_and_resume_is_named(run: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    assert_one_sentence(run("bench", "-o", str(tmp_path)), "holds a run already", "--resume")


def test_out_in_a_read_only_place_is_refused(
    run: Callable[..., Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    assert_one_sentence(run("bench", "-o", str(tmp_path / "a" / "b")), "is read-only", repr(str(tmp_path)))


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\x1b[31mb", "a\u2028b", "a\0b"])
def test_a_line_break_or_control_character_in_a_path_is_refused(run: Callable[..., Call], name: str) -> None:
    for argv in (("bench", "-o", name), ("bench", "--resume", name), ("report", name)):
        assert_one_sentence(run(*argv), "without line breaks", ascii(name).replace("\\x00", "\\x00"))


def test_an_empty_or_overlong_path_is_refused(run: Callable[..., Call]) -> None:
    assert_one_sentence(run("bench", "-o", " "), "--out must be a path")
    assert_one_sentence(run("bench", "-o", "x" * 5000), "--out cannot be", "use another name")


@pytest.mark.parametrize(
    "name", ["-dash", "with space", "Käse-漢字", "%20#", "a,b;c", 'it\'s "quoted"', "~x", "dot.", "y" * 250]
)
def test_odd_names_of_folders_are_fine(
    run: Callable[..., Call], benched: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("bench", "-q", "-o", name)
    assert benched["out"] == Path(name)
    assert flags.parse_out("--out", name) == Path(name)


def test_resume_takes_the_run_and_nothing_else(
    run: Callable[..., Call], benched: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").touch()
    code, _, _ = run("bench", "--resume", str(tmp_path), "--time-budget", "60s", "-q")
    assert code == 1
    assert (benched["resume"], benched["time_budget_s"]) == (tmp_path, 60.0)
    refused = run("bench", "quick", "--resume", str(tmp_path), "-s", "16", "--seed", "0", "--no-oom-skip")
    assert_one_sentence(
        refused, "--resume takes its settings from the run", "SWEEP", "--seq-lens", "--seed", "--no-oom-skip"
    )


def test_resume_and_report_need_a_run(run: Callable[..., Call], tmp_path: Path) -> None:
    for argv in (("bench", "--resume"), ("report",)):
        assert_one_sentence(run(*argv, str(tmp_path / "none")), "must be a run directory")
        assert_one_sentence(run(*argv, str(tmp_path)), "has no manifest.json")
