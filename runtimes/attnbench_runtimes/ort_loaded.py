"""A file that ONNX Runtime has loaded: how it is opened, what of it is read back."""

import importlib.metadata
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from attnbench.errors import ArtifactError, ReadBackError, UnsupportedError
from attnbench.interfaces import UNKNOWN, Array, Artifact, Facts, Settings
from attnbench_runtimes import binding, ort_graph, ort_words

KINDS = {"bool": 9, "fp32": 1, "fp16": 10, "bf16": 16, "int32": 6, "int64": 7}  # onnx.TensorProto.DataType
_VERSION_WORDS = ("opset", "not a registered function", "no op registered", "unsupported model ir version")

# Recorded at load: which provider every node was given to.
_ASSIGNMENT_KEY = "session.record_ep_graph_assignment_info"
# Threads spin while a call runs (fast) and stop when it ends (else a parked session takes a core from the others).
_STOP_SPINNING_KEY = "session.force_spinning_stop"


class Providers(Protocol):
    """Which execution providers are asked for; see `attnbench_runtimes.ort.OrtRuntime`."""

    providers: tuple[tuple[str, Mapping[str, str]], ...]
    allowed_elsewhere: frozenset[str]
    distributions: tuple[str, ...]


class LoadedFile:
    """An ONNX Runtime session whose threads and providers are those asked."""

    def __init__(self, runtime: Providers, artifact: Artifact, settings: Settings) -> None:
        self._runtime, self._artifact, self._settings = runtime, artifact, settings
        self._dtype = artifact.problem.dtype
        self._session = _open(runtime, artifact, self._options())
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

    def _bound_call(self, io: Any) -> Callable[[], object]:
        """The call that runs what is bound."""
        from onnxruntime.capi import onnxruntime_pybind11_state as states

        run = self._session.run_with_iobinding

        def call() -> None:
            try:
                run(io)
            except (RuntimeError, states.RuntimeException, states.Fail) as err:
                if binding.is_out_of_memory(err):
                    raise MemoryError(str(err)) from err
                raise RuntimeError(ort_words.plain(err, dtype=self._dtype)) from err
            self._ran = True

        return call

    def _more_facts(self) -> Mapping[str, Any]:
        """What a kind of session has to tell beside."""
        return {}

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
                **self._more_facts(),
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


def _open(runtime: Providers, artifact: Artifact, options: Any) -> Any:
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


def raw(array: Array) -> Array:
    """The same memory in a dtype that NumPy itself has: bfloat16 as uint16."""
    return array if array.dtype.kind in "fbi" else array.view(np.uint16)
