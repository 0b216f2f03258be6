"""Models and weights from elsewhere: looked at before any runtime sees them."""

from attnbench.untrusted.onnx_file import ModelFacts, Value, inspect_model
from attnbench.untrusted.paths import check_name, open_inside
from attnbench.untrusted.tensors import StoredTensor

__all__ = ["ModelFacts", "StoredTensor", "Value", "check_name", "inspect_model", "open_inside"]
