"""What `torch.onnx.export` imports when it is first called, imported before: over a second of a first export's three.

A forkserver imports this once, so that no worker does it again for its file. Torch promises none of these names:
another torch may have others, and is then slower, not wrong.
"""

import contextlib
import importlib

NAMES = (
    "torch._dynamo", "torch.onnx._internal.exporter._compat", "torch.onnx._internal.exporter._core",
    "onnxscript.function_libs.torch_lib.ops", "torch.export._trace", "sympy.tensor.tensor",
)  # fmt: skip

for name in NAMES:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
