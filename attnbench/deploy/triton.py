"""The model repository of Triton Inference Server: NAME/config.pbtxt and NAME/1/ with the model.

Written by Triton's documentation (ModelConfig) and by what its backends take; a server was not run here.
"""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attnbench.deploy.manifest import Tensor
from attnbench.deploy.targets import Target
from attnbench.errors import UnsupportedError

Ranges = Mapping[str, tuple[int, int]]
FOLDER = "triton"  # of a bundle; what the server gets as --model-repository
_BATCH_NAMES = ("batch_size", "batch", "B")
_TYPES = {
    "fp32": "TYPE_FP32", "fp16": "TYPE_FP16", "bool": "TYPE_BOOL", "int32": "TYPE_INT32", "int64": "TYPE_INT64",
}  # fmt: skip
_BACKENDS = {  # target -> backend, kind of its instances
    "onnxruntime-cpu": ("onnxruntime", "KIND_CPU"), "onnxruntime-cuda": ("onnxruntime", "KIND_GPU"),
    "tensorrt": ("onnxruntime", "KIND_GPU"), "openvino": ("openvino", "KIND_CPU"),
}  # fmt: skip
_SCALAR = "reshape { shape: [ ] }"
_BY_TENSORRT = """\
optimization {
  execution_accelerators {
    gpu_execution_accelerator [ { name: "tensorrt" } ]
  }
}
"""


def require_backend(target: Target) -> None:
    """Go on only where Triton has a backend for the target's file.

    Raises:
        UnsupportedError: it has none.
    """
    if target.name not in _BACKENDS:
        raise UnsupportedError(
            f"Triton Inference Server has no backend for the {target.kind} file of {target.name}; "
            f"take --target {', '.join(_BACKENDS)}"
        )


def refuse_dtypes(tensors: Iterable[Tensor]) -> None:
    """Go on only where Triton's backends take the types of all inputs and outputs.

    Raises:
        UnsupportedError: bfloat16, which the backends of ONNX Runtime and OpenVINO call TYPE_INVALID.
    """
    for tensor in tensors:
        if tensor.dtype not in _TYPES:
            floats = ", ".join(name for name in _TYPES if name.startswith("fp"))
            raise UnsupportedError(
                f"Triton's backends for ONNX and OpenVINO take no {tensor.dtype}, which {tensor.name} is; "
                f"leave --triton out, or take --dtype {floats}"
            )


def write_repository(
    folder: Path,
    target: Target,
    model: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    ranges: Ranges,
    name: str,
) -> Path:
    """Write FOLDER/NAME beside the model, with a copy of it; where it is.

    Args:
        folder: of the bundle.
        target: what the model is for.
        model: its file in the folder; what lies beside it under the same stem goes along.
        inputs: of the model.
        outputs: of the model.
        ranges: of every free dim, the sizes that were proved.
        name: of the model in the server.

    Raises:
        UnsupportedError: Triton has no backend for the target, or none for a dtype.
        OSError: it cannot be written.
    """
    require_backend(target)
    refuse_dtypes([*inputs, *outputs])
    place = folder / FOLDER / model_name(name)
    version = place / "1"
    version.mkdir(parents=True)
    stem = model.split(".")[0]
    for source in sorted(folder.glob(f"{stem}.*")):
        shutil.copyfile(source, version / source.name)
    text = config(target, model, inputs, outputs, ranges, model_name(name))
    (place / "config.pbtxt").write_text(text, encoding="utf-8")
    return place


def model_name(text: str) -> str:
    """A name for a folder and for URLs: letters, digits, `_` and `-`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") or "attention"


def max_batch_size(tensors: Sequence[Tensor], ranges: Ranges) -> int:
    """The largest batch that was proved; 0 where the server has no batch of its own to make.

    That is where an input or output does not begin with the batch (a mask for all samples, a fixed size), has no other
    axis, or where a batch of 1 was not proved: the server sends what it has.
    """
    firsts = {tensor.dims[0] if len(tensor.dims) > 1 else None for tensor in tensors}
    batch = firsts.pop() if len(firsts) == 1 else None
    if not isinstance(batch, str) or batch not in _BATCH_NAMES:
        return 0
    least, most = ranges[batch]
    return most if least == 1 else 0


def config(
    target: Target, model: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], ranges: Ranges, name: str
) -> str:
    """The text of config.pbtxt.

    With a batch, the server puts requests together whose other sizes are equal, and waits for none: that is what
    dynamic_batching is without settings. Without one every axis is named.
    """
    backend, kind = _BACKENDS[target.name]
    most = max_batch_size([*inputs, *outputs], ranges)
    is_batched = most > 0
    lines = [
        f'name: "{name}"', f'backend: "{backend}"', f'default_model_filename: "{model}"', f"max_batch_size: {most}",
    ]  # fmt: skip
    lines += [_tensor("input", tensor, is_batched) for tensor in inputs]
    lines += [_tensor("output", tensor, is_batched) for tensor in outputs]
    lines += ["dynamic_batching { }"] if most > 1 else []
    lines += [f"instance_group [ {{ count: 1 kind: {kind} }} ]"]
    return "\n".join(lines) + "\n" + (_BY_TENSORRT if target.name == "tensorrt" else "")


def _tensor(field: str, tensor: Tensor, is_batched: bool) -> str:
    dims = tensor.dims[1:] if is_batched else tensor.dims
    if not dims:  # Triton has no tensors without an axis
        return f'{field} [ {{ name: "{tensor.name}" data_type: {_TYPES[tensor.dtype]} dims: [ 1 ] {_SCALAR} }} ]'
    sizes = ", ".join("-1" if isinstance(dim, str) else str(dim) for dim in dims)
    return f'{field} [ {{ name: "{tensor.name}" data_type: {_TYPES[tensor.dtype]} dims: [ {sizes} ] }} ]'
