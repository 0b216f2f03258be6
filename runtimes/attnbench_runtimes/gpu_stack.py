"""Do NVIDIA's driver, libraries and GPU fit what a runtime was built for? Sentences for a probe; no framework needed.

Compiled and tested without a GPU, on what the documentation says that the driver answers.
"""

import ctypes
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attnbench_runtimes.cuda_driver import LIBRARY

# Of these libraries the number after .so is CUDA's own; cuDNN, cuFFT and others count for themselves.
_CUDA_MAJOR = re.compile(r"^lib(?:cudart|cublas|cublasLt)\.so\.(\d+)$")
# The least driver of CUDA 12 and 13, see docs.nvidia.com/cuda/cuda-toolkit-release-notes.
_LEAST_DRIVER = {12: "525", 13: "580"}
_TENSORRT_LIBRARY = re.compile(r"^libnv(?:infer|onnxparser).*\.so\.(\d+)$")
_TENSORRT_PACKAGE = re.compile(r"^tensorrt([-_]cu\d+)?$", re.IGNORECASE)
_SUCCESS, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 0, 75, 76  # CUdevice_attribute


def cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs, such as (13, 0); None without a driver, or with one that does not tell."""
    number = ctypes.c_int()
    try:
        status = ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):  # `cuda_driver.why_no_gpu` says which
        return None
    if status != _SUCCESS or number.value <= 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def architecture(index: int = 0) -> str | None:
    """`sm90` of an H200; None where the driver has no such GPU."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    handle, numbers = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    statuses = [driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(handle), index)]
    for number, attribute in zip(numbers, (_CAPABILITY_MAJOR, _CAPABILITY_MINOR), strict=True):
        statuses.append(driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, handle))
    if any(int(status) != _SUCCESS for status in statuses):
        return None
    return f"sm{numbers[0].value}{numbers[1].value}"


def why_driver_too_old(libraries: Iterable[str], runtime: str, driver: tuple[int, int] | None) -> tuple[str, str]:
    """Reason and way out where the runtime wants a newer CUDA than the driver runs; both empty where it does not.

    A driver runs every CUDA of its major version and of older ones.

    Args:
        libraries: names that the runtime is linked against, such as `libcublasLt.so.13`.
        runtime: as a sentence names it: `onnxruntime-gpu 1.31.1`.
        driver: of `cuda_version`.
    """
    wanted = {int(found[1]): name for name in libraries if (found := _CUDA_MAJOR.match(name))}
    return _why_too_old(wanted, runtime, driver)


def why_driver_too_old_for(package: str, driver: tuple[int, int] | None) -> tuple[str, str]:
    """As `why_driver_too_old`, of a package that comes as one distribution for each CUDA: `tensorrt-rtx-cu13`.

    Args:
        package: `tensorrt-rtx`.
        driver: of `cuda_version`.
    """
    named = re.compile(rf"^{re.escape(package)}-cu(\d+)$")
    wanted, version = {}, ""
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.name or "").lower()
        if found := named.match(name):
            wanted[int(found[1])], version = name, distribution.version
    return _why_too_old(wanted, f"{package} {version}", driver)


def _why_too_old(wanted: Mapping[int, str], runtime: str, driver: tuple[int, int] | None) -> tuple[str, str]:
    """wanted: major version of CUDA -> what shows that it is needed."""
    if driver is None or not wanted or max(wanted) <= driver[0]:
        return "", ""
    major = max(wanted)
    reason = f"NVIDIA's driver runs CUDA {driver[0]}.{driver[1]}, {runtime} needs CUDA {major} ({wanted[major]})"
    least = _LEAST_DRIVER.get(major)
    return reason, f"update NVIDIA's driver{f' to {least} or newer' if least else ''}"


def why_other_tensorrt(lacking: Iterable[str], installed: str | None) -> str:
    """Why libraries of TensorRT are missing although TensorRT is there; empty where it is not.

    Args:
        lacking: names that do not load, such as `libnvinfer.so.10`.
        installed: version of `installed_tensorrt`.
    """
    majors = {found[1] for name in lacking if (found := _TENSORRT_LIBRARY.match(name))}
    if installed is None or not majors:
        return ""
    if majors == {installed.partition(".")[0]}:
        return f"TensorRT {installed} is installed, but the loader does not find these libraries of it"
    return f"TensorRT {installed} is installed, TensorRT {', '.join(sorted(majors))} is needed"


def installed_tensorrt() -> str | None:
    """Version of the installed TensorRT (not TensorRT-RTX, which is another product); None without one."""
    found = (d for d in importlib.metadata.distributions() if _TENSORRT_PACKAGE.match(d.name or ""))
    return next((distribution.version for distribution in found), None)


def preload_tensorrt() -> None:
    """Load TensorRT's libraries from its wheel, where the loader does not look; what is missing is told later."""
    spec = importlib.util.find_spec("tensorrt_libs")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for stem in ("libnvinfer.so.*", "libnvinfer_plugin.so.*", "libnvonnxparser.so.*"):
            for library in sorted(Path(folder).glob(stem)):
                _load(library)


def _load(library: Path) -> None:
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError:  # told by who asks for the library by its name, with all others that are missing
        return


def why_no_architecture(found: str | None, supported: Sequence[str], runtime: str) -> str:
    """Why the runtime has no kernels for this GPU; empty where it has, or where there is no GPU.

    Args:
        found: of `architecture`.
        supported: such as `sm75`, `sm80`.
        runtime: as a sentence names it: `tensorrt-rtx 1.7.1`.
    """
    if found is None or found in supported:
        return ""
    return f"{runtime} supports {', '.join(supported)}; this GPU is {found}"
