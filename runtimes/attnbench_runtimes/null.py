"""`null`: does nothing, so that its latency is the harness's own."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from attnbench.interfaces import SUPPORTED, Array, Artifact, Facts, Probe, Settings, Support
from attnbench.problem import Problem
from attnbench_runtimes import binding


class Null:
    """A clock check, not an answer: its outputs are zeros and nobody may compare them with the reference.

    The call only notes that it ran, as the call of every runtime does.
    """

    name = "null"
    takes_artifact = False
    opt_in = True
    preload: tuple[str, ...] = ()

    def probe(self) -> Probe:
        """Always there."""
        return Probe(available=True, version="1")

    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        """Every problem: nothing is computed."""
        return SUPPORTED

    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> "Iterator[NullSession]":
        """Hold nothing.

        Raises:
            UnsupportedError: a device or option that it has not.
        """
        binding.refuse_options(settings, self.name)
        yield NullSession(problem)


class NullSession:
    """Remembers the shape that was bound."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._zeros = np.zeros(0)
        self._ran = False

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """The call that does nothing."""
        own = binding.own_inputs(self._problem, inputs)
        self._zeros = np.zeros_like(binding.output_buffers(self._problem, own)["y"])
        self._ran = False

        def call() -> None:
            self._ran = True

        return call

    def outputs(self) -> Array:
        """Zeros of the output's shape.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        binding.require_ran(self._ran)
        return self._zeros.copy()

    def facts(self) -> Facts:
        """Nothing runs, so nothing has threads or a precision."""
        return Facts(
            runtime_version="1", device="cpu", device_name=binding.cpu_name(), threads=None,
            compute_precision="unknown", detail={"computes": "nothing: measures the harness"},
        )  # fmt: skip
