"""Threads, matrix precision and device of torch: set, and read back."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace
from typing import Any

from attnbench.errors import ReadBackError, UnsupportedError
from attnbench.interfaces import UNKNOWN, Probe, Settings
from attnbench_runtimes import binding, cuda_driver, tf32

DEVICE_KINDS = ("cpu", "cuda")


def probe() -> Probe:
    """Is torch there, and on which devices does it compute here?"""
    cuda_driver.begin()  # a driver that hangs must leave time for the import: a probe has ten seconds
    found = binding.probe_package("torch", "torch")
    if not found.available:
        return found
    why = _why_no_cuda(found.version)
    devices = () if why else cuda_driver.devices()
    return replace(found, devices=(*devices, "cpu"), no_cuda=why)


def _why_no_cuda(version: str) -> str:
    """Why torch has no CUDA device, as a sentence; empty where one computes."""
    import torch

    reasons = [why] if (why := cuda_driver.why_no_gpu()) else []
    if torch.version.cuda is None:
        reasons.insert(0, f"torch {version} is built without CUDA")
    if not reasons:
        try:
            (torch.zeros(1, device="cuda:0") + 1).item()
        except (RuntimeError, AssertionError) as err:
            words = (str(err).strip().splitlines() or [type(err).__name__])[0]
            reasons = [f"torch {version} does not compute on cuda:0: {words}"]
    return "; ".join(reasons)


@contextlib.contextmanager
def in_force(settings: Settings) -> Iterator[None]:
    """Threads and the policy for fp32, while something is loaded.

    Raises:
        UnsupportedError: torch has no such device here, or TF32 was asked of a CPU.
        ReadBackError: torch has another number of threads, or somebody allowed products in less than fp32.
    """
    import torch

    if settings.device == "cpu" and settings.options.get(tf32.OPTION) == "on":
        raise UnsupportedError("use_tf32=on needs a CUDA device: a CPU has no TF32")
    if settings.device != "cpu":
        cuda_driver.device_index(settings.device, "torch")
        if why := _why_no_cuda(torch.__version__):
            raise UnsupportedError(f"torch has no device {settings.device} here: {why}")
    set_threads(settings.threads)
    check_matmul_precision()
    allowed = tf32.is_allowed(settings)
    if settings.device != "cpu":
        tf32.set_override(allowed=allowed)
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def waiting(settings: Settings) -> Callable[[], object]:
    """What a call does at its end: on a GPU it waits until all is computed, which has only been queued."""
    if settings.device == "cpu":
        return lambda: None
    import torch

    return functools.partial(torch.cuda.synchronize, settings.device)


def stream(settings: Settings) -> int:
    """The cudaStream_t that torch queues its work on; 0 is the default one."""
    import torch

    return int(torch.cuda.current_stream(settings.device).cuda_stream)


def precision(dtypes: Set[str], settings: Settings) -> str:
    """In what torch computes products of tensors of these dtypes: in the only one; fp32 in TF32 where it may."""
    (found,) = dtypes if len(dtypes) == 1 else (UNKNOWN,)
    return "tf32" if found == "fp32" and tf32.is_allowed(settings) else found


def device_name(settings: Settings) -> str:
    """The processor's name, or the GPU's."""
    if settings.device == "cpu":
        return binding.cpu_name()
    return cuda_driver.device_name(cuda_driver.device_index(settings.device, "torch"))


def check_device(tensors: Iterable[Any], settings: Settings) -> None:
    """Compare where tensors lie with the device that was asked.

    Raises:
        ReadBackError: one lies elsewhere.
    """
    found = {str(tensor.device) for tensor in tensors} - {settings.device}
    if found:
        raise ReadBackError(f"device {settings.device} was asked, torch has tensors on {', '.join(sorted(found))}")


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


def check_matmul_precision(*, tf32_allowed: bool = False) -> str:
    """What torch lets a matrix product of fp32 use; only full fp32 is measured as fp32.

    Raises:
        ReadBackError: somebody allowed TF32 or bf16, or took TF32 back that was allowed.
    """
    import torch

    allowed: str = torch.get_float32_matmul_precision()
    onednn = getattr(torch.backends.mkldnn, "matmul", None)
    allowed_onednn: str = getattr(onednn, "fp32_precision", "none")
    if allowed != ("high" if tf32_allowed else "highest") or allowed_onednn not in ("none", "ieee"):
        found = f"float32_matmul_precision {allowed!r}, mkldnn.matmul.fp32_precision {allowed_onednn!r}"
        wanted = "in TF32" if tf32_allowed else "in full precision"
        value = os.environ.get(tf32.TORCH_OVERRIDE)
        by = "" if value is None else f"; {tf32.TORCH_OVERRIDE}={value} is set: unset it"
        raise ReadBackError(f"fp32 products {wanted} were asked, torch has {found}{by}")
    return allowed
