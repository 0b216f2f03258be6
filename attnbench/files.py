"""Files that are whole or not there: what is read is the old file or the new one, never a part."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from attnbench.errors import InputError


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """No other process works in this folder meanwhile; the lock ends with the process, however that ends.

    Raises:
        InputError: another process is at work in it.
        OSError: the folder cannot be opened.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        os.close(fd)
        raise InputError(
            f"{str(folder)!r} is being written by another attnbench process; wait for it or end it first"
        ) from err
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(fd)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, then rename it; on failure nothing is left and the old file stays.

    Raises:
        OSError: from creating, writing or renaming.
    """
    temporary = path.with_name(f".{path.name[:50]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, blob: bytes) -> None:
    """Replace a file by these bytes, on disk before it takes the name.

    Raises:
        OSError: it cannot be written; the old file stays.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as f:
            f.write(blob)
            f.flush()
            os.fsync(f.fileno())

    write_atomically(path, write)
