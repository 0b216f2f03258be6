"""What a compiled engine takes and gives, and at which sizes, as a runtime reads it from the engine itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.errors import InputError
from attnbench.model_problem import ANY_RANK, TensorSpec

Shape = tuple[int, ...]
Range = tuple[Shape, Shape, Shape]  # the least, the usual and the largest shape of an input


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """Inputs and outputs of an engine, and its profiles: each holds sizes from a least to a largest shape."""

    version: str  # of the compiler that wrote it
    inputs: tuple[TensorSpec, ...]  # a free dim is called after its input: x_dim1
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[Mapping[str, Range], ...]  # input -> its range; at least one

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "EngineFacts":
        """The inverse of `as_dict`, also after JSON."""

        def specs(key: str) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(**{**tensor, "dims": tuple(tensor["dims"])}) for tensor in fields[key])

        def ranges(profile: Mapping[str, Any]) -> dict[str, Range]:
            return {name: (tuple(least), tuple(usual), tuple(most)) for name, (least, usual, most) in profile.items()}

        return cls(
            version=fields["version"], inputs=specs("inputs"), outputs=specs("outputs"),
            profiles=tuple(map(ranges, fields["profiles"])),
        )  # fmt: skip

    def profile_for(self, shapes: Mapping[str, Shape]) -> int | None:
        """The first profile that holds all these shapes; None: no one does."""
        fits = (all(_holds(profile[name], shape) for name, shape in shapes.items()) for profile in self.profiles)
        return next((index for index, is_held in enumerate(fits) if is_held), None)

    def why_outside(self, shapes: Mapping[str, Shape]) -> str:
        """Why no profile holds these shapes, as a sentence with the ranges that there are."""
        wrong = next(
            (name for name, shape in shapes.items() if not any(_holds(p[name], shape) for p in self.profiles)), ""
        )
        names = [wrong] if wrong else list(shapes)
        found = ", ".join(f"{name} of shape {_shown(shapes[name])}" for name in names)
        told = self.ranges(names)
        several = f"{len(self.profiles)} profiles" if len(self.profiles) > 1 else "profile"
        return f"{found} is outside of the engine's {several}: {told}; take sizes inside, or compile for wider ones"

    def ranges(self, names: Iterable[str] | None = None) -> str:
        """What the profiles hold of these inputs, of all where none are named: `x from 1x1 to 8x512; x from ...`."""
        inputs = [tensor.name for tensor in self.inputs] if names is None else list(names)
        return "; ".join(
            ", ".join(f"{name} from {_shown(profile[name][0])} to {_shown(profile[name][2])}" for name in inputs)
            for profile in self.profiles
        )

    def require_same(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        """An engine that runs as a model must have its inputs and outputs.

        Raises:
            InputError: it has others, or of another dtype or number of dims.
        """
        for what, due, found in (("inputs", inputs, self.inputs), ("outputs", outputs, self.outputs)):
            by_name = {tensor.name: tensor for tensor in found}
            if len(due) != len(found) or not all(t.name in by_name and _fits(t, by_name[t.name]) for t in due):
                raise InputError(
                    f"the engine's {what} are {_listed(found)}, the model's are {_listed(due)}: the engine was not "
                    "compiled from this file, or with other formats of its inputs and outputs; give the file that it "
                    "was compiled from, or --engine alone"
                )


def _holds(within: Range, shape: Shape) -> bool:
    least, _, most = within
    return len(shape) == len(most) and all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))


def _shown(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _fits(due: TensorSpec, found: TensorSpec) -> bool:
    """Are dtype and number of dims the same, as far as the model says the latter?"""
    return due.dtype == found.dtype and (due.dims == ANY_RANK or len(due.dims) == len(found.dims))


def _listed(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{t.name} {t.dtype} of {len(t.dims)} dims" for t in tensors) or "none"
