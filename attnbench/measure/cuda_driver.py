"""NVIDIA's driver by ctypes: what timing and memory on a GPU need, the same under every runtime.

Standard library only, so that it works in any worker. It joins the device's primary context, which is the one that
torch, ONNX Runtime and TensorRT work in. Devices are numbered as CUDA_VISIBLE_DEVICES leaves them.

Tested without a GPU, against a driver that checks every argument's type; not yet run on one.
"""

import ctypes
import uuid
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from attnbench.errors import MeasurementError

LIBRARY = "libcuda.so.1"
Uuid = c_ubyte * 16
# <cuda.h>, by the names that the library exports
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid_v2": (POINTER(Uuid), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}
_L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_SUCCESS, _OUT_OF_MEMORY = 0, 2

Event = c_void_p


class Gpu:
    """One device. Nothing is allocated on it before `join`.

    Raises:
        MeasurementError: from every method, where the driver refuses; with its own word.
    """

    def __init__(self, device: str, *, library: Any | None = None) -> None:
        """device: `cuda:0`; library: the loaded driver."""
        kind, _, index = device.partition(":")
        if kind != "cuda" or not index.isdecimal():
            raise MeasurementError(f"a device such as cuda:0 has a driver to ask, {device!r} has none")
        self._library = _load() if library is None else library
        self._call("cuInit", 0)
        self._handle = c_int()
        self._call("cuDeviceGet", ctypes.byref(self._handle), int(index))

    def uuid(self) -> str:
        """16 bytes as `8-4-4-4-12` hex digits; of a MIG slice its own."""
        found = Uuid()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(found), self._handle)
        return str(uuid.UUID(bytes=bytes(found)))

    def l2_bytes(self) -> int:
        """Size of the L2 cache."""
        found = c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), _L2_CACHE_SIZE, self._handle)
        return found.value

    def join(self) -> None:
        """Make the device's primary context the calling thread's, creating it where nobody has."""
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle)
        self._call("cuCtxSetCurrent", context)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the device, whoever uses it."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size_bytes: int) -> int:
        """The address of so many bytes, held until the process ends."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), size_bytes)
        return address.value

    def fill(self, address: int, size_bytes: int, stream: int) -> None:
        """Queue the writing of so many bytes."""
        self._call("cuMemsetD8Async", address, 0, size_bytes, stream)

    def event(self) -> Event:
        """A new event that notes the time."""
        found = c_void_p()
        self._call("cuEventCreate", ctypes.byref(found), 0)
        return found

    def record(self, event: Event, stream: int) -> None:
        """Queue the event on a stream."""
        self._call("cuEventRecord", event, stream)

    def wait(self, event: Event) -> None:
        """Block until the stream has come to the event."""
        self._call("cuEventSynchronize", event)

    def elapsed_ns(self, start: Event, stop: Event) -> int:
        """Between two events that are over; the driver's resolution is about 500 ns."""
        found = c_float()
        self._call("cuEventElapsedTime", ctypes.byref(found), start, stop)
        return round(found.value * 1e6)

    def synchronize(self) -> None:
        """Block until everything of this process on the device is done, on any stream."""
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        status = int(getattr(self._library, name)(*arguments))
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"NVIDIA's driver: {name} found no memory on the device")
        if status != _SUCCESS:
            raise MeasurementError(f"NVIDIA's driver refuses {name}: {self._words(status)}")

    def _words(self, status: int) -> str:
        """`CUDA_ERROR_NO_DEVICE (100)`."""
        text = c_char_p()
        known = self._library.cuGetErrorName(status, ctypes.byref(text)) == _SUCCESS and text.value is not None
        return f"{(text.value or b'').decode(errors='replace')} ({status})" if known else f"error {status}"


def _load() -> Any:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as err:
        raise MeasurementError(f"there is no NVIDIA driver: {LIBRARY} is missing") from err
    for name, arguments in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError as err:
            raise MeasurementError(f"NVIDIA's driver is too old: it has no {name}; install a newer one") from err
        function.argtypes, function.restype = arguments, c_int
    return library
