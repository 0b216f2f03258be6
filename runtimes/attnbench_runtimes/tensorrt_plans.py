"""Engines of users, which TensorRT calls plans: told apart by their first bytes, and what they say of themselves.

Reading one needs the GPU that it was compiled for. Tested on doubles with the signatures of the real binding; not yet
timed on a GPU.
"""

from pathlib import Path
from typing import Any

from attnbench import trt_compiler
from attnbench.engine_facts import EngineFacts, Range
from attnbench.errors import InputError, UnavailableError, UnsupportedError
from attnbench.model_problem import TensorSpec
from attnbench_runtimes import cuda_buffers, cuda_driver
from attnbench_runtimes.tensorrt_engines import loader_of

NAMES = {trt_compiler.TRT: "TensorRT", trt_compiler.RTX: "TensorRT-RTX"}
# The first four bytes, and the module that wrote them: TensorRT's are what its trtexec looks for, TensorRT-RTX's what
# its compiler writes. Both keep the version of the compiler, a byte for each of its four numbers, at the same place.
TAGS = {b"ftrt": trt_compiler.TRT, b"vtrt": trt_compiler.RTX}
VERSION_AT, HEADER_BYTES = 24, 28
# TensorRT-RTX's header has the size of the whole file; of TensorRT's nobody tells.
SIZE_AT = 16
_DTYPES = {"FLOAT": "fp32", "HALF": "fp16", "BF16": "bf16", "BOOL": "bool", "INT32": "int32", "INT64": "int64"}


def is_plan(path: Path) -> bool:
    """Does a file begin as an engine of TensorRT or TensorRT-RTX?"""
    with path.open("rb") as f:
        return f.read(4) in TAGS


def require_plan(path: Path, runtime: str) -> str:
    """The version of the compiler that wrote an engine; of its bytes only the first are read.

    Args:
        path: of the file.
        runtime: `tensorrt` or `tensorrt-rtx`, which is to open it.

    Raises:
        InputError: it is no engine, one of the other TensorRT, or cut short.
    """
    with path.open("rb") as f:
        head = f.read(HEADER_BYTES)
    shown = repr(str(path))
    module = TAGS.get(head[:4])
    if module is None:
        known = ", ".join(f"those of {NAMES[of]} with {tag!r}" for tag, of in TAGS.items())
        begins = f"it begins with {head[:8]!r}" if head else "it has 0 bytes"
        raise InputError(f"{shown} is no engine: {begins}; engines begin so: {known}; an ONNX file goes with --onnx")
    size_bytes = path.stat().st_size
    due = int.from_bytes(head[SIZE_AT : SIZE_AT + 8], "little") if module == trt_compiler.RTX else size_bytes
    if len(head) < HEADER_BYTES or due != size_bytes:
        told = f", and its header says {due}" if len(head) == HEADER_BYTES else ""
        raise InputError(f"{shown} is not whole: it has {size_bytes} bytes{told}; copy or compile it again")
    version = ".".join(map(str, head[VERSION_AT:HEADER_BYTES]))
    package = trt_compiler.PACKAGES[module]
    if runtime != package:
        raise InputError(
            f"{shown} is an engine of {NAMES[module]} {version}, which {runtime} does not open; "
            f"name --runtimes {package}"
        )
    return version


def read(path: Path, device: str, *, module: str, runtime: str, why_not_run: str) -> EngineFacts:
    """Open an engine on a GPU and ask it for its inputs, outputs and profiles; nothing is run.

    Args:
        path: of the file.
        device: such as `cuda:0`.
        module: `trt_compiler.TRT` or `RTX`.
        runtime: its name, for messages.
        why_not_run: why no engine can be run here; empty where one can.

    Raises:
        InputError: as `require_plan`.
        UnavailableError: the package or a GPU lacks.
        UnsupportedError: NVIDIA refuses the engine (another version or GPU), in its words; or it has inputs or outputs
            that cannot be benched.
    """
    version = require_plan(path, runtime)
    way = "bench the ONNX file that it was compiled from with --onnx"
    if not trt_compiler.is_installed(module):
        package = trt_compiler.PACKAGES[module]
        raise UnavailableError(
            f"{str(path)!r} needs {NAMES[module]} and an NVIDIA GPU, and the package {package} is not installed; {way}"
        )
    trt = trt_compiler.load_module(module)
    if why_not_run:
        raise UnavailableError(f"{str(path)!r} opens on the GPU that it was compiled for only: {why_not_run}; {way}")
    with cuda_buffers.opened(cuda_driver.device_index(device, runtime)):
        log = trt_compiler.new_log(trt)
        engine = loader_of(trt, log).deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise UnsupportedError(
                f"{runtime} {trt.__version__} does not open {str(path)!r}, which was compiled by {version}: "
                f"{log.every_error()}; an engine is for one version and kind of GPU, compile it again here"
            )
        facts = facts_of(trt, engine, path)
        _refuse_data_dependent(trt, engine, facts)
        return facts


def facts_of(trt: Any, engine: Any, path: Path) -> EngineFacts:
    """What an engine that is open says of itself.

    Raises:
        UnsupportedError: an input or output of a dtype or format that cannot be bound, by name.
    """
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    is_input = {name: engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
    for name in names:
        _require_plain(trt, engine, name, "input" if is_input[name] else "output")
    inputs = [name for name in names if is_input[name]]
    profiles = tuple({name: _range(engine, name, index) for name in inputs} for index in _profiles(engine))
    with path.open("rb") as f:
        version = ".".join(map(str, f.read(HEADER_BYTES)[VERSION_AT:]))
    return EngineFacts(
        version=version, profiles=profiles,
        inputs=tuple(_spec(engine, name, [profile[name] for profile in profiles]) for name in inputs),
        outputs=tuple(_spec(engine, name, []) for name in names if not is_input[name]),
    )  # fmt: skip


def _require_plain(trt: Any, engine: Any, name: str, what: str) -> None:
    dtype = engine.get_tensor_dtype(name).name
    known = ", ".join(_DTYPES.values())
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"{what} {name!r} of the engine is of {dtype}; engines with inputs and outputs of {known} can be benched"
        )
    for index in _profiles(engine):
        found = engine.get_tensor_format(name, index)
        if found != trt.TensorFormat.LINEAR:
            raise UnsupportedError(
                f"{what} {name!r} of the engine has format {found.name}; only LINEAR ones can be bound: compile it "
                "without formats for inputs and outputs"
            )
    if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
        raise UnsupportedError(
            f"{what} {name!r} of the engine is a shape tensor, whose values TensorRT reads on the host; compile the "
            "model with that shape fixed"
        )


def _profiles(engine: Any) -> range:
    return range(max(1, int(engine.num_optimization_profiles)))


def _range(engine: Any, name: str, profile: int) -> Range:
    """The shapes that a profile holds; those of an input whose dims are all fixed are its own."""
    own = tuple(engine.get_tensor_shape(name))
    if all(size >= 0 for size in own):
        return own, own, own
    least, usual, most = (tuple(shape) for shape in engine.get_tensor_profile_shape(name, profile))
    return least, usual, most


def _spec(engine: Any, name: str, ranges: list[Range]) -> TensorSpec:
    """Dims that are free in the engine but have one size in all profiles are fixed to it."""
    dims: list[str | int] = []
    for axis, size in enumerate(engine.get_tensor_shape(name)):
        sizes = {shape[axis] for within in ranges for shape in within}
        dims.append(size if size >= 0 else sizes.pop() if len(sizes) == 1 else f"{name}_dim{axis}")
    return TensorSpec(name=name, dtype=_DTYPES[engine.get_tensor_dtype(name).name], dims=tuple(dims))


def _refuse_data_dependent(trt: Any, engine: Any, facts: EngineFacts) -> None:
    """Shapes of outputs must follow from those of the inputs, since their memory is bound before a call.

    Raises:
        UnsupportedError: one does not.
    """
    context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    if context is None:
        raise UnsupportedError("TensorRT makes no execution context of the engine")
    for name, (_, usual, _) in facts.profiles[0].items():
        context.set_input_shape(name, usual)
    for spec in facts.outputs:
        shape = tuple(context.get_tensor_shape(spec.name))
        if any(size < 0 for size in shape):
            raise UnsupportedError(data_dependent(spec.name, shape))


def data_dependent(name: str, shape: tuple[int, ...]) -> str:
    """Why an output whose shape is known only after a call is not run."""
    shown = "x".join("?" if size < 0 else str(size) for size in shape)
    return (
        f"output {name!r} of the engine has shape {shown}, which depends on values and not only on the shapes of the "
        "inputs; such engines are not benched"
    )
