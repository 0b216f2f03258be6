"""`inputs.toml`: what a module of the user takes, at which sizes, made how, with which weights; and its cases."""

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnbench.errors import InputError, UntrustedModelError
from attnbench.inputs import draw
from attnbench.interfaces import Array
from attnbench.model_problem import FLOATS, TensorSpec
from attnbench.untrusted import open_named

PICKLES = (".bin", ".ckpt", ".joblib", ".npy", ".pickle", ".pkl", ".pt", ".pth")
MAX_INPUTS_BYTES = 1 << 20  # of the TOML file
MAX_BYTES = 4 << 30  # of the inputs of a case
DEFAULT_MAX = 64
# Examples that no size of a module is likely to have, so that what was baked of them is found.
_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Size = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Input(_Part):
    """One input: its dims, and the values that cases have."""

    dtype: Literal["fp32", "fp16", "bf16", "bool", "int32", "int64"]
    dims: tuple[Size | str, ...]  # a name where the size is free
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # of floats: N(0, std^2)
    share_true: Annotated[float, Field(ge=0, le=1, alias="true")] = 0.75  # of bools
    least: int | None = Field(default=None, alias="from")  # of integers
    most: int | None = Field(default=None, alias="to")  # included
    whole_rows: bool = True  # of bools: a row may be all False or all True, so that this is tried too
    means: str = ""  # a sentence for who loads the file

    @model_validator(mode="after")
    def _has_a_range(self) -> "Input":
        if self.dtype.startswith("int") and (self.least is None or self.most is None or self.least > self.most):
            raise ValueError("an integer input needs from and to, such as from = 0, to = 31999")
        return self


class Range(_Part):
    """The sizes of a free dim."""

    least: Annotated[int, Field(ge=0)] = Field(default=1, alias="min")  # 0: a cache may be empty
    most: Size = Field(default=DEFAULT_MAX, alias="max")
    example: Annotated[int, Field(ge=2)]  # shown to torch.export, which takes a size of 1 for a constant


class ModuleInputs(_Part):
    """All of inputs.toml; `folder` is where it lies."""

    inputs: dict[str, Input] = Field(default_factory=dict)
    outputs: tuple[str, ...] = ()  # names, in the order in which the module gives them; empty: y, or y0, y1, ...
    ranges: dict[str, Range]
    arguments: dict[str, Any] = Field(default_factory=dict)  # of the constructor
    call: dict[str, Any] = Field(default_factory=dict)  # of forward, beside the tensors: need_weights = false
    dtype: Literal["fp32", "fp16", "bf16"] | None = None  # of the module; None: of its floating-point inputs
    weights: str | None = None  # a safetensors file, named from the folder of inputs.toml

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The inputs in order."""
        return tuple(
            TensorSpec(
                name=name, dtype=i.dtype, dims=i.dims, std=i.std, share_true=i.share_true,
                least=0 if i.least is None else i.least, most=1 if i.most is None else i.most,
            )
            for name, i in self.inputs.items()
        )  # fmt: skip

    @property
    def cast_to(self) -> str | None:
        """The dtype that the module is cast to; None: as its constructor makes it."""
        return self.dtype or next((i.dtype for i in self.inputs.values() if i.dtype in FLOATS), None)

    @property
    def examples(self) -> dict[str, int]:
        """The size of every free dim that torch.export is shown."""
        return {name: found.example for name, found in self.ranges.items()}


class Case(_Part):
    """Sizes of all free dims; `first_row`: the value of every boolean input's first row, None: as drawn."""

    name: str
    sizes: dict[str, int]
    first_row: bool | None = None


def read_inputs(path: Path) -> ModuleInputs:
    """The contract of a module, from inputs.toml.

    Raises:
        InputError: it cannot be read or says what no module can have; with the key that is wrong.
    """
    try:
        with open_named(path) as file:
            text = file.read(MAX_INPUTS_BYTES + 1)
    except UntrustedModelError as err:
        raise InputError(f"--inputs {err}") from err
    if len(text) > MAX_INPUTS_BYTES:
        raise InputError(f"--inputs {str(path)!r} has over {MAX_INPUTS_BYTES:,} bytes; name a TOML file")
    try:
        table = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as err:
        raise InputError(f"--inputs {str(path)!r} is not TOML: {err}") from err
    weights = table.get("weights")
    if isinstance(weights, str):
        table["weights"] = str(path.parent.absolute() / weights)
    try:
        found = ModuleInputs.model_validate({**table, "ranges": _ranges(table)})
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"--inputs {str(path)!r}: {where}: {first['msg']}, got {first['input']!r}") from err
    fault = _fault(found)
    if fault:
        raise InputError(f"--inputs {str(path)!r}: {fault}")
    return found


def _ranges(table: Mapping[str, Any]) -> dict[str, Any]:
    """A range for every free dim; examples that are not given are primes, each another."""
    given = table.get("ranges", {})
    tensors = table.get("inputs", {})
    if not isinstance(given, dict) or not isinstance(tensors, dict):
        return {}
    dims = [d for t in tensors.values() if isinstance(t, dict) and isinstance(t.get("dims"), list) for d in t["dims"]]
    names = list(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))
    taken = {dim for dim in dims if isinstance(dim, int)}
    taken |= {r["example"] for r in given.values() if isinstance(r, dict) and isinstance(r.get("example"), int)}
    found = {}
    for name in names:
        entry = given.get(name, {})
        if isinstance(entry, dict) and "example" not in entry:
            low, high = entry.get("min", 1), entry.get("max", DEFAULT_MAX)
            fits = (n for n in (*_PRIMES, *range(2, 97)) if n not in taken and _is_within(n, low, high))
            entry = {**entry, "example": next(fits, high)}
            taken.add(entry["example"])
        found[name] = entry
    unknown = {name: {"example": 2} for name in given if name not in found}  # refused with the names that there are
    return {**found, **unknown}


def _is_within(number: int, low: object, high: object) -> bool:
    return isinstance(low, int) and isinstance(high, int) and low <= number <= high


def _fault(found: ModuleInputs) -> str:
    """What is wrong with the whole, as a sentence; empty: nothing."""
    dims = {dim for tensor in found.inputs.values() for dim in tensor.dims if isinstance(dim, str)}
    bad_names = [n for n in (*found.inputs, *found.outputs, *dims) if not _NAME.fullmatch(n)]
    dtypes: set[str] = {i.dtype for i in found.inputs.values() if i.dtype in FLOATS}
    floats = sorted(dtypes if found.dtype is None else dtypes | {found.dtype})
    examples = list(found.examples.values())
    outside = [f"{n}: {r.least} <= {r.example} <= {r.most}" for n, r in found.ranges.items()
               if not r.least <= r.example <= r.most]  # fmt: skip
    for is_wrong, words in (
        (not found.inputs, "inputs: a module takes at least one tensor, write [inputs.x] with dtype and dims"),
        (bad_names, f"{bad_names} must be names of letters, digits and _"),
        (len(set(found.outputs)) < len(found.outputs), "outputs has a name twice"),
        (set(found.outputs) & set(found.inputs), "outputs has the name of an input; use another"),
        (set(found.ranges) - dims, f"ranges: no input has a dim called {sorted(set(found.ranges) - dims)}"),
        (set(found.call) & set(found.inputs), "call has the name of an input; leave it out of one of them"),
        (len(floats) > 1, f"dtypes are {' and '.join(floats)}: module and inputs have one, write one"),
        (outside, f"ranges: example must be from min to max, got {'; '.join(outside)}"),
        (len(set(examples)) < len(examples),
         f"ranges: two free dims have one example ({found.examples}), so that torch would take them for one; "
         "give each another example or max"),
    ):  # fmt: skip
        if is_wrong:
            return words
    return _weights_fault(found.weights)


def _weights_fault(weights: str | None) -> str:
    if weights is None or weights.endswith(".safetensors"):
        return ""
    name = Path(weights).name
    kind = "a pickle runs code when it is read" if weights.endswith(PICKLES) else "nothing else is read"
    return (
        f"weights must be a .safetensors file, got {name!r}: {kind}; write one with "
        "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors'), for shared weights save_model"
    )


def cases_of(found: ModuleInputs) -> list[Case]:
    """The example, then sizes that none had: odd, 2, twice the example, each dim at its most and least, all at least.

    All sizes above 1 come first: OpenVINO compiles for what it sees first. Where booleans are, their first row is all
    False and all True too.

    Raises:
        InputError: the inputs of a case would be larger than 4 GiB.
    """
    ranges = found.ranges
    odd = {name: min(5 + 2 * index, r.most) for index, (name, r) in enumerate(ranges.items())}
    odd = {name: size - (size % 2 == 0) for name, size in odd.items()}
    wanted = [
        ("example", found.examples),
        ("odd", odd),
        ("two", dict.fromkeys(ranges, 2)),
        ("twice", {name: 2 * r.example for name, r in ranges.items()}),
        *((f"most-{name}", {**dict.fromkeys(ranges, 2), name: r.most}) for name, r in ranges.items()),
        *((f"least-{name}", {**dict.fromkeys(ranges, 2), name: r.least}) for name, r in ranges.items()),
        ("least", {name: r.least for name, r in ranges.items()}),
    ]
    cases: list[Case] = []
    for name, sizes in wanted:
        clipped = {dim: min(max(size, ranges[dim].least), ranges[dim].most) for dim, size in sizes.items()}
        if clipped not in [case.sizes for case in cases]:
            cases.append(Case(name=name, sizes=clipped))
    if any(has_rows(tensor) for tensor in found.inputs.values()):
        sizes = cases[0].sizes
        cases += [Case(name=f"rows-{value}".lower(), sizes=sizes, first_row=value) for value in (False, True)]
    for case in cases:
        size_bytes = sum(4 * math.prod(shape) for shape in shapes(found, case.sizes).values())
        if size_bytes > MAX_BYTES:
            raise InputError(
                f"inputs at {case.sizes} would take {size_bytes / 2**30:.3g} GiB, at most {MAX_BYTES >> 30} are "
                "made; lower the max in [ranges]"
            )
    return cases


def has_rows(tensor: Input) -> bool:
    """Is it a boolean input whose first row is tried all False and all True?"""
    return tensor.dtype == "bool" and tensor.whole_rows and len(tensor.dims) > 1


def shapes(found: ModuleInputs, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every input at these sizes."""
    return {
        name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims)
        for name, tensor in found.inputs.items()
    }


def make_arrays(found: ModuleInputs, case: Case, *, seed: int = 0) -> dict[str, Array]:
    """The inputs of a case, each from a stream of its own."""
    made = {}
    specs = {spec.name: spec for spec in found.specs}
    for name, shape in shapes(found, case.sizes).items():
        tensor = found.inputs[name]
        made[name] = draw(specs[name], shape, seed=seed)
        if case.first_row is not None and has_rows(tensor):
            made[name][..., 0, :] = case.first_row
    return made
