"""A model of the user as a problem: named inputs and outputs whose dims are numbers or names, at some sizes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from attnbench.errors import ProblemError
from attnbench.problem import Problem, digest

FLOATS = ("fp32", "fp16", "bf16")
DTYPES = (*FLOATS, "bool", "int32", "int64")
ANY_RANK = ("...",)  # the dims of an output whose rank the file does not say
_PRECISION = ("fp32", "fp16", "bf16")  # from the most digits to the fewest


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """An input or output of a model; the last four say what an input is drawn from."""

    name: str
    dtype: str  # of DTYPES
    dims: tuple[str | int, ...]  # a name where the size is free
    std: float = 1.0  # of floats: N(0, std^2)
    share_true: float = 0.75  # of bools
    least: int = 0  # of integers
    most: int = 1  # included

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them; what an input is drawn from only where it is not the usual."""
        usual = {f.name: f.default for f in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


@dataclass(frozen=True, kw_only=True)
class ModelProblem:
    """What a model takes and gives. The same names as `attnbench.problem.Problem` where both have them."""

    name: str  # package.module:Class, or a file's name
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)  # of the inputs' free dims; empty: any
    bound: str | None = None  # the free dim that is T; None: no size is swept
    precision: str = ""  # the fewest digits that the model computes with by intent; empty: those of its tensors
    inputs_sha256: str = ""  # of the arrays that were given as inputs; empty: they are drawn

    part = variant = "model"  # what a record calls it
    batch_size = None  # which dim of a model is a batch is not known

    @property
    def dtype(self) -> str:
        """The floating-point dtype of the inputs, else of the outputs; fp32 where there is none."""
        return next((tensor.dtype for tensor in (*self.inputs, *self.outputs) if tensor.dtype in FLOATS), "fp32")

    @property
    def coarsest(self) -> str:
        """The floating-point dtype with the fewest digits among `precision`, inputs and outputs."""
        there = {self.precision or "fp32", *(tensor.dtype for tensor in (*self.inputs, *self.outputs))}
        return next(dtype for dtype in reversed(_PRECISION) if dtype in there)

    @property
    def q_len(self) -> int | None:
        """T: the size of the bound dim; None where none is."""
        return None if self.bound is None else self.sizes[self.bound]

    @property
    def kv_len(self) -> int | None:
        """T: a model has one length as far as is known."""
        return self.q_len

    def at(self, sizes: Mapping[str, int]) -> "ModelProblem":
        """The same model with some free dims at other sizes.

        Raises:
            ProblemError: a name that is no free dim.
        """
        for name in sizes:
            if name not in self.sizes:
                raise ProblemError(f"{self.name} has no free dim {name!r}; it has {', '.join(self.sizes) or 'none'}")
        return replace(self, sizes={**self.sizes, **sizes})

    @property
    def problem_id(self) -> str:
        """12 hex digits that depend on the problem alone: not on which file or weights the model has."""
        return digest(self.as_dict())

    def symbolic_dims(self) -> dict[str, tuple[str | int, ...]]:
        """The dims that a file must declare, inputs and outputs: a name where free, else the number."""
        return {tensor.name: tensor.dims for tensor in (*self.inputs, *self.outputs)}

    def input_dims(self) -> dict[str, tuple[str | int, ...]]:
        """Dims of the inputs, in order."""
        return {tensor.name: tensor.dims for tensor in self.inputs}

    def output_dims(self) -> dict[str, tuple[str | int, ...]]:
        """Dims of the outputs, in order; `ANY_RANK` where even their number is not known."""
        return {tensor.name: tensor.dims for tensor in self.outputs}

    def input_kinds(self) -> dict[str, str]:
        """Element type of every input, in order."""
        return {tensor.name: tensor.dtype for tensor in self.inputs}

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every input, in order.

        Raises:
            ProblemError: a free dim has no size.
        """
        free = [dim for dims in self.input_dims().values() for dim in dims if isinstance(dim, str)]
        if missing := [dim for dim in dict.fromkeys(free) if dim not in self.sizes]:
            raise ProblemError(f"{self.name} has free dims without a size: {', '.join(missing)}; set them")
        return {
            name: tuple(self.sizes[dim] if isinstance(dim, str) else dim for dim in dims)
            for name, dims in self.input_dims().items()
        }

    def output_shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Shape of every output, in order; None where it has a dim that no input has."""
        found: dict[str, tuple[int, ...] | None] = {}
        for name, dims in self.output_dims().items():
            known = [self.sizes.get(dim) if isinstance(dim, str) else dim for dim in dims]
            shape = tuple(size for size in known if size is not None)
            found[name] = shape if len(shape) == len(dims) else None
        return found

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them; those that came later only where they say something."""
        made: dict[str, Any] = {
            "name": self.name, "inputs": [tensor.as_dict() for tensor in self.inputs],
            "outputs": [tensor.as_dict() for tensor in self.outputs], "sizes": dict(self.sizes),
        }  # fmt: skip
        later = {"bound": self.bound, "precision": self.precision, "inputs_sha256": self.inputs_sha256}
        return made | {name: value for name, value in later.items() if value}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelProblem":
        """The inverse of `as_dict`.

        Raises:
            ProblemError: an unknown or missing field.
        """
        try:
            tensors = {
                key: tuple(TensorSpec(**{**tensor, "dims": tuple(tensor["dims"])}) for tensor in fields[key])
                for key in ("inputs", "outputs")
            }
            return cls(**{**fields, **tensors, "sizes": dict(fields["sizes"])})
        except (TypeError, KeyError) as err:
            raise ProblemError(f"not the fields of a model: {sorted(fields)} ({err})") from err

    def static_key(self) -> str:
        """What a file of it depends on: everything but the sizes and the inputs' values."""
        left_out = ("sizes", "bound", "inputs_sha256")
        tensors = {
            key: [(tensor.name, tensor.dtype, tensor.dims) for tensor in getattr(self, key)]
            for key in ("inputs", "outputs")
        }
        return digest({k: v for k, v in self.as_dict().items() if k not in left_out} | tensors)

    def label(self) -> str:
        """A short line for people: `blocks:MyAttention batch=2 T=128 fp32`."""
        return " ".join([self.name, *(f"{name}={size}" for name, size in self.sizes.items()), self.dtype])


AnyProblem = Problem | ModelProblem


def problem_from_dict(fields: Mapping[str, Any]) -> AnyProblem:
    """The inverse of either `as_dict`: a model of the user has `inputs`, the built-in attention has none.

    Raises:
        ProblemError: the fields of neither.
    """
    return ModelProblem.from_dict(fields) if "inputs" in fields else Problem.from_dict(dict(fields))
