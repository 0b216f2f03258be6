"""A model of the user as a problem: named inputs and outputs whose dims are numbers or names, at some sizes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from attnbench.problem import digest

FLOATS = ("fp32", "fp16", "bf16")
DTYPES = (*FLOATS, "bool", "int32", "int64")


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    dtype: str  # of DTYPES
    dims: tuple[str | int, ...]  # a name where the size is free


@dataclass(frozen=True, kw_only=True)
class ModelProblem:
    """What a model takes and gives. The same names as `attnbench.problem.Problem` where both have them."""

    name: str  # package.module:Class, or a file's name
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)  # of free dims; empty: any

    @property
    def dtype(self) -> str:
        """The floating-point dtype of the inputs, else of the outputs; fp32 where there is none."""
        return next((tensor.dtype for tensor in (*self.inputs, *self.outputs) if tensor.dtype in FLOATS), "fp32")

    def symbolic_dims(self) -> dict[str, tuple[str | int, ...]]:
        """The dims that a file must declare, inputs and outputs: a name where free, else the number."""
        return {tensor.name: tensor.dims for tensor in (*self.inputs, *self.outputs)}

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelProblem":
        """The inverse of `as_dict`."""
        tensors = {
            key: tuple(TensorSpec(**{**tensor, "dims": tuple(tensor["dims"])}) for tensor in fields[key])
            for key in ("inputs", "outputs")
        }
        return cls(name=fields["name"], sizes=dict(fields["sizes"]), **tensors)

    def static_key(self) -> str:
        """What a file of it depends on: everything but the sizes."""
        return digest({**self.as_dict(), "sizes": {}})

    def label(self) -> str:
        """A short line for people: `blocks:MyAttention batch=2 T=128 fp32`."""
        return " ".join([self.name, *(f"{name}={size}" for name, size in self.sizes.items()), self.dtype])
