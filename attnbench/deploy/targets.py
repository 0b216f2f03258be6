"""Where a bundle is to run: what kind of file it loads, what runs it here, which recipes may serve it."""

from dataclasses import dataclass
from typing import Literal

from attnbench.errors import InputError
from attnbench.problem import Problem

Kind = Literal["onnx", "openvino-ir", "pt2", "engine"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One way to deploy."""

    name: str
    kind: Kind  # of the model file
    runtime: str | None  # the attnbench runtime that times and checks it here; None: none does
    distribution: str  # what verify.py needs beside numpy
    module: str  # that it imports
    recipes: tuple[str, ...]  # exporters, the documented best first; empty: torch's own program
    documented: str  # why the first recipe is the best where nothing was timed
    fused: tuple[str, str] | None = None  # the recipe that is better where its operator has a kernel, and why

    def ordered(self, problem: Problem | None) -> tuple[tuple[str, ...], str]:
        """The recipes for a problem, the documented best first, and why that one; None: a module of the user."""
        if self.fused is None or problem is None or not (problem.mask == "none" or problem.variant == "decode"):
            return self.recipes, self.documented
        first, why = self.fused
        return (first, *(name for name in self.recipes if name != first)), why


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="onnxruntime-cpu", kind="onnx", runtime="ort-cpu", distribution="onnxruntime", module="onnxruntime",
            recipes=("onnx-blocked", "onnx-contrib", "onnx-attention", "onnx-decomposed"),
            documented="blocks of queries need the least memory and, causal, the least time on ONNX Runtime's CPU",
            fused=("onnx-contrib", "without a mask its operator has a flash kernel on ONNX Runtime's CPU, and a decode "
                   "step writes into its cache"),
        ),
        Target(
            name="onnxruntime-cuda", kind="onnx", runtime=None, distribution="onnxruntime-gpu", module="onnxruntime",
            recipes=("onnx-attention", "onnx-contrib", "onnx-decomposed", "onnx-blocked"),
            documented="one Attention node is what the CUDA provider has flash and memory-efficient kernels for",
        ),
        Target(
            name="tensorrt", kind="onnx", runtime=None, distribution="tensorrt", module="tensorrt",
            recipes=("onnx-attention", "onnx-decomposed"),
            documented="TensorRT parses Attention from 10.14 on and fuses it",
        ),
        Target(
            name="tensorrt-rtx", kind="engine", runtime=None, distribution="tensorrt-rtx", module="tensorrt_rtx",
            recipes=("onnx-attention", "onnx-decomposed"),
            documented="TensorRT-RTX parses Attention and fuses it in fp16",
        ),
        Target(
            name="openvino", kind="openvino-ir", runtime="openvino", distribution="openvino", module="openvino",
            recipes=("onnx-attention", "onnx-decomposed", "onnx-contrib", "onnx-blocked"),
            documented="OpenVINO takes Attention and MatMul with Softmax for the same operator",
        ),
        Target(
            name="torch", kind="pt2", runtime="torch-sdpa", distribution="torch", module="torch", recipes=(),
            documented="torch.export keeps scaled_dot_product_attention as it is",
        ),
    )
}  # fmt: skip


def find_target(name: str) -> Target:
    """The target of a name.

    Raises:
        InputError: there is none.
    """
    if name not in TARGETS:
        raise InputError(f"no target {name!r}; there are {', '.join(TARGETS)}")
    return TARGETS[name]
