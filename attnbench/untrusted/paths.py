"""Opening files by names that were written by someone else, without leaving the folder."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from attnbench.errors import UntrustedModelError
from attnbench.untrusted.wire import has_control_characters

MAX_NAME_BYTES = 255  # of one component, on every common file system
MAX_PATH_BYTES = 1024
# ONNX Runtime's sign for data that is in memory already; the offset is then an address of this process.
_ADDRESS_SIGN = "_MEM_ADDR_"


def check_name(name: str) -> tuple[str, ...]:
    """The components of a relative path that stays inside its folder whatever system reads it.

    Raises:
        UntrustedModelError: absolute, `..`, a drive, a backslash, control characters, too long, or a sign for memory.
    """
    parts = tuple(part for part in name.split("/") if part != ".")
    reason = ""
    if not name or not parts:
        reason = "it names no file"
    elif has_control_characters(name):
        reason = "it has control characters"
    elif name.startswith("/") or ":" in name or "\\" in name:
        reason = "it must be relative, without drive letters and backslashes"
    elif ".." in parts or "" in parts:
        reason = "it must stay inside the folder of the model"
    elif "*" in name or _ADDRESS_SIGN in name:
        reason = "it is no file: ONNX Runtime and OpenVINO take it for an address in memory"
    elif len(os.fsencode(name)) > MAX_PATH_BYTES or any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts):
        reason = f"it has over {MAX_NAME_BYTES} bytes in a part or {MAX_PATH_BYTES} in all"
    if reason:
        raise UntrustedModelError(
            f"the file name {name[:200]!r} is refused: {reason}; save the model again with its data"
        )
    return parts


def open_inside(folder: Path, name: str) -> BinaryIO:
    """Open a plain file below a folder for reading; no link is followed on the way, so a swap cannot lead outside.

    Raises:
        UntrustedModelError: a name that leaves the folder, a link, a file with a second name, no plain file, or none.
    """
    parts = check_name(name)
    shown = f"{name!r} in {str(folder)!r}"
    at = _open_folder(folder)
    try:
        for part in parts[:-1]:
            below = _open_at(at, part, os.O_DIRECTORY, shown)
            os.close(at)
            at = below
        return _plain_file(_open_at(at, parts[-1], os.O_NONBLOCK, shown), shown)
    finally:
        os.close(at)


def open_named(path: Path) -> BinaryIO:
    """Open a file that the user named: links to it are followed, but it must be a plain file.

    Raises:
        UntrustedModelError: it is not there, cannot be read, or is a folder, pipe or device.
    """
    shown = repr(str(path))
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UntrustedModelError(f"{shown} is refused: it is a folder, pipe or device; name a plain file")
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        raise UntrustedModelError(f"{shown} cannot be read: {err.strerror}; name a file that is there") from err
    except ValueError as err:  # a NUL in the path
        raise UntrustedModelError(f"{shown} is no path: {err}; name a file that is there") from err
    return _plain_file(fd, shown, has_one_name=False)


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise UntrustedModelError(
            f"{str(folder)!r} cannot be read: {err.strerror}; name a folder that is there"
        ) from err


def _open_at(folder_fd: int, part: str, flags: int, shown: str) -> int:
    try:
        if stat.S_ISLNK(os.stat(part, dir_fd=folder_fd, follow_symlinks=False).st_mode):
            raise UntrustedModelError(f"{shown} is refused: a link may lead outside; copy the file itself (cp -L)")
        return os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder_fd)
    except OSError as err:
        raise UntrustedModelError(
            f"{shown} cannot be read: {err.strerror}; keep the data beside the model, as plain files"
        ) from err


def _plain_file(fd: int, shown: str, *, has_one_name: bool = True) -> BinaryIO:
    """The descriptor as a file, closed where it is refused."""
    found = os.fstat(fd)
    reason = ""
    if not stat.S_ISREG(found.st_mode):
        reason = "it is a folder, pipe or device; keep the data in a plain file"
    elif has_one_name and found.st_nlink != 1:
        reason = f"it has {found.st_nlink} names (hard links), so it may be a file from elsewhere; copy the file itself"
    if reason:
        os.close(fd)
        raise UntrustedModelError(f"{shown} is refused: {reason}")
    os.set_blocking(fd, True)
    return os.fdopen(fd, "rb", buffering=0)
