"""In a worker: compile a file by a runtime that cannot run here."""

import math
from dataclasses import asdict
from typing import Any

from attnbench import plugins
from attnbench.errors import PluginError, ReadBackError, UnsupportedError
from attnbench.interfaces import UNKNOWN, CompiledFacts, Settings
from attnbench.model_problem import problem_from_dict
from attnbench.problem import Problem
from attnbench.sweep.artifacts import artifact_from_dict

KERNELS = ("fused", "unfused", UNKNOWN)


def compile_file(
    *, runtime: str, problem: dict[str, Any], artifact: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """What a runtime that cannot run here says of a file after compiling it (see `CompiledFacts`), as JSON.

    Raises:
        UnsupportedError: the compiler refuses the file, in its words, or the runtime has no compiler.
        PluginError: the runtime gave no `CompiledFacts`.
        ReadBackError: a figure that cannot be.
    """
    plugin: Any = plugins.load_runtime(runtime)
    target, file = problem_from_dict(problem), artifact_from_dict(artifact)
    if isinstance(target, Problem) and not (support := plugin.supports(target, file)).ok:
        raise UnsupportedError(support.reason)
    name = "compile" if isinstance(target, Problem) else "compile_model"
    if not hasattr(plugin, name):
        raise UnsupportedError(f"{runtime} says that it can only compile here, and has no {name}()")
    return checked(getattr(plugin, name)(target, file, Settings(**settings)))


def checked(facts: object) -> dict[str, Any]:
    """What a compiler says, as JSON.

    Raises:
        PluginError: it is no `CompiledFacts`.
        ReadBackError: a figure that cannot be.
    """
    if not isinstance(facts, CompiledFacts):
        raise PluginError(f"compile() gave {facts!r} instead of an attnbench.interfaces.CompiledFacts")
    for name in ("planned_activation_bytes", "artifact_bytes"):
        size = getattr(facts, name)
        if type(size) is not int or size < (1 if name == "artifact_bytes" else 0):
            raise ReadBackError(f"facts of the compiler: {name} must be a number of bytes, got {size!r}")
    if not (isinstance(facts.build_ms, int | float) and math.isfinite(facts.build_ms) and facts.build_ms >= 0):
        raise ReadBackError(f"facts of the compiler: build_ms must be milliseconds, got {facts.build_ms!r}")
    if facts.attention_kernel not in KERNELS or (facts.attention_kernel == UNKNOWN) != (facts.kernel_evidence == ""):
        raise ReadBackError(
            f"facts of the compiler: attention_kernel must be of {', '.join(KERNELS)} with its evidence, "
            f"got {facts.attention_kernel!r} by {facts.kernel_evidence!r}"
        )
    return asdict(facts)
