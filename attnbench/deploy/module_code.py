"""In a worker: a module of the user, imported, constructed and given its weights; what its code raises, with the line.

Code of the user is imported from the folder where attnbench was started and from the installed packages, as
`python -m` does; the process that plans and writes never imports it.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from attnbench.deploy.module_inputs import ModuleInputs
from attnbench.errors import AttnbenchError, InputError, UntrustedModelError
from attnbench.interfaces import Array
from attnbench.sweep.log import looks_like_oom
from attnbench.untrusted import read_safetensors

_MOST_NAMED = 5  # keys of weights in a message


class UserCode:
    """Turns whatever code of the user raises inside into an InputError with file and line."""

    def __init__(self, doing: str) -> None:
        self.doing = doing  # "blocks:MyAttention cannot be constructed"

    def __enter__(self) -> None:
        """Nothing: only the end matters."""

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        """Raise what is told in its place; our own errors, interrupts and missing memory go through."""
        if isinstance(err, SystemExit):
            raise InputError(f"{self.doing}: it calls sys.exit; take that out of what is imported and run") from err
        if not isinstance(err, Exception) or isinstance(err, AttnbenchError | MemoryError):
            return
        if not looks_like_oom(first_line(err)):
            raise self.told(err) from err

    def told(self, err: Exception) -> AttnbenchError:
        """What is raised instead."""
        return InputError(f"{self.doing}: {line_of(err)}{first_line(err)}")


def first_line(err: BaseException) -> str:
    """`KeyError: 'x'`, of the first line that an exception has."""
    lines = str(err).strip().splitlines()
    return f"{type(err).__name__}: {lines[0]}" if lines else type(err).__name__


def line_of(err: BaseException) -> str:
    """`blocks.py, line 7: ` of the innermost line of the user's that raised; empty where there is none."""
    if isinstance(err, SyntaxError) and err.filename and err.lineno:
        return f"{_shown(err.filename)}, line {err.lineno}: "
    frames = [frame for frame in traceback.extract_tb(err.__traceback__) if _is_users(frame.filename)]
    return f"{_shown(frames[-1].filename)}, line {frames[-1].lineno}: " if frames else ""


def _is_users(filename: str) -> bool:
    """Not of torch, of attnbench or of Python."""
    if filename.startswith("<"):
        return False
    ours = [Path(__file__).parents[1], Path(inspect.__file__).parent]
    if torch := sys.modules.get("torch"):
        ours.append(Path(inspect.getfile(torch)).parent)
    path = Path(filename).absolute()
    in_site = "site-packages" in path.parts and not any(path.is_relative_to(folder) for folder in (ours[0], *ours[2:]))
    return in_site or not any(path.is_relative_to(folder) for folder in ours)


def _shown(filename: str) -> str:
    path = Path(filename).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def build(module: str, found: ModuleInputs, *, folder: Path, seed: int) -> Any:
    """The module in eval mode, cast to the dtype of its floating-point inputs, with its weights.

    Args:
        module: `package.module:Class`, or a function that makes a module.
        found: its constructor's arguments and weights.
        folder: where attnbench was started.
        seed: of torch's random numbers while it is constructed.

    Raises:
        InputError: there is none, it cannot be constructed, or the weights are not its own.
    """
    import torch

    make = _find(module, folder)
    torch.manual_seed(seed)
    with UserCode(f"{module} cannot be constructed with [arguments] {found.arguments or '(none)'}"):
        made = make(**found.arguments)
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"{module} must make a torch.nn.Module, it made {type(made).__name__}; name its class")
    floats = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    dtype = None if found.cast_to is None else floats[found.cast_to]
    with UserCode(f"{module} cannot be cast to the dtype of its inputs"):
        made = made.eval().requires_grad_(False)
        made = made if dtype is None else made.to(dtype)
    _check_signature(module, made, found)
    if found.weights is not None:
        _load_weights(module, made, Path(found.weights))
    return made


def _find(module: str, folder: Path) -> Any:
    name, _, attribute = module.partition(":")
    if not name or not attribute.isidentifier():
        raise InputError(f"--module must be package.module:Class, got {module!r}; write for example blocks:MyAttention")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with UserCode(f"{name} cannot be imported"):
            imported = importlib.import_module(name)
    except InputError as err:
        cause = err.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise InputError(
                f"there is no module {cause.name!r} in {str(folder)!r} or among the installed packages; "
                "start attnbench in the folder that holds it, or install it"
            ) from err
        raise
    if not callable(found := getattr(imported, attribute, None)):
        there = [key for key, value in vars(imported).items() if _is_module_class(value, name)]
        raise InputError(f"{name} has no class {attribute!r}; it has {', '.join(there) or 'no torch.nn.Module'}")
    return found


def _is_module_class(value: object, name: str) -> bool:
    import torch

    return isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == name


def _check_signature(module: str, made: Any, found: ModuleInputs) -> None:
    """Inputs and `call` are parameters of forward, and nothing that it needs is missing.

    Raises:
        InputError: with the parameters that it has.
    """
    parameters = inspect.signature(made.forward).parameters
    given = {*found.inputs, *found.call}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    needed = {
        n for n, p in parameters.items() if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    unknown = sorted(given - set(parameters)) if not takes_any else []
    missing = sorted(needed - given)
    if unknown or missing:
        wrong = f"has no parameter {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)} too"
        raise InputError(
            f"forward of {module} {wrong}; it takes {', '.join(parameters)}: name tensors in [inputs.NAME], "
            "anything else in [call]"
        )


def _load_weights(module: str, made: Any, path: Path) -> None:
    """Load a safetensors file; every tensor of the module must be in it, in its shape, and nothing else.

    Raises:
        InputError: it cannot be read, or keys are missing, unexpected or of another shape.
    """
    try:
        tensors = {name: to_torch(array) for name, array in read_safetensors(path).items()}
    except UntrustedModelError as err:
        raise InputError(f"weights: {err}") from err
    own = made.state_dict(keep_vars=True)
    faults = [*_key_faults(own, tensors)]
    if faults:
        raise InputError(f"weights {path.name!r} are not those of {module}: {'; '.join(faults)}")
    with UserCode(f"{module} does not take the weights of {path.name!r}"):
        made.load_state_dict(tensors, strict=False)  # a shared weight is stored under one of its names


def _key_faults(own: Mapping[str, Any], tensors: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the keys of weights, in sentences."""
    shared = {tensor.data_ptr() for key, tensor in own.items() if key in tensors and tensor.numel()}
    missing = [key for key, tensor in own.items() if key not in tensors and tensor.data_ptr() not in shared]
    unexpected = [key for key in tensors if key not in own]
    shapes = [
        f"{key} is {tuple(tensors[key].shape)}, the module's is {tuple(tensor.shape)}"
        for key, tensor in own.items() if key in tensors and tensors[key].shape != tensor.shape
    ]  # fmt: skip
    for keys, words in ((missing, "missing"), (unexpected, "unexpected"), (shapes, "of another shape")):
        if keys:
            more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
            yield f"{words}: {', '.join(keys[:_MOST_NAMED])}{more}"


def to_torch(array: Array) -> Any:
    """A torch tensor of its own memory; bfloat16 too."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
