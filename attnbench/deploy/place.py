"""Where a bundle goes: built in a folder beside, renamed when it is whole, so that nothing half is ever there."""

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnbench.deploy.manifest import MANIFEST
from attnbench.errors import ExportError, InputError

_TRIES = 10  # another export may put its bundle there in between
_WORK = ".attnbench-export-"  # begins the name of the folder in which a bundle is built; then the bundle's own name


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A new, empty folder that becomes `out` when the block ends well; else nothing is left and the old one stays.

    Beside it, in its parent, is room for what is not shipped: all of that goes. What an export to the same place that
    was killed left there goes too, and the bundle that it was replacing gets its name back.

    Raises:
        InputError: `out` holds something that is no bundle, has a name that no folder can have, or its parent cannot
            be written to.
        OSError: the disk is full, or `out` cannot be replaced.
    """
    refuse_name(out)
    target = Path(os.path.realpath(out))
    _clear_killed(target)
    refuse_other(target)
    work, lock = _new_work(target)
    try:
        new = work / "new"
        new.mkdir()
        yield new
        _sync(new)
        _swap(new, target, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A file of a bundle is written in the block.

    Raises:
        ExportError: the disk is full, or takes no file of this size; with its name.
    """
    try:
        yield
    except OSError as err:
        raise ExportError(f"cannot write {path.name}: {err.strerror or err}; name a folder with more room") from err


def refuse_name(target: Path) -> None:
    """A name that the file system or a runtime does not take is refused before minutes are spent.

    Raises:
        InputError: it is too long, or holds what no name may.
    """
    try:
        str(target).encode()  # onnx and OpenVINO take names in UTF-8 alone
        with suppress(FileNotFoundError):
            target.lstat()
    except (OSError, ValueError) as err:
        reason = getattr(err, "strerror", None) or err
        raise InputError(f"no folder can be called {target.name[:40]!r}...: {reason}; take another name") from err


def _new_work(target: Path) -> tuple[Path, int]:
    """A folder beside the target, locked for as long as this process lives, and the lock.

    Raises:
        InputError: none can be made there.
    """
    for _ in range(_TRIES):
        try:
            work = Path(tempfile.mkdtemp(dir=target.parent, prefix=_prefix(target)))
        except OSError as err:
            raise InputError(f"cannot write to {str(target.parent)!r}: {err.strerror}; name another folder") from err
        # Another export may find the folder before it is locked, and take it for one that was left behind.
        with suppress(FileNotFoundError):
            lock = os.open(work, os.O_RDONLY)
            if _try_lock(lock) is not False and work.exists():
                return work, lock
            os.close(lock)
    raise InputError(f"other exports are at work in {str(target.parent)!r}; wait for them, or name another folder")


def _prefix(target: Path) -> str:
    return f"{_WORK}{target.name[:40]}-"


def _try_lock(fd: int) -> bool | None:
    """True: it is this process's until its descriptor is closed; False: another one's; None: no locks here."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _clear_killed(target: Path) -> None:
    """Remove the folders of exports to this place that were killed, never that of one that still runs."""
    ours = re.compile(re.escape(_prefix(target)) + r"[a-z0-9_]{8}")  # as mkdtemp names them
    with suppress(OSError):  # a parent that cannot be read is told about where it is written to
        for work in [path for path in target.parent.iterdir() if ours.fullmatch(path.name)]:
            if work.is_symlink() or not work.is_dir():
                continue
            lock = os.open(work, os.O_RDONLY)
            try:
                if _try_lock(lock):
                    _give_back(work, target)
                    shutil.rmtree(work)
            finally:
                os.close(lock)


def _give_back(work: Path, target: Path) -> None:
    """A bundle that was moved away, for a new one that never came, gets its name again."""
    for old in sorted(work.glob("old*")):
        if not target.exists():
            old.rename(target)


def refuse_other(target: Path) -> None:
    """Only a new or empty folder or a bundle, with nothing beside its own files, may be replaced.

    Raises:
        InputError: anything else.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"a bundle is a folder, but {str(target)!r} is a file; name another folder")
    if not any(target.iterdir()):
        return
    try:
        listed = set(json.loads((target / MANIFEST).read_bytes())["files"]) | {MANIFEST}
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise InputError(f"{str(target)!r} has files in it and is no bundle; name a new folder") from err
    present = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
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
