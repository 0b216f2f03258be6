"""Is what a bundle of the built-in attention says of itself what this attnbench would say?

A bundle's own verify.py believes bundle.json; somebody who wants to deceive writes limits that everything is within,
or leaves the cases out that are wrong. Here cases, expected outputs and limits are made again.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.deploy import verify_bundle
from attnbench.deploy.golden import case_name, case_of, free_sizes, sizes_of
from attnbench.deploy.manifest import GOLDEN
from attnbench.deploy.prove import plain
from attnbench.deploy.verify_runtimes import read_case
from attnbench.inputs import INPUT_CLASSES, make_inputs, make_weights
from attnbench.interfaces import Array, numpy_dtype
from attnbench.problem import Problem

LIMIT_SLACK = 4.0  # limits come from what torch was off by on the machine that made the bundle
EXPECTED_WITHIN = 1e-9  # float64 of another machine, of the worst row


def claims_here(*, folder: str, problem: dict[str, Any], seed: int, same_numpy: bool) -> dict[str, Any]:
    """In a worker with torch: {"faults": sentences} of what bundle.json claims and this attnbench does not find.

    Args:
        folder: of the bundle, whose files were looked at.
        problem: that bundle.json names.
        seed: of its weights and inputs.
        same_numpy: the NumPy that drew the inputs is the one here, so that they must be the same bits.
    """
    bundle = verify_bundle.read_bundle(Path(folder))
    stated = Problem.from_dict(problem)
    weights = make_weights(stated, seed=seed)
    faults: list[str] = []
    for sized, input_class, case in _cases(bundle, stated):
        if case is None:
            faults.append(f"bundle.json has no case {case_name(sized, input_class)}, which proves its ranges")
        else:
            faults += _faults(Path(folder), case, sized, input_class, weights, seed if same_numpy else None)
    return {"faults": faults}


def _cases(bundle: Mapping[str, Any], stated: Problem) -> Iterator[tuple[Problem, str, dict[str, Any] | None]]:
    """Every case that its ranges ask for, with the bundle's own; None: it has none.

    Raises:
        InputError: sizes that no export proves.
    """
    by_file = {case["file"]: case for case in bundle["golden"]}
    largest = max((size for name, (_, size) in bundle["ranges"].items() if name != "batch_size"), default=0)
    problems = sizes_of(stated, largest)
    if stated.variant == "decode" and "kv_len" not in free_sizes(problems[-1]):
        problems = sizes_of(stated, largest + 1)  # past_len is one less than the length
    for sized in problems:
        for input_class in INPUT_CLASSES:
            case = by_file.get(f"{GOLDEN}/{case_name(sized, input_class)}.npz")
            yield sized, input_class, case if case and case["sizes"] == free_sizes(sized) else None


def _faults(
    folder: Path, case: Mapping[str, Any], sized: Problem, input_class: str, weights: Mapping[str, Array],
    seed: int | None,
) -> Iterator[str]:  # fmt: skip
    """What is wrong with a case; seed None: other inputs are no fault."""
    bits, _, expected = read_case(folder, case)
    shapes, kinds = sized.input_shapes(), sized.input_kinds()
    if list(bits) != list(shapes) or any(bits[name].shape != shape for name, shape in shapes.items()):
        yield f"{case['file']} has other inputs than the problem"
        return
    inputs = {n: a.view(numpy_dtype("bf16")) if kinds[n] == "bf16" else a for n, a in bits.items()}
    if seed is not None:
        drawn = make_inputs(sized, seed=seed, input_class=input_class)
        if any(not np.array_equal(plain(drawn[name]), bits[name]) for name in bits):
            yield f"{case['file']} has other inputs than seed {seed} draws"
    entry, due = case_of(sized, input_class, inputs, weights)
    for name, limit in entry.limits.items():
        off, _ = verify_bundle.compare(expected[name], due[f"out_{name}"]) if name in expected else (np.inf, 0.0)
        if not off <= EXPECTED_WITHIN:
            yield f"{case['file']} expects {name} to be what attention in float64 is not, by {off:.3g}"
        stated = case["limits"].get(name, np.inf)
        if not stated <= LIMIT_SLACK * limit:
            yield f"{case['file']} allows {name} to be off by {stated:.3g}, the rule gives {limit:.3g}"
    for name, gain in entry.gain_limits.items():
        stated = case["gain_limits"].get(name, np.inf)
        if not stated <= LIMIT_SLACK * gain:
            yield f"{case['file']} allows {name} to be scaled by {stated:.3g}, the rule gives {gain:.3g}"
