"""`--save-outputs`: the outputs of every arm and of the reference, in one .npz."""

from pathlib import Path

import numpy as np

from attnbench.errors import InputError
from attnbench.files import write_bytes
from attnbench.interfaces import Array
from attnbench.model_bench.bench import OUTPUTS
from attnbench.sweep.repro import as_npz


def refuse_unwritable(path: Path) -> None:
    """Find before a long run that its outputs could not be written.

    Raises:
        InputError: the folder is missing, or the path is a folder.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--save-outputs {str(path)!r} cannot be written: name a file in a folder that exists")


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
