"""Files that are whole or not there: what is read is the old file or the new one, never a part."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path


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
