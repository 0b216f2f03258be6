"""In a worker with the target's runtime: golden cases and probes of the mask's meaning, on the bundle's own file.

The file is loaded as verify.py loads it, with the same settings.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.deploy.verify_bundle import run_cases
from attnbench.deploy.verify_runtimes import Fault, Run, load
from attnbench.errors import NotRunError, UnsupportedError
from attnbench.interfaces import Array, numpy_dtype
from attnbench.probes import Probe, feature_probes
from attnbench.problem import OUTPUT_NAME, Problem


def prove(*, folder: str, plan: dict[str, Any], problem: dict[str, Any] | None, seed: int) -> dict[str, Any]:
    """Run what a bundle will claim.

    Args:
        folder: that is to become the bundle.
        plan: what bundle.json will say of runtime, model, inputs, outputs and golden cases.
        problem: of the built-in attention; None: a module, which has no probes.
        seed: of its weights.

    Returns:
        errors: file of a case -> output -> worst row; faults: sentences; conformance: what the probes found.

    Raises:
        UnsupportedError: the runtime does not load or run the file; its words.
    """
    errors, faults, found = {}, [], []
    try:
        run = load(Path(folder), plan, {})
        for case, measured, wrong in run_cases(Path(folder), plan, run):
            errors[case["file"]] = measured
            faults += [f"{case['file']}: {sentence}" for sentence in wrong]
        if problem is not None and not faults:
            found = [_answer(run, probe, seed) for probe in _probes(Problem.from_dict(problem))]
    except Fault as err:
        raise UnsupportedError(str(err)) from err
    return {"errors": errors, "faults": faults, "conformance": found}


def _probes(problem: Problem) -> list[Probe]:
    """Those of what the problem uses, and random inputs at lengths around the ends of a kernel's tiles."""
    found = feature_probes(problem)
    has_two = any("kv_len" in dims for dims in problem.input_dims().values())
    if problem.part == "core" and problem.mask != "none" and has_two:
        sizes = ((7, 3), (1, 5), (4, 4))
        found += [Probe(name=f"uniform {q}x{kv}", problem=problem.at(q_len=q, kv_len=kv), fill="uniform", shows="")
                  for q, kv in sizes]  # fmt: skip
    kv_len = 150 if has_two or problem.variant == "decode" else 70
    tiles = problem.at(q_len=70, kv_len=kv_len, batch_size=2)
    return [*found, Probe(name=f"normal 70x{kv_len}", problem=tiles, fill="normal", shows="")]


_SHOWS = {
    "poison": "a masked key must not leak", "no_key_row": "a query without a key gives zero",
    "no_key_sample": "a sample without a key gives zero", "heads": "every query head meets its own key head",
    "uniform": "output i is the mean of the keys that query i sees", "normal": "random inputs against float64",
}  # fmt: skip


def _answer(run: Run, probe: Probe, seed: int) -> dict[str, Any]:
    from attnbench.sweep.probing import run_probe

    found = run_probe(FileSession(run, probe.problem), probe.problem, probe.fill, seed)
    verdict = "conforms" if found["ok"] else "differs"
    return {"probe": probe.name, "problem": probe.problem.label(), "shows": _SHOWS[probe.fill], "verdict": verdict,
            **{name: found[name] for name in ("how", "error", "limit")}}  # fmt: skip


class FileSession:
    """A loaded file as a `DecodeSession`, so that what judges runtimes judges it."""

    def __init__(self, run: Run, problem: Problem) -> None:
        self._run, self._problem = run, problem
        self._found: dict[str, Array] | None = None

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Keep the inputs; the call computes everything."""
        self._found = None
        own = {name: np.ascontiguousarray(plain(array)) for name, array in inputs.items()}

        def call() -> None:
            self._found = self._run(own, self._problem.output_shapes())

        return call

    def outputs(self) -> Array:
        """`y` of the last call.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        return self._all()[OUTPUT_NAME]

    def cache(self) -> Mapping[str, Array]:
        """The other outputs of the last call.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        return {name: array for name, array in self._all().items() if name != OUTPUT_NAME}

    def _all(self) -> dict[str, Array]:
        if self._found is None:
            raise NotRunError("the call that was bound last has not run yet")
        is_bf16 = self._problem.dtype == "bf16"
        return {n: a.view(numpy_dtype("bf16")) if is_bf16 else a for n, a in self._found.items()}

    def facts(self) -> Any:
        """What verify.py does not tell is not known here either.

        Raises:
            NotRunError: always.
        """
        raise NotRunError("a bundle's session has no facts; bench tells what a runtime does")


def plain(array: Array) -> Array:
    """As verify.py holds it: bfloat16 as its bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
