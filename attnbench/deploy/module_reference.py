"""In a worker: what a module of the user computes, in float64 and in its own dtype, on one declared path.

The path: eager, eval mode, no gradients, the fast path of nn.MultiheadAttention off. For the reference every tensor
that the module itself makes in a lower precision (`x.float()`, `torch.zeros(n)`) is made in float64 too.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attnbench.deploy.module_code import UserCode, to_torch
from attnbench.deploy.module_inputs import ModuleInputs
from attnbench.errors import InputError
from attnbench.interfaces import Array
from attnbench.model_problem import DTYPES, FLOATS, TensorSpec

REFERENCE = (
    "the module itself in float64: eager, eval mode, no gradients, the fast path of nn.MultiheadAttention off; from "
    "the inputs and weights as they are rounded"
)
_TORCH_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "bool", "int32": "int32",
                "int64": "int64", "float64": "fp64"}  # fmt: skip


def flat_module(module: Any, found: ModuleInputs) -> Any:
    """A torch.nn.Module from tensors, in the order of the inputs, to a tuple of tensors."""
    import torch

    names, constants = tuple(found.inputs), dict(found.call)

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: Any) -> Any:
            return flatten(self.module(**dict(zip(names, tensors, strict=True)), **constants))

    return Flat()


def flatten(found: Any) -> tuple[Any, ...]:
    """The tensors of what a module gives: a tensor, or tuples, lists, dicts of them; None is left out.

    Raises:
        InputError: something else is among them.
    """
    import torch

    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(found) if leaf is not None]
    others = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    if others or not leaves:
        raise InputError(f"a module must give tensors, this one gives {', '.join(others) or 'none'}; return tensors")
    return tuple(leaves)


@contextlib.contextmanager
def declared_path() -> Iterator[None]:
    """No gradients, and no fast path that computes something else on rows without a key."""
    import torch

    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


class Reference:
    """A module in its own dtype and in float64."""

    def __init__(self, name: str, module: Any, found: ModuleInputs) -> None:
        self.name = name
        self._own = flat_module(module, found)
        with UserCode(f"{name} cannot be copied and cast to float64, which its reference needs"):
            self._double = flat_module(copy.deepcopy(module).double(), found)

    def outputs(self, inputs: Mapping[str, Array]) -> list[Any]:
        """What the module gives in its own dtype, as torch tensors.

        Raises:
            InputError: it does not run, with the line.
        """
        tensors = [to_torch(array) for array in inputs.values()]
        shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in inputs.items())
        with declared_path(), UserCode(f"{self.name} does not run on {shapes}"):
            return list(self._own(*tensors))

    def expected(self, inputs: Mapping[str, Array], *, times: int = 1) -> list[Array]:
        """What it gives in float64; integers and booleans as they are.

        Args:
            inputs: of a case.
            times: how often it is asked; every answer must be the same.

        Raises:
            InputError: it does not run in float64, computes something in a lower precision, is not deterministic, or
                writes to its inputs.
        """
        tensors = _doubles(inputs)
        copies = [[t.clone() for t in tensors] for _ in range(times)]
        found = [self._in_double(given) for given in copies]
        for name, before, after in zip(inputs, tensors, copies[0], strict=True):
            if not before.equal(after):
                raise InputError(
                    f"{self.name} writes to its input {name} in place, which a file never does; write to "
                    f"a copy: {name} = {name}.clone()"
                )
        for first, last in zip(found[0], found[-1], strict=True):
            if not np.array_equal(first, last, equal_nan=first.dtype.kind == "f"):
                raise InputError(
                    f"{self.name} gives two answers to one question: it draws random numbers or remembers calls; make "
                    "it a function of its inputs in eval mode"
                )
        return found[0]

    def refuses_strides(self, inputs: Mapping[str, Array], expected: list[Array]) -> bool:
        """Does it refuse inputs that are not contiguous, as `view` does? A file takes values, in whatever layout.

        Args:
            inputs: of a case.
            expected: what it gives in float64 where they are contiguous.

        Raises:
            InputError: it takes them and gives something else: what it computes is not a function of the values.
        """
        try:
            found = self._in_double([_strided(t) for t in _doubles(inputs)])
        except InputError:
            return True
        for due, array in zip(expected, found, strict=True):
            is_float = due.dtype.kind == "f"
            size = float(np.abs(due[np.isfinite(due)]).max(initial=0.0)) if is_float else 0.0
            if due.shape != array.shape or not np.allclose(array, due, rtol=0, atol=1e-9 * size, equal_nan=is_float):
                raise InputError(
                    f"{self.name} gives something else for the same values when its inputs are not contiguous in "
                    "memory: a file has no strides; decide by shapes and values, or call contiguous() first"
                )
        return False

    def _in_double(self, tensors: list[Any]) -> list[Array]:
        """One call in float64."""
        import torch

        doing = f"{self.name} does not run in float64, so that there is nothing to judge its file by"
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with declared_path(), UserCode(doing), _in_float64(doing):
                return [t.clone().numpy() for t in self._double(*tensors)]
        finally:
            torch.set_default_dtype(default)


def _doubles(inputs: Mapping[str, Array]) -> list[Any]:
    """Floating-point inputs as float64, the others as they are."""
    tensors = [to_torch(array) for array in inputs.values()]
    return [t.double() if t.is_floating_point() else t for t in tensors]


def _strided(tensor: Any) -> Any:
    """The same values, every second number of a larger tensor, so that no two axes can be viewed as one."""
    if tensor.dim() == 0:
        return tensor
    size = 2 * tensor.shape[-1]
    larger = tensor.new_zeros((*tensor.shape[:-1], size + 1))
    larger[..., :size:2] = tensor
    return larger[..., :size:2]


def _in_float64(doing: str) -> Any:
    """A torch mode in which what is made in a lower floating-point precision is made in float64."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    lower = (torch.float32, torch.float16, torch.bfloat16)

    class InFloat64(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("dtype") in lower:
                kwargs["dtype"] = torch.float64
            made = func(*args, **kwargs)
            for leaf in torch.utils._pytree.tree_leaves(made):
                if isinstance(leaf, torch.Tensor) and leaf.dtype in lower:
                    raise TypeError(
                        f"{func} gives {str(leaf.dtype).removeprefix('torch.')}; take the dtype of an input"
                    )
            return made

    return InFloat64()


def to_numpy(tensor: Any) -> Array:
    """A NumPy array of a torch tensor; bfloat16 as ml_dtypes has it."""
    import torch

    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    found: Array = tensor.numpy()
    return found


def output_specs(found: ModuleInputs, outputs: list[list[Any]], sizes: list[dict[str, int]]) -> tuple[TensorSpec, ...]:
    """Names, dtypes and dims of the outputs, from tensors at several sizes.

    A dim is a free dim of the inputs where it had its size every time, a number where it never changed, else a name
    of its own, which every output dim has that always was of one size with it: keys and values of a cache.

    Args:
        found: the contract.
        outputs: of every case, tensors in order.
        sizes: of every case.

    Raises:
        InputError: another number of outputs than names, or an output whose rank or dtype changes or is unknown.
    """
    count = len(outputs[0])
    usual = ("y",) if count == 1 else tuple(f"y{index}" for index in range(count))
    names = found.outputs or usual
    if len(names) != count:
        raise InputError(f"the module gives {count} outputs, outputs in inputs.toml names {len(names)}: {list(names)}")
    if taken := set(names) & set(found.inputs):
        raise InputError(f"an output would be called {taken.pop()!r} as an input is; name outputs in inputs.toml")
    specs = []
    own: dict[tuple[int, ...], str] = {}  # sizes of every case -> the name of the dims that had them
    for index, name in enumerate(names):
        tensors = [case[index] for case in outputs]
        kinds = {_TORCH_NAMES.get(str(t.dtype).removeprefix("torch."), str(t.dtype)) for t in tensors}
        if len(kinds) > 1 or not kinds <= set(DTYPES) or len({t.dim() for t in tensors}) > 1:
            raise InputError(
                f"output {name} has dtype {', '.join(sorted(kinds))} and ranks {sorted({t.dim() for t in tensors})}; "
                f"it must always have one rank and one dtype of {', '.join(DTYPES)}"
            )
        seen = [tuple(t.shape[axis] for t in tensors) for axis in range(tensors[0].dim())]
        dims = tuple(_dim(at, sizes, own.setdefault(at, f"{name}_{axis}")) for axis, at in enumerate(seen))
        specs.append(TensorSpec(name=name, dtype=kinds.pop(), dims=dims))
    return tuple(specs)


def _dim(seen: tuple[int, ...], sizes: list[dict[str, int]], own_name: str) -> str | int:
    for name in sizes[0]:
        if seen == tuple(case[name] for case in sizes):
            return name
    return seen[0] if len(set(seen)) == 1 else own_name


def is_float(spec: TensorSpec) -> bool:
    """Is it judged by a limit, rather than bit for bit?"""
    return spec.dtype in FLOATS
