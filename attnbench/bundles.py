"""Bundles from Python: a model that is shipped with what proves it."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.deploy.manifest import Bundle
    from attnbench.deploy.verify import Verification

DEFAULT_MAX_LEN = 512
DEFAULT_GPU_ARCHS = ("sm89", "sm120")


def export_bundle(
    *,
    target: str,
    out: Path | str,
    recipe: str = "documented",
    triton: bool = False,
    max_len: int = DEFAULT_MAX_LEN,
    opset: int | None = None,
    gpu_archs: Sequence[str] = DEFAULT_GPU_ARCHS,
    seed: int = 0,
    preset: str | None = None,
    memory_limit_bytes: int | None = None,
    say: Callable[[str], object] = lambda text: None,
    **problem: Any,
) -> "Bundle":
    """Write one problem as a bundle: the model for the target, golden cases, verify.py, README.md, bundle.json.

    Args:
        target: `onnxruntime-cpu`, `onnxruntime-cuda`, `tensorrt`, `tensorrt-rtx`, `openvino` or `torch`.
        out: the folder; a bundle that is there is replaced.
        recipe: the exporter that writes the model; `documented`: the best of the target that is right, untimed;
            `auto`: all that are right are timed, where the target runs here, and the fastest is taken.
        triton: add a model repository of Triton Inference Server, in triton/.
        max_len: the largest T that is proved.
        opset: None: the exporter's first.
        gpu_archs: of the engines of tensorrt-rtx, such as sm89.
        seed: of the weights.
        preset: shapes of a model.
        memory_limit_bytes: of one worker.
        say: told what goes on.
        problem: part, variant, num_heads, head_dim, dtype, num_kv_heads, v_head_dim, mask, scale, bias, value_map.

    Raises:
        InputError: a wrong value; nothing was written.
        AttnbenchError: unavailable, unsupported, or the named error of the check that failed; nothing was written.
    """
    from attnbench import presets
    from attnbench.deploy.attention import AttentionSource
    from attnbench.deploy.targets import find_target
    from attnbench.deploy.write import write_bundle

    made = presets.make_problem(preset, problem)
    source = AttentionSource(problem=made, seed=seed, opset=opset, max_len=max_len, gpu_archs=tuple(gpu_archs))
    return write_bundle(
        source, find_target(target), Path(out), recipe=recipe, with_triton=triton,
        memory_limit_bytes=memory_limit_bytes, say=say,
    )  # fmt: skip


def export_module(
    *,
    module: str,
    inputs: Path | str,
    target: str,
    out: Path | str,
    recipe: str = "documented",
    triton: bool = False,
    opset: int | None = None,
    gpu_archs: Sequence[str] = DEFAULT_GPU_ARCHS,
    seed: int = 0,
    memory_limit_bytes: int | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> "Bundle":
    """Write a torch.nn.Module of yours as a bundle, judged by itself in float64.

    Args:
        module: `package.module:Class`, imported in a worker from the folder of this process and installed packages.
        inputs: a TOML file: its tensors, free dims, constructor's arguments and weights.
        target: as `export_bundle`.
        out: the folder; a bundle that is there is replaced.
        recipe: the exporter that writes the model; `documented`: the best of the target that is right, untimed;
            `auto`: all that are right are timed, where the target runs here, and the fastest is taken.
        triton: add a model repository of Triton Inference Server, in triton/.
        opset: None: the exporter's first.
        gpu_archs: of the engines of tensorrt-rtx, such as sm89.
        seed: of the inputs, and of weights that no file gives.
        memory_limit_bytes: of one worker.
        say: told what goes on.

    Raises:
        InputError: a wrong value, or what is wrong with the module, with the line; nothing was written.
        AttnbenchError: unavailable, unsupported, or the named error of the check that failed; nothing was written.
    """
    from attnbench.deploy.targets import find_target
    from attnbench.deploy.user_module import ModuleSource
    from attnbench.deploy.write import write_bundle
    from attnbench.model_bench.recipes import choose_recipe

    source = ModuleSource(module, Path(inputs), seed=seed, opset=opset, gpu_archs=gpu_archs)
    found = find_target(target)
    choose = functools.partial(choose_recipe, module, Path(inputs), found, seed=seed, opset=opset, say=say)
    return write_bundle(
        source, found, Path(out), recipe=recipe, with_triton=triton, choose=choose,
        memory_limit_bytes=memory_limit_bytes, say=say,
    )  # fmt: skip


def verify(
    folder: Path | str, *, options: Mapping[str, str] | None = None, memory_limit_bytes: int | None = None
) -> "Verification":
    """Check a bundle's files, run its golden cases in a worker, and torch of this machine on the same inputs.

    Args:
        folder: the bundle.
        options: settings of the runtime, before those of the bundle.
        memory_limit_bytes: of the worker that loads the model.

    Raises:
        InputError: there is no such folder, or the runtime has no such setting.
    """
    from attnbench.deploy.verify import verify as check

    return check(Path(folder), options=options, memory_limit_bytes=memory_limit_bytes)
