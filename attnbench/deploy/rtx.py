"""Engines of TensorRT-RTX, compiled ahead of time from an ONNX file; no GPU and no driver are needed for it.

Compiled and tested without a GPU; not yet run or timed on one.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from attnbench import trt_compiler
from attnbench.deploy.place import writing
from attnbench.errors import UnavailableError, UnsupportedError
from attnbench.problem import Problem

DEFAULT_ARCHS = ("sm89", "sm120")
PACKAGE, MODULE = "tensorrt-rtx", "tensorrt_rtx"
ENGINES = "engines.json"
USUAL_LEN = 512  # tactics are chosen for it; the engine takes all lengths of its profile
MOST_BATCH = 8
MOST_NEW = 5  # tokens of a decode step
_PLANNED = ("planned_activation_bytes", "planned_scratch_bytes", "planned_weights_bytes")  # in bundle.json


def parse_archs(text: str | None) -> tuple[str, ...]:
    """The architectures of `--gpu-archs sm89,sm120`.

    Raises:
        InputError: one that the builder does not know, or none.
    """
    return DEFAULT_ARCHS if text is None else trt_compiler.parse_archs(text)


def require_builder() -> None:
    """Go on only where TensorRT-RTX is installed; it is not imported.

    Raises:
        UnavailableError: it is not.
    """
    if importlib.util.find_spec(MODULE) is None:
        raise UnavailableError(f"{PACKAGE} is not installed, so no engine can be compiled; pip install {PACKAGE}")


def profile_of(problem: Problem, max_len: int) -> dict[str, list[list[int]]]:
    """Input -> its least, usual and largest shape: batch 1 to 8, lengths 1 to max_len; of decode past_len from 0."""
    usual = min(USUAL_LEN, max_len)
    sizes = [(1, 1), (1, usual), (MOST_BATCH, max_len)]
    if problem.variant == "decode":  # one new token behind a cache, and as many as golden cases have; it may be empty
        steps = zip((1, 1, MOST_NEW), sizes, strict=True)
        at = [problem.at(batch_size=batch, q_len=new, kv_len=length + new - 1) for new, (batch, length) in steps]
    else:
        at = [problem.at(batch_size=batch, q_len=length, kv_len=length) for batch, length in sizes]
    shapes = [p.input_shapes() for p in at]
    return {name: [list(shape[name]) for shape in shapes] for name in shapes[0]}


def build_engines(
    *, source: str, folder: str, archs: Sequence[str], profile: Mapping[str, Sequence[Sequence[int]]]
) -> dict[str, Any]:
    """In a worker with tensorrt_rtx: compile an ONNX file into `model-ARCH.engine` for every architecture.

    What it returns of them is written beside them as engines.json, with the profile.

    Args:
        source: the ONNX file.
        folder: where the engines go.
        archs: of `trt_compiler.ARCHS`.
        profile: input -> least, usual and largest shape.

    Returns:
        engines: arch -> file, planned_activation_bytes, planned_scratch_bytes, planned_weights_bytes (None: the log
        does not say); version: of TensorRT-RTX; model: the first file.

    Raises:
        UnsupportedError: the parser or the compiler refuses the file, with its words.
        ExportError: an engine was compiled, and the log does not say for how much memory.
    """
    found = {}
    version = ""
    for arch in archs:
        made = trt_compiler.compile_onnx(Path(source), arch=arch, shapes=cast(trt_compiler.Shapes, profile))
        version = made.version
        if made.engine is None:
            raise UnsupportedError(_refusal(made))
        name = f"model-{arch}.engine"
        with writing(Path(name)):
            (Path(folder) / name).write_bytes(made.engine)
        found[arch] = {"file": name, **{key: getattr(made, key) for key in _PLANNED}}
    told = json.dumps({"version": version, "profile": dict(profile), "engines": found}, indent=1)
    (Path(folder) / ENGINES).write_text(f"{told}\n", encoding="utf-8")
    return {"engines": found, "version": version, "model": found[archs[0]]["file"]}


def _refusal(made: trt_compiler.Compiled) -> str:
    if made.stage == "parser":
        return f"the parser of {PACKAGE} {made.version} refuses the file: {made.words}"
    return f"{PACKAGE} {made.version} compiles no engine for {made.arch}: {made.words}"
