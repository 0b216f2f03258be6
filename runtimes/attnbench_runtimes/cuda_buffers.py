"""Device memory, copies, a stream and a graph by NVIDIA's driver, for runtimes that take bare addresses.

Written against the driver's API and tested on a double; not yet run on a GPU.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from attnbench.errors import UnsupportedError
from attnbench.interfaces import Array
from attnbench_runtimes import cuda_driver

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: waits for nothing on the default stream
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_OUT_OF_MEMORY = 2


class Device:
    """The primary context of one GPU, which runtimes of CUDA share, with a stream of its own. Close it."""

    def __init__(self, index: int) -> None:
        self._driver = ctypes.CDLL(cuda_driver.LIBRARY)
        self._places: list[int] = []
        self._graphs: list[ctypes.c_void_p] = []
        handle, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", ctypes.byref(handle), index)
        self._handle = handle
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._do("cuCtxSetCurrent", context)
        self._do("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        self.stream = int(stream.value or 0)

    def allocate(self, size_bytes: int) -> int:
        """The address of that much memory, at least one byte; it is the device's until `free` or `close`.

        Raises:
            MemoryError: the device has not that much left.
        """
        place = ctypes.c_uint64()
        self._do("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(max(1, size_bytes)))
        self._places.append(place.value)
        return place.value

    def free(self, place: int) -> None:
        """Give memory of `allocate` back."""
        self._places.remove(place)
        self._do("cuMemFree_v2", ctypes.c_uint64(place))

    def upload(self, array: Array, place: int) -> None:
        """Copy a contiguous array to the device; done on return."""
        source = ctypes.c_void_p(array.ctypes.data)
        self._do("cuMemcpyHtoD_v2", ctypes.c_uint64(place), source, ctypes.c_size_t(array.nbytes))
        # From pageable memory it returns while the last part is still on its way, and our stream does not wait for it.
        self._do("cuCtxSynchronize")

    def download(self, place: int, array: Array) -> None:
        """Fill a contiguous array from the device, after everything on the stream; done on return."""
        self.synchronize()  # the copy is on the default stream, which does not wait for ours
        target = ctypes.c_void_p(array.ctypes.data)
        self._do("cuMemcpyDtoH_v2", target, ctypes.c_uint64(place), ctypes.c_size_t(array.nbytes))

    def synchronize(self) -> None:
        """Wait for everything on the stream."""
        self._do("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def captured(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """A call that launches, as one graph, what `enqueue` puts on the stream; addresses stay as they are now."""
        stream, graph, runnable = ctypes.c_void_p(self.stream), ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)
        try:
            enqueue()
        finally:  # a stream left capturing takes nothing else
            self._do("cuStreamEndCapture", stream, ctypes.byref(graph))
        self._do("cuGraphInstantiateWithFlags", ctypes.byref(runnable), graph, ctypes.c_uint64(0))
        self._do("cuGraphDestroy", graph)
        self._graphs.append(runnable)
        return lambda: self._do("cuGraphLaunch", runnable, stream)

    def close(self) -> None:
        """Give everything back."""
        for graph in self._graphs:
            self._do("cuGraphExecDestroy", graph)
        for place in list(self._places):
            self.free(place)
        self._do("cuStreamDestroy_v2", ctypes.c_void_p(self.stream))
        self._do("cuDevicePrimaryCtxRelease_v2", self._handle)

    def _do(self, name: str, *arguments: Any) -> None:
        status = int(getattr(self._driver, name)(*arguments))
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"the GPU is out of memory ({name})")
        if status != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(text))
            words = (text.value or b"unknown").decode(errors="replace")
            raise UnsupportedError(f"NVIDIA's driver: {name} gave {words} ({status})")


@contextlib.contextmanager
def opened(index: int) -> Iterator[Device]:
    """A device, closed at the end."""
    device = Device(index)
    try:
        yield device
    finally:
        device.close()
