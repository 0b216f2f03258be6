"""The model repository of Triton Inference Server: NAME/config.pbtxt and NAME/1/ with the model.

Written by Triton's documentation (ModelConfig); a server was not run here.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from attnbench.deploy.manifest import Tensor
from attnbench.deploy.targets import Target
from attnbench.errors import UnsupportedError

FOLDER = "triton"  # of a bundle; what the server gets as --model-repository
MAX_BATCH_SIZE = 8  # of what the server puts together
_BATCH_NAMES = ("batch_size", "batch")
_TYPES = {
    "fp32": "TYPE_FP32", "fp16": "TYPE_FP16", "bf16": "TYPE_BF16", "bool": "TYPE_BOOL", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
}  # fmt: skip
_BACKENDS = {  # target -> backend, kind of its instances
    "onnxruntime-cpu": ("onnxruntime", "KIND_CPU"), "onnxruntime-cuda": ("onnxruntime", "KIND_GPU"),
    "tensorrt": ("onnxruntime", "KIND_GPU"), "openvino": ("openvino", "KIND_CPU"),
}  # fmt: skip
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


def write_repository(
    folder: Path, target: Target, model: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], name: str
) -> Path:
    """Write FOLDER/NAME beside the model, with a copy of it; where it is.

    Args:
        folder: of the bundle.
        target: what the model is for.
        model: its file in the folder; what lies beside it under the same stem goes along.
        inputs: of the model.
        outputs: of the model.
        name: of the model in the server.

    Raises:
        UnsupportedError: Triton has no backend for the target.
        OSError: it cannot be written.
    """
    require_backend(target)
    place = folder / FOLDER / model_name(name)
    version = place / "1"
    version.mkdir(parents=True)
    stem = model.split(".")[0]
    for source in sorted(folder.glob(f"{stem}.*")):
        shutil.copyfile(source, version / source.name)
    (place / "config.pbtxt").write_text(config(target, model, inputs, outputs, model_name(name)), encoding="utf-8")
    return place


def model_name(text: str) -> str:
    """A name for a folder and for URLs: letters, digits, `_` and `-`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") or "attention"


def config(target: Target, model: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], name: str) -> str:
    """The text of config.pbtxt.

    Where every input and output begins with the batch, the server puts requests together: those whose other sizes are
    equal. Where one does not (a mask for all samples), max_batch_size is 0 and every axis is named.
    """
    backend, kind = _BACKENDS[target.name]
    is_batched = all(t.dims and t.dims[0] in _BATCH_NAMES for t in (*inputs, *outputs))
    lines = [
        f'name: "{name}"', f'backend: "{backend}"', f'default_model_filename: "{model}"',
        f"max_batch_size: {MAX_BATCH_SIZE if is_batched else 0}",
    ]  # fmt: skip
    lines += [_tensor("input", tensor, is_batched) for tensor in inputs]
    lines += [_tensor("output", tensor, is_batched) for tensor in outputs]
    lines += ["dynamic_batching { }"] if is_batched else []
    lines += [f"instance_group [ {{ count: 1 kind: {kind} }} ]"]
    return "\n".join(lines) + "\n" + (_BY_TENSORRT if target.name == "tensorrt" else "")


def _tensor(field: str, tensor: Tensor, is_batched: bool) -> str:
    dims = tensor.dims[1:] if is_batched else tensor.dims
    sizes = ", ".join("-1" if isinstance(dim, str) else str(dim) for dim in dims)
    return f'{field} [ {{ name: "{tensor.name}" data_type: {_TYPES[tensor.dtype]} dims: [ {sizes} ] }} ]'
