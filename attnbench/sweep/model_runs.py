"""In a worker: the arrays that a model of the user is given, and those that it gives, as files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.errors import MeasurementError
from attnbench.files import write_atomically, write_bytes
from attnbench.interfaces import Array, ModelSession
from attnbench.model_problem import FLOATS, ModelProblem
from attnbench.sweep.model_arrays import load_arrays


class GivenInputs:
    """The arrays of `--load-inputs`."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed

    def arrays(self, target: ModelProblem, seed: int) -> dict[str, Array]:
        """As given for the run's own seed; for another the same values in other places, so that nothing is remembered.

        Raises:
            InputError: the file does not fit the model.
        """
        found = load_arrays(self._path, target.inputs, target.input_shapes())
        return {name: np.roll(array, seed - self._seed) if seed != self._seed else array.copy()
                for name, array in found.items()}  # fmt: skip


def write_reference(session: ModelSession, target: ModelProblem, path: Path) -> dict[str, Any]:
    """Write the outputs of the last call, floats in float64; {"path": ...}.

    Raises:
        MeasurementError: an output is NaN, or lacks.
    """
    save_reference(target, session.outputs_by_name(), path)
    return {"path": str(path)}


def save_reference(target: ModelProblem, found: Mapping[str, Array], path: Path) -> None:
    """Write what outputs are to be.

    Raises:
        MeasurementError: an output is NaN, or lacks, or all are empty.
    """
    if found and all(array.size == 0 for array in found.values()):
        shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in found.items())
        raise MeasurementError(
            f"the outputs are empty at these sizes ({shapes}), so nothing is computed; use sizes of 1"
        )
    expected = {}
    for spec in target.outputs:
        if spec.name not in found:
            raise MeasurementError(f"the model gives no output {spec.name!r}; it gives {', '.join(found) or 'none'}")
        array = found[spec.name]
        expected[spec.name] = array.astype(np.float64) if spec.dtype in FLOATS else array
        if spec.dtype in FLOATS and (count := int(np.isnan(expected[spec.name]).sum())):
            raise MeasurementError(
                f"output {spec.name} is NaN in {count} of {array.size} places on these inputs; "
                "give others for which the model is defined"
            )
    # Another worker may have it open: it is replaced as a whole.
    write_atomically(path, lambda temporary: _save(temporary, expected))


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    with path.open("wb") as f:
        np.savez(f, allow_pickle=False, **arrays)


def save_outputs(session: ModelSession, path: Path) -> None:
    """Write the outputs of the last call in their own dtypes; bfloat16 as its bits."""
    from attnbench.sweep.repro import as_npz

    write_bytes(path, as_npz(session.outputs_by_name()))
