"""`openvino`: OpenVINO's CPU plug-in, with the precision that was asked for and not the one it would choose."""

import contextlib
import importlib.metadata
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.errors import ArtifactError, ReadBackError, UnsupportedError
from attnbench.inputs import make_inputs
from attnbench.interfaces import UNKNOWN, Array, Artifact, Facts, Probe, Settings, Support, numpy_dtype
from attnbench.problem import OUTPUT_NAME, Problem
from attnbench_runtimes import binding

# `asked`: the problem's own precision; `default`: what OpenVINO chooses (bf16 for fp32 files on CPUs that have it).
PRECISION_OPTION = "inference_precision"

_TYPE_NAMES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_DTYPES = {name: dtype for dtype, name in _TYPE_NAMES.items()}
_CAPABILITIES = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16"}
_NOISE = re.compile(r"Exception from |Check '.*' failed at|FrontEnd API failed|Loading input model|Model wasn't fully")
_PRODUCTS = ("FullyConnected", "MatMul", "ScaledDotProductAttention")


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

    def run_model(self, path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs of any file, by name, computed in fp32; for checks, never timed."""
        import openvino as ov

        core = ov.Core()
        compiled = core.compile_model(core.read_model(os.fspath(path)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        kinds = {name: "bf16" if array.dtype == numpy_dtype("bf16") else "fp32" for name, array in inputs.items()}
        tensors = {name: _tensor(np.array(array, order="C"), kinds[name]) for name, array in inputs.items()}
        found = compiled.create_infer_request().infer(tensors)
        return {
            # NumPy has no bfloat16 of its own: openvino hands the bits out as another type
            output.get_any_name(): array.view(numpy_dtype("bf16")) if output.element_type == ov.Type.bf16 else array
            for output, array in found.items()
        }


class OpenVinoSession:
    """A compiled model and one infer request, whose tensors are set once per bind."""

    def __init__(self, problem: Problem, artifact: Artifact, settings: Settings) -> None:
        import openvino as ov

        self._problem = problem
        self._core = ov.Core()
        self._asked = self._properties(settings)
        model = _read(self._core, artifact)
        try:
            self._compiled = self._core.compile_model(model, "CPU", self._asked)
        except RuntimeError as err:
            if binding.is_out_of_memory(err):
                raise MemoryError(_words(err)) from err
            raise UnsupportedError(f"openvino cannot compile {artifact.path.name!r}: {_words(err)}") from err
        self._request = self._compiled.create_infer_request()
        self._inputs: dict[str, Array] = {}  # the request holds bare pointers: these must outlive it
        self._output: Array = np.zeros(0)
        self._ran = False
        self._first_kv_len: int | None = None
        self._read_back()

    def _properties(self, settings: Settings) -> dict[str, Any]:
        """What is asked of the plug-in; each is read back."""
        properties: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": settings.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,  # pinned threads would sit on the core that another arm works on
        }
        if settings.options.get(PRECISION_OPTION, "asked") == "asked":
            # Asked for a precision that the CPU lacks, OpenVINO takes bf16 without a word; fp32 is never worse.
            there = _CAPABILITIES[self._problem.dtype] in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            properties["INFERENCE_PRECISION_HINT"] = _TYPE_NAMES[self._problem.dtype if there else "fp32"]
        return properties

    def _read_back(self) -> dict[str, Any]:
        """The properties in force.

        Raises:
            ReadBackError: one is not what was asked.
        """
        found = {key: _plain(self._compiled.get_property(key)) for key in self._asked}
        for key, asked in self._asked.items():
            if found[key] != asked:
                raise ReadBackError(f"{key} {asked} was asked, openvino has {found[key]}")
        return found

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """Copy the inputs and set them and a buffer for the output as the request's tensors."""
        own = binding.own_inputs(self._problem, inputs)
        self._ran = False
        self._prime(binding.kv_len(own))
        outputs = binding.output_buffers(self._problem, own)
        self._set_tensors(own, outputs)
        self._inputs, self._outputs = own, outputs  # what was bound before is let go only now
        infer = self._request.infer

        def call() -> None:
            try:
                infer(share_outputs=True)  # else the output is copied once more
            except RuntimeError as err:
                if binding.is_out_of_memory(err):
                    raise MemoryError(_words(err)) from err
                raise
            self._ran = True

        return call

    def _set_tensors(self, own: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        for name, array in {**own, **outputs}.items():
            self._request.set_tensor(name, _tensor(array, self._problem.dtype))

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

    def facts(self) -> Facts:
        """Properties of the compiled model and precisions of the graph that it executes.

        Raises:
            ReadBackError: a property is not what was asked, or a product computes in less than was asked.
        """
        found = self._read_back()
        hint = _plain(self._compiled.get_property("INFERENCE_PRECISION_HINT"))
        operators, products = self._executed()
        precision = _compute_precision(hint, products)
        asked = self._asked.get("INFERENCE_PRECISION_HINT")
        if asked == "f32" and self._problem.dtype != "bf16" and precision != "fp32":
            raise ReadBackError(f"precision f32 was asked, openvino computes products in {dict(products)}")
        return Facts(
            runtime_version=importlib.metadata.version("openvino"), device="cpu",
            device_name=str(self._core.get_property("CPU", "FULL_DEVICE_NAME")).strip(),
            threads=int(self._compiled.get_property("INFERENCE_NUM_THREADS")), compute_precision=precision,
            attention_kernel=UNKNOWN, kernel_evidence="",
            detail={
                **binding.cache_facts(self._problem, in_place=False),
                "properties": {**found, "INFERENCE_PRECISION_HINT": hint},
                "execution_devices": list(self._compiled.get_property("EXECUTION_DEVICES")),
                "executed_operators": operators, "precision_of_products": products,
                "primed_with_two_keys": self._first_kv_len == 1,
            },
        )  # fmt: skip

    def _executed(self) -> tuple[dict[str, int], dict[str, int]]:
        """Operators of the executed graph, and `operator precision` of those that are products."""
        kinds: Counter[str] = Counter()
        products: Counter[str] = Counter()
        for node in self._compiled.get_runtime_model().get_ops():
            facts = node.get_rt_info()
            kind, precision = str(facts["layerType"].value), str(facts["runtimePrecision"].value)
            kinds[kind] += 1
            if kind in _PRODUCTS:
                products[f"{kind} {_DTYPES.get(precision, precision)}"] += 1
        return dict(sorted(kinds.items())), dict(sorted(products.items()))

    def close(self) -> None:
        """Let go of the request, the model and what is bound."""
        del self._request, self._compiled, self._core


def _compute_precision(hint: str, products: Mapping[str, int]) -> str:
    """The precision of the products that the graph shows; what is inside fused nodes follows the hint."""
    found = {key.split()[-1] for key in products} | {_DTYPES.get(hint, UNKNOWN)}
    return next((p for p in ("bf16", "fp16", "fp32") if p in found), UNKNOWN)


def _read(core: Any, artifact: Artifact) -> Any:
    try:
        return core.read_model(os.fspath(artifact.path.absolute()))
    except RuntimeError as err:
        if binding.is_out_of_memory(err):
            raise MemoryError(_words(err)) from err
        if "OpConversionFailure" in str(err):
            raise UnsupportedError(f"openvino cannot convert {artifact.path.name!r}: {_words(err)}") from err
        raise ArtifactError(f"openvino cannot read {artifact.path.name!r}: {_words(err)}") from err


def _tensor(array: Array, dtype: str) -> Any:
    """An OpenVINO tensor on the array's memory."""
    import openvino as ov

    if dtype == "bf16" and array.dtype != np.bool_:
        return ov.Tensor(array.view(np.uint16), list(array.shape), ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)


def _plain(value: Any) -> Any:
    """A property as text or number: openvino.Type gives its short name."""
    if hasattr(value, "get_type_name"):
        return value.get_type_name()
    return value if isinstance(value, bool | int) else str(value)


def _words(error: Exception) -> str:
    """The line of OpenVINO's message that says something: its summary, else the first that names no source file.

    A summary that only names an operator is followed by what was wrong with it, the last line before.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    summary = [line.removeprefix("-- ") for line in lines if line.startswith(("-- No conversion", "-- Conversion is"))]
    spoken = [line for line in lines if line and not _NOISE.match(line)]
    if summary and summary[0].startswith("Conversion is failed") and "Summary:" in spoken[1:]:
        return f"{summary[0]}: {spoken[spoken.index('Summary:') - 1]}"
    return (summary or spoken or lines or [""])[0]
