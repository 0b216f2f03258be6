"""`--save-outputs`: the outputs of every arm and of the reference, in one .npz."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from attnbench.errors import InputError
from attnbench.files import write_bytes
from attnbench.interfaces import Array
from attnbench.model_bench.bench import OUTPUTS
from attnbench.sweep.repro import as_npz


def refuse_unwritable(path: Path, read: Iterable[Path | None]) -> None:
    """Find before a long run that its outputs could not be written, or would replace a file that it reads.

    Args:
        path: of the outputs.
        read: files of the user that the run reads.

    Raises:
        InputError: the folder is missing, the path is a folder, or it is one of those files.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--save-outputs {str(path)!r} cannot be written: name a file in a folder that exists")
    if any(other is not None and path.exists() and other.exists() and path.samefile(other) for other in read):
        raise InputError(
            f"--save-outputs {str(path)!r} is a file that the run reads; name another, such as outputs.npz"
        )


def gather(run_path: Path, target: Path) -> None:
    """Write `ARM/OUTPUT` and `reference/OUTPUT` of a run of one size; a run that computed none leaves no file.

    Raises:
        InputError: the file cannot be written.
    """
    arrays: dict[str, Array] = {}
    for made in sorted((run_path / "artifacts" / OUTPUTS).glob("*/*.npz")):
        with np.load(made, allow_pickle=False) as stored:
            arrays |= {f"{made.stem}/{name}": stored[name] for name in stored.files}
    if not arrays:
        return
    try:
        write_bytes(target, as_npz(arrays))
    except OSError as err:
        raise InputError(f"--save-outputs {str(target)!r} cannot be written: {err.strerror}") from err
