"""A GPU that exists in time only: NVIDIA's driver with a clock that stands still until something waits or works.

Every function takes exactly the C types of NVIDIA's header, so a wrong name, number or kind of argument fails.
"""

import ctypes
import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

# <cuda.h> of CUDA 12 and 13, parameters without their names where the type says it all.
HEADER = """
CUresult cuInit(unsigned int Flags);
CUresult cuGetErrorName(CUresult error, const char **pStr);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev);
CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev);
CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuCtxSynchronize(void);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize);
CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream);
CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags);
CUresult cuEventRecord(CUevent hEvent, CUstream hStream);
CUresult cuEventSynchronize(CUevent hEvent);
CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd);
"""
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
TYPES = {
    "unsigned int": ctypes.c_uint, "unsigned char": ctypes.c_ubyte, "int": _INT, "size_t": ctypes.c_size_t,
    "float": ctypes.c_float, "const char *": ctypes.c_char_p, "CUdeviceptr": ctypes.c_uint64, "CUresult": _INT,
    "CUdevice": _INT, "CUdevice_attribute": _INT, "CUcontext": _POINTER, "CUstream": _POINTER, "CUevent": _POINTER,
    "CUuuid": ctypes.c_ubyte * 16,
}  # fmt: skip


def argument_types(name: str) -> tuple[Any, ...]:
    """Of a function, as the header declares them."""
    found = re.search(rf"{name}\(([^)]*)\)", HEADER)
    assert found, name
    return tuple(_type(text) for text in found[1].split(", ") if text != "void")


def _type(parameter: str) -> Any:
    kind = re.sub(r"\w+$", "", parameter).strip()
    if kind == "const char **":
        return ctypes.POINTER(ctypes.c_char_p)
    return ctypes.POINTER(TYPES[kind[:-1].strip()]) if kind.endswith("*") else TYPES[kind]


class FakeCuda:
    """The library; `now_ns` is the clock of host and device."""

    def __init__(
        self, *, free: int = 100 << 20, l2_bytes: int = 4 << 20, uuid: bytes = bytes(range(16)), sleeps: bool = False
    ) -> None:
        """sleeps: waiting takes real time, for who measures it by the real clock."""
        self.now_ns, self._sleeps = 0, sleeps
        self.free, self.l2_bytes, self._uuid = free, l2_bytes, uuid
        self.busy_until: dict[int, int] = defaultdict(int)  # stream -> ns
        self.event_ns: dict[int, int] = {}
        self.fills: list[tuple[int, int, int]] = []  # address, bytes, stream
        self.asked: list[str] = []
        self.fail: dict[str, int] = {}  # function -> status

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        work: Callable[..., None] = getattr(self, "_" + name)

        def answer(*arguments: Any) -> int:
            self.asked.append(name)
            if name in self.fail:
                return self.fail[name]
            work(*arguments)
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int, *argument_types(name))(answer)

    def wait_until(self, then_ns: int) -> None:
        """Let the host wait."""
        if self._sleeps and then_ns > self.now_ns:
            time.sleep((then_ns - self.now_ns) / 1e9)
        self.now_ns = max(self.now_ns, then_ns)

    def clock(self) -> int:
        """The host's."""
        return self.now_ns

    def work(self, stream: int, device_ns: int, launch_ns: int = 5_000) -> None:
        """Queue a kernel; the host needs `launch_ns` for that."""
        self.busy_until[stream] = max(self.now_ns, self.busy_until[stream]) + device_ns
        self.now_ns += launch_ns

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuGetErrorName(self, error: int, out: Any) -> None:
        out[0] = b"CUDA_ERROR_NO_DEVICE"

    def _cuDeviceGet(self, out: Any, ordinal: int) -> None:
        out[0] = 70 + ordinal

    def _cuDeviceGetUuid_v2(self, out: Any, device: int) -> None:
        assert device >= 70
        out[0][:] = list(self._uuid)

    def _cuDeviceGetAttribute(self, out: Any, attribute: int, device: int) -> None:
        assert (attribute, device) == (38, 70)
        out[0] = self.l2_bytes

    def _cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        out[0] = 0xC0 + device

    def _cuCtxSetCurrent(self, context: int) -> None:
        assert context >= 0xC0

    def _cuCtxSynchronize(self) -> None:
        self.wait_until(max(self.busy_until.values(), default=0))

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free[0], total[0] = self.free, 1 << 30

    def _cuMemAlloc_v2(self, out: Any, size: int) -> None:
        out[0], self.free = 0xF000, self.free - size

    def _cuMemsetD8Async(self, address: int, value: int, size: int, stream: int | None) -> None:
        self.fills.append((address, size, stream or 0))
        self.work(stream or 0, size // 100, 0)

    def _cuEventCreate(self, out: Any, flags: int) -> None:
        assert flags == 0, "an event that notes no time"
        out[0] = 0xE000 + len(self.event_ns)
        self.event_ns[out[0]] = -1

    def _cuEventRecord(self, event: int, stream: int | None) -> None:
        self.event_ns[event] = max(self.now_ns, self.busy_until[stream or 0])

    def _cuEventSynchronize(self, event: int) -> None:
        self.wait_until(self.event_ns[event])

    def _cuEventElapsedTime(self, out: Any, start: int, stop: int) -> None:
        assert -1 not in (self.event_ns[start], self.event_ns[stop]), "an event that was never recorded"
        assert self.event_ns[stop] <= self.now_ns, "an event that is not over"
        out[0] = (self.event_ns[stop] - self.event_ns[start]) / 1e6


class FakeSession:
    """Work of `device_ns` per call on stream 7, which it may say wrongly."""

    def __init__(self, cuda: FakeCuda, *, device_ns: int = 250_000, says: int = 7, replays_graph: bool = False) -> None:
        self._cuda, self._device_ns = cuda, device_ns
        self.stream, self.replays_graph = says, replays_graph
        self.calls = 0

    def enqueue(self) -> None:
        """Queue one call's work."""
        self.calls += 1
        self._cuda.work(7, self._device_ns)
