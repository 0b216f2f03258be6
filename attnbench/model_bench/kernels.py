"""Whether TensorRT-RTX fuses the attention of a model that it only compiles here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench import trt_compiler
from attnbench.errors import AttnbenchError
from attnbench.fusion.linter import DEFAULT_SEQ_LEN
from attnbench.interfaces import UNKNOWN
from attnbench.model_problem import ModelProblem
from attnbench.sweep.arm import Arm
from attnbench.sweep.bench import Bench
from attnbench.sweep.model_sizes import problems_of

FUSED, UNFUSED = "fused", "unfused"
_TASKS = "attnbench.fusion.kernels"
_PRELOAD = ("onnx", trt_compiler.RTX, _TASKS)
_WAY = "attnbench fusion --onnx FILE says more"


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """What is told of the attentions of a file, as rows have it."""

    kernel: str  # fused: all of them; unfused: one is not; unknown
    told: str  # a sentence for the report

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What a compiler told, with this instead of what it does not tell."""
        evidence = "" if self.kernel == UNKNOWN else "compiler"
        detail = {name: value for name, value in facts["detail"].items() if name != "why_unknown"}
        detail |= {"why_unknown" if self.kernel == UNKNOWN else "attention": self.told}
        return {**facts, "attention_kernel": self.kernel, "kernel_evidence": evidence, "detail": detail}


def sizes_of(problem: ModelProblem, bind: Mapping[str, str]) -> list[dict[str, int]]:
    """The free dims at T = 2048 and twice that, where a matrix of scores is well above all else; or as they are.

    Raises:
        InputError: a form such as T/3 is no whole number there.
    """
    if not bind:
        return [dict(problem.sizes)]
    fixed = {dim: (size,) for dim, size in problem.sizes.items() if dim not in bind}
    found = problems_of(
        problem.name, problem.inputs, (), bind=bind, sizes=fixed, shapes={},
        seq_lens=(DEFAULT_SEQ_LEN, 2 * DEFAULT_SEQ_LEN),
    )  # fmt: skip
    return [dict(at.sizes) for at in found]


def ask(bench: Bench, arm: Arm, path: str, problem: ModelProblem, bind: Mapping[str, str]) -> Kernels:
    """Compile every attention of a file at T and 2T in a worker; what goes wrong leaves it unknown, with the words."""
    arch = dict(arm.options).get("arch", trt_compiler.DEFAULT_ARCH)
    try:
        sizes = sizes_of(problem, bind)
        with bench.worker(bench.servers.get(_PRELOAD), f"kernels-{arm.label}") as worker:
            answer = worker.ask(
                f"{_TASKS}:count_verdicts", timeout_s=bench.sweep.timeout_s, path=path, sizes=sizes, arch=arch
            )
    except AttnbenchError as err:
        return Kernels(kernel=UNKNOWN, told=f"{err}; {_WAY}")
    return of_verdicts(answer["verdicts"], "its own sizes" if len(sizes) == 1 else f"T = {DEFAULT_SEQ_LEN}")


def of_verdicts(verdicts: Mapping[str, int], where: str) -> Kernels:
    """What the verdicts on the attentions of a file say together."""
    count, fused = sum(verdicts.values()), verdicts.get(FUSED, 0)
    told = f"{fused} of {count} attentions of the file are fused, at {where}; {_WAY}"
    if not count:
        return Kernels(kernel=UNKNOWN, told="no attention was found in the file")
    if verdicts.get(UNFUSED):
        return Kernels(kernel=UNFUSED, told=told)
    return Kernels(kernel=FUSED if fused == count else UNKNOWN, told=told)
