"""`attnbench bench` with a model of the user: its flags, and what they say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from attnbench import cli_ci, flags
from attnbench.errors import InputError
from attnbench.model_flags import parse_bind, parse_set, parse_shapes
from attnbench.options import Lists, repeated, single

MODEL = "A model of your own instead"

Onnx = Annotated[str | None, single("--onnx", help="An ONNX file.", metavar="FILE", panel=MODEL)]
Module = Annotated[
    str | None, single("--module", help="A torch.nn.Module, with --inputs.", metavar="PKG.MODULE:CLASS", panel=MODEL)
]
Inputs = Annotated[str | None, single("--inputs", help="TOML: what the module takes.", metavar="FILE", panel=MODEL)]
Engine = Annotated[
    str | None,
    single("--engine", help="A TensorRT plan. It is code: open only trusted ones.", metavar="FILE", panel=MODEL),
]
Bind = Annotated[Lists, repeated("--bind", help="A free dim follows T: T, T/2, T+1.", metavar="NAME=T", panel=MODEL)]
Set = Annotated[Lists, repeated("--set", help="A free dim has these sizes.", metavar="NAME=1,8", panel=MODEL)]
Shapes = Annotated[Lists, repeated("--shapes", help="Shapes of inputs.", metavar="x:8x512", panel=MODEL)]
LoadInputs = Annotated[
    str | None, single("--load-inputs", help="Inputs by name.", metavar="FILE.npz", panel=MODEL, default="random")
]
SaveOutputs = Annotated[
    str | None, single("--save-outputs", help="Outputs of every arm.", metavar="FILE.npz", panel=MODEL)
]

_WHICH = ("onnx", "module", "engine")
_BESIDE = ("inputs", "bind", "set_sizes", "shapes", "load_inputs", "save_outputs")
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in (*_WHICH, *_BESIDE)} | {"set_sizes": "--set"}
OF_MODEL = (*_WHICH, *_BESIDE)
# What a model has of its own, or what needs the built-in attention.
OF_ATTENTION = {
    "sweep": "SWEEP", "preset": "--preset", "variants": "--variants", "part": "--part", "kv_lens": "--kv-lens",
    "q_lens": "--q-lens", "batch_sizes": "--batch-sizes", "num_heads": "--num-heads", "head_dims": "--head-dims",
    "num_kv_heads": "--num-kv-heads", "v_head_dims": "--v-head-dims", "masks": "--masks", "scale": "--scale",
    "bias": "--bias", "value_map": "--value-map", "dtypes": "--dtypes", "refine": "--refine",
    "memory_budget": "--memory-budget", "measure_frontier": "--measure-frontier", "stress": "--stress",
}  # fmt: skip
_OF_EXPORT = {"exporters": "--exporters", "opset": "--opset"}


def is_asked(params: Mapping[str, Any]) -> bool:
    """Is a model named, or something said about one? A run that is resumed knows its own."""
    return params["resume"] is None and any(params[name] for name in OF_MODEL)


def arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `attnbench.api.bench` and `plan` for a model, from the flags of `bench`.

    Raises:
        InputError: the first flag that is wrong, or that a model cannot have.
    """
    _check_which(params)
    others = [flag for name, flag in OF_ATTENTION.items() if params[name]]
    if others:
        way = "its sizes are set with --bind NAME=T and --set NAME=8" if others != ["SWEEP"] else "give flags instead"
        raise InputError(f"{', '.join(others)} is for the built-in attention, not for a model of yours; {way}")
    if params["module"] is None and (given := [flag for name, flag in _OF_EXPORT.items() if params[name]]):
        raise InputError(f"{', '.join(given)} is for what is exported, and the model is a file already; leave it out")
    found = flags.bench_arguments(params)
    for name in ("onnx", "engine", "inputs", "load_inputs"):
        if params[name] is not None:
            found[name] = _parse_file(_FLAGS[name], params[name])
    if params["save_outputs"] is not None:
        found["save_outputs"] = _parse_save(params["save_outputs"], found.get("out"))
    found |= {"module": params["module"], "bind": parse_bind(params["bind"]), "sizes": parse_set(params["set_sizes"]),
              "shapes": parse_shapes(params["shapes"])}  # fmt: skip
    return {name: value for name, value in found.items() if value not in (None, {})}


def _check_which(params: Mapping[str, Any]) -> None:
    """One model, and what belongs to it."""
    which = [_FLAGS[name] for name in _WHICH if params[name] is not None]
    if which == ["--onnx", "--engine"]:  # the file that the engine was compiled from
        which = which[:1]
    if not which:
        beside = ", ".join(_FLAGS[name] for name in _BESIDE if params[name])
        raise InputError(f"{beside} is about a model of yours; name it with --onnx FILE, or --module and --inputs")
    if len(which) > 1:
        raise InputError(f"{' and '.join(which)} are different models; give one, and bench the other in a second run")
    if (params["module"] is None) != (params["inputs"] is None):
        alone, other = ("--inputs", "--module") if params["module"] is None else ("--module", "--inputs")
        raise InputError(f"--module and --inputs go together, got {alone} without {other}; see docs/modules.md")


def _parse_file(flag: str, text: str) -> Path:
    path = flags.parse_path(flag, text)
    if path.is_dir():
        raise InputError(f"{flag} must be a file, but {text!r} is a folder; name a file in it")
    if not path.is_file():
        raise InputError(f"{flag} must be a file that exists, got {text!r}; look at the folder with: ls")
    return path


def _parse_save(text: str, out: Path | None) -> Path:
    path = flags.parse_file_out("--save-outputs", text, example="outputs.npz", new_folder=out)
    cli_ci.check_not_of_the_run("--save-outputs", path)
    if path.suffix != ".npz":
        raise InputError(f"--save-outputs writes a .npz, got {text!r}; name it such as outputs.npz")
    return path
