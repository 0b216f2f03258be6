"""`openvino`: OpenVINO's CPU plug-in, with the precision that was asked for and not the one it would choose."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.errors import UnsupportedError
from attnbench.inputs import make_inputs
from attnbench.interfaces import Array, Artifact, ModelSession, Probe, Settings, Support, numpy_dtype
from attnbench.model_problem import ModelProblem
from attnbench.problem import OUTPUT_NAME, Problem
from attnbench_runtimes import binding
from attnbench_runtimes.openvino_loaded import PRECISION_OPTION, CompiledFile, tensor_on


class OpenVino:
    """Runs ONNX files on the CPU. Its Python wheel has no other device that works without a driver."""

    name = "openvino"
    takes_artifact = True
    opt_in = False
    preload: tuple[str, ...] = ("openvino",)
    options: Mapping[str, tuple[str, ...]] = {PRECISION_OPTION: ("asked", "default")}

    def probe(self) -> Probe:
        """Is openvino there?"""
        return binding.probe_package("openvino", "openvino")

    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        """Every file; what it cannot compile is found at loading, in OpenVINO's own words."""
        return binding.needs_file(self.name, artifact)

    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> "Iterator[OpenVinoSession]":
        """Hold the compiled model.

        Raises:
            UnsupportedError: OpenVINO does not compile this file; the message is its own.
            ArtifactError: the file cannot be read.
            ReadBackError: threads, streams or precision in force are not those asked.
        """
        if artifact is None:
            raise UnsupportedError(f"{self.name} runs ONNX files; name an exporter")
        binding.refuse_options(settings, self.name, self.options)
        session = OpenVinoSession(problem, artifact, settings)
        try:
            yield session
        finally:
            session.close()

    @contextlib.contextmanager
    def load_model(self, problem: ModelProblem, artifact: Artifact, settings: Settings) -> "Iterator[ModelSession]":
        """Hold a compiled model of the user.

        Raises:
            UnsupportedError: as `load`, or the file is none of ONNX.
            ArtifactError: as `load`.
            ReadBackError: as `load`.
        """
        from attnbench_runtimes.openvino_models import OpenVinoModelSession

        binding.require_onnx(self.name, artifact)
        binding.refuse_options(settings, self.name, self.options)
        session = OpenVinoModelSession(problem, artifact, settings)
        try:
            yield session
        finally:
            session.close()

    def run_model(self, path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of any file, by name, computed in fp32; for checks, never timed."""
        import openvino as ov

        core = ov.Core()
        compiled = core.compile_model(core.read_model(os.fspath(path)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        kinds = {name: "bf16" if array.dtype == numpy_dtype("bf16") else "fp32" for name, array in inputs.items()}
        tensors = {name: tensor_on(np.array(array, order="C"), kinds[name]) for name, array in inputs.items()}
        found = compiled.create_infer_request().infer(tensors)
        return {
            # NumPy has no bfloat16 of its own: openvino hands the bits out as another type
            output.get_any_name(): array.view(numpy_dtype("bf16")) if output.element_type == ov.Type.bf16 else array
            for output, array in found.items()
        }


class OpenVinoSession(CompiledFile):
    """A compiled model and one infer request, whose tensors are set once per bind."""

    def __init__(self, problem: Problem, artifact: Artifact, settings: Settings) -> None:
        super().__init__(artifact, settings, problem.dtype)
        self._problem = problem
        self._inputs: dict[str, Array] = {}  # the request holds bare pointers: these must outlive it
        self._outputs: dict[str, Array] = {}
        self._first_kv_len: int | None = None

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs and set them and a buffer for the output as the request's tensors."""
        own = binding.own_inputs(self._problem, inputs)
        self._ran = False
        self._prime(binding.kv_len(own))
        outputs = binding.output_buffers(self._problem, own)
        self._set_tensors(own, outputs)
        self._inputs, self._outputs = own, outputs  # what was bound before is let go only now
        return self._inferring()

    def _set_tensors(self, own: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        for name, array in {**own, **outputs}.items():
            self._request.set_tensor(name, tensor_on(array, self._problem.dtype))

    def _prime(self, kv_len: int) -> None:
        """Keep the first inference of a compiled model from being one with a single key.

        OpenVINO 2026.4 compiles its fused softmax for what it sees first: after kv_len = 1 every later kv_len of 16
        or more gives sums that are not normalised (worst row off by the factor kv_len), whichever file it is.
        """
        if self._first_kv_len is not None:
            return
        self._first_kv_len = kv_len
        if kv_len == 1:
            small = make_inputs(self._problem.at(q_len=2, kv_len=2, batch_size=1))
            outputs = binding.output_buffers(self._problem, small)
            self._set_tensors(small, outputs)
            self._request.infer(share_outputs=True)

    def outputs(self) -> Array:
        """`y` of the last call, copied; bfloat16 from the bytes (OpenVINO itself would show them as float16).

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        binding.require_ran(self._ran)
        return self._outputs[OUTPUT_NAME].copy()

    def cache(self) -> dict[str, Array]:
        """`present_key` and `present_value` of the last call, copied.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        binding.require_ran(self._ran)
        return binding.cache_of(self._outputs)

    def _more_facts(self) -> Mapping[str, Any]:
        cache = binding.cache_facts(self._problem, in_place=False)
        return {**cache, "primed_with_two_keys": self._first_kv_len == 1}
