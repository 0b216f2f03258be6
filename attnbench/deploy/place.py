"""Where a bundle goes: built in a folder beside, renamed when it is whole, so that nothing half is ever there."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnbench.deploy.manifest import MANIFEST
from attnbench.errors import InputError

_TRIES = 10  # another export may put its bundle there in between


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A new, empty folder that becomes `out` when the block ends well; else nothing is left and the old one stays.

    Beside it, in its parent, is room for what is not shipped: all of that goes.

    Raises:
        InputError: `out` holds something that is no bundle, or its parent cannot be written to.
        OSError: the disk is full, or `out` cannot be replaced.
    """
    target = Path(os.path.realpath(out))
    refuse_other(target)
    try:
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name[:50]}-"))
    except OSError as err:
        raise InputError(f"cannot write to {str(target.parent)!r}: {err.strerror}; name another folder") from err
    try:
        new = work / "new"
        new.mkdir()
        yield new
        _sync(new)
        _swap(new, target, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refuse_other(target: Path) -> None:
    """Only a new or empty folder or a bundle, with nothing beside its own files, may be replaced.

    Raises:
        InputError: anything else.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"a bundle is a folder, but {str(target)!r} is a file; name another folder")
    present = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
    if not present:
        return
    try:
        listed = set(json.loads((target / MANIFEST).read_bytes())["files"]) | {MANIFEST}
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise InputError(f"{str(target)!r} has files in it and is no bundle; name a new folder") from err
    if others := sorted(present - listed):
        shown = ", ".join(others[:3])
        raise InputError(
            f"{str(target)!r} holds {shown}, which is not of its bundle; move it away or name a new folder"
        )


def _swap(new: Path, target: Path, work: Path) -> None:
    """Give the folder `new` the name `target`; what was there goes to `work`."""
    for attempt in range(_TRIES):
        try:
            new.rename(target)  # onto nothing, or onto an empty folder
        except OSError as err:
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == _TRIES - 1:
                raise
            refuse_other(target)
            with suppress(FileNotFoundError):
                target.rename(work / f"old{attempt}")
        else:
            return


def _sync(folder: Path) -> None:
    """Have every file on disk before the folder gets its name."""
    for path in (*folder.rglob("*"), folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
