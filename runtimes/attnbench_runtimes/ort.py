"""`ort-cpu`: ONNX Runtime. One adapter; which execution provider runs the graph is data."""

import contextlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.errors import UnsupportedError
from attnbench.interfaces import Array, Artifact, ModelSession, Probe, Settings, Support
from attnbench.model_problem import AnyProblem, ModelProblem
from attnbench.problem import CACHE_ROOM, OUTPUT_NAME, Problem
from attnbench_runtimes import binding, ort_words
from attnbench_runtimes.ort_device import Buffers
from attnbench_runtimes.ort_loaded import KINDS, Asked, LoadedFile, Providers, raw

_KINDS = {"tensor(bfloat16)": KINDS["bf16"]}  # what NumPy alone cannot say


class OrtRuntime:
    """ONNX Runtime under one execution provider; a subclass names it.

    Attributes:
        providers: name and options of each provider asked for, in order of preference; a node that ends on any other
            provider than the first is an error unless `allowed_elsewhere` lists its operator.
    """

    name = ""
    providers: tuple[tuple[str, Mapping[str, str]], ...] = ()
    allowed_elsewhere: frozenset[str] = frozenset()
    has_readable_graph = True
    distributions: tuple[str, ...] = ("onnxruntime",)  # the one to install
    device_kinds: tuple[str, ...] = ("cpu",)
    options: Mapping[str, tuple[str, ...]] = {}
    takes_artifact = True
    opt_in = False
    preload: tuple[str, ...] = ("onnxruntime",)

    def probe(self) -> Probe:
        """Is onnxruntime there, alone, and does it have the provider?"""
        found = {name: _version(name) for name in ("onnxruntime", "onnxruntime-gpu")}
        installed = [name for name, version in found.items() if version]
        version = next((v for v in found.values() if v), "")
        fix = f"pip install {self.distributions[0]}"
        if not installed:
            return Probe(available=False, reason=f"the package {self.distributions[0]} is not installed", fix=fix)
        if len(installed) > 1:
            reason = f"{' and '.join(f'{n} {found[n]}' for n in installed)} are both installed and overwrite each other"
            fix = f"pip uninstall -y {' '.join(installed)} && {fix}"
            return Probe(available=False, version=version, reason=reason, fix=fix)
        try:
            import onnxruntime
        except (ImportError, OSError) as err:
            return Probe(available=False, version=version, reason=f"onnxruntime cannot be imported: {err}", fix=fix)
        there = onnxruntime.get_available_providers()
        missing = [name for name, _ in self.providers if name not in there]
        if missing:
            wheel = "" if installed[0] == self.distributions[0] else f" (the package {installed[0]})"
            reason = f"onnxruntime {version}{wheel} has no {missing[0]}; it has {', '.join(there)}"
            fix = f"pip uninstall -y {installed[0]} && {fix}" if installed[0] != self.distributions[0] else fix
            return Probe(available=False, version=version, reason=reason, fix=fix)
        return self._probe_devices(version)

    def _probe_devices(self, version: str) -> Probe:
        """The devices that the provider has here."""
        return Probe(available=True, version=version)

    def asked(self, problem: AnyProblem, artifact: Artifact, settings: Settings) -> Asked:
        """Name and options of each provider, in order of preference."""
        return self.providers

    def run_options(self, settings: Settings, bound: int) -> Any:
        """onnxruntime.RunOptions for the calls of the `bound`-th binding; None: none."""
        return None

    def build_ms(self, asked: Asked, open_ms: float) -> float | None:
        """Milliseconds of compiling ahead, of a session that took `open_ms` to open; None where nothing is compiled."""
        return None

    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        """Every file; what has no kernel is found at loading, in ONNX Runtime's own words."""
        return binding.needs_file(self.name, artifact)

    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> "Iterator[OrtSession]":
        """Hold a session on the file.

        Raises:
            UnsupportedError: no kernel, operator or opset for this file; the message is ONNX Runtime's.
            ArtifactError: the file cannot be read.
            ReadBackError: threads or providers in force are not those asked.
        """
        if artifact is None:
            raise UnsupportedError(f"{self.name} runs ONNX files; name an exporter")
        binding.refuse_options(settings, self.name, self.options, device_kinds=self.device_kinds)
        with contextlib.ExitStack() as stack:
            session = self._opened(problem, artifact, settings, stack)
            stack.callback(session.close)
            yield session

    def _opened(
        self, problem: Problem, artifact: Artifact, settings: Settings, stack: contextlib.ExitStack
    ) -> "OrtSession":
        """A session, and in `stack` what must outlive it."""
        return OrtSession(self, problem, artifact, settings)

    @contextlib.contextmanager
    def load_model(self, problem: ModelProblem, artifact: Artifact, settings: Settings) -> "Iterator[ModelSession]":
        """Hold a session on a model of the user.

        Raises:
            UnsupportedError: as `load`, or the file is none of ONNX.
            ArtifactError: as `load`.
            ReadBackError: as `load`.
        """
        from attnbench_runtimes.ort_models import OrtModelSession

        binding.require_onnx(self.name, artifact)
        binding.refuse_options(settings, self.name, self.options, device_kinds=self.device_kinds)
        session = OrtModelSession(self, problem, artifact, settings)
        try:
            yield session
        finally:
            session.close()

    def run_model(self, path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of any file, by name; for checks, never timed.

        Raises:
            UnsupportedError: ONNX Runtime does not load or run it.
        """
        from onnxruntime.capi import onnxruntime_pybind11_state as states

        try:
            return self._run_model(path, inputs)
        except (states.NotImplemented, states.Fail, states.InvalidArgument, states.InvalidGraph) as err:
            raise UnsupportedError(ort_words.plain(err)) from err

    def _run_model(self, path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(os.fspath(path), options, providers=[name for name, _ in self.providers])
        kinds = {value.name: _KINDS[value.type] for value in session.get_inputs() if value.type in _KINDS}
        feeds = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw(np.ascontiguousarray(array)), kinds[name])
            if name in kinds
            else ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in inputs.items()
        }
        found = session.run_with_ort_values(None, feeds)
        names = [value.name for value in session.get_outputs()]
        return {name: value.numpy() for name, value in zip(names, found, strict=True)}


class OrtCpu(OrtRuntime):
    """ONNX Runtime's own CPU kernels (MLAS)."""

    name = "ort-cpu"
    providers = (("CPUExecutionProvider", {}),)


class OrtSession(LoadedFile):
    """A loaded file with inputs and output bound in place, so that a call copies nothing."""

    def __init__(self, runtime: Providers, problem: Problem, artifact: Artifact, settings: Settings) -> None:
        super().__init__(runtime, problem, artifact, settings)
        self._problem = problem
        # Such a file takes one buffer as past and as present; between two its operator would copy all old tokens.
        self._in_place = CACHE_ROOM in {value.name for value in self._session.get_overridable_initializers()}
        self._inputs: dict[str, Array] = {}  # bound values are bare pointers: these must outlive them
        self._outputs: dict[str, Array] = {}
        self._on_device: Buffers | None = None

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs, bind them and a buffer for the output.

        A decode step writes into its cache where the file allows it: a buffer with room for the new tokens is past and
        present, and every call writes the same places behind the same old tokens.
        """
        from onnxruntime import OrtValue

        own = binding.own_inputs(self._problem, inputs)
        self._ran = False
        outputs = binding.output_buffers(self._problem, own)
        element, kinds = KINDS[self._problem.dtype], self._problem.input_kinds()
        if self._in_place:
            binding.share_cache(own, outputs)
            own[CACHE_ROOM], kinds[CACHE_ROOM] = np.array(own["x"].shape[1], np.int64), "int64"
        io = self._session.io_binding()
        self._inputs, self._outputs = own, outputs
        if self._settings.device != "cpu":
            self._on_device = self._bound_on_device(io, {name: KINDS[kinds[name]] for name in own}, element)
            return self._bound_call(io)
        for name, array in own.items():
            kind = KINDS[kinds[name]]
            io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy_with_onnx_type(raw(array), kind))
        for name, array in outputs.items():
            io.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy_with_onnx_type(raw(array), element))
        return self._bound_call(io)

    def _bound_on_device(self, io: Any, elements: Mapping[str, int], element: int) -> Buffers:
        """The same in the memory of a device; a size of the cache stays with the host, which reads it."""
        buffers = Buffers(io, self._settings.device)
        for name, array in self._inputs.items():
            buffers.bind_input(name, array, elements[name], on_host=name == CACHE_ROOM)
        for name, array in self._outputs.items():
            buffers.bind_output(name, array, element)
        return buffers

    def _read(self, name: str) -> Array:
        return self._on_device.read(name) if self._on_device else self._outputs[name].copy()

    def outputs(self) -> Array:
        """`y` of the last call, copied.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        binding.require_ran(self._ran)
        return self._read(OUTPUT_NAME)

    def cache(self) -> dict[str, Array]:
        """`present_key` and `present_value` of the last call, copied.

        Raises:
            NotRunError: the call bound last has not run yet.
        """
        binding.require_ran(self._ran)
        return {name: self._read(name) for name in self._outputs if name != OUTPUT_NAME}

    def _more_facts(self) -> Mapping[str, Any]:
        return binding.cache_facts(self._problem, self._in_place)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
