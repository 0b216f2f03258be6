"""Golden cases of the built-in attention: inputs, float64 outputs, and what an export may differ by."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.deploy.manifest import GOLDEN, Golden
from attnbench.deploy.place import writing
from attnbench.errors import InputError
from attnbench.inputs import INPUT_CLASSES, make_inputs, make_weights
from attnbench.interfaces import Array
from attnbench.measure import numerics
from attnbench.problem import OUTPUT_NAME, Problem
from attnbench.reference import reference_new_cache, reference_output
from attnbench.sweep.bench import limits_of
from attnbench.sweep.oracle import torch_eager_rows
from attnbench.sweep.repro import as_npz

MAX_BYTES = 1 << 28  # of all cases
EAGER_ROWS = 128  # of a case that torch eager computes: fp16 on a CPU does 1 GFLOP/s
REFERENCE = "attnbench.reference: attention in float64 NumPy, from the inputs and weights as they are rounded"
# batch_size, q_len and kv_len (decode: cached tokens) of the cases below the largest T. Odd lengths, a batch; more
# queries than keys and fewer, where a file has two lengths. All sizes above 1 come first: see verify_runtimes.
_SQUARE = ((2, 17, 17), (1, 1, 1))
_FREE = ((2, 17, 9), (2, 9, 17), (1, 1, 1))
_DECODE = ((2, 3, 17), (1, 1, 1), (2, 5, 0))  # the last: a prompt, before anything is cached


def sizes_of(problem: Problem, max_len: int) -> list[Problem]:
    """The problem at every size that is proved, the largest last.

    Raises:
        InputError: max_len is too small for this problem, or its cases would be too large.
    """
    least = 18 if problem.variant == "decode" else 17
    if max_len < least:
        raise InputError(f"--max-len must be at least {least}, got {max_len}; it is the largest T that is proved")
    if problem.variant == "decode":
        sizes = [(b, q, q + past) for b, q, past in (*_DECODE, (1, 1, max_len - 1))]
    else:
        small = _FREE if has_two_lengths(problem) else _SQUARE
        sizes = [*small, (1, max_len, max_len)]
    found = [problem.at(batch_size=b, q_len=q, kv_len=kv) for b, q, kv in sizes]
    size_bytes = sum(_bytes(p) for p in found) * len(INPUT_CLASSES)
    if size_bytes > MAX_BYTES:
        raise InputError(
            f"golden cases up to --max-len {max_len} would take {size_bytes} bytes, at most {MAX_BYTES} are "
            "kept in a bundle; use a smaller one"
        )
    return found


def has_two_lengths(problem: Problem) -> bool:
    """Has a file of the problem a q_len and a kv_len of its own?"""
    return any("kv_len" in dims for dims in problem.input_dims().values())


def traced_problem(problem: Problem) -> Problem:
    """The problem at the sizes that are traced: at least 2, and no two lengths alike."""
    q_len = kv_len = 11
    if problem.variant == "decode":
        kv_len = 18
    elif has_two_lengths(problem):
        kv_len = 7
    return problem.at(q_len=q_len, kv_len=kv_len, batch_size=2)


def _bytes(problem: Problem) -> int:
    shapes, out = problem.input_shapes().values(), problem.output_shapes().values()
    return 4 * sum(map(math.prod, shapes)) + 8 * sum(map(math.prod, out))


def free_sizes(problem: Problem) -> dict[str, int]:
    """Size of every dim that the file leaves free."""
    shapes = {**problem.input_shapes(), **problem.output_shapes()}
    pairs = ((dim, size) for name, dims in problem.symbolic_dims().items()
             for dim, size in zip(dims, shapes[name], strict=True))  # fmt: skip
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


def ranges_of(golden: Sequence[Golden]) -> dict[str, tuple[int, int]]:
    """The least and the largest size of every free dim over all cases."""
    dims = dict.fromkeys(dim for case in golden for dim in case.sizes)
    seen = {dim: [case.sizes[dim] for case in golden if dim in case.sizes] for dim in dims}
    return {dim: (min(sizes), max(sizes)) for dim, sizes in seen.items()}


def write_cases(*, folder: str, problem: dict[str, Any], seed: int, max_len: int) -> dict[str, Any]:
    """In a worker with torch: write golden/*.npz; {"golden": entries of bundle.json}.

    Raises:
        InputError: a max_len that does not fit.
    """
    target = Path(folder) / GOLDEN
    target.mkdir(exist_ok=True)
    weights = make_weights(Problem.from_dict(problem), seed=seed)
    entries = []
    for sized in sizes_of(Problem.from_dict(problem), max_len):
        for input_class in INPUT_CLASSES:
            inputs = make_inputs(sized, seed=seed, input_class=input_class)
            entry, arrays = case_of(sized, input_class, inputs, weights)
            with writing(Path(entry.file)):
                (Path(folder) / entry.file).write_bytes(as_npz(arrays))
            entries.append(entry.model_dump(mode="json"))
    return {"golden": entries}


def case_name(problem: Problem, input_class: str) -> str:
    """`batch2-seq17-normal`: the case of these sizes."""
    sizes = free_sizes(problem).items()
    parts = [f"{dim.removesuffix('_size').removesuffix('_len')}{size}" for dim, size in sizes]
    return "-".join([*parts, input_class])


def case_of(
    problem: Problem, input_class: str, inputs: dict[str, Array], weights: Mapping[str, Array]
) -> tuple[Golden, dict[str, Array]]:
    """The entry of a case and its arrays; the problem is at its sizes, the class of `INPUT_CLASSES`."""
    expected = {OUTPUT_NAME: reference_output(problem, inputs, weights)}
    limits = _limits(problem, input_class, inputs, weights, expected[OUTPUT_NAME])
    worst_row = {OUTPUT_NAME: limits.worst_row}
    reason = f"{limits.reason}; scale: ten times the noise of right outputs"
    if problem.variant == "decode":
        for name, new in reference_new_cache(problem, inputs, weights).items():
            past = inputs[name.replace("present", "past")].astype(np.float64)
            expected[name] = np.concatenate([past, new], axis=2)
            worst_row[name] = numerics.tolerances()["block", problem.dtype, "normal"].ceiling
        reason += "; cache: the ceiling of projections"
    name = case_name(problem, input_class)
    rows = math.prod(problem.output_shape()[:-1])
    entry = Golden(
        file=f"{GOLDEN}/{name}.npz", sizes=free_sizes(problem), limits=worst_row,
        gain_limits={OUTPUT_NAME: limits.gain_of(rows)}, reason=reason, reference=REFERENCE,
    )  # fmt: skip
    arrays = {f"in_{n}": a for n, a in inputs.items()} | {f"out_{n}": a for n, a in expected.items()}
    return entry, arrays


def _limits(
    problem: Problem, input_class: str, inputs: dict[str, Array], weights: Mapping[str, Array], expected: Array
) -> numerics.Limits:
    """What an output may differ by: from the dtype's floor, and from what torch eager is off by here."""
    rows = np.linspace(0, problem.q_len - 1, min(problem.q_len, EAGER_ROWS)).astype(np.int64)
    eager = numerics.compare(torch_eager_rows(problem, inputs, dict(weights), rows), expected[..., rows, :])
    judge = {"floor": numerics.floor_error(expected, problem.dtype),
             "eager": {"worst_row_rel_err": eager.worst_row_rel_err}}  # fmt: skip
    return limits_of(problem, judge, input_class)
