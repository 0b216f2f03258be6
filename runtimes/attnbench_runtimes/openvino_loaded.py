"""A file that OpenVINO has compiled: with which properties, and what of them is read back."""

import importlib.metadata
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnbench.errors import ArtifactError, ReadBackError, UnsupportedError
from attnbench.interfaces import UNKNOWN, Array, Artifact, Facts, Settings
from attnbench_runtimes import binding

# `asked`: the problem's own precision; `default`: what OpenVINO chooses (bf16 for fp32 files on CPUs that have it).
PRECISION_OPTION = "inference_precision"

_TYPE_NAMES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_DTYPES = {name: dtype for dtype, name in _TYPE_NAMES.items()}
_CAPABILITIES = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16"}
_NOISE = re.compile(r"Exception from |Check '.*' failed at|FrontEnd API failed|Loading input model|Model wasn't fully")
_PRODUCTS = ("FullyConnected", "MatMul", "ScaledDotProductAttention")


class CompiledFile:
    """A compiled model with one infer request, whose properties are those asked."""

    def __init__(self, artifact: Artifact, settings: Settings, dtype: str) -> None:
        import openvino as ov

        self._dtype = dtype
        self._core = ov.Core()
        self._asked = self._properties(settings)
        model = _read(self._core, artifact)
        try:
            self._compiled = self._core.compile_model(model, "CPU", self._asked)
        except RuntimeError as err:
            if binding.is_out_of_memory(err):
                raise MemoryError(words(err)) from err
            raise UnsupportedError(f"openvino cannot compile {artifact.path.name!r}: {words(err)}") from err
        self._request = self._compiled.create_infer_request()
        self._ran = False
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
            there = _CAPABILITIES[self._dtype] in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            properties["INFERENCE_PRECISION_HINT"] = _TYPE_NAMES[self._dtype if there else "fp32"]
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

    def _inferring(self) -> Callable[[], object]:
        """The call that runs what the request holds."""
        infer = self._request.infer

        def call() -> None:
            try:
                infer(share_outputs=True)  # else the output is copied once more
            except RuntimeError as err:
                if binding.is_out_of_memory(err):
                    raise MemoryError(words(err)) from err
                raise
            self._ran = True

        return call

    def _more_facts(self) -> Mapping[str, Any]:
        """What a kind of session has to tell beside."""
        return {}

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
        if asked == "f32" and self._dtype != "bf16" and precision != "fp32":
            raise ReadBackError(f"precision f32 was asked, openvino computes products in {dict(products)}")
        return Facts(
            runtime_version=importlib.metadata.version("openvino"), device="cpu",
            device_name=str(self._core.get_property("CPU", "FULL_DEVICE_NAME")).strip(),
            threads=int(self._compiled.get_property("INFERENCE_NUM_THREADS")), compute_precision=precision,
            attention_kernel=UNKNOWN, kernel_evidence="",
            detail={
                **self._more_facts(),
                "properties": {**found, "INFERENCE_PRECISION_HINT": hint},
                "execution_devices": list(self._compiled.get_property("EXECUTION_DEVICES")),
                "executed_operators": operators, "precision_of_products": products,
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
            raise MemoryError(words(err)) from err
        if "OpConversionFailure" in str(err):
            raise UnsupportedError(f"openvino cannot convert {artifact.path.name!r}: {words(err)}") from err
        raise ArtifactError(f"openvino cannot read {artifact.path.name!r}: {words(err)}") from err


def tensor_on(array: Array, dtype: str) -> Any:
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


def words(error: Exception) -> str:
    """The line of OpenVINO's message that says something: its summary, else the first that names no source file.

    A summary that only names an operator is followed by what was wrong with it, the last line before.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    summary = [line.removeprefix("-- ") for line in lines if line.startswith(("-- No conversion", "-- Conversion is"))]
    spoken = [line for line in lines if line and not _NOISE.match(line)]
    if summary and summary[0].startswith("Conversion is failed") and "Summary:" in spoken[1:]:
        return f"{summary[0]}: {spoken[spoken.index('Summary:') - 1]}"
    first = (summary or spoken or lines or [""])[0]
    return f"out of memory ({first})" if first == "std::bad_alloc" else first
