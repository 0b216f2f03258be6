"""A copy that nobody else writes to: what is looked at is what is loaded."""

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from attnbench.errors import UntrustedModelError
from attnbench.untrusted.onnx_file import MAX_BYTES, ModelFacts, inspect_model
from attnbench.untrusted.paths import check_name, open_inside, open_named

_PIECE_BYTES = 1 << 20


def snapshot_model(path: Path, into: Path, *, max_bytes: int = MAX_BYTES) -> tuple[Path, ModelFacts]:
    """Copy a model and the data that it names into a new private folder, and inspect the copy.

    A file that is swapped after the check changes nothing: nothing of the original is opened again.

    Args:
        path: the .onnx.
        into: the folder; it must not exist, and is made for this user alone.
        max_bytes: of the model and its data together.

    Returns:
        The .onnx in the copy, and what is known of it.

    Raises:
        UntrustedModelError: it is refused, or was changed while it was copied; the copy may be there in part.
        OSError: the copy cannot be written.
    """
    into.mkdir(mode=0o700)
    copy = into / path.name
    with open_named(path) as file:
        _copy(file, copy, max_bytes)
    wanted = inspect_model(copy, folder=path.parent, max_bytes=max_bytes).files
    for name, size_bytes in wanted.items():
        if (into / name) == copy:
            raise UntrustedModelError(f"{str(path)!r} is refused: it names itself as its data; save it again")
        (into / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_inside(path.parent, name) as file:
            _copy(file, into / name, size_bytes)
    return copy, inspect_model(copy, max_bytes=max_bytes)


def snapshot_files(folder: Path, names: Iterable[str], into: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Copy files of a folder, by their names in it, into a new private folder.

    Raises:
        UntrustedModelError: a name that leads outside, a link, no plain file, or more bytes than that in all.
        OSError: the copy cannot be written.
    """
    into.mkdir(mode=0o700)
    left = max_bytes
    for name in names:
        target = into.joinpath(*check_name(name))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_inside(folder, name) as file:
            _copy(file, target, left)
        left -= target.stat().st_size


def snapshot_file(path: Path, to: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Copy one file that the user named; what it holds is not looked at.

    Args:
        path: of the file; links to it are followed.
        to: of the copy, in a folder of this user alone; it must not exist.
        max_bytes: of the file.

    Raises:
        UntrustedModelError: it cannot be read, is no plain file, or has more bytes than that.
        OSError: the copy cannot be written.
    """
    with open_named(path) as file:
        _copy(file, to, max_bytes, name=str(path))


def _copy(file: BinaryIO, to: Path, max_bytes: int, *, name: str | None = None) -> None:
    left = max_bytes
    with to.open("xb") as target:
        while piece := file.read(_PIECE_BYTES):
            left -= len(piece)
            if left < 0:
                raise UntrustedModelError(
                    f"{(name or to.name)!r} is refused: it has over {max_bytes:,} bytes, which is the limit or what it "
                    "had a moment ago; copy it to where nobody writes"
                )
            target.write(piece)
