"""What machine this is, how many threads to use, and a clean environment to start workers in."""

import importlib.machinery
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from attnbench.measure.memory import available_memory_bytes

DISTRIBUTIONS = (
    "attnbench", "numpy", "ml-dtypes", "torch", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "openvino",
    "tensorrt", "tensorrt-rtx", "nvidia-ml-py", "pandas", "pyarrow", "pydantic", "matplotlib", "psutil",
    "threadpoolctl",
)  # fmt: skip

# CPU flags that decide which kernels run.
_FLAGS = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
    "amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "asimd", "asimdhp", "bf16", "fphp", "sve", "sve2", "i8mm",
)  # fmt: skip
_HARDWARE = {
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}

# Variables that change what is measured; a worker starts without them.
_SCRUBBED = re.compile(
    r"^(OMP|KMP|GOMP|LIBOMP|MKL|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|TBB|ORT|ORTMODULE|OV|OPENVINO|ONEDNN|DNNL"
    r"|TORCH|TORCHINDUCTOR|PYTORCH|ATEN|AT|TENSORRT|TRT|GLIBC_TUNABLES|MALLOC|LD_PRELOAD|LD_AUDIT|PYTHON[A-Z]*|NVIDIA_TF32_OVERRIDE"
    r"|CUBLAS|CUDNN|CUDA_LAUNCH_BLOCKING|TRITON)(_|$)"
)
# Those of them that decide in which precision a GPU computes, whatever --fp32 says.
PRECISION_VARIABLES = {
    "NVIDIA_TF32_OVERRIDE": "forbids TF32 to all of NVIDIA's libraries, or forces it",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "allows TF32 to torch, or forbids it",
    "CUBLAS_EMULATE_SINGLE_PRECISION": "has cuBLAS compute fp32 by products of bf16",
    "ORT_TENSORRT_FP16_ENABLE": "has TensorRT in ONNX Runtime compute fp32 in fp16",
    "ORT_TENSORRT_BF16_ENABLE": "has TensorRT in ONNX Runtime compute fp32 in bf16",
    "ORT_TENSORRT_INT8_ENABLE": "has TensorRT in ONNX Runtime compute fp32 in int8",
}
# Where a library is found, not how it runs.
_KEPT = frozenset({"TORCH_HOME", "PYTHONHASHSEED", "OPENVINO_LIB_PATHS", "PYTHONPYCACHEPREFIX", "PYTHONNOUSERSITE"})
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")

# Packages that a folder of the user may hide: `onnx/` is what a folder of models is often called.
_HIDEABLE = ("numpy", "torch", "onnx", "onnxscript", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx")

_CPUS = Path("/sys/devices/system/cpu")
_NVIDIA = Path("/proc/driver/nvidia")


def describe() -> dict[str, Any]:
    """Everything about machine and process that a reader of the results may ask for, as JSON can hold it.

    What this system does not tell is None.
    """
    return {
        "machine": {
            "cpu_model": cpu_model(),
            "architecture": platform.machine(),
            "cpu_flags": sorted(cpu_flags() & set(_FLAGS)),
            "hardware_dtypes": list(hardware_dtypes()),
            "logical_cpus": os.cpu_count(),
            "physical_cores": physical_cores(),
            "affinity": affinity(),
            "cgroup_cpu_quota": cgroup_cpu_quota(),
            "caches": caches(),
            "hypervisor": hypervisor(),
        },
        "clock": {"governor": _text(_CPUS / "cpu0/cpufreq/scaling_governor"), "turbo": turbo()},
        "memory": {"total_bytes": _memory_total(), "available_bytes": available_memory_bytes()},
        "os": {"system": platform.system(), "kernel": platform.release(), "libc": " ".join(platform.libc_ver())},
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "versions": versions(),
        "variables": seen_variables(os.environ),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "default_threads": default_threads(),
        "conflicts": conflicting_distributions(),
        "shadowed": shadowed_packages(),
        "nvidia": {"driver": nvidia_driver(), "gpus": nvidia_gpus()},
        "taken_at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cpu_flags() -> frozenset[str]:
    """Instruction-set flags as the kernel names them (x86 `flags`, Arm `Features`); empty where it does not tell."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _text(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def cpu_model() -> str | None:
    """The CPU's name; None where the system does not tell."""
    found = re.search(r"^model name\s*:\s*(.*)$", _text(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return (found.group(1).strip() if found else platform.processor()) or None


def hardware_dtypes(flags: Iterable[str] | None = None) -> tuple[str, ...]:
    """Dtypes that the CPU multiplies in hardware: fp32 always, bf16 and fp16 by its flags."""
    have = set(cpu_flags() if flags is None else flags)
    return ("fp32", *(dtype for dtype in ("fp16", "bf16") if have & _HARDWARE[dtype]))


def affinity() -> list[int] | None:
    """The CPUs that this process may use; None where the system has no such notion."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def physical_cores(cpus: Path = _CPUS) -> int | None:
    """Physical cores of the machine; None where not told."""
    cores = set()
    for topology in cpus.glob("cpu[0-9]*/topology"):
        core, package = _text(topology / "core_id"), _text(topology / "physical_package_id")
        if core is not None:
            cores.add((package, core))
    return len(cores) or None


def cgroup_cpu_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs' worth of time that the control group (or one above it) allows; None without a limit."""
    folders = [root, root / "cpu"]
    for line in (_text(own) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            mount = root / "cpu" if controllers else root
            inner = mount / path.lstrip("/")
            folders += [inner, *(p for p in inner.parents if p.is_relative_to(mount))]
    quotas = [_quota(f) for f in folders]
    return min((q for q in quotas if q is not None), default=None)


def _quota(folder: Path) -> float | None:
    both = (_text(folder / "cpu.max") or "").split()  # version 2: "max 100000" or "150000 100000"
    if len(both) != 2:
        both = [_text(folder / "cpu.cfs_quota_us") or "", _text(folder / "cpu.cfs_period_us") or ""]
    try:
        quota, period = int(both[0]), int(both[1])
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def timing_cpus(threads: int, cpus: Path = _CPUS) -> list[int] | None:
    """The CPUs that every timed worker is kept on, one per physical core first; None where that cannot be told.

    The highest numbers, since interrupts and other programs prefer the lowest. All arms share them, so that none has a
    better core than another.
    """
    allowed = affinity()
    if allowed is None or threads >= len(allowed):
        return None
    taken: set[str] = set()
    first: list[int] = []
    siblings: list[int] = []
    for cpu in sorted(allowed, reverse=True):
        core = _text(cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        (siblings if core in taken else first).append(cpu)
        taken.add(core)
    return sorted((first + siblings)[:threads])


def default_threads() -> int:
    """max(1, min(affinity, quota, physical cores) - 1): one core stays free for everything else."""
    mine = affinity()
    counts = [len(mine) if mine else os.cpu_count(), cgroup_cpu_quota(), physical_cores()]
    return max(1, int(min(c for c in (*counts, os.cpu_count() or 1) if c is not None)) - 1)


def caches(cpus: Path = _CPUS) -> dict[str, str]:
    """Cache name -> size of the first CPU, as the kernel writes it: {"L2 Unified": "1024K"}."""
    found = {}
    for index in sorted((cpus / "cpu0/cache").glob("index*")):
        level, kind, size = _text(index / "level"), _text(index / "type"), _text(index / "size")
        if level and kind and size:
            found[f"L{level} {kind}"] = size
    return found


def turbo() -> bool | None:
    """Is boost on? None where the system does not tell."""
    no_turbo, boost = _text(_CPUS / "intel_pstate/no_turbo"), _text(_CPUS / "cpufreq/boost")
    if no_turbo is not None:
        return no_turbo == "0"
    return None if boost is None else boost == "1"


def hypervisor() -> str | None:
    """The vendor of the virtual machine, `unknown` in one that does not tell, None on real hardware."""
    if "hypervisor" not in cpu_flags():
        return None
    return _text(Path("/sys/class/dmi/id/sys_vendor")) or _text(Path("/sys/hypervisor/type")) or "unknown"


def versions(names: Iterable[str] = DISTRIBUTIONS) -> dict[str, str]:
    """Distribution -> version of what is installed, without importing any of it."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def conflicting_distributions(names: Iterable[str] | None = None) -> list[str]:
    """Sentences about installed distributions that overwrite each other; empty when all is well."""
    installed = set(versions(("onnxruntime", "onnxruntime-gpu")) if names is None else names)
    if not {"onnxruntime", "onnxruntime-gpu"} <= installed:
        return []
    return [
        "onnxruntime and onnxruntime-gpu are both installed and own the same files, so the one installed last wins; "
        "run `pip uninstall -y onnxruntime onnxruntime-gpu`, then install the one that you need"
    ]


def shadowed_packages(path: Sequence[str] | None = None) -> list[str]:
    """Sentences about folders and files that Python imports instead of an installed package; empty when all is well.

    Args:
        path: where Python looks for modules, in order; None: sys.path of this process.
    """
    found = []
    folders = [Path(folder).absolute() for folder in (sys.path if path is None else path)]
    installed = [str(folder) for folder in folders if folder.name in ("site-packages", "dist-packages")]
    for name in _HIDEABLE:
        taken = importlib.machinery.PathFinder.find_spec(name, [str(folder) for folder in folders])
        meant = importlib.machinery.PathFinder.find_spec(name, installed)
        if taken is None or meant is None or taken.origin == meant.origin:
            continue
        where = taken.origin or next(iter(taken.submodule_search_locations or ("a folder",)))
        found.append(
            f"{where} hides the installed package {name} ({meant.origin}); rename it, or start from another folder "
            "and without PYTHONPATH"
        )
    return found


def nvidia_driver(root: Path = _NVIDIA) -> str | None:
    """Version of NVIDIA's kernel driver, such as 580.65.06; None where none is loaded."""
    found = re.search(r"Kernel Module\b.*?\s(\d+\.\d+[.\d]*)\s", _text(root / "version") or "")
    return found.group(1) if found else None


def nvidia_gpus(root: Path = _NVIDIA) -> list[str]:
    """Names of NVIDIA's GPUs, as their driver tells them; empty without one."""
    texts = [_text(file) or "" for file in sorted(root.glob("gpus/*/information"))]
    return [found.group(1) for text in texts if (found := re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE))]


def seen_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what is measured, and device selection, as they were set."""
    shown = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
    return {k: v for k, v in sorted(variables.items()) if k in shown or _is_scrubbed(k)}


def precision_overrides(variables: Mapping[str, str]) -> list[str]:
    """What is set beside --fp32 and would decide in its place, one sentence each."""
    return [
        f"{name}={variables[name]} is set and {harm}; workers are started without it, --fp32 decides"
        for name, harm in PRECISION_VARIABLES.items()
        if name in variables
    ]


def scrubbed_environment(threads: int, variables: Mapping[str, str] | None = None) -> tuple[dict[str, str], list[str]]:
    """The environment to start a worker with, and the names of what was removed or changed.

    Tuning variables of BLAS, OpenMP, the runtimes, malloc and Python go (OPENBLAS_CORETYPE alone can halve NumPy);
    PATH, HOME, TMPDIR, LD_LIBRARY_PATH, CUDA_VISIBLE_DEVICES and all others stay. Then threads are set everywhere.
    """
    given = dict(os.environ if variables is None else variables)
    kept = {k: v for k, v in given.items() if not _is_scrubbed(k)}
    kept |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    kept |= {"PYTHONUTF8": "1", "PYTHONSAFEPATH": "1"}
    return kept, sorted(k for k, v in given.items() if kept.get(k) != v)


def _is_scrubbed(name: str) -> bool:
    return name not in _KEPT and _SCRUBBED.match(name) is not None


def _memory_total() -> int | None:
    found = re.search(r"^MemTotal:\s*(\d+) kB", _text(Path("/proc/meminfo")) or "", re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def _text(path: Path) -> str | None:
    """The stripped text of a small system file; None where missing, unreadable or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
