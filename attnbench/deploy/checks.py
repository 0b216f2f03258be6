"""What is looked at before a model is called good: the file itself, then what it does at sizes that it never saw.

Runs in a worker: onnx's checker and the runtime are imported there. Whether the numbers are right is asked elsewhere
(golden cases); here a model is found that is right at its example and nowhere else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from attnbench.deploy.checks_file import (
    check_constants,
    check_contract,
    check_opset,
    check_same_constants,
    check_weights,
)
from attnbench.deploy.manifest import Check, Tensor
from attnbench.deploy.verify_runtimes import RAW, Run, failures
from attnbench.errors import ArtifactError, FrozenDimError, InputError
from attnbench.interfaces import Array
from attnbench.untrusted import ModelFacts, inspect_model

MakeInputs = Callable[[Mapping[str, int]], Mapping[str, Array]]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and what was promised of it."""

    path: Path  # of the .onnx
    opset: int  # that was asked for
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    example: Mapping[str, int]  # of every free dim: the size at which it was traced
    most: Mapping[str, int]  # of every free dim: the largest size that is promised
    least: Mapping[str, int] = field(default_factory=dict)  # the smallest, where it is not 1
    known_sizes: Sequence[int] = ()  # that it has by right: heads, head_dim, weights' dims
    source_bytes: int | None = None  # of the parameters it was made from, shared ones once; None: not known
    other_trace: Path | None = None  # the same model, traced at other sizes
    masks: Sequence[str] | None = None  # inputs of which a row of False means: no key; None: every boolean input
    sums: Mapping[str, Sequence[str]] = field(default_factory=dict)  # dims of outputs that are sums of free dims

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shape of every output at these sizes of the free dims."""
        known = {**sizes, **{name: sum(sizes[part] for part in parts) for name, parts in self.sums.items()}}
        return {t.name: tuple(known[d] if isinstance(d, str) else d for d in t.dims) for t in self.outputs}


def check_model(subject: Subject, run: Run, make_inputs: MakeInputs) -> tuple[Check, ...]:
    """Every check; the first that fails is raised.

    Args:
        subject: the model and its promises.
        run: runs the file; bfloat16 as its bits, as verify.py does.
        make_inputs: inputs at the sizes of the free dims.

    Raises:
        OpsetError: another opset is in the file than was asked.
        FrozenDimError: a size of the example is in the file, or two free dims are one.
        ArtifactError: the file is not valid, has other dtypes than promised, gives NaN, or stores weights twice.
        UntrustedModelError: it could not be loaded safely.
        InputError: the example cannot show that sizes are free.
    """
    check_example(subject.example, make_inputs(subject.example))
    facts = inspect_model(subject.path)
    found = [check_opset(facts, subject.opset), _full_check(subject.path)]
    found.append(check_contract(facts, subject.inputs, subject.outputs))
    found += [check_weights(subject.path, facts, subject.source_bytes), _constants(subject, facts)]
    return (*found, *check_running(subject, run, make_inputs))


def check_running(subject: Subject, run: Run, make_inputs: MakeInputs) -> tuple[Check, ...]:
    """What a model of any kind does at sizes that its example did not show.

    Raises:
        FrozenDimError: a size of the example is in it.
        ArtifactError: it does not run, or gives another dtype or NaN.
    """
    return _free_sizes(subject, run, make_inputs), _masked_rows(subject, run, make_inputs)


def check_example(example: Mapping[str, int], arrays: Mapping[str, Array]) -> None:
    """Sizes of an example that a tracer cannot take for constants or for each other.

    Raises:
        InputError: a size of 0 or 1, two equal sizes, or an array that is not contiguous.
    """
    for name, size in example.items():
        if size < 2:
            raise InputError(f"the example has {name} = {size}, which tracers take for a constant; use 2 or more")
    by_size = {size: name for name, size in example.items()}
    for name, size in example.items():
        if by_size[size] != name:
            raise InputError(
                f"the example has {name} = {by_size[size]} = {size}: tracers make one dim of two; use others"
            )
    for name, array in arrays.items():
        if not array.flags.c_contiguous:
            raise InputError(f"the example's {name} is not contiguous, which is traced too; use np.ascontiguousarray")


def _full_check(path: Path) -> Check:
    """What onnx's checker says, with shape inference.

    Raises:
        ArtifactError: it refuses the file; with the first line of what it says.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as err:
        first = (str(err).strip().splitlines() or ["no word"])[0]
        raise ArtifactError(f"onnx's checker refuses {path.name}: {first}; take another recipe or opset") from err
    return Check(name="checker", result="passed", detail=f"onnx {onnx.__version__}, with shape inference")


def _constants(subject: Subject, facts: ModelFacts) -> Check:
    """Nothing in the file has the traced size: by a second trace where there is one."""
    if subject.other_trace is not None:
        return check_same_constants(facts, inspect_model(subject.other_trace))
    fixed = [d for tensor in (*subject.inputs, *subject.outputs) for d in tensor.dims if isinstance(d, int)]
    return check_constants(facts, subject.example, (*subject.known_sizes, *fixed))


def sizes_to_run(
    example: Mapping[str, int], most: Mapping[str, int], least: Mapping[str, int] | None = None
) -> Iterator[dict[str, int]]:
    """Sizes that an example did not show: odd and all different, 2, twice the example, each at its most, 1.

    All of them within least (None: 1) and most.

    Sizes above 1 come first: a runtime may compile for what it sees first.
    """
    odd = {name: 3 + 2 * index for index, name in enumerate(example)}
    wanted = [
        odd,
        dict(zip(example, reversed(odd.values()), strict=True)),
        dict.fromkeys(example, 2),
        {name: 2 * size for name, size in example.items()},
        *({**dict.fromkeys(example, 2), name: most[name]} for name in example),
        dict.fromkeys(example, 1),
    ]
    seen: list[dict[str, int]] = []
    for sizes in wanted:
        clipped = {name: max(min(size, most[name]), (least or {}).get(name, 1)) for name, size in sizes.items()}
        if clipped not in seen:
            seen.append(clipped)
            yield clipped


def _free_sizes(subject: Subject, run: Run, make_inputs: MakeInputs) -> Check:
    """It runs at every size and gives outputs of the promised shape and dtype."""
    _run_at(subject, subject.example, make_inputs(subject.example), run)
    tried = list(sizes_to_run(subject.example, subject.most, subject.least))
    for sizes in tried:
        _run_at(subject, sizes, make_inputs(sizes), run)
    shown = "; ".join(_shown(sizes) for sizes in tried)
    return Check(name="free sizes", result="passed", detail=f"ran at {shown}")


def _run_at(subject: Subject, sizes: Mapping[str, int], inputs: Mapping[str, Array], run: Run) -> Mapping[str, Array]:
    """One call, whose outputs have the promised shapes and dtypes.

    Raises:
        FrozenDimError: it fails or has another shape, away from its example.
        ArtifactError: it does so at its example, or has another dtype.
    """
    due = subject.shapes(sizes)
    fault = ""
    found: Mapping[str, Array] = {}
    try:
        found = run(inputs, due)
    except failures() as err:
        fault = f"the runtime says {' '.join(str(err).split())[:300] or type(err).__name__}"
    for tensor in subject.outputs if not fault else ():
        array = found[tensor.name]
        if array.dtype != RAW[tensor.dtype]:
            raise ArtifactError(
                f"output {tensor.name} is {array.dtype} at {_shown(sizes)}, {tensor.dtype} was promised; "
                "take another recipe, or cast the output in the module"
            )
        if array.shape != due[tensor.name]:
            fault = fault or f"output {tensor.name} has shape {array.shape}, {due[tensor.name]} is due"
    if not fault:
        return found
    if sizes == subject.example:
        raise ArtifactError(f"the file does not even run at its example, {_shown(sizes)}: {fault}; take another recipe")
    raise FrozenDimError(
        f"the file runs at its example, {_shown(subject.example)}, but not at {_shown(sizes)}: {fault}; a size is "
        "baked in: take sizes from the inputs' shapes in the module, or take another recipe"
    )


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "no free size"


def _masked_rows(subject: Subject, run: Run, make_inputs: MakeInputs) -> Check:
    """A query that no key is allowed for gives numbers.

    Raises:
        ArtifactError: it gives NaN.
    """
    boolean = [t.name for t in subject.inputs if t.dtype == "bool" and len(t.dims) >= 2]
    masks = boolean if subject.masks is None else list(subject.masks)
    name = "NaN at fully masked rows"
    if not masks:
        return Check(name=name, result="not run", detail="no input is a boolean mask")
    sizes = next(sizes_to_run(subject.example, subject.most, subject.least))
    inputs = {key: np.array(array) for key, array in make_inputs(sizes).items()}
    for mask in masks:
        inputs[mask][..., 0, :] = False
    found = _run_at(subject, sizes, inputs, run)
    for tensor in subject.outputs:
        if (count := nan_count(found[tensor.name], tensor.dtype)) > 0:
            raise ArtifactError(
                f"output {tensor.name} has {count} NaN at {_shown(sizes)} where the first row of {' and '.join(masks)} "
                "is all False; scaled_dot_product_attention gives zeros: guard the softmax, or take another recipe"
            )
    return Check(name=name, result="passed", detail=f"none with the first row of {' and '.join(masks)} all False")


def nan_count(array: Array, dtype: str) -> int:
    """How many NaN an output holds; bfloat16 as its bits."""
    if dtype == "bf16":
        return int(((array & 0x7FFF) > 0x7F80).sum())
    return int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
