"""What an ONNX file says of itself against what was promised of it; no runtime is needed."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attnbench.deploy.manifest import Check, Tensor
from attnbench.errors import ArtifactError, FrozenDimError, OpsetError
from attnbench.untrusted import ModelFacts, StoredTensor, Value, open_inside

DUPLICATE_BYTES = 64 << 10  # of a tensor; smaller ones that are equal are scales and tables
MARGIN = 1.02  # of the source's bytes, for constants that an export adds
MARGIN_BYTES = 256 << 10


def check_opset(facts: ModelFacts, asked: int) -> Check:
    """The opset of the default domain is the one that was asked.

    Raises:
        OpsetError: with both numbers.
    """
    found = facts.opsets.get("")
    if found != asked:
        raise OpsetError(f"opset {asked} was asked, the file has {found or 'none'}; ask for one that the recipe writes")
    return Check(name="opset", result="passed", detail=f"{asked} was asked and is in the file")


def check_contract(facts: ModelFacts, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Check:
    """Names, dtypes and dims in the file are those that were promised; every free dim has a symbol of its own.

    Raises:
        FrozenDimError: a number where a free dim is due, or one symbol for two of them.
        ArtifactError: other names, dtypes or fixed dims.
    """
    symbols: dict[str, str] = {}  # of the file -> promised
    for what, declared, promised in (("inputs", facts.inputs, inputs), ("outputs", facts.outputs, outputs)):
        names, due = [value.name for value in declared], [tensor.name for tensor in promised]
        if names != due:
            raise ArtifactError(f"the file has {what} {names}, promised were {due}; export it again with these names")
        for value, tensor in zip(declared, promised, strict=True):
            _check_value(value, tensor, symbols)
    free = ", ".join(sorted(set(symbols.values()))) or "none"
    return Check(name="contract", result="passed", detail=f"names, dtypes and dims are as promised; free: {free}")


def _check_value(value: Value, promised: Tensor, symbols: dict[str, str]) -> None:
    if value.dtype != promised.dtype:
        raise ArtifactError(
            f"{value.name} is {value.dtype} in the file, {promised.dtype} was promised; cast it in the module"
        )
    if value.dims is None:
        return  # not said; the runs at other sizes tell
    if len(value.dims) != len(promised.dims):
        raise ArtifactError(f"{value.name} has {len(value.dims)} dims in the file, promised were {promised.dims}")
    for axis, (found, due) in enumerate(zip(value.dims, promised.dims, strict=True)):
        where = f"{value.name}, axis {axis}"
        if isinstance(due, str) and isinstance(found, int):
            raise FrozenDimError(
                f"{where}: {due} is the number {found} in the file, it must be free; trace it with that dim dynamic"
            )
        if isinstance(due, int) and isinstance(found, int) and found != due:
            raise ArtifactError(f"{where}: {found} in the file, {due} was promised; export it from the right module")
        if isinstance(due, str) and isinstance(found, str) and symbols.setdefault(found, due) != due:
            raise FrozenDimError(
                f"{where}: {due} and {symbols[found]} are one symbol {found!r} in the file; give them different sizes "
                "in the example"
            )


def check_constants(facts: ModelFacts, example: Mapping[str, int], known_sizes: Iterable[int]) -> Check:
    """No stored tensor has the length of the example as a dim or as a number.

    Only sizes that the model has for no other reason can tell; trace at such sizes (primes), or at two lengths and use
    `check_same_constants`.

    Raises:
        FrozenDimError: one has; with its name.
    """
    known = set(known_sizes)
    telling = {name: size for name, size in example.items() if size > 4 and size not in known}
    for name, size in telling.items():
        for tensor in facts.tensors:
            if size in tensor.dims or size in (tensor.values or ()):
                what = f"is of dims {list(tensor.dims)}" if size in tensor.dims else f"is {list(tensor.values or ())}"
                raise FrozenDimError(
                    f"{name} was {size} in the example, and the constant {tensor.name!r} {what}: the length is baked "
                    "in; make masks and shapes from the inputs' shapes, or trace at another length to see if it stays"
                )
    unclear = ", ".join(f"{name} = {size}" for name, size in example.items() if name not in telling)
    shown = ", ".join(f"{name} = {size}" for name, size in telling.items())
    if not telling:
        detail = f"the sizes of the example ({unclear}) are small or are sizes of the model too"
        return Check(name="constants", result="not run", detail=detail)
    detail = f"none of the file's {len(facts.tensors)} has the example's {shown}"
    return Check(name="constants", result="passed", detail=detail + (f"; {unclear} cannot tell" if unclear else ""))


def check_same_constants(facts: ModelFacts, other: ModelFacts) -> Check:
    """Traced at another length, the file stores the same shapes and small numbers.

    Raises:
        FrozenDimError: a constant changed with the length.
        ArtifactError: the two files are not of one model.
    """
    if len(facts.tensors) != len(other.tensors) or facts.operators != other.operators:
        raise ArtifactError(
            f"traced at another length the file has other operators or {len(other.tensors)} constants instead of "
            f"{len(facts.tensors)}: control flow depends on a size; write it without Python's if and for over sizes"
        )
    for one, two in zip(facts.tensors, other.tensors, strict=True):
        if (one.dims, one.values, one.dtype) != (two.dims, two.values, two.dtype):
            raise FrozenDimError(
                f"the constant {one.name!r} is {_brief(one)} in one trace and {_brief(two)} in another of other sizes: "
                "a length is baked in; make masks and shapes from the inputs' shapes"
            )
    detail = f"all {len(facts.tensors)} are the same in a trace at other sizes"
    return Check(name="constants", result="passed", detail=detail)


def _brief(tensor: StoredTensor) -> str:
    return f"of dims {list(tensor.dims)}" if tensor.values is None else str(list(tensor.values))


def check_weights(path: Path, facts: ModelFacts, source_bytes: int | None) -> Check:
    """Weights that the source has once are in the file once.

    Args:
        path: of the .onnx.
        facts: of it.
        source_bytes: of all parameters of the source, shared ones once; None: not known, nothing is refused.

    Raises:
        ArtifactError: the file stores more than the source has, and tensors of the same bytes.
    """
    groups: dict[tuple[str, int], list[StoredTensor]] = defaultdict(list)
    for tensor in facts.tensors:
        if tensor.size_bytes >= DUPLICATE_BYTES and tensor.offset is not None:
            groups[_digest(path, tensor), tensor.size_bytes].append(tensor)
    twice = [same for same in groups.values() if len({(t.location, t.offset) for t in same}) > 1]
    stored = sum(group[0].size_bytes * len({(t.location, t.offset) for t in group}) for group in groups.values())
    names = "; ".join(" = ".join(tensor.name for tensor in same[:4]) for same in twice[:3])
    if twice and source_bytes is not None and stored > source_bytes * MARGIN + MARGIN_BYTES:
        raise ArtifactError(
            f"the file stores {stored:,} bytes of weights, the source has {source_bytes:,}: {names} are stored twice; "
            "use one parameter for both in the module, or another recipe"
        )
    detail = f"{stored:,} bytes in tensors of {DUPLICATE_BYTES:,} and more" + (
        f"; equal bytes: {names}" if twice else ", none of them twice"
    )
    return Check(name="weights", result="passed", detail=detail)


def _digest(path: Path, tensor: StoredTensor) -> str:
    digest, left = hashlib.sha256(tensor.dtype.encode()), tensor.size_bytes
    with open_inside(path.parent, tensor.location) if tensor.location else path.open("rb") as file:
        file.seek(tensor.offset or 0)
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()
