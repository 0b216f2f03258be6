"""Reading a GPU's clocks and neighbours: doubles with the signatures and answers of the real pynvml."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from attnbench.errors import MeasurementError
from attnbench.measure.nvml import THROTTLE_REASONS, DeviceMonitor, summary

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

UUID = "5b3a7c1e-0d4f-4c55-9d3e-1f2a3b4c5d6e"
# Only readings: whoever tries to change a clock, a power limit or a mode finds no such function here.
READS: dict[str, Any] = {
    "nvmlInit": None, "nvmlDeviceGetHandleByUUID": "whole", "nvmlDeviceIsMigDeviceHandle": 0,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "whole", "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetPowerUsage": 412_345, "nvmlDeviceGetTemperature": 61, "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0, "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetMemoryInfo": None,
}  # fmt: skip
CONSTANTS = ("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU", "NVMLError", "NVMLError_NotSupported",
             "NVMLError_NoPermission", "NVMLError_FunctionNotFound")  # fmt: skip


def fake_nvml(**answers: Any) -> SimpleNamespace:
    """A module whose functions take what the real ones take; an exception is raised, anything else returned."""
    doubles = {}
    for name, answer in (READS | answers).items():
        acts = isinstance(answer, Exception) or callable(answer)
        how = {"side_effect" if acts else "return_value": answer}
        doubles[name] = create_autospec(getattr(pynvml, name), **how)
    return SimpleNamespace(**doubles, **{name: getattr(pynvml, name) for name in CONSTANTS})


def refused(code: str) -> Exception:
    error: Exception = pynvml.NVMLError(getattr(pynvml, code))
    return error


def process(pid: int) -> Any:
    """As the real module lists it, with memory that the driver does not tell (Windows, containers)."""
    return pynvml.nvmlStructToFriendlyObject(pynvml.c_nvmlProcessInfo_v2_t(pid=pid, usedGpuMemory=2**64 - 1))


def test_a_state_has_units() -> None:
    clocks = {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 3201}
    module = fake_nvml(nvmlDeviceGetClockInfo=lambda handle, kind: clocks[kind])
    state = DeviceMonitor(UUID, module=module).state()
    assert (state.sm_clock_mhz, state.memory_clock_mhz, state.power_w, state.temperature_c) == (1755, 3201, 412.345, 61)
    assert state.throttle == ()


def test_only_what_slows_a_gpu_down_against_its_will_is_throttling() -> None:
    named = {bit: name for name in dir(pynvml) if name.startswith("nvmlClocksThrottleReason")
             and (bit := getattr(pynvml, name)) in THROTTLE_REASONS}  # fmt: skip
    assert set(named) == set(THROTTLE_REASONS)
    idle = pynvml.nvmlClocksThrottleReasonGpuIdle | pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting
    hot = idle | pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    for bits, words in ((idle, ()), (hot, ("power cap", "hardware thermal slowdown"))):
        module = fake_nvml(nvmlDeviceGetCurrentClocksThrottleReasons=bits)
        assert DeviceMonitor(UUID, module=module).state().throttle == words


def test_what_a_gpu_does_not_tell_is_none() -> None:
    module = fake_nvml(
        nvmlDeviceGetPowerUsage=refused("NVML_ERROR_NOT_SUPPORTED"),
        nvmlDeviceGetCurrentClocksThrottleReasons=refused("NVML_ERROR_NO_PERMISSION"),
        nvmlDeviceGetComputeRunningProcesses=refused("NVML_ERROR_NOT_SUPPORTED"),
    )
    monitor = DeviceMonitor(UUID, module=module)
    assert (monitor.state().power_w, monitor.state().throttle, monitor.processes()) == (None, None, None)


def test_other_errors_come_up_with_the_librarys_words() -> None:
    monitor = DeviceMonitor(UUID, module=fake_nvml(nvmlDeviceGetPowerUsage=refused("NVML_ERROR_GPU_IS_LOST")))
    with pytest.raises(MeasurementError, match="nvmlDeviceGetPowerUsage: GPU is lost"):
        monitor.state()


def test_a_mig_slice_has_own_processes_and_the_clocks_of_the_whole() -> None:
    def handle(uuid: str) -> str:
        if uuid == f"MIG-{UUID}":
            return "slice"
        raise refused("NVML_ERROR_NOT_FOUND")

    module = fake_nvml(
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceIsMigDeviceHandle=1,
        nvmlDeviceGetComputeRunningProcesses=[process(17), process(4242)],
    )
    monitor = DeviceMonitor(UUID, module=module)
    assert monitor.processes() == {17, 4242}
    monitor.state()
    module.nvmlDeviceGetComputeRunningProcesses.assert_called_once_with("slice")
    module.nvmlDeviceGetPowerUsage.assert_called_once_with("whole")


def test_an_unknown_device_is_named() -> None:
    module = fake_nvml(nvmlDeviceGetHandleByUUID=refused("NVML_ERROR_NOT_FOUND"))
    with pytest.raises(MeasurementError, match=f"GPU-{UUID}: Not Found; MIG-{UUID}: Not Found"):
        DeviceMonitor(UUID, module=module)


@pytest.mark.parametrize(("mode", "word"), [(0, "default"), (2, "prohibited"), (3, "exclusive-process")])
def test_the_compute_mode_is_a_word(mode: int, word: str) -> None:
    assert DeviceMonitor(UUID, module=fake_nvml(nvmlDeviceGetComputeMode=mode)).compute_mode() == word


def test_free_memory_is_of_the_device_or_the_slice() -> None:
    told = pynvml.nvmlStructToFriendlyObject(pynvml.c_nvmlMemory_t(total=80 << 30, free=7 << 30, used=73 << 30))
    module = fake_nvml(
        nvmlDeviceIsMigDeviceHandle=1, nvmlDeviceGetHandleByUUID="slice",
        nvmlDeviceGetMemoryInfo=lambda handle, version=None: {"slice": told}[handle],
    )  # fmt: skip
    assert DeviceMonitor(UUID, module=module).free_bytes() == 7 << 30
    silent = fake_nvml(nvmlDeviceGetMemoryInfo=refused("NVML_ERROR_NOT_SUPPORTED"))
    assert DeviceMonitor(UUID, module=silent).free_bytes() is None


def test_the_real_library_says_why_it_does_not_start() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(MeasurementError, match="does not start: NVML Shared Library Not Found"):
            DeviceMonitor(UUID)
    else:
        pytest.skip("there is a driver here")


def test_readings_become_least_and_most() -> None:
    reading = {"sm_clock_mhz": 1980, "memory_clock_mhz": None, "power_w": 300.0, "temperature_c": 50, "throttle": []}
    slow = {**reading, "sm_clock_mhz": 1200, "power_w": 699.5, "throttle": ["power cap"]}
    assert summary([reading, slow, {**reading, "throttle": None}]) == {
        "sm_clock_mhz": [1200, 1980], "power_w": [300.0, 699.5], "temperature_c": [50, 50], "readings": 3,
        "throttled_readings": 1, "throttle_reasons": ["power cap"],
    }  # fmt: skip
    assert summary([]) == {}
