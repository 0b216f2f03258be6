"""At which sizes a model of the user is run: its free dims are set, taken from shapes, or follow T."""

import difflib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.errors import InputError
from attnbench.model_problem import ModelProblem, TensorSpec
from attnbench.problem import MAX_TENSOR_BYTES

DEFAULT_SEQ_LENS = (128, 256, 512, 1024)
MAX_SIZE = 2**31 - 1  # of a dim: runtimes count elements of a dim in 32 bits in places
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "bool": 1, "int32": 4, "int64": 8}
_FORM = re.compile(r"T(?:([/*+-])([0-9]{1,9}))?")


@dataclass(frozen=True, kw_only=True)
class Given:
    """The size of a free dim and who says so, for the message where two contradict."""

    size: int
    source: str  # --set batch=8, x of shape 8x512


def problems_of(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    bind: Mapping[str, str],
    sizes: Mapping[str, Sequence[int]],
    shapes: Mapping[str, tuple[int, ...]],
    seq_lens: Sequence[int],
) -> list[ModelProblem]:
    """One problem for every combination of sizes, in the order of T, then of `sizes`.

    Args:
        name: of the model.
        inputs: with the names of their free dims.
        outputs: likewise; their dims need no sizes.
        bind: free dim -> T, T/N, T*N, T+N or T-N; the first that is T itself is the problems' `bound`.
        sizes: free dim -> the sizes to run at.
        shapes: input -> its shape, which gives the sizes of its free dims.
        seq_lens: T; empty: 128, 256, 512 and 1024 where something is bound.

    Raises:
        InputError: a free dim without a size, a name that the model does not have, sizes that contradict each other
            or that no tensor can have.
    """
    free = _free_dims(inputs)
    _check_names(free, [*bind, *sizes])
    told = _from_shapes(inputs, shapes)
    _refuse_contradictions(told, bind, sizes)
    bound = _bound(bind, seq_lens)
    _require_all(free, {*bind, *sizes, *told})
    fixed = {dim: [given.size] for dim, given in told.items()} | {dim: list(found) for dim, found in sizes.items()}
    made = []
    for seq_len in (seq_lens or DEFAULT_SEQ_LENS) if bind else (0,):
        follow = {dim: _size_at(dim, form, seq_len) for dim, form in bind.items()}
        for combination in itertools.product(*fixed.values()):
            at = follow | dict(zip(fixed, combination, strict=True))
            ordered = {dim: at[dim] for dim in free}
            _check_sizes(inputs, ordered)
            made.append(
                ModelProblem(name=name, inputs=tuple(inputs), outputs=tuple(outputs), sizes=ordered, bound=bound)
            )
    return made


def _refuse_contradictions(
    told: Mapping[str, Given], bind: Mapping[str, str], sizes: Mapping[str, Sequence[int]]
) -> None:
    """A free dim has its size from one place."""
    for dim, given in told.items():
        if dim in bind:
            raise InputError(f"{dim!r} is bound to {bind[dim]} and {given.source} gives it {given.size}; leave one out")
        if any(size != given.size for size in sizes.get(dim, ())):
            other = ",".join(map(str, sizes[dim]))
            raise InputError(f"--set {dim}={other} contradicts {given.source}, where it is {given.size}; leave one out")
    both = [dim for dim in bind if dim in sizes]
    if both:
        raise InputError(f"{both[0]!r} has both --bind and --set; it follows T or is set, leave one out")


def tensor_bytes(problem: ModelProblem) -> int:
    """Bytes of all inputs, and of the outputs whose shapes the inputs tell: what a call holds at least."""
    kinds = {tensor.name: tensor.dtype for tensor in (*problem.inputs, *problem.outputs)}
    shapes = [*problem.input_shapes().items(), *problem.output_shapes().items()]
    return sum(math.prod(shape) * ITEM_BYTES[kinds[name]] for name, shape in shapes if shape is not None)


def parse_form(dim: str, text: str) -> tuple[str, int]:
    """The operator and number of T, T/N, T*N, T+N or T-N; ("+", 0) for T.

    Raises:
        InputError: anything else.
    """
    found = _FORM.fullmatch(text.replace(" ", ""))
    if found is None or (found[1] in ("/", "*") and int(found[2]) == 0):
        raise InputError(
            f"--bind {dim}={text} must be T, T/N, T*N, T+N or T-N with a whole number N, such as --bind {dim}=T; "
            f"for one size that stays, write --set {dim}=8"
        )
    return (found[1] or "+", int(found[2] or 0))


def _size_at(dim: str, form: str, seq_len: int) -> int:
    sign, number = parse_form(dim, form)
    if sign == "/":
        if seq_len % number:
            raise InputError(f"--bind {dim}={form} is no whole number at T = {seq_len}; use T that {number} divides")
        size = seq_len // number
    else:
        size = {"*": seq_len * number, "+": seq_len + number, "-": seq_len - number}[sign]
    if not 0 <= size <= MAX_SIZE:
        raise InputError(
            f"--bind {dim}={form} is {size} at T = {seq_len}, a size is from 0 to {MAX_SIZE}; use other --seq-lens"
        )
    return size


def _bound(bind: Mapping[str, str], seq_lens: Sequence[int]) -> str | None:
    """The free dim that is T itself."""
    if not bind:
        if seq_lens:
            raise InputError("--seq-lens needs a free dim that follows T; add --bind NAME=T, or leave --seq-lens out")
        return None
    for seq_len in seq_lens:
        if not 1 <= seq_len <= MAX_SIZE:
            raise InputError(f"--seq-lens must be from 1 to {MAX_SIZE}, got {seq_len}; use a smaller T")
    bound = next((dim for dim, form in bind.items() if parse_form(dim, form) == ("+", 0)), None)
    if bound is None:
        shown = ", ".join(f"{dim}={form}" for dim, form in bind.items())
        raise InputError(f"--bind needs one free dim that is T itself, got {shown}; write --bind {next(iter(bind))}=T")
    return bound


def _free_dims(inputs: Sequence[TensorSpec]) -> list[str]:
    return list(dict.fromkeys(dim for tensor in inputs for dim in tensor.dims if isinstance(dim, str)))


def _check_names(free: Sequence[str], given: Sequence[str]) -> None:
    for dim in given:
        if dim not in free:
            raise InputError(_unknown("free dim", dim, free))


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    """One sentence with the names that there are and the nearest."""
    if not known:
        return f"no {what} {name!r}: the model has none, all its sizes are fixed; leave it out"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no {what} {name!r}; the model has {', '.join(known)}{hint}"


def _from_shapes(inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Given]:
    """The sizes of free dims that shapes of inputs tell."""
    specs = {tensor.name: tensor for tensor in inputs}
    found: dict[str, Given] = {}
    for name, shape in shapes.items():
        if name not in specs:
            raise InputError(_unknown("input", name, list(specs)))
        dims = specs[name].dims
        shown = f"{name} of shape {_shown(shape)}"
        if len(dims) != len(shape):
            raise InputError(
                f"{shown} has {len(shape)} dims, the model's {name} has {len(dims)}: {_shown(dims)}; give one size each"
            )
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if isinstance(dim, int):
                if dim != size:
                    raise InputError(f"{shown} has {size} at dim {axis}, the model has it fixed at {dim}; give {dim}")
                continue
            before = found.setdefault(dim, Given(size=size, source=shown))
            if before.size != size:
                raise InputError(
                    f"{shown} makes {dim!r} {size}, but {before.source} makes it {before.size}; a free dim has one size"
                )
    return found


def _require_all(free: Sequence[str], given: set[str]) -> None:
    missing = [dim for dim in free if dim not in given]
    if missing:
        ways = " ".join(f"--set {_quoted(f'{dim}=1')}" for dim in missing)
        follows = _quoted(f"{missing[-1]}=T")
        raise InputError(
            f"the model has free dims without a size: {', '.join(missing)}; add for example {ways}, and for one that "
            f"is to follow T, such as a sequence length, --bind {follows} instead"
        )


def _check_sizes(inputs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> None:
    for dim, size in sizes.items():
        if not 0 <= size <= MAX_SIZE:
            raise InputError(f"{dim} must be from 0 to {MAX_SIZE}, got {size}; such as --set {_quoted(f'{dim}=1')}")
    for tensor in inputs:
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims)
        needed = math.prod(shape) * ITEM_BYTES[tensor.dtype]
        if needed > MAX_TENSOR_BYTES:
            raise InputError(
                f"{tensor.name} of shape {_shown(shape)} would need {needed} bytes ({needed / 2**30:.0f} GiB), more "
                f"than the limit of {MAX_TENSOR_BYTES} bytes per tensor; use smaller sizes"
            )


def _shown(dims: Sequence[int | str]) -> str:
    return "x".join(map(str, dims)) or "scalar"


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_.=-]+", text) else f'"{text}"'
