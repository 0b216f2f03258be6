"""What NVIDIA's management library tells of a GPU: clocks, power, throttling, who uses it. It is read, never changed.

Optional: needs the package nvidia-ml-py. The library does not know CUDA_VISIBLE_DEVICES, so a device is found by its
UUID. A MIG slice has processes of its own; its clocks, power and compute mode are those of the whole GPU.

Tested without a GPU, against doubles of the real package; not yet read from one.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.errors import MeasurementError

# Bit of the clocks' event reasons -> the word, for those that slow a GPU down against its will. Being idle and
# clocks that somebody set are none of them.
THROTTLE_REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "power brake", 0x200: "board limit", 0x400: "reliability limit",
}  # fmt: skip
COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
INSTALL = "pip install nvidia-ml-py"


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """One reading; None where this GPU does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle: tuple[str, ...] | None

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "throttle": None if self.throttle is None else list(self.throttle)}


class DeviceMonitor:
    """Reads one device."""

    def __init__(self, uuid: str, *, module: Any | None = None) -> None:
        """uuid: as `cuda_driver.Gpu.uuid`; module: pynvml.

        Raises:
            MeasurementError: no package, no driver, or no such device; the message is the reason.
        """
        self._nvml = _import() if module is None else module
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as err:
            raise MeasurementError(f"NVIDIA's management library does not start: {err}") from err
        self._device = self._found(uuid)
        is_slice = self._asked(self._nvml.nvmlDeviceIsMigDeviceHandle, self._device)
        whole = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle
        self._whole = self._asked(whole, self._device) if is_slice else self._device

    def state(self) -> DeviceState:
        """Clocks, power, temperature and what holds the clocks down, now."""
        n = self._nvml
        power_mw = self._asked(n.nvmlDeviceGetPowerUsage, self._whole)
        bits = self._asked(n.nvmlDeviceGetCurrentClocksThrottleReasons, self._whole)
        return DeviceState(
            sm_clock_mhz=self._asked(n.nvmlDeviceGetClockInfo, self._whole, n.NVML_CLOCK_SM),
            memory_clock_mhz=self._asked(n.nvmlDeviceGetClockInfo, self._whole, n.NVML_CLOCK_MEM),
            power_w=None if power_mw is None else power_mw / 1e3,
            temperature_c=self._asked(n.nvmlDeviceGetTemperature, self._whole, n.NVML_TEMPERATURE_GPU),
            throttle=None if bits is None else tuple(word for bit, word in THROTTLE_REASONS.items() if bits & bit),
        )

    def processes(self) -> frozenset[int] | None:
        """Process numbers, as the host counts them, that compute on the device; None where it does not tell."""
        found = self._asked(self._nvml.nvmlDeviceGetComputeRunningProcesses, self._device)
        return None if found is None else frozenset(int(process.pid) for process in found)

    def compute_mode(self) -> str | None:
        """`default`, `exclusive-process`, `exclusive-thread` or `prohibited`; None where it does not tell."""
        mode = self._asked(self._nvml.nvmlDeviceGetComputeMode, self._whole)
        return None if mode is None else COMPUTE_MODES[mode]

    def free_bytes(self) -> int | None:
        """Memory that nobody has now, of the GPU or the MIG slice; None where it does not tell."""
        found = self._asked(self._nvml.nvmlDeviceGetMemoryInfo, self._device)
        return None if found is None else int(found.free)

    def _found(self, uuid: str) -> Any:
        """The handle of a GPU, or of a MIG slice: the driver gives both the same kind of number."""
        errors = []
        for kind in ("GPU", "MIG"):
            try:
                return self._nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
            except self._nvml.NVMLError as err:
                errors.append(f"{kind}-{uuid}: {err}")
        raise MeasurementError(f"NVIDIA's management library does not know the device: {'; '.join(errors)}")

    def _asked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None where this GPU, driver or user does not get one. Other errors come up."""
        n = self._nvml
        try:
            return function(*arguments)
        except (n.NVMLError_NotSupported, n.NVMLError_NoPermission, n.NVMLError_FunctionNotFound):
            return None
        except n.NVMLError as err:
            raise MeasurementError(f"NVIDIA's management library refuses {function.__name__}: {err}") from err


def summary(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Readings of many visits as least and most, and in how many visits clocks were held down; {} of none."""
    states = list(states)
    found: dict[str, Any] = {}
    for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c"):
        values = [state[name] for state in states if state[name] is not None]
        if values:
            found[name] = [min(values), max(values)]
    if states:
        found["readings"] = len(states)
        found["throttled_readings"] = sum(bool(state["throttle"]) for state in states)
        found["throttle_reasons"] = sorted({word for state in states for word in state["throttle"] or ()})
    return found


def _import() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ModuleNotFoundError as err:
        raise MeasurementError(f"clocks and neighbours are not read: nvidia-ml-py is not installed; {INSTALL}") from err
