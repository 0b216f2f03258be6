"""Which tests run at once where several processes run them."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.turns import turn

SOON_S, NEVER_S = 20.0, 0.2


class Taker:
    """A test that takes its turn in a thread, and stays until it is let go."""

    def __init__(self, folder: Path, *, is_alone: bool = False) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(folder, is_alone))
        self._thread.start()

    def _run(self, folder: Path, is_alone: bool) -> None:
        with turn(folder, is_alone=is_alone):
            self.began.set()
            assert self.let_go.wait(SOON_S)

    def end(self) -> None:
        self.let_go.set()
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()


def test_tests_run_beside_each_other(tmp_path: Path) -> None:
    takers = [Taker(tmp_path), Taker(tmp_path)]
    assert all(taker.began.wait(SOON_S) for taker in takers)
    for taker in takers:
        taker.end()


def test_a_test_that_is_to_be_alone_waits_for_the_others_and_they_for_it(tmp_path: Path) -> None:
    first = Taker(tmp_path)
    assert first.began.wait(SOON_S)
    alone = Taker(tmp_path, is_alone=True)
    assert not alone.began.wait(NEVER_S)
    first.end()
    assert alone.began.wait(SOON_S)
    last = Taker(tmp_path)
    assert not last.began.wait(NEVER_S)
    alone.end()
    assert last.began.wait(SOON_S)
    last.end()


def test_no_test_begins_before_one_that_already_waits_to_be_alone(tmp_path: Path) -> None:
    first = Taker(tmp_path)
    assert first.began.wait(SOON_S)
    alone = Taker(tmp_path, is_alone=True)
    assert not alone.began.wait(NEVER_S)
    late = Taker(tmp_path)
    assert not late.began.wait(NEVER_S)
    first.end()
    assert alone.began.wait(SOON_S)
    assert not late.began.is_set()
    alone.end()
    assert late.began.wait(SOON_S)
    late.end()


MET = """
import time
from pathlib import Path

import pytest

def other_is_there(here, there, limit_s):
    Path(here).touch()
    end = time.monotonic() + limit_s
    while not (met := Path(there).exists()) and time.monotonic() < end:
        time.sleep(0.01)
    return met
"""
BESIDE = "\ndef test_it():\n    assert other_is_there({here!r}, {there!r}, 20.0)\n"
ALONE = """
@pytest.mark.alone
def test_it():
    assert not other_is_there({here!r}, {there!r}, 0.3)
    Path({here!r}).unlink()
"""


def _passed(folder: Path, body: str) -> str:
    """What two processes say that run two files, each of which looks for the other while it runs."""
    for here, there in (("a", "b"), ("b", "a")):
        (folder / f"test_{here}.py").write_text(MET + body.format(here=here, there=there), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = alone\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.turns", "-p", "no:cacheprovider", "-n", "2"]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [*command, "--dist", "loadfile", "."], cwd=folder, env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_processes_of_one_run_run_marked_tests_one_after_the_other_and_the_rest_at_once(tmp_path: Path) -> None:
    for name, body in (("beside", BESIDE), ("alone", ALONE)):
        (tmp_path / name).mkdir()
        assert "2 passed" in _passed(tmp_path / name, body)
