"""Models and weights from elsewhere: looked at before any runtime sees them."""

from attnbench.untrusted.onnx_file import ModelFacts, Value, inspect_model
from attnbench.untrusted.openvino_ir import IrFacts, inspect_ir
from attnbench.untrusted.paths import check_name, open_inside, open_named
from attnbench.untrusted.pt2 import ProgramFacts, inspect_pt2
from attnbench.untrusted.safetensors import StoredWeight, read_safetensors, read_safetensors_header
from attnbench.untrusted.snapshot import snapshot_file, snapshot_files, snapshot_model
from attnbench.untrusted.tensors import StoredTensor

__all__ = [
    "IrFacts", "ModelFacts", "ProgramFacts", "StoredTensor", "StoredWeight", "Value", "check_name", "inspect_ir",
    "inspect_model", "inspect_pt2", "open_inside", "open_named", "read_safetensors", "read_safetensors_header",
    "snapshot_file", "snapshot_files", "snapshot_model",
]  # fmt: skip
