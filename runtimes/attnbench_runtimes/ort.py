"""`ort-cpu`: ONNX Runtime. One adapter; which execution provider runs the graph is data."""

import contextlib
import importlib.metadata
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.errors import ArtifactError, ReadBackError, UnsupportedError
from attnbench.interfaces import UNKNOWN, Array, Artifact, Facts, Probe, Settings, Support
from attnbench.problem import CACHE_ROOM, OUTPUT_NAME, Problem
from attnbench_runtimes import binding, ort_graph, ort_words

_KINDS = {"tensor(bfloat16)": 16}  # what NumPy alone cannot say
_ONNX_TYPE = {"bool": 9, "fp32": 1, "fp16": 10, "bf16": 16, "int64": 7}  # onnx.TensorProto.DataType
_VERSION_WORDS = ("opset", "not a registered function", "no op registered", "unsupported model ir version")

# Recorded at load: which provider every node was given to.
_ASSIGNMENT_KEY = "session.record_ep_graph_assignment_info"
# Threads spin while a call runs (fast) and stop when it ends (else a parked session takes a core from the others).
_STOP_SPINNING_KEY = "session.force_spinning_stop"


class OrtRuntime:
    """ONNX Runtime under one execution provider; a subclass names it.

    Attributes:
        providers: name and options of each provider asked for, in order of preference; a node that ends on any other
            provider than the first is an error unless `allowed_elsewhere` lists its operator.
    """

    name = ""
    providers: tuple[tuple[str, Mapping[str, str]], ...] = ()
    allowed_elsewhere: frozenset[str] = frozenset()
    distributions: tuple[str, ...] = ("onnxruntime",)  # any of them brings the module
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
            reason = f"onnxruntime {version} has no {missing[0]}; it has {', '.join(there)}"
            return Probe(available=False, version=version, reason=reason, fix=fix)
        return Probe(available=True, version=version)

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
        binding.refuse_options(settings, self.name)
        session = OrtSession(self, problem, artifact, settings)
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
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(_raw(np.ascontiguousarray(array)), kinds[name])
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


class OrtSession:
    """A loaded file with inputs and output bound in place, so that a call copies nothing."""

    def __init__(self, runtime: OrtRuntime, problem: Problem, artifact: Artifact, settings: Settings) -> None:
        self._runtime, self._problem, self._artifact, self._settings = runtime, problem, artifact, settings
        self._session = _open(runtime, artifact, self._options())
        # Such a file takes one buffer as past and as present; between two its operator would copy all old tokens.
        self._in_place = CACHE_ROOM in {value.name for value in self._session.get_overridable_initializers()}
        self._inputs: dict[str, Array] = {}  # bound values are bare pointers: these must outlive them
        self._outputs: dict[str, Array] = {}
        self._ran = False
        self._facts: Facts | None = None
        self._check_threads()
        self._check_providers()

    def _options(self) -> Any:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = self._settings.threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        # A memory pattern is kept per input shape, beside what the arena holds from the first call: the decomposed
        # block at T = 2048 peaks at 4.4 score matrices with it, at 2.2 without, at the same latency (0.996 to 1.010).
        options.enable_mem_pattern = False
        options.log_severity_level = 3  # errors; a fallback is found by reading the placement back
        options.add_session_config_entry(_STOP_SPINNING_KEY, "1")
        options.add_session_config_entry(_ASSIGNMENT_KEY, "1")
        return options

    def _check_threads(self) -> tuple[int, int]:
        options = self._session.get_session_options()
        found = (int(options.intra_op_num_threads), int(options.inter_op_num_threads))
        asked = (self._settings.threads, 1)
        if found != asked:
            raise ReadBackError(f"intra- and inter-op threads {asked} were asked, onnxruntime has {found}")
        return found

    def _check_providers(self) -> None:
        asked = [name for name, _ in self._runtime.providers]
        found = self._session.get_providers()
        # onnxruntime appends its CPU provider to every list
        if found[: len(asked)] != asked:
            raise ReadBackError(f"providers {asked} were asked, onnxruntime uses {found}")
        placement = self._placement()
        strays = {
            operator: provider
            for provider, operators in (placement or {}).items()
            for operator in operators
            if provider != asked[0] and operator not in self._runtime.allowed_elsewhere
        }
        if strays:
            raise ReadBackError(f"all nodes were asked on {asked[0]}, onnxruntime placed {strays}")

    def _placement(self) -> dict[str, dict[str, int]] | None:
        """Provider -> operator -> nodes; None where this onnxruntime does not tell."""
        if not hasattr(self._session, "get_provider_graph_assignment_info"):
            return None
        placement: dict[str, Counter[str]] = {}
        for subgraph in self._session.get_provider_graph_assignment_info():
            operators = [f"{node.domain}::{node.op_type}" for node in subgraph.get_nodes()]
            placement.setdefault(subgraph.ep_name, Counter()).update(operators)
        return {provider: dict(sorted(counts.items())) for provider, counts in placement.items()}

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs, bind them and a buffer for the output.

        A decode step writes into its cache where the file allows it: a buffer with room for the new tokens is past and
        present, and every call writes the same places behind the same old tokens.
        """
        from onnxruntime import OrtValue
        from onnxruntime.capi import onnxruntime_pybind11_state as states

        own = binding.own_inputs(self._problem, inputs)
        self._ran = False
        outputs = binding.output_buffers(self._problem, own)
        element, kinds = _ONNX_TYPE[self._problem.dtype], self._problem.input_kinds()
        if self._in_place:
            binding.share_cache(own, outputs)
            own[CACHE_ROOM], kinds[CACHE_ROOM] = np.array(own["x"].shape[1], np.int64), "int64"
        io = self._session.io_binding()
        for name, array in own.items():
            kind = _ONNX_TYPE[kinds[name]]
            io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy_with_onnx_type(_raw(array), kind))
        for name, array in outputs.items():
            io.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy_with_onnx_type(_raw(array), element))
        self._inputs, self._outputs = own, outputs
        run = self._session.run_with_iobinding

        def call() -> None:
            try:
                run(io)
            except (RuntimeError, states.RuntimeException, states.Fail) as err:
                if binding.is_out_of_memory(err):
                    raise MemoryError(str(err)) from err
                raise RuntimeError(ort_words.plain(err, dtype=self._problem.dtype)) from err
            self._ran = True

        return call

    def outputs(self) -> Array:
        """`y` of the last call, copied.

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

    def facts(self) -> Facts:
        """Threads, providers and placement of the session; kernel and precision of the graph as optimised.

        The optimised graph is written by a second session with the same options, once.

        Raises:
            ReadBackError: threads or providers in force are not those asked.
        """
        if self._facts is None:
            self._facts = self._read_facts()
        return self._facts

    def _read_facts(self) -> Facts:
        threads, inter_op = self._check_threads()
        self._check_providers()
        options = self._options()
        graph = ort_graph.optimised(options, lambda: _open(self._runtime, self._artifact, options))
        return Facts(
            runtime_version=importlib.metadata.version(self._runtime.distributions[0]), device="cpu",
            device_name=binding.cpu_name(), threads=threads, compute_precision=graph.compute_precision,
            attention_kernel=graph.kernel, kernel_evidence="graph" if graph.kernel != UNKNOWN else "",
            detail={
                **binding.cache_facts(self._problem, self._in_place),
                "memory_pattern": bool(self._session.get_session_options().enable_mem_pattern),
                "providers": self._session.get_providers(), "placement": self._placement() or UNKNOWN,
                "inter_op_threads": inter_op, "optimised_operators": graph.operators,
                "precision_of_nodes": graph.precisions, "casts": graph.casts,
                "spinning": "stops when a call ends",
            },
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the session and of what is bound."""
        del self._session


def _open(runtime: OrtRuntime, artifact: Artifact, options: Any) -> Any:
    """An InferenceSession; its refusals become our errors with its words."""
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as states

    path = os.fspath(artifact.path.absolute())
    providers = [(name, dict(settings)) for name, settings in runtime.providers]
    dtype = artifact.problem.dtype
    try:
        return ort.InferenceSession(path, options, providers=providers)
    except states.NotImplemented as err:
        raise UnsupportedError(ort_words.plain(err, dtype=dtype)) from err
    except (
        states.Fail, states.InvalidGraph, states.InvalidProtobuf, states.InvalidArgument, states.NoSuchFile,
        states.RuntimeException, states.NotFound,
    ) as err:  # fmt: skip
        words = ort_words.plain(err, dtype=dtype)
        if binding.is_out_of_memory(err):
            raise MemoryError(words) from err
        # The path may have the words too: attnbench itself calls files `...-opset20-...`.
        if any(word in str(err).replace(path, "").lower() for word in _VERSION_WORDS):
            raise UnsupportedError(words) from err
        raise ArtifactError(f"onnxruntime cannot load {artifact.path.name!r}: {words}") from err


def _raw(array: Array) -> Array:
    """The same memory in a dtype that NumPy itself has: bfloat16 as uint16."""
    return array if array.dtype.kind in "fbi" else array.view(np.uint16)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
