"""Tests in several processes at once (`pytest -n 2`): those marked `alone` run while no other test does.

Two locks in a folder that all processes of a run share. Every test passes a gate and then enters a room, which an
`alone` test has to itself. It holds the gate while it waits for the room to empty, so that others
cannot keep it waiting.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FOLDER = "attnbench_turns"  # in what the first process tells the others
_FOLDER = pytest.StashKey[Path]()


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    # Unlocked by name, not by closing: a process that a test forked may still hold the same open file.
    with path.open("a") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def turn(folder: Path, *, is_alone: bool) -> Iterator[None]:
    """Wait until a test may run beside those that are running; within, it may."""
    with (folder / "room").open("a") as room:
        with _locked(folder / "gate", fcntl.LOCK_EX):
            fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the first process, before each of the others starts: tell it the folder."""
    stash = node.config.stash
    if _FOLDER not in stash:
        stash[_FOLDER] = Path(tempfile.mkdtemp(prefix="attnbench-tests-"))
    node.workerinput[FOLDER] = str(stash[_FOLDER])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder in the process that made it."""
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set-up, call and tear-down of a test within its turn; where one process runs all of them, at once."""
    folder = getattr(item.config, "workerinput", {}).get(FOLDER)
    if folder is None:
        return (yield)
    with turn(Path(folder), is_alone=item.get_closest_marker("alone") is not None):
        return (yield)
