"""NVIDIA's driver by ctypes: is there one, and which GPUs does it have?

No framework is needed, so every runtime of a GPU gives the same reason for the same fault.
"""

import contextlib
import ctypes
import os
import re
import sys
import threading
import time
from functools import lru_cache

from attnbench.errors import UnsupportedError

LIBRARY = "libcuda.so.1"
INSTALL_DRIVER = "install NVIDIA's driver, see https://www.nvidia.com/drivers"
_SUCCESS, _NAME_BYTES = 0, 256
_asked: "list[_Asking]" = []  # cuInit that has not come back yet; never more than one
# Below the 10 s of a probe: what works without a GPU must still get to say so. Healthy drivers take 0.1 to 3 s.
ANSWER_S = 6.0
_DEVICE = re.compile(r"cuda:([0-9]{1,3})")


def why_no_gpu() -> str:
    """Why no GPU can be used, as a sentence; empty where one can."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError as err:
        return _why_not_loaded(str(err))
    try:
        status = _started(driver)
    except AttributeError as err:
        return f"{LIBRARY} is no driver of NVIDIA: {err}"
    if status is None:
        return f"NVIDIA's driver hangs: cuInit had not answered after {ANSWER_S:g} s, see what nvidia-smi says"
    if status != _SUCCESS:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = "" if hidden is None else f"; CUDA_VISIBLE_DEVICES is {hidden!r}"
        return f"NVIDIA's driver finds no GPU: {_words(driver, status)}{seen}"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if count.value else "NVIDIA's driver finds no GPU"


def _why_not_loaded(words: str) -> str:
    """words: of the loader, which tells a file that is not there from one that is broken."""
    if sys.platform != "linux" or f"{LIBRARY}: cannot open shared object file" in words:
        return f"there is no NVIDIA driver: {LIBRARY} is missing"
    return f"NVIDIA's driver does not load: {words}"


class _Asking:
    """cuInit in a thread of its own, for on a GPU that fell off the bus it never comes back."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._init, self._found = driver.cuInit, list[int]()
        self._deadline = time.monotonic() + ANSWER_S
        self._thread = threading.Thread(target=lambda: self._found.append(int(self._init(0))), daemon=True)
        self._thread.start()

    def status(self) -> int | None:
        """What it gave; None where it had not by the deadline."""
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        return self._found[0] if self._found else None


def begin() -> None:
    """Ask the driver to start, while something else is imported; `why_no_gpu` has the answer."""
    with contextlib.suppress(OSError, AttributeError):  # told there
        _asked[:] = _asked or [_Asking(ctypes.CDLL(LIBRARY))]


def _started(driver: ctypes.CDLL) -> int | None:
    """The status of cuInit; None where it hangs: then it is asked no second time.

    Raises:
        AttributeError: the library has no cuInit.
    """
    _asked[:] = _asked or [_Asking(driver)]
    status = _asked[0].status()
    if status is not None:
        _asked.clear()
    return status


def devices() -> tuple[str, ...]:
    """`cuda:0`, `cuda:1`, ... as CUDA_VISIBLE_DEVICES leaves them; none where no GPU can be used."""
    if why_no_gpu():
        return ()
    count = ctypes.c_int()
    ctypes.CDLL(LIBRARY).cuDeviceGetCount(ctypes.byref(count))
    return tuple(f"cuda:{index}" for index in range(count.value))


@lru_cache(maxsize=16)
def device_name(index: int) -> str:
    """`NVIDIA H200`.

    Raises:
        UnsupportedError: the driver has no such GPU.
    """
    driver = ctypes.CDLL(LIBRARY)
    driver.cuInit(0)
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    for status in (
        driver.cuDeviceGet(ctypes.byref(handle), index),
        driver.cuDeviceGetName(name, _NAME_BYTES, handle),
    ):
        if status != _SUCCESS:
            raise UnsupportedError(f"NVIDIA's driver does not name GPU {index}: {_words(driver, int(status))}")
    return name.value.decode(errors="replace")


def device_index(device: str, runtime: str) -> int:
    """The number in `cuda:0`.

    Raises:
        UnsupportedError: it is no such name, or there are GPUs and it is none of them.
    """
    found = _DEVICE.fullmatch(device)
    if found is None:
        raise UnsupportedError(f"{runtime} runs on a device such as cuda:0, not on {device!r}")
    there = devices()
    if there and device not in there:
        raise UnsupportedError(f"{runtime} has no {device} here; the GPUs are {', '.join(there)}")
    return int(found[1])


def _words(driver: ctypes.CDLL, status: int) -> str:
    """`CUDA_ERROR_NO_DEVICE (100)`."""
    text = ctypes.c_char_p()
    if driver.cuGetErrorName(status, ctypes.byref(text)) != _SUCCESS or text.value is None:
        return f"error {status}"
    return f"{text.value.decode(errors='replace')} ({status})"
