"""How verify.py loads a model: one function for every runtime, from inputs to outputs."""

import ctypes
import importlib
import platform
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

RIGHT, USAGE, DRIFTED, CHANGED, CANNOT_LOAD = 0, 2, 3, 4, 5
RAW = {  # how an array is held here
    "fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "bool": np.bool_, "int32": np.int32, "int64": np.int64,
}  # fmt: skip
ONNX_TYPE = {"fp32": 1, "int32": 6, "int64": 7, "bool": 9, "fp16": 10, "bf16": 16}  # onnx.TensorProto.DataType
PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "Softmax", "Attention", "MultiHeadAttention")
_NO_MEMORY = ("bad_alloc", "allocate memory", "not enough memory", "out of memory", "cannot allocate")
Arrays = dict[str, Any]
Run = Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], Arrays]  # inputs, shapes of outputs -> outputs


class Fault(Exception):
    """Why this bundle is not right, with the exit code that says so."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def read_case(folder: Path, case: Mapping[str, Any]) -> tuple[Arrays, dict[str, tuple[int, ...]], Arrays]:
    """Inputs, shapes of the outputs, and the outputs in float64."""
    with np.load(folder / case["file"], allow_pickle=False) as stored:
        inputs = {name[3:]: stored[name] for name in stored.files if name.startswith("in_")}
        expected = {name[4:]: stored[name] for name in stored.files if name.startswith("out_")}
    return inputs, {name: array.shape for name, array in expected.items()}, expected


def load(folder: Path, bundle: Mapping[str, Any], options: Mapping[str, str]) -> Run:
    """The model, loaded by the runtime that it is for.

    Args:
        folder: of the bundle.
        bundle: what bundle.json says.
        options: settings of the runtime, before those of bundle.json.

    Raises:
        Fault: the runtime is not there, or does not load it, with its own words.
    """
    runtime = bundle["runtime"]
    name, made_with = runtime["distribution"], f"{runtime['distribution']} {runtime['version']}".strip()
    loader = LOADERS.get(runtime["module"])
    if loader is None:
        raise Fault(CANNOT_LOAD, f"this script has no way to run {name}; it has {', '.join(LOADERS)}")
    try:
        module = importlib.import_module(runtime["module"])
    except (ImportError, OSError) as err:
        raise Fault(
            CANNOT_LOAD, f"{name} cannot be imported ({err}); pip install {made_with.replace(' ', '==')}"
        ) from err
    here = f"{name} {getattr(module, '__version__', 'of an unknown version')} on {platform.machine()}"
    machine = bundle.get("environment", {}).get("machine", {}).get("architecture", "an unknown machine")
    try:
        return loader(folder, bundle, {**runtime["settings"], **options})
    except failures() as err:
        words = spoken(err)
        text = f"{here} cannot load {bundle['model']}: {words}; the bundle was made with {made_with} on {machine}"
        raise Fault(CANNOT_LOAD, text) from err


def failures() -> tuple[type[BaseException], ...]:
    """What a runtime raises when it cannot do what it should."""
    usual = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, OSError, ImportError, MemoryError)
    states = sys.modules.get("onnxruntime.capi.onnxruntime_pybind11_state")
    own = (e for e in vars(states).values() if isinstance(e, type) and issubclass(e, Exception)) if states else ()
    return (*usual, *own)


def spoken(err: BaseException) -> str:
    """The words of a runtime in one line, without places in its source; where memory is what lacks, that first."""
    words = " ".join(str(err).split()) or type(err).__name__
    words = re.sub(r"/\S+\.(?:cc|cpp|h|hpp):\d+ (?:\S+ \S+?\([^()]*\) )?", "", words)[:400]
    return f"out of memory: {words}" if isinstance(err, MemoryError) or any(w in words for w in _NO_MEMORY) else words


def open_session(ort: Any, path: Path, settings: dict[str, Any]) -> Any:
    """A session on the providers that were asked, and no others for what matters.

    Settings but `providers`, `provider_options`, `threads` and `memory_pattern` are entries of its configuration.

    Raises:
        Fault: a provider is missing, or it did not take the products.
    """
    providers = settings.pop("providers")
    providers = providers.split(",") if isinstance(providers, str) else providers
    there = ort.get_available_providers()
    for provider in providers:
        if provider not in there:
            raise Fault(CANNOT_LOAD, f"onnxruntime {ort.__version__} here has no {provider}; it has {', '.join(there)}")
    provider_options = settings.pop("provider_options", None)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = int(settings.pop("threads", 1))
    options.enable_mem_pattern = str(settings.pop("memory_pattern", False)) == "True"
    for key, value in settings.items():
        options.add_session_config_entry(key, str(value))
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ort.InferenceSession(str(path), options, providers=providers, provider_options=provider_options)
    found = session.get_providers()
    if found[: len(providers)] != providers:
        raise Fault(CANNOT_LOAD, f"{', '.join(providers)} was asked, onnxruntime runs on {', '.join(found)}")
    if elsewhere := placed_elsewhere(session, providers[0]):
        raise Fault(CANNOT_LOAD, f"all products were asked on {providers[0]}, onnxruntime placed {elsewhere}")
    return session


def load_onnxruntime(folder: Path, bundle: Mapping[str, Any], settings: dict[str, Any]) -> Run:
    """ONNX Runtime; see `open_session` for its settings."""
    import onnxruntime as ort

    session = open_session(ort, folder / bundle["model"], settings)
    kinds = kinds_of(bundle)

    def run(inputs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        io = session.io_binding()
        for name, array in inputs.items():
            io.bind_ortvalue_input(name, value(array, ONNX_TYPE[kinds[name]]))
        bits = {n: np.zeros(shape, np.uint16) for n, shape in shapes.items() if kinds[n] == "bf16"}  # numpy has none
        for name in shapes:
            if name in bits:
                io.bind_ortvalue_output(name, value(bits[name], ONNX_TYPE["bf16"]))
            else:
                io.bind_output(name, "cpu")
        session.run_with_iobinding(io)
        return {n: bits[n] if n in bits else out.numpy() for n, out in zip(shapes, io.get_outputs(), strict=True)}

    return run


def placed_elsewhere(session: Any, provider: str) -> dict[str, str]:
    """Operators of attention that ONNX Runtime gave to another provider; empty where it does not tell."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    placed = session.get_provider_graph_assignment_info()
    pairs = [(node.op_type, part.ep_name) for part in placed for node in part.get_nodes()]
    return {operator: name for operator, name in pairs if operator in PRODUCTS and name != provider}


def load_openvino(folder: Path, bundle: Mapping[str, Any], settings: dict[str, Any]) -> Run:
    """OpenVINO; every setting is one of its properties and is read back."""
    import openvino as ov

    core, path = ov.Core(), folder / bundle["model"]
    model = core.read_model(str(path), str(path.with_suffix(".bin")))
    compiled = core.compile_model(model, settings.pop("device", "CPU"), settings)
    for key, asked in settings.items():
        found = compiled.get_property(key)
        found = found.get_type_name() if hasattr(found, "get_type_name") else found
        if str(found).lower() != str(asked).lower():
            raise Fault(CANNOT_LOAD, f"{key} {asked} was asked, openvino has {found}")
    request, kinds = compiled.create_infer_request(), kinds_of(bundle)

    def run(inputs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        for name, array in inputs.items():
            is_bf16 = kinds[name] == "bf16"
            tensor = ov.Tensor(array, list(array.shape), ov.Type.bf16) if is_bf16 else ov.Tensor(array)
            request.set_tensor(name, tensor)
        request.infer()
        found = {name: request.get_tensor(name).data.copy() for name in shapes}
        return {n: a.view(np.uint16) if kinds[n] == "bf16" and a.itemsize == 2 else a for n, a in found.items()}

    # OpenVINO 2026.4 compiles softmax for what it sees first: after one key alone, longer rows come out wrong.
    for case in bundle["golden"]:
        if all(size > 1 for size in case["sizes"].values()):
            run(*read_case(folder, case)[:2])
            break
    return run


def load_torch(folder: Path, bundle: Mapping[str, Any], settings: dict[str, Any]) -> Run:
    """PyTorch, a program of torch.export; settings: threads, float32_matmul_precision."""
    import torch

    torch.set_num_threads(int(settings.pop("threads", 1)))
    torch.set_float32_matmul_precision(settings.pop("float32_matmul_precision", "highest"))
    if settings:
        raise Fault(USAGE, f"PyTorch has no setting {', '.join(settings)}; it has threads, float32_matmul_precision")
    module, kinds = torch.export.load(str(folder / bundle["model"])).module(), kinds_of(bundle)

    def of_torch(name: str, array: Any) -> Any:
        tensor = torch.from_numpy(np.array(array))
        return tensor.view(torch.bfloat16) if kinds[name] == "bf16" else tensor

    def run(inputs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        with torch.inference_mode():
            found = module(*(of_torch(name, array) for name, array in inputs.items()))
        found = found if isinstance(found, tuple | list) else (found,)
        plain = (y.view(torch.uint16) if y.dtype == torch.bfloat16 else y for y in found)
        return {name: y.numpy() for name, y in zip(shapes, plain, strict=True)}

    return run


def load_tensorrt_rtx(folder: Path, bundle: Mapping[str, Any], settings: dict[str, Any]) -> Run:
    """TensorRT-RTX: the first engine of the bundle that fits this GPU; it has no settings.

    Written by the documentation of TensorRT and of CUDA's driver: loading was tried without a GPU, running was not.
    """
    import tensorrt_rtx as trt

    if settings:
        raise Fault(USAGE, f"an engine has no setting {', '.join(settings)}: all was settled when it was compiled")
    log, engine = quiet_log(trt), None
    runtime = trt.Runtime(log)
    for name in dict.fromkeys([bundle["model"], *(n for n in bundle["files"] if n.endswith(".engine"))]):
        engine = engine or runtime.deserialize_cuda_engine((folder / name).read_bytes())
    if engine is None:
        words = next(reversed(log.errors), "it does not say why")
        why = "there is no NVIDIA driver here, or one that is too old" if "cudaError 35" in words else words
        raise Fault(CANNOT_LOAD, f"tensorrt-rtx {trt.__version__} here loads no engine of the bundle: {why}")
    return run_engine(engine, bundle, log)


def load_tensorrt(folder: Path, bundle: Mapping[str, Any], settings: dict[str, Any]) -> Run:
    """TensorRT: compiles the ONNX file for this GPU first, in minutes at worst; setting: tf32.

    Written by the documentation of TensorRT: compiling was tried with TensorRT-RTX's same calls, running was not.
    """
    import tensorrt as trt

    tf32 = str(settings.pop("tf32", False)) == "True"
    if settings:
        raise Fault(USAGE, f"TensorRT has no setting {', '.join(settings)} here; it has tf32")
    log = quiet_log(trt)
    blob = compile_engine(trt, log, folder / bundle["model"], bundle, tf32=tf32)
    engine = trt.Runtime(log).deserialize_cuda_engine(blob)
    if engine is None:
        raise RuntimeError(next(reversed(log.errors), "it does not say why"))
    return run_engine(engine, bundle, log)


def compile_engine(trt: Any, log: Any, path: Path, bundle: Mapping[str, Any], *, tf32: bool) -> Any:
    """An engine for all sizes that were proved, with the types of the file."""
    builder = trt.Builder(log)
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)  # from TensorRT 11 there is no other
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(path)):
        told = [parser.get_error(index) for index in range(parser.num_errors)]
        raise RuntimeError(
            "; ".join(f"{e.desc()} at node {e.node_name() or e.node()} ({e.node_operator()})" for e in told)
        )
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    if not tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    for tensor in bundle["inputs"]:
        ends = zip(*((bundle["ranges"][d] if isinstance(d, str) else (d, d)) for d in tensor["dims"]), strict=True)
        least, most = (tuple(end) for end in ends)
        profile.set_shape(tensor["name"], least, most, most)
    config.add_optimization_profile(profile)
    blob = builder.build_serialized_network(network, config)
    if blob is None:
        raise RuntimeError(next(reversed(log.errors), "it does not say why"))
    return blob


def run_engine(engine: Any, bundle: Mapping[str, Any], log: Any) -> Run:
    """Calls of an engine of either TensorRT, inputs and outputs copied."""
    context, kinds, cuda = engine.create_execution_context(), kinds_of(bundle), Cuda()

    def run(inputs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        held = {n: np.ascontiguousarray(array) for n, array in inputs.items()}
        held |= {n: np.zeros(shape, RAW[kinds[n]]) for n, shape in shapes.items()}
        places = {n: cuda.allocate(array.nbytes) for n, array in held.items()}
        for name, array in inputs.items():
            cuda.call("cuMemcpyHtoD_v2", places[name], held[name].ctypes.data, held[name].nbytes)
            if not context.set_input_shape(name, array.shape):
                raise RuntimeError(
                    f"input {name} of shape {array.shape} is outside of what the engine was compiled for"
                )
        for name, place in places.items():
            context.set_tensor_address(name, place.value)
        done = context.execute_async_v3(0)
        cuda.call("cuCtxSynchronize")
        for name in shapes:
            cuda.call("cuMemcpyDtoH_v2", held[name].ctypes.data, places[name], held[name].nbytes)
        for place in places.values():
            cuda.call("cuMemFree_v2", place)
        if not done:
            raise RuntimeError("the engine could not be run: " + next(reversed(log.errors), "it does not say why"))
        return {name: held[name] for name in shapes}

    return run


def quiet_log(trt: Any) -> Any:
    """A logger of TensorRT that keeps errors in `errors` and prints nothing."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)

    return Log()


class Cuda:
    """Memory of the first GPU, by CUDA's driver."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver; addresses and sizes are 64 bits wide."""
        wide = (ctypes.c_size_t(a) if isinstance(a, int) and name.startswith("cuMem") else a for a in arguments)
        if (status := getattr(self._driver, name)(*wide)) != 0:
            raise RuntimeError(f"CUDA's driver answers {name} with error {status}")

    def allocate(self, size_bytes: int) -> Any:
        """Memory on the GPU: its address, as ctypes.c_size_t."""
        place = ctypes.c_size_t()
        self.call("cuMemAlloc_v2", ctypes.byref(place), max(size_bytes, 1))  # an empty cache needs a place too
        return place


LOADERS: dict[str, Callable[[Path, Mapping[str, Any], dict[str, Any]], Run]] = {
    "onnxruntime": load_onnxruntime, "openvino": load_openvino, "torch": load_torch,
    "tensorrt": load_tensorrt, "tensorrt_rtx": load_tensorrt_rtx,
}  # fmt: skip


def kinds_of(bundle: Mapping[str, Any]) -> dict[str, str]:
    """Element type of every input and output."""
    return {tensor["name"]: tensor["dtype"] for tensor in (*bundle["inputs"], *bundle["outputs"])}
