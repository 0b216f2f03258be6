"""The model file of a bundle, written in a worker: ONNX with its data beside, OpenVINO's IR, torch's program."""

import io
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnbench.deploy.golden import traced_problem
from attnbench.deploy.place import writing
from attnbench.errors import ArtifactError, ExportError
from attnbench.inputs import make_inputs
from attnbench.problem import Problem

ONNX, ONNX_DATA, IR, IR_DATA, PT2 = "model.onnx", "model.onnx.data", "model.xml", "model.bin", "model.pt2"
EXTERNAL_BYTES = 64 << 20  # of weights, beyond which they lie beside the .onnx
_TENSOR_BYTES = 1024  # smaller tensors stay in the .onnx, where shape inference needs them


def settle_onnx(*, source: str, folder: str, external_bytes: int) -> dict[str, Any]:
    """Move an exported ONNX file into a bundle; its data, where there is much, goes to model.onnx.data.

    Returns:
        model, opset, and operators by `domain::Op`.

    Raises:
        ArtifactError: onnx's checker refuses what was written.
    """
    import onnx

    model = onnx.load(source)  # with its data, wherever that lay
    tensors = [t for t in _tensors(model.graph) if len(t.raw_data) >= _TENSOR_BYTES]
    if sum(len(t.raw_data) for t in tensors) > external_bytes:
        _move_data(tensors, Path(folder) / ONNX_DATA)
    path = Path(folder) / ONNX
    with writing(path):
        path.write_bytes(model.SerializeToString(deterministic=True))
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as err:
        raise ArtifactError(f"onnx's checker refuses {ONNX}: {str(err).strip().splitlines()[0]}") from err
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    return {"model": ONNX, "opset": opset}


def _tensors(graph: Any) -> Iterator[Any]:
    """Initializers of a graph and of the graphs inside its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _tensors(inner)


def _move_data(tensors: list[Any], target: Path) -> None:
    from onnx import TensorProto

    with writing(target), target.open("wb") as f:
        for tensor in tensors:
            offset, length = f.tell(), f.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            del tensor.external_data[:]
            for key, value in (("location", target.name), ("offset", str(offset)), ("length", str(length))):
                tensor.external_data.add(key=key, value=value)


def write_ir(*, source: str, folder: str) -> dict[str, Any]:
    """Turn an ONNX file into OpenVINO's IR; weights keep their dtype.

    Raises:
        ExportError: OpenVINO does not read the file, or the disk is full.
    """
    import openvino as ov

    try:
        model = ov.Core().read_model(source)
    except RuntimeError as err:
        words = [line.strip() for line in str(err).splitlines() if line.strip()]
        raise ExportError(f"openvino cannot convert the exported file: {words[-1] if words else 'no word'}") from err
    try:
        ov.serialize(model, str(Path(folder) / IR), str(Path(folder) / IR_DATA))
    except RuntimeError as err:  # it does not say that the disk is full
        free = shutil.disk_usage(folder).free
        raise ExportError(
            f"openvino cannot write {IR_DATA}, {free} bytes are free: {err}; name a folder with more room"
        ) from err
    return {"model": IR}


def write_pt2(*, problem: dict[str, Any], seed: int, folder: str) -> dict[str, Any]:
    """Export the torch block, whose core is scaled_dot_product_attention, with its sizes free.

    Raises:
        ExportError: torch.export refuses it.
    """
    import torch

    from attnbench.torch_model import build_module, to_torch

    target = Problem.from_dict(problem)
    example = traced_problem(target)
    promised = list(target.input_dims().values())
    symbols = {d: torch.export.Dim(d) for dims in promised for d in dims if isinstance(d, str)}
    if target.variant == "decode" and "kv_len" in symbols:
        symbols["kv_len"] = torch.export.Dim.AUTO  # past_len + q_len
    shapes = tuple({axis: symbols[d] for axis, d in enumerate(dims) if isinstance(d, str)} for dims in promised)
    inputs = tuple(to_torch(array).contiguous() for array in make_inputs(example).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parts of torch that torch deprecated
        try:
            program = torch.export.export(
                build_module(target, seed=seed, attention="sdpa"), inputs, dynamic_shapes=shapes
            )
        except (torch._dynamo.exc.UserError, RuntimeError, ValueError) as err:
            first = (str(err).strip().splitlines() or [type(err).__name__])[0]
            raise ExportError(f"torch.export cannot export {target.label()}: {first}") from err
        save_program(program, Path(folder) / PT2)
    return {"model": PT2}


def save_program(program: Any, path: Path) -> None:
    """Write a torch.export.ExportedProgram without this machine's paths and without a pickle."""
    import torch

    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    program._example_inputs = None  # they alone are stored as a pickle
    written = io.BytesIO()  # torch itself ends the process where the disk is full
    torch.export.save(program, written)
    with writing(path):
        path.write_bytes(written.getbuffer())
