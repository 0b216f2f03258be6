"""One word for TF32 in every framework: `strict` forbids it to products of fp32, `default` allows it.

What the frameworks do when nobody asks differs: torch forbids it, ONNX Runtime and TensorRT allow it.
"""

import os

from attnbench.interfaces import Settings

OPTION = "use_tf32"  # of a runtime: one arm with TF32, one without
SWITCH = ("off", "on")
OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # read by NVIDIA's libraries when they start; 0 forbids TF32 to all of them

TORCH_OVERRIDE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"  # read by torch when it is imported


def is_allowed(settings: Settings) -> bool:
    """May products of fp32 be computed in TF32? By the option, else by the policy; a CPU has no TF32."""
    is_asked = settings.options.get(OPTION, "on" if settings.fp32 == "default" else "off") == "on"
    return is_asked and settings.device != "cpu"


def set_override(*, allowed: bool) -> str:
    """Tell NVIDIA's libraries before they start; what they were told, for `Facts.detail`.

    It is the only switch for TensorRT inside ONNX Runtime, whose provider has no option for TF32.
    """
    if allowed:
        os.environ.pop(OVERRIDE, None)
        return "not set"
    os.environ[OVERRIDE] = "0"
    return "0"
