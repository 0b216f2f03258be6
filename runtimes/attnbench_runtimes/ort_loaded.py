"""A file that ONNX Runtime has loaded: how it is opened, what of it is read back."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from attnbench.errors import ArtifactError, ReadBackError, UnsupportedError
from attnbench.interfaces import UNKNOWN, Array, Artifact, Facts, Settings
from attnbench.model_problem import AnyProblem
from attnbench_runtimes import binding, cuda_driver, ort_graph, ort_words

KINDS = {"bool": 9, "fp32": 1, "fp16": 10, "bf16": 16, "int32": 6, "int64": 7}  # onnx.TensorProto.DataType
_VERSION_WORDS = ("opset", "not a registered function", "no op registered", "unsupported model ir version")

# Recorded at load: which provider every node was given to.
_ASSIGNMENT_KEY = "session.record_ep_graph_assignment_info"
# Threads spin while a call runs (fast) and stop when it ends (else a parked session takes a core from the others).
_STOP_SPINNING_KEY = "session.force_spinning_stop"


Asked = Sequence[tuple[str, Mapping[str, str]]]


class Providers(Protocol):
    """Which execution providers are asked for; see `attnbench_runtimes.ort.OrtRuntime`."""

    allowed_elsewhere: frozenset[str]
    has_readable_graph: bool

    def asked(self, problem: AnyProblem, artifact: Artifact, settings: Settings) -> Asked:
        """See `OrtRuntime.asked`."""
        ...

    def run_options(self, settings: Settings, bound: int) -> Any:
        """See `OrtRuntime.run_options`."""
        ...

    def build_ms(self, asked: Asked, open_ms: float) -> float | None:
        """See `OrtRuntime.build_ms`."""
        ...


class LoadedFile:
    """An ONNX Runtime session whose threads and providers are those asked."""

    def __init__(self, runtime: Providers, problem: AnyProblem, artifact: Artifact, settings: Settings) -> None:
        self._runtime, self._artifact, self._settings = runtime, artifact, settings
        self._dtype = artifact.problem.dtype
        self._asked = [(name, dict(options)) for name, options in runtime.asked(problem, artifact, settings)]
        start_ns = time.perf_counter_ns()
        self._session = _open(self._asked, artifact, self._options())
        self._open_ms = (time.perf_counter_ns() - start_ns) / 1e6
        self._ran, self._bound = False, 0
        self._facts: Facts | None = None
        self._check_threads()
        self._check_providers()
        self._check_provider_options()

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
        asked = [name for name, _ in self._asked]
        found = self._session.get_providers()
        # onnxruntime appends its CPU provider to every list
        if found[: len(asked)] != asked:
            raise ReadBackError(f"providers {asked} were asked, onnxruntime uses {found}")
        strays = [
            f"{operator.removeprefix('::')} (node {node}) on {provider}"
            for provider, operator, node in self._nodes()
            if provider != asked[0] and operator not in self._runtime.allowed_elsewhere
        ]
        if strays:
            more = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
            raise ReadBackError(f"all nodes were asked on {asked[0]}, onnxruntime placed {', '.join(strays[:3])}{more}")

    def _check_provider_options(self) -> list[str]:
        """Compare the options in force with those asked; names of those that onnxruntime does not tell."""
        in_force, untold = self._session.get_provider_options(), []
        for provider, options in self._asked:
            told = in_force.get(provider, {})
            for name, value in options.items():
                if name not in told:
                    untold.append(name)
                elif _plain_value(told[name]) != _plain_value(value):
                    raise ReadBackError(f"{name}={value} was asked of {provider}, in force is {told[name]}")
        return untold

    def _nodes(self) -> Iterator[tuple[str, str, str]]:
        """Provider, operator and name of every node; nothing where this onnxruntime does not tell."""
        if hasattr(self._session, "get_provider_graph_assignment_info"):
            for subgraph in self._session.get_provider_graph_assignment_info():
                for node in subgraph.get_nodes():
                    yield subgraph.ep_name, f"{node.domain}::{node.op_type}", node.name

    def _placement(self) -> dict[str, dict[str, int]]:
        """Provider -> operator -> nodes; empty where this onnxruntime does not tell."""
        placement: dict[str, Counter[str]] = {}
        for provider, operator, _ in self._nodes():
            placement.setdefault(provider, Counter())[operator] += 1
        return {provider: dict(sorted(counts.items())) for provider, counts in placement.items()}

    def _bound_call(self, io: Any) -> Callable[[], object]:
        """The call that runs what is bound."""
        from onnxruntime.capi import onnxruntime_pybind11_state as states

        self._bound += 1
        run, run_options = self._session.run_with_iobinding, self._runtime.run_options(self._settings, self._bound)

        def call() -> None:
            try:
                run(io, run_options)
            except (RuntimeError, states.RuntimeException, states.Fail) as err:
                if binding.is_out_of_memory(err):
                    raise MemoryError(ort_words.plain(err, dtype=self._dtype)) from err
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
        import onnxruntime as ort

        threads, inter_op = self._check_threads()
        self._check_providers()
        untold = self._check_provider_options()
        graph = self._read_graph()
        precision = graph.compute_precision if graph else UNKNOWN
        if precision == "fp32" and any(options.get("use_tf32") == "1" for _, options in self._asked):
            precision = "tf32"
        kernel = graph.kernel if graph else UNKNOWN
        return Facts(
            runtime_version=ort.__version__, device=self._settings.device, device_name=_device_name(self._settings),
            threads=threads, compute_precision=precision, attention_kernel=kernel,
            kernel_evidence="graph" if kernel != UNKNOWN else "",
            build_ms=self._runtime.build_ms(self._asked, self._open_ms),
            detail={
                **self._more_facts(),
                "memory_pattern": bool(self._session.get_session_options().enable_mem_pattern),
                "providers": self._session.get_providers(), "placement": self._placement() or UNKNOWN,
                **({"provider_options": dict(self._asked), "provider_options_not_told": untold} if untold else {}),
                "inter_op_threads": inter_op, "spinning": "stops when a call ends",
                **({"optimised_operators": graph.operators, "precision_of_nodes": graph.precisions,
                    "casts": graph.casts} if graph else {}),
            },
        )  # fmt: skip

    def _read_graph(self) -> ort_graph.OptimisedGraph | None:
        """The graph that runs; None where the provider compiles it, so that there is none to read."""
        if not self._runtime.has_readable_graph:
            return None
        options = self._options()
        return ort_graph.optimised(options, lambda: _open(self._asked, self._artifact, options))

    def close(self) -> None:
        """Let go of the session and of what is bound."""
        del self._session


def _device_name(settings: Settings) -> str:
    if settings.device == "cpu":
        return binding.cpu_name()
    return cuda_driver.device_name(cuda_driver.device_index(settings.device, "onnxruntime"))


def _plain_value(value: str) -> str:
    """Booleans are told as 1 or True."""
    return {"true": "1", "false": "0"}.get(value.lower(), value)


def _open(asked: Asked, artifact: Artifact, options: Any) -> Any:
    """An InferenceSession; its refusals become our errors with its words."""
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as states

    path = os.fspath(artifact.path.absolute())
    providers = [(name, dict(settings)) for name, settings in asked]
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
