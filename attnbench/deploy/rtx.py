"""Engines of TensorRT-RTX, compiled ahead of time from an ONNX file; no GPU and no driver are needed for it.

Compiled and tested without a GPU; not yet run or timed on one.
"""

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.deploy.place import writing
from attnbench.errors import ExportError, InputError, UnavailableError, UnsupportedError
from attnbench.problem import Problem

ARCHS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")  # what the builder of TensorRT-RTX 1.7 compiles for
DEFAULT_ARCHS = ("sm89", "sm120")
PACKAGE, MODULE = "tensorrt-rtx", "tensorrt_rtx"
ENGINES = "engines.json"
USUAL_LEN = 512  # tactics are chosen for it; the engine takes all lengths of its profile
MOST_BATCH = 8
_PLANNED = {  # what the build log says, by the name it gets in bundle.json
    "planned_activation_bytes": r"Total Activation Memory: (\d+) bytes",
    "planned_scratch_bytes": r"Max Scratch Memory: (\d+) bytes",
    "planned_weights_bytes": r"Total Weights Memory: (\d+) bytes",
}


def parse_archs(text: str | None) -> tuple[str, ...]:
    """The architectures of `--gpu-archs sm89,sm120`.

    Raises:
        InputError: one that the builder does not know, or none.
    """
    if text is None:
        return DEFAULT_ARCHS
    found = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    wrong = [arch for arch in found if arch not in ARCHS]
    if wrong or not found:
        raise InputError(f"--gpu-archs must be of {', '.join(ARCHS)}, got {text!r}; such as sm89,sm120")
    return found


def require_builder() -> None:
    """Go on only where TensorRT-RTX is installed; it is not imported.

    Raises:
        UnavailableError: it is not.
    """
    if importlib.util.find_spec(MODULE) is None:
        raise UnavailableError(f"{PACKAGE} is not installed, so no engine can be compiled; pip install {PACKAGE}")


def profile_of(problem: Problem, max_len: int) -> dict[str, list[list[int]]]:
    """Input -> its least, usual and largest shape: batch 1 to 8, lengths 1 to max_len."""
    usual = min(USUAL_LEN, max_len)
    sizes = [(1, 1), (1, usual), (MOST_BATCH, max_len)]
    if problem.variant == "decode":  # one new token behind a cache
        at = [problem.at(batch_size=batch, q_len=1, kv_len=max(2, length)) for batch, length in sizes]
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
        archs: of `ARCHS`.
        profile: input -> least, usual and largest shape.

    Returns:
        engines: arch -> file, planned_activation_bytes, planned_scratch_bytes, planned_weights_bytes (None: the log
        does not say); version: of TensorRT-RTX; model: the first file.

    Raises:
        UnsupportedError: the parser or the compiler refuses the file, with its words.
        ExportError: an engine was compiled, and the log does not say for how much memory.
    """
    import tensorrt_rtx as trt

    found = {}
    for arch in archs:
        log = _new_log(trt)
        engine = _build(trt, log, source, arch, profile)
        name = f"model-{arch}.engine"
        with writing(Path(name)):
            (Path(folder) / name).write_bytes(engine)
        planned = planned_bytes(log.text())
        if planned["planned_activation_bytes"] is None:
            raise ExportError(f"{PACKAGE} {trt.__version__} does not tell the memory of {name}; take another version")
        found[arch] = {"file": name, **planned}
    told = json.dumps({"version": trt.__version__, "profile": dict(profile), "engines": found}, indent=1)
    (Path(folder) / ENGINES).write_text(f"{told}\n", encoding="utf-8")
    return {"engines": found, "version": trt.__version__, "model": found[archs[0]]["file"]}


def planned_bytes(log: str) -> dict[str, int | None]:
    """What a build log says of device memory; None: nothing."""
    found = {name: re.findall(pattern, log) for name, pattern in _PLANNED.items()}
    return {name: int(numbers[-1]) if numbers else None for name, numbers in found.items()}


def _build(trt: Any, log: Any, source: str, arch: str, profile: Mapping[str, Sequence[Sequence[int]]]) -> bytes:
    """One engine."""
    builder = trt.Builder(log)
    network = builder.create_network(0)  # strongly typed: precision is the file's
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(source):
        raise UnsupportedError(f"the parser of {PACKAGE} {trt.__version__} refuses the file: {_parser_words(parser)}")
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, arch.upper()), 0)
    config.clear_flag(trt.BuilderFlag.TF32)  # on by default: fp32 would not be fp32
    ranges = builder.create_optimization_profile()
    for name, shapes in profile.items():
        ranges.set_shape(name, *(tuple(shape) for shape in shapes))
    config.add_optimization_profile(ranges)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise UnsupportedError(f"{PACKAGE} {trt.__version__} compiles no engine for {arch}: {log.last_error()}")
    return bytes(engine)


def _parser_words(parser: Any) -> str:
    """Code, operator and name of the first node that is refused: `desc()` alone may be just "false"."""
    error = parser.get_error(0)
    return f"{error.desc()} (code {error.code()}, node {error.node_operator()} {error.node_name()!r})"


def _new_log(trt: Any) -> Any:
    """A logger that keeps what it is told."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.told: list[tuple[Any, str]] = []

        def log(self, severity: Any, message: str) -> None:
            self.told.append((severity, message))

        def text(self) -> str:
            return "\n".join(message for _, message in self.told)

        def last_error(self) -> str:
            errors = [m for severity, m in self.told if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)]
            return errors[-1] if errors else "it does not say why"

    return Log()
