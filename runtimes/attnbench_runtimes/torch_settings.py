"""Threads and matrix precision of torch: set, and read back."""

import contextlib

from attnbench.errors import ReadBackError


def set_threads(threads: int) -> None:
    """Set torch's threads and read them back.

    The inter-op pool can only be sized before its first use; nothing here uses it, so its size is reported, not
    demanded.

    Raises:
        ReadBackError: torch has another number.
    """
    import torch

    if torch.get_num_interop_threads() != 1:
        with contextlib.suppress(RuntimeError):  # "after parallel work has started"
            torch.set_num_interop_threads(1)
    torch.set_num_threads(threads)
    check_threads(threads)


def check_threads(threads: int) -> None:
    """Compare torch's threads with what was asked.

    Raises:
        ReadBackError: they differ.
    """
    import torch

    found = torch.get_num_threads()
    if found != threads:
        raise ReadBackError(f"threads {threads} were asked, torch has {found}")


def check_matmul_precision() -> str:
    """What torch lets a matrix product of fp32 use; only full fp32 is measured as fp32.

    Raises:
        ReadBackError: somebody allowed TF32 or bf16.
    """
    import torch

    allowed: str = torch.get_float32_matmul_precision()
    onednn = getattr(torch.backends.mkldnn, "matmul", None)
    allowed_onednn: str = getattr(onednn, "fp32_precision", "none")
    if allowed != "highest" or allowed_onednn not in ("none", "ieee"):
        found = f"float32_matmul_precision {allowed!r}, mkldnn.matmul.fp32_precision {allowed_onednn!r}"
        raise ReadBackError(f"fp32 products in full precision were asked, torch has {found}")
    return allowed
