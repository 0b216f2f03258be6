"""NVIDIA's compilers ask nothing of a GPU: an ONNX file becomes an engine, or a refusal in their own words.

`tensorrt_rtx` compiles ahead of time for architectures that are not there; `tensorrt` only for the GPU that is there.
The two bindings have the same names, so that one piece of code serves both.
"""

import importlib
import importlib.util
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnbench.errors import ExportError, InputError, UnavailableError

RTX, TRT = "tensorrt_rtx", "tensorrt"  # modules
PACKAGES = {RTX: "tensorrt-rtx", TRT: "tensorrt"}
ARCHS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")  # what TensorRT-RTX 1.7 compiles for
DEFAULT_ARCH = "sm89"
Shape = Sequence[int]
Shapes = Mapping[str, Shape | tuple[Shape, Shape, Shape]]  # input -> its shape, or its least, usual and largest one
_PLANNED = {  # what a build log says of device memory
    "planned_activation_bytes": r"Total Activation Memory: (\d+) bytes",
    "planned_scratch_bytes": r"Max Scratch Memory: (\d+) bytes",
    "planned_weights_bytes": r"Total Weights Memory: (\d+) bytes",
}


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a compiler made of a file. Refused: no engine; `stage` and `words` say where and why."""

    version: str  # of the compiler
    arch: str  # "sm89"; empty: of the GPU that is there
    engine: bytes | None
    stage: Literal["", "parser", "compiler"] = ""  # that refused; empty with an engine
    words: str = ""  # every error of the parser, the last one of the compiler
    planned_activation_bytes: int | None = None  # device memory beside weights; always there with an engine
    planned_scratch_bytes: int | None = None
    planned_weights_bytes: int | None = None
    build_ms: float = 0.0  # parsing and compiling
    # Were the Attention nodes allowed to be taken apart? None: there are none, or the parser refused the file.
    attention_decomposed: bool | None = None
    # What a later build of the same network may start from; empty where none was asked.
    timing_cache: bytes = b""

    @property
    def is_refused(self) -> bool:
        """Is there no engine?"""
        return self.engine is None


def load_module(name: str = RTX) -> Any:
    """The compiler's module, `RTX` or `TRT`.

    Raises:
        UnavailableError: it is not installed, or a library that it needs is missing.
    """
    package = PACKAGES[name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        if err.name == name:
            raise UnavailableError(f"{package} is not installed; pip install {package}") from err
        raise UnavailableError(f"{package} cannot be imported: {err}; pip install {package}") from err
    except (ImportError, OSError) as err:
        raise UnavailableError(f"{package} cannot be imported: {' '.join(str(err).split())}") from err


def is_installed(name: str = RTX) -> bool:
    """Is the compiler's package there? It is not imported."""
    return importlib.util.find_spec(name) is not None


def parse_archs(text: str) -> tuple[str, ...]:
    """The architectures of `sm89,sm120`, each once.

    Raises:
        InputError: one that the builder does not know, or none.
    """
    found = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    wrong = [arch for arch in found if arch not in ARCHS]
    if wrong or not found:
        raise InputError(f"--gpu-archs must be of {', '.join(ARCHS)}, got {text!r}; such as sm89,sm120")
    return found


def arch_options(text: str | None) -> list[str]:
    """`--gpu-archs` as options of the runtime, each of which makes an arm of its own; none where it was not given.

    Raises:
        InputError: as `parse_archs`.
    """
    return [] if text is None else [f"{PACKAGES[RTX]}:arch={arch}" for arch in parse_archs(text)]


def compile_onnx(
    source: Path | bytes, *, shapes: Shapes, arch: str | None = DEFAULT_ARCH, module: str = RTX,
    strict: bool | None = None, tf32: bool = False, is_detailed: bool = False, timing_cache: bytes | None = None,
) -> Compiled:  # fmt: skip
    """Parse and compile a file, strongly typed: precisions are the file's.

    Args:
        source: an ONNX file, or its bytes where all weights are inside.
        shapes: of every input that has a free dim, one or a range.
        arch: of `ARCHS`; None: of the GPU that is there.
        module: `RTX` or `TRT`.
        strict: must every Attention node keep a kernel of its own (True), or may it be taken apart (False)? None: as
            the file says, which is strict unless its node has the attribute TRT_decomposable. No word on fusing: a
            strict node may still hold all scores in memory.
        tf32: may products of fp32 take TF32? Theirs is yes unless told.
        is_detailed: keep in the engine what its inspector tells of every layer.
        timing_cache: of an earlier build; None or empty: none.

    Raises:
        UnavailableError: the module cannot be imported.
        ExportError: an engine was compiled, and the log does not say for how much memory.
    """
    trt = load_module(module)
    log = new_log(trt)
    start_ns = time.perf_counter_ns()
    builder = trt.Builder(log)
    network = builder.create_network(network_flags(trt))
    parser = trt.OnnxParser(network, log)
    parsed = parser.parse(source) if isinstance(source, bytes) else parser.parse_from_file(str(source))
    known: dict[str, Any] = {"version": trt.__version__, "arch": arch or ""}
    if not parsed:
        return Compiled(engine=None, stage="parser", words=parser_words(parser), build_ms=_ms_since(start_ns), **known)
    known["attention_decomposed"] = _mark_attention(trt, network, strict)
    config = _config(trt, builder, arch, shapes, tf32)
    if is_detailed:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if timing_cache is not None:
        config.set_timing_cache(config.create_timing_cache(timing_cache), False)
    engine = builder.build_serialized_network(network, config)
    known["build_ms"] = _ms_since(start_ns)
    if engine is None:
        return Compiled(engine=None, stage="compiler", words=log.last_error(), **known)
    planned: dict[str, Any] = {**planned_bytes(log.text())}
    if planned["planned_activation_bytes"] is None:
        raise ExportError(f"{PACKAGES[module]} {trt.__version__} does not tell its memory; take another version")
    cache = config.get_timing_cache() if timing_cache is not None else None
    kept = b"" if cache is None else bytes(cache.serialize())
    return Compiled(engine=bytes(engine), timing_cache=kept, **known, **planned)


def network_flags(trt: Any) -> int:
    """What makes a network strongly typed: a flag in TensorRT 10, from 11 on and in TensorRT-RTX there is no other."""
    is_old = trt.__name__ == TRT and int(trt.__version__.partition(".")[0]) < 11
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if is_old else 0


def _ms_since(start_ns: int) -> float:
    return (time.perf_counter_ns() - start_ns) / 1e6


def _config(trt: Any, builder: Any, arch: str | None, shapes: Shapes, tf32: bool) -> Any:
    config = builder.create_builder_config()
    if arch:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, arch.upper()), 0)
    if not tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    ranges = builder.create_optimization_profile()
    for name, shape in shapes.items():
        ranges.set_shape(name, *(tuple(one) for one in as_range(shape)))
    config.add_optimization_profile(ranges)
    return config


def as_range(shape: Shape | tuple[Shape, Shape, Shape]) -> tuple[Shape, Shape, Shape]:
    """Least, usual and largest shape: the same one three times where one is given."""
    first = shape[0] if len(shape) else 0
    return (shape, shape, shape) if isinstance(first, int) else tuple(shape)  # type: ignore[return-value]


def _mark_attention(trt: Any, network: Any, strict: bool | None) -> bool | None:
    """Set what the Attention nodes may become; may any be taken apart, None without a node."""
    found = None
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)  # the parser has no such layers before TensorRT 10.14
    for index in range(network.num_layers if kind is not None else 0):
        layer = network.get_layer(index)
        if layer.type != kind:
            continue
        layer.__class__ = trt.IAttentionInputLayer  # the binding gives a plain ILayer; this is its way to the real one
        if strict is not None:
            layer.attention.decomposable = not strict
        found = bool(found or layer.attention.decomposable)
    return found


def parser_words(parser: Any) -> str:
    """Every error of the parser: words, code, operator, node and local function; `desc()` alone may be just "false"."""
    found = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        where = f"node {error.node_operator()} {error.node_name()!r}"
        function = error.local_function_stack()
        inside = f" in function {' > '.join(function)}" if function else ""
        code = getattr(error.code(), "name", error.code())
        found.append(f"{' '.join(error.desc().split())} (code {code}, {where}{inside})")
    return "; ".join(dict.fromkeys(found)) or "it does not say why"


def planned_bytes(log: str) -> dict[str, int | None]:
    """What a build log says of device memory; None: nothing."""
    found = {name: re.findall(pattern, log) for name, pattern in _PLANNED.items()}
    return {name: int(numbers[-1]) if numbers else None for name, numbers in found.items()}


def new_log(trt: Any) -> Any:
    """A logger that keeps what it is told."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.told: list[tuple[Any, str]] = []

        def log(self, severity: Any, message: str) -> None:
            self.told.append((severity, message))

        def text(self) -> str:
            return "\n".join(message for _, message in self.told)

        def errors(self) -> list[str]:
            wrong = (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
            return [" ".join(message.split()) for severity, message in self.told if severity in wrong]

        def last_error(self) -> str:
            return (self.errors() or ["it does not say why"])[-1]

        def every_error(self) -> str:
            return "; ".join(dict.fromkeys(self.errors())) or "it does not say why"

    return Log()
