"""`ort-cuda` and `ort-tensorrt`: the adapter of `ort-cpu` under NVIDIA's providers.

Written by the documentation and tested without a GPU: what is asked of the real onnxruntime-gpu, and what must be
caught when another provider answers. Not yet run or timed on a GPU.

`session.disable_cpu_ep_fallback` is not set: it also refuses graphs whose shapes the CPU computes on purpose. Where
every node went is read back instead, which catches a fallback of a single node too.
"""

import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnbench.files import write_bytes
from attnbench.interfaces import Artifact, Probe, Settings
from attnbench.model_problem import AnyProblem
from attnbench.problem import Problem, digest
from attnbench_runtimes import cuda_buffers, cuda_driver, elf_needs, gpu_stack, tf32
from attnbench_runtimes.ort import OrtRuntime, OrtSession
from attnbench_runtimes.ort_loaded import Asked
from attnbench_runtimes.ort_stream import OrtGpuSession

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
# What may stay on the CPU or on another provider: arithmetic on shapes, which GPUs' providers leave to the host.
LIGHT = frozenset(
    f"::{name}"
    for name in (
        "Shape", "Size", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Range", "Constant", "ConstantOfShape",
        "Cast", "Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Neg", "Floor", "Ceil", "Equal", "Less", "LessOrEqual",
        "Greater", "GreaterOrEqual", "And", "Or", "Not", "Where", "ReduceProd", "Reshape", "Identity",
    )
)  # fmt: skip
_SDPA_KERNELS = {"default": "0", "flash": "1", "efficient": "2", "trt_fused": "4", "cudnn": "8", "math": "16"}
_ARENAS = {"next_power_of_two": "kNextPowerOfTwo", "same_as_requested": "kSameAsRequested"}
_SWITCH = ("off", "on")
BUILD_FILE = "build.json"  # in a folder of engines: how long the first build took


class OrtCuda(OrtRuntime):
    """ONNX Runtime's CUDA kernels."""

    name = "ort-cuda"
    providers: tuple[tuple[str, Mapping[str, str]], ...] = ((CUDA, {}),)
    libraries: tuple[str, ...] = ("libonnxruntime_providers_cuda.so",)
    allowed_elsewhere = LIGHT
    distributions = ("onnxruntime-gpu",)
    device_kinds = ("cuda",)
    options: Mapping[str, tuple[str, ...]] = {
        "cuda_graph": _SWITCH, "arena": tuple(_ARENAS), "sdpa_kernel": tuple(_SDPA_KERNELS), tf32.OPTION: tf32.SWITCH,
    }  # fmt: skip

    def probe(self) -> Probe:
        """As `OrtRuntime.probe`; without a driver another wheel alone helps nobody."""
        found, why = super().probe(), cuda_driver.why_no_gpu()
        if found.available or not why or why in found.reason:
            return found
        return replace(found, reason=f"{why}; {found.reason}", fix=f"{cuda_driver.INSTALL_DRIVER}; then {found.fix}")

    def _probe_devices(self, version: str) -> Probe:
        """A driver with a GPU, and every library that the providers are linked against."""
        reasons = [why] if (why := cuda_driver.why_no_gpu()) else []
        fixes = [cuda_driver.INSTALL_DRIVER] if why else []
        older, newer = gpu_stack.why_driver_too_old(
            linked_libraries(self.libraries), f"onnxruntime-gpu {version}", gpu_stack.cuda_version()
        )
        if older:
            reasons, fixes = [*reasons, older], [*fixes, newer]
        lacking = [name for name in missing_libraries(self.libraries) if name != cuda_driver.LIBRARY]
        if lacking:
            verb = "is" if len(lacking) == 1 else "are"
            reasons.append(f"{', '.join(lacking)}, which onnxruntime {version} needs, {verb} missing")
            other = gpu_stack.why_other_tensorrt(lacking, gpu_stack.installed_tensorrt())
            reasons += [other] if other else []
            fixes += _installs(lacking)
        if reasons:
            return Probe(available=False, version=version, reason="; ".join(reasons), fix="; then ".join(fixes))
        return Probe(available=True, version=version, devices=cuda_driver.devices())

    def _opened(
        self, problem: Problem, artifact: Artifact, settings: Settings, stack: contextlib.ExitStack
    ) -> OrtSession:
        """A session on a stream of ours; without a driver one that onnxruntime puts elsewhere, which is then caught."""
        if cuda_driver.why_no_gpu():
            return OrtSession(self, problem, artifact, settings)
        gpu = stack.enter_context(cuda_buffers.opened(cuda_driver.device_index(settings.device, self.name)))
        return OrtGpuSession(self, problem, artifact, settings, gpu)

    def asked(self, problem: AnyProblem, artifact: Artifact, settings: Settings) -> Asked:
        """The CUDA provider with the options of the settings."""
        preload_libraries()
        options = self.cuda_options(settings)
        tf32.set_override(allowed=options["use_tf32"] == "1")
        return [(CUDA, options)]

    def run_options(self, settings: Settings, bound: int) -> Any:
        """Under a CUDA graph every binding is captured anew, else the first one's would be replayed."""
        if settings.options.get("cuda_graph") != "on":
            return None
        import onnxruntime

        options = onnxruntime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(bound))
        return options

    def cuda_options(self, settings: Settings) -> dict[str, str]:
        """Options of the CUDA provider."""
        chosen = settings.options
        return {
            "device_id": str(cuda_driver.device_index(settings.device, self.name)),
            "use_tf32": str(int(tf32.is_allowed(settings))),
            "arena_extend_strategy": _ARENAS[chosen.get("arena", "next_power_of_two")],
            "sdpa_kernel": _SDPA_KERNELS[chosen.get("sdpa_kernel", "default")],
            "enable_cuda_graph": _flag(chosen.get("cuda_graph", "off")),
        }


class OrtTensorRt(OrtCuda):
    """TensorRT inside ONNX Runtime; what it does not take goes to CUDA, and fails the case unless it is light."""

    name = "ort-tensorrt"
    providers = ((TENSORRT, {}), (CUDA, {}))
    libraries = ("libonnxruntime_providers_tensorrt.so", "libonnxruntime_providers_cuda.so")
    has_readable_graph = False  # engines cannot be written out
    opt_in = True  # minutes to compile
    options: Mapping[str, tuple[str, ...]] = {
        "cuda_graph": _SWITCH, "arena": tuple(_ARENAS), "profile": ("range", "exact"),
    }  # fmt: skip

    def asked(self, problem: AnyProblem, artifact: Artifact, settings: Settings) -> Asked:
        """TensorRT with profile, precision and caches; then CUDA."""
        preload_libraries()
        override = tf32.set_override(allowed=tf32.is_allowed(settings))
        graph = _flag(settings.options.get("cuda_graph", "off"))
        index = str(cuda_driver.device_index(settings.device, self.name))
        options = {"device_id": index, **_precision(problem.dtype), "trt_cuda_graph_enable": graph}
        if isinstance(problem, Problem):
            options |= profile_shapes(problem, settings.options.get("profile", "range"))
        folder = engine_folder(artifact, {**options, tf32.OVERRIDE: override})
        folder.mkdir(parents=True, exist_ok=True)
        caches = {
            "trt_engine_cache_enable": "1", "trt_engine_cache_path": str(folder),
            "trt_timing_cache_enable": "1", "trt_timing_cache_path": str(folder),
        }  # fmt: skip
        # A graph is captured by the provider that runs all of it.
        return [(TENSORRT, options | caches), (CUDA, self.cuda_options(settings) | {"enable_cuda_graph": "0"})]

    def build_ms(self, asked: Asked, open_ms: float) -> float | None:
        """How long the engines of this folder took to build: now, or when they were built.

        Args:
            asked: as `asked` gave it.
            open_ms: how long the session took to open.
        """
        folder = Path(dict(asked)[TENSORRT]["trt_engine_cache_path"])
        noted = folder / BUILD_FILE
        if not noted.exists():
            write_bytes(noted, json.dumps({"build_ms": open_ms}).encode())
        return float(json.loads(noted.read_text(encoding="utf-8"))["build_ms"])


def preload_libraries() -> None:
    """Load CUDA, cuDNN and TensorRT from their wheels, where the loader looks not; what is missing is told later."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    gpu_stack.preload_tensorrt()


def linked_libraries(providers: tuple[str, ...]) -> list[str]:
    """The libraries that providers of the installed onnxruntime are linked against."""
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    return sorted({name for file in providers for name in elf_needs.needed(folder / file)})


def missing_libraries(providers: tuple[str, ...]) -> list[str]:
    """Those of `linked_libraries` that do not load here."""
    import onnxruntime

    preload_libraries()
    folder = Path(onnxruntime.__file__).parent / "capi"
    return sorted({name for file in providers for name in elf_needs.missing_libraries(folder / file)})


def profile_shapes(problem: Problem, kind: str) -> dict[str, str]:
    """Shapes that TensorRT compiles for; outside of them it would compile again, for minutes.

    Args:
        problem: at the sizes that it is tuned for.
        kind: exact: these sizes only. range: every length and batch size from 1 to these.
    """
    own = problem.input_shapes()
    least = own if kind == "exact" else _least(problem).input_shapes()
    shapes = {"min": least, "opt": own, "max": own}
    return {
        f"trt_profile_{end}_shapes": ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in of.items())
        for end, of in shapes.items()
    }


def _least(problem: Problem) -> Problem:
    if problem.variant == "decode":
        return problem.at(q_len=1, kv_len=2, batch_size=1)
    return problem.at(q_len=1, kv_len=1, batch_size=1)


def engine_folder(artifact: Artifact, options: Mapping[str, str]) -> Path:
    """Beside the file, one per content of the file and options: the cache's own key has neither weights nor flags."""
    import onnxruntime

    key = digest({"file": artifact.sha256, "options": dict(options), "onnxruntime": onnxruntime.__version__})
    return artifact.path.absolute().parent / f"{artifact.path.stem}.tensorrt-{key}"


def _precision(dtype: str) -> dict[str, str]:
    return {"trt_fp16_enable": str(int(dtype == "fp16")), "trt_bf16_enable": str(int(dtype == "bf16"))}


def _flag(switch: str) -> str:
    return str(_SWITCH.index(switch))


def _installs(lacking: list[str]) -> list[str]:
    """What brings libraries: CUDA and cuDNN by the extras of onnxruntime-gpu, TensorRT by its own package."""
    of_tensorrt = [name for name in lacking if name.startswith(("libnvinfer", "libnvonnx"))]
    needed = ["'onnxruntime-gpu[cuda,cudnn]'"] if len(of_tensorrt) < len(lacking) else []
    needed += [f"tensorrt=={_major(of_tensorrt[0])}.*"] if of_tensorrt else []
    return [f"pip install {' '.join(needed)}"]


def _major(library: str) -> str:
    """`10` of `libnvinfer.so.10`."""
    return library.rpartition(".")[2]
