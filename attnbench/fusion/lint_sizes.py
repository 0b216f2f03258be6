"""At which sizes a model is linted: every free dim is given, is a batch of 1, or follows T."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.errors import InputError
from attnbench.model_problem import DTYPES, TensorSpec
from attnbench.sweep.model_sizes import problems_of
from attnbench.untrusted import ModelFacts, Value

_BATCH = re.compile(r"(?i)(.*batch.*|b|bs|n)")


@dataclass(frozen=True)
class LintSizes:
    """The sizes at T and 2T; at one size where nothing follows T."""

    sizes: list[dict[str, int]]  # free dim -> size
    shapes: list[dict[str, list[int]]]  # input -> shape
    seq_lens: tuple[int, ...]
    words: str  # batch=1, seq=T
    notes: tuple[str, ...]


def sizes_of(
    facts: ModelFacts, name: str, sizes: Mapping[str, int], bind: Mapping[str, str], seq_len: int
) -> LintSizes:
    """Sizes for every free dim of the inputs.

    Raises:
        InputError: a name that the model does not have, or sizes that it cannot have.
    """
    inputs = [_spec(value) for value in facts.inputs]
    free = list(dict.fromkeys(dim for spec in inputs for dim in spec.dims if isinstance(dim, str)))
    left = [dim for dim in free if dim not in sizes and dim not in bind]
    batches = [dim for dim in left if _is_batch(dim, inputs)]
    fixed = {**dict.fromkeys(batches, 1), **sizes}
    follow = {**{dim: "T" for dim in left if dim not in batches}, **bind}
    seq_lens = (seq_len, 2 * seq_len) if follow else ()
    problems = problems_of(
        name, inputs, (), bind=follow, sizes={dim: (size,) for dim, size in fixed.items()}, shapes={}, seq_lens=seq_lens
    )
    said = {**follow, **fixed}
    guessed = ", ".join(f"{dim}={said[dim]}" for dim in left)
    notes = [f"assumed: {guessed}; say otherwise with --set NAME=8 or --bind NAME=T"] if left else []
    if not follow:
        notes.append("no size follows T: planned memory is compared with one matrix of scores")
    return LintSizes(
        sizes=[dict(problem.sizes) for problem in problems],
        shapes=[{name: list(shape) for name, shape in problem.input_shapes().items()} for problem in problems],
        seq_lens=seq_lens, words=", ".join(f"{dim}={said[dim]}" for dim in free) or "fixed sizes",
        notes=tuple(notes),
    )  # fmt: skip


def _is_batch(dim: str, inputs: list[TensorSpec]) -> bool:
    """By its name, or as the first of several free dims of every input that has it."""
    places: list[Any] = [spec.dims for spec in inputs if dim in spec.dims]
    is_first = all(dims[0] == dim and any(isinstance(d, str) for d in dims[1:]) for dims in places)
    return is_first or _BATCH.fullmatch(dim) is not None


def _spec(value: Value) -> TensorSpec:
    """An input; free dims without a name are called after it."""
    if value.dims is None:
        raise InputError(f"input {value.name!r} does not say how many dims it has; export the model with shapes")
    dims = tuple(
        f"{value.name}_dim{axis}" if dim is None or (isinstance(dim, int) and dim < 0) else dim
        for axis, dim in enumerate(value.dims)
    )
    dtype = value.dtype if value.dtype in DTYPES else "int64"  # of others only the size is asked here
    return TensorSpec(name=value.name, dtype=dtype, dims=dims)
