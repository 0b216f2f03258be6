"""A model of the user in TensorRT and TensorRT-RTX: an ONNX file compiled at its sizes, or an engine as it is.

Tested on doubles with the signatures of the real binding; not yet timed on a GPU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.engine_facts import EngineFacts
from attnbench.errors import UnsupportedError
from attnbench.interfaces import UNKNOWN, Array, Settings, numpy_dtype
from attnbench.model_problem import AnyProblem, ModelProblem
from attnbench_runtimes import tensorrt, tensorrt_plans
from attnbench_runtimes.tensorrt_engines import Engines
from attnbench_runtimes.tensorrt_session import EngineSession


class PlanEngines(Engines):
    """One engine of the user, with the profile that holds the sizes."""

    def __init__(self, runtime: tensorrt.TensorrtRuntime, path: Path, settings: Settings) -> None:
        super().__init__(runtime, settings)
        tensorrt_plans.require_plan(path, runtime.name)
        self.own = self.loaded(path.read_bytes())
        self.facts: EngineFacts = tensorrt_plans.facts_of(self.trt, self.own, path)
        self.told |= {"engine_bytes": path.stat().st_size, "compiled_by": self.facts.version}

    def at(self, sized: AnyProblem) -> tuple[Any, int]:
        """The engine and the first profile that holds these sizes.

        Raises:
            UnsupportedError: none does.
        """
        profile = self.facts.profile_for(sized.input_shapes())
        if profile is None:
            raise UnsupportedError(self.facts.why_outside(sized.input_shapes()))
        self.told["profile_index"] = profile
        return self.own, profile


class EngineModelSession(EngineSession[ModelProblem]):
    """A model; the engine says what shapes its outputs have."""

    def __init__(self, engines: Engines, problem: ModelProblem, asked: Mapping[str, str], device: Any) -> None:
        if isinstance(engines, PlanEngines):
            engines.facts.require_same(problem.inputs, problem.outputs)
        super().__init__(engines, problem, asked, device)

    def outputs_by_name(self) -> dict[str, Array]:
        """Every output of the last call, copied from the device.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        return {name: self._downloaded(name) for name in self._outputs}

    def _sized(self, own: Mapping[str, Array]) -> ModelProblem:
        sizes = {
            dim: int(size) for name, dims in self._problem.input_dims().items()
            for dim, size in zip(dims, own[name].shape, strict=True) if isinstance(dim, str)
        }  # fmt: skip
        return self._problem.at(sizes)

    def _output_buffers(self, context: Any, own: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays of the shapes that the engine tells for these inputs.

        Raises:
            UnsupportedError: it does not know one before it has run.
        """
        made = {}
        for spec in self._problem.outputs:
            shape = tuple(context.get_tensor_shape(spec.name))
            if any(size < 0 for size in shape):
                raise UnsupportedError(tensorrt_plans.data_dependent(spec.name, shape))
            made[spec.name] = np.empty(shape, numpy_dtype(spec.dtype))
        return made

    def _precision(self) -> str:
        """Of an engine of the user nobody knows."""
        if isinstance(self._engines, PlanEngines):
            return UNKNOWN
        is_tf32 = self._problem.coarsest == "fp32" and tensorrt.is_tf32(self._engines.settings)
        return "tf32" if is_tf32 else self._problem.coarsest
