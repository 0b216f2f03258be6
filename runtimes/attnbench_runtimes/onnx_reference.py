"""`onnx-reference`: the evaluator of the onnx package, node by node in NumPy. It is checked, never timed."""

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.errors import ArtifactError, UnsupportedError
from attnbench.interfaces import Array, Artifact, Facts, Probe, Settings, Support, numpy_dtype
from attnbench.problem import OUTPUT_NAME, Problem
from attnbench_runtimes import binding


class OnnxReference:
    """What the ONNX specification's own code computes from a file. Not a judge: it is wrong in places too."""

    name = "onnx-reference"
    takes_artifact = True
    opt_in = True
    checks_only = True  # a latency of NumPy loops is no latency of a runtime
    preload: tuple[str, ...] = ("onnx", "onnx.reference")

    def probe(self) -> Probe:
        """Is onnx there?"""
        return binding.probe_package("onnx", "onnx.reference")

    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        """Every file; an operator that onnx does not implement is found at loading, in onnx's words."""
        return binding.needs_file(self.name, artifact)

    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> "Iterator[ReferenceSession]":
        """Hold an evaluator of the file.

        Raises:
            UnsupportedError: an operator without an implementation in onnx.
            ArtifactError: the file cannot be read.
        """
        if artifact is None:
            raise UnsupportedError(f"{self.name} runs ONNX files; name an exporter")
        binding.refuse_options(settings, self.name)
        yield ReferenceSession(problem, _open(artifact.path))

    def run_model(self, path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of any file, by name."""
        evaluator = _open(path)
        with np.errstate(all="ignore"):
            return dict(zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True))


class ReferenceSession:
    """An evaluator with inputs."""

    def __init__(self, problem: Problem, evaluator: Any) -> None:
        self._problem, self._evaluator = problem, evaluator
        self._outputs: dict[str, Array] = {}
        self._ran = False

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs."""
        own = binding.own_inputs(self._problem, inputs)
        names = list(self._problem.output_dims())
        self._ran = False

        def call() -> None:
            with np.errstate(all="ignore"):  # what overflows is judged by its result
                found = self._evaluator.run(names, own)
            self._outputs = dict(zip(names, map(self._plain, found), strict=True))
            self._ran = True

        return call

    def outputs(self) -> Array:
        """`y` of the last call, copied, in whatever dtype onnx gave it.

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

    def _plain(self, found: Any) -> Array:
        output = np.asarray(found)
        if self._problem.dtype == "bf16" and output.dtype.itemsize == 2 and output.dtype.kind == "V":
            output = output.view(numpy_dtype("bf16"))
        return output

    def facts(self) -> Facts:
        """NumPy in one process; threads are those of its BLAS."""
        return Facts(
            runtime_version=importlib.metadata.version("onnx"), device="cpu", device_name=binding.cpu_name(),
            threads=None, compute_precision="unknown", detail={"computes": "node by node in NumPy"},
        )  # fmt: skip


def _open(path: Path) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx.reference import ReferenceEvaluator

    try:
        return ReferenceEvaluator(str(path.absolute()))
    except NotImplementedError as err:
        raise UnsupportedError(f"onnx.reference: {str(err).strip().splitlines()[0]}") from err
    except (OSError, DecodeError) as err:
        raise ArtifactError(f"onnx.reference cannot read {path.name!r}: {err}") from err
