"""One word for TF32 in every framework: `strict` forbids it to products of fp32, `default` allows it.

What the frameworks do when nobody asks differs: torch forbids it, ONNX Runtime and TensorRT allow it.
"""

import os

from attnbench.interfaces import Settings

OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # read by NVIDIA's libraries when they start; 0 forbids TF32 to all of them


def is_allowed(settings: Settings) -> bool:
    """May products of fp32 be computed in TF32?"""
    return settings.fp32 == "default" and settings.device != "cpu"


def set_override(*, allowed: bool) -> str:
    """Tell NVIDIA's libraries before they start; what they were told, for `Facts.detail`.

    It is the only switch for TensorRT inside ONNX Runtime, whose provider has no option for TF32.
    """
    if allowed:
        os.environ.pop(OVERRIDE, None)
        return "not set"
    os.environ[OVERRIDE] = "0"
    return "0"
