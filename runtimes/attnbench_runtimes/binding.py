"""What every runtime does with inputs and settings before and after its own calls."""

import importlib
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from attnbench.errors import NotRunError, ProblemError, UnsupportedError
from attnbench.interfaces import SUPPORTED, Array, Artifact, Probe, Settings, Support, numpy_dtype
from attnbench.model_problem import ModelProblem
from attnbench.problem import OUTPUT_NAME, Problem

FP32_POLICIES = ("strict", "default")
_OUT_OF_MEMORY = ("bad_alloc", "allocate memory", "out of memory", "failed to allocate", "bad allocation")


def probe_package(distribution: str, module: str) -> Probe:
    """Is a package installed, and can it be imported? A wheel whose libraries do not load is found here."""
    fix = f"pip install {distribution}"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Probe(available=False, reason=f"the package {distribution} is not installed", fix=fix)
    try:
        importlib.import_module(module)
    except (ImportError, OSError) as err:
        return Probe(available=False, version=version, reason=f"{module} cannot be imported: {err}", fix=fix)
    return Probe(available=True, version=version)


def needs_file(runtime: str, artifact: Artifact | None) -> Support:
    """What a runtime of files supports: every one; what it cannot run it says at loading, in its own words."""
    if artifact is None:
        return Support(ok=False, reason=f"{runtime} runs ONNX files; name an exporter")
    return SUPPORTED


def require_onnx(runtime: str, artifact: Artifact) -> None:
    """A model of the user must be an ONNX file.

    Raises:
        UnsupportedError: it is another.
    """
    if artifact.path.suffix != ".onnx":
        raise UnsupportedError(f"{runtime} runs ONNX files, {artifact.path.name!r} is none; name an exporter")


def own_inputs(problem: Problem | ModelProblem, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Contiguous copies of the inputs, in the problem's order; names, dtype and shapes are checked.

    Dims that the problem calls by one name must agree (a torch that is given k and v of two lengths reads past the
    end of one); all else may differ from the problem's own sizes. A cache may be empty, and any free dim of a model.

    Raises:
        ProblemError: what is given does not fit the problem.
    """
    promised = problem.input_dims()
    if list(inputs) != list(promised):
        raise ProblemError(f"inputs must be {', '.join(promised)} in this order, got {', '.join(inputs) or 'none'}")
    sizes: dict[str, int] = {}
    kinds = problem.input_kinds()
    for name, dims in promised.items():
        array, kind = inputs[name], kinds[name]
        due = numpy_dtype(kind)
        if array.dtype != due:
            raise ProblemError(f"{name} must be {due} ({kind}), got {array.dtype}")
        if array.ndim != len(dims) or any(
            size < _least(problem, dim) or size != (dim if isinstance(dim, int) else sizes.setdefault(dim, size))
            for size, dim in zip(array.shape, dims, strict=True)
        ):
            raise ProblemError(f"{name} must have shape {dims} with {sizes}, got {array.shape}")
    return {name: np.array(array, order="C", copy=True) for name, array in inputs.items()}


def _least(problem: Problem | ModelProblem, dim: str | int) -> int:
    """The smallest size of a dim."""
    return 0 if isinstance(problem, ModelProblem) or dim == "past_len" else 1


def output_buffers(problem: Problem, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """An array for every output of a problem at the sizes of its inputs, by name, `y` first."""
    batch_size, q_len = (next(iter(inputs.values())).shape[axis] for axis in (0, -2))
    sized = problem.at(q_len=int(q_len), kv_len=kv_len(inputs), batch_size=int(batch_size))
    return {name: np.empty(shape, numpy_dtype(problem.dtype)) for name, shape in sized.output_shapes().items()}


def share_cache(inputs: dict[str, Array], outputs: Mapping[str, Array]) -> None:
    """Make the buffers of the present those of the past too: the old tokens, and room for the new ones behind them."""
    for kind in ("key", "value"):
        past, buffer = inputs[f"past_{kind}"], outputs[f"present_{kind}"]  # (B, H_kv, P, D), (B, H_kv, P + q_len, D)
        buffer[:, :, : past.shape[2]], buffer[:, :, past.shape[2] :] = past, 0
        inputs[f"past_{kind}"] = buffer


def cache_of(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Copies of the outputs that are a cache."""
    return {name: array.copy() for name, array in outputs.items() if name != OUTPUT_NAME}


def cache_facts(problem: Problem, in_place: bool) -> dict[str, str]:
    """What a step does to its cache, for `Facts.detail`; nothing where there is none."""
    return {"cache": "written in place" if in_place else "copied"} if problem.variant == "decode" else {}


def kv_len(inputs: Mapping[str, Array]) -> int:
    """The number of keys of bound inputs, those of a cache included."""
    source = next(name for name in ("k", "context", "x") if name in inputs)
    cached = inputs["past_key"].shape[-2] if "past_key" in inputs else 0
    return int(inputs[source].shape[-2] + cached)


def refuse_options(
    settings: Settings,
    runtime: str,
    known: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    *,
    device_kinds: tuple[str, ...] = ("cpu",),
) -> None:
    """Every option must be one the runtime knows, with one of its values, and so must be the kind of device.

    Raises:
        UnsupportedError: it is not.
    """
    for name, value in settings.options.items():
        if name not in known:
            raise UnsupportedError(f"{runtime} has no option {name!r}; known: {', '.join(known) or 'none'}")
        if value not in known[name]:
            raise UnsupportedError(f"{name} is one of {', '.join(known[name])}, got {value!r}")
    if settings.device.partition(":")[0] not in device_kinds:
        raise UnsupportedError(f"{runtime} runs on device {' or '.join(device_kinds)}, not {settings.device!r}")
    if settings.fp32 not in FP32_POLICIES:
        raise UnsupportedError(f"fp32 is one of {', '.join(FP32_POLICIES)}, got {settings.fp32!r}")
    if settings.threads < 1:
        raise UnsupportedError(f"threads must be at least 1, got {settings.threads}")


def require_ran(ran: bool) -> None:
    """Refuse to hand out what no call has computed.

    Raises:
        NotRunError: the call bound last has not run.
    """
    if not ran:
        raise NotRunError("the call that was bound last has not run yet; call it before asking for outputs")


def is_out_of_memory(error: Exception) -> bool:
    """Does a library's own error mean that memory could not be had?"""
    text = str(error).lower()
    return any(mark in text for mark in _OUT_OF_MEMORY)


def cpu_name() -> str:
    """The processor as /proc/cpuinfo names it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
