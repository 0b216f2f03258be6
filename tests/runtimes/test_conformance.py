"""Our own runtimes keep the contract, and `attnbench.conformance` finds those that do not."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from attnbench import conformance
from attnbench.conformance import ConformanceError
from attnbench.errors import NotRunError, UnavailableError, UnsupportedError
from attnbench.inputs import make_weights
from attnbench.interfaces import SUPPORTED, Array, Artifact, Facts, Probe, Runtime, Settings, Support, numpy_dtype
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters.contrib import OnnxContrib
from attnbench_runtimes.null import Null
from attnbench_runtimes.openvino import OpenVino
from attnbench_runtimes.ort import OrtCpu
from attnbench_runtimes.torch_arms import TorchCompile, TorchEager, TorchSdpa

PROBLEMS = [
    Problem.make(seq_len=24, num_heads=4, head_dim=16),
    Problem.make(variant="cross", seq_len=24, num_heads=4, head_dim=16),
    Problem.make(part="core", variant="causal", seq_len=24, num_heads=4, head_dim=16),
    Problem.make(variant="causal", seq_len=24, num_heads=4, head_dim=16, dtype="fp16"),
    Problem.make(variant="causal", seq_len=24, num_heads=4, head_dim=16, dtype="bf16"),
]


@pytest.mark.parametrize("runtime", [TorchEager(), TorchSdpa(), OrtCpu(), OpenVino()], ids=lambda r: r.name)
def test_our_runtimes_keep_the_contract(runtime: Runtime) -> None:
    conformance.check_runtime(runtime, PROBLEMS)


@pytest.mark.parametrize("exporter", ["onnx-attention", "onnx-contrib"])
@pytest.mark.parametrize("runtime", [OrtCpu(), OpenVino()], ids=lambda r: r.name)
def test_our_runtimes_keep_the_contract_with_every_exporter(
    runtime: Runtime, exporter: str, exported: Callable[..., Artifact]
) -> None:
    from attnbench.plugins import load_exporter

    def export(problem: Problem, path: Path, seed: int) -> Artifact:
        loaded = load_exporter(exporter)
        return loaded.export(problem, loaded.opsets[0], path, seed=seed)

    conformance.check_runtime(runtime, PROBLEMS[:3], export=export)


def test_a_compiled_module_keeps_the_contract() -> None:
    if not TorchCompile().probe().available:
        pytest.skip(TorchCompile().probe().reason)
    conformance.check_runtime(TorchCompile(), PROBLEMS[1:2])


def test_null_keeps_the_protocol_though_it_computes_nothing() -> None:
    conformance.check_runtime(Null(), computes=False)
    with pytest.raises(ConformanceError, match="off the float64 reference"):
        conformance.check_runtime(Null())


class HonestSession:
    """Attention by the float64 reference. Subclasses lie in one place each."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        self.weights = make_weights(problem, seed=settings.seed)
        self.y: Array | None = None

    def sized(self, inputs: Mapping[str, Array]) -> Problem:
        arrays = list(inputs.values())
        return self.problem.at(q_len=arrays[0].shape[-2], kv_len=arrays[-1].shape[-2], batch_size=arrays[0].shape[0])

    def compute(self, inputs: Mapping[str, Array]) -> Array:
        result = reference_output(self.sized(inputs), inputs, self.weights)
        return result.astype(numpy_dtype(self.problem.dtype))

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        own = {name: array.copy() for name, array in inputs.items()}
        self.y = None

        def call() -> None:
            self.y = self.compute(own)

        return call

    def outputs(self) -> Array:
        if self.y is None:
            raise NotRunError("nothing ran")
        return self.y.copy()

    def facts(self) -> Facts:
        return Facts(
            runtime_version="1.0", device="cpu", device_name="a cpu", threads=self.settings.threads,
            compute_precision="fp32", attention_kernel="math", kernel_evidence="pinned",
        )  # fmt: skip


class Honest:
    name = "honest"
    takes_artifact = False
    opt_in = False
    preload: tuple[str, ...] = ()
    session_type: type[HonestSession] = HonestSession

    def probe(self) -> Probe:
        return Probe(available=True, version="1.0")

    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        return SUPPORTED

    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> Iterator[HonestSession]:
        if settings.device != "cpu" or settings.options:
            raise UnsupportedError("cpu and no options")
        yield self.session_type(problem, settings)


def runtime_of(session: type[HonestSession]) -> Honest:
    runtime = Honest()
    runtime.session_type = session
    return runtime


class CachesOutput(HonestSession):
    """Answers each shape with what it computed for it first."""

    def compute(self, inputs: Mapping[str, Array]) -> Array:
        cache: dict[Any, Array] = self.__dict__.setdefault("cache", {})
        key = tuple(array.shape for array in inputs.values())
        return cache.setdefault(key, super().compute(inputs))


class ComputesInBind(HonestSession):
    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        ready = self.compute(inputs)
        self.y = None

        def call() -> None:
            self.y = ready

        return call


class WrongDtype(HonestSession):
    def compute(self, inputs: Mapping[str, Array]) -> Array:
        return super().compute(inputs).astype(np.float64)


class WrongShape(HonestSession):
    def compute(self, inputs: Mapping[str, Array]) -> Array:
        return super().compute(inputs)[None]


class IgnoresSeed(HonestSession):
    def __init__(self, problem: Problem, settings: Settings) -> None:
        super().__init__(problem, replace(settings, seed=0))


class KeepsTheCallersArrays(HonestSession):
    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        self.y = None

        def call() -> None:
            self.y = self.compute(inputs)

        return call


class HandsOutItsBuffer(HonestSession):
    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        own = {name: array.copy() for name, array in inputs.items()}
        buffer = np.zeros(next(iter(own.values())).shape, next(iter(own.values())).dtype)
        self.y = None

        def call() -> None:
            if self.y is None:
                buffer[...] = self.compute(own)
                self.y = buffer

        return call

    def outputs(self) -> Array:
        super().outputs()
        assert self.y is not None
        return self.y


class AnswersBeforeTheCall(HonestSession):
    def outputs(self) -> Array:
        return np.zeros(self.problem.output_shape(), np.float32) if self.y is None else self.y.copy()


class KeepsOutputsOverBind(HonestSession):
    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        before = self.y
        call = super().bind(inputs)
        self.y = before
        return call


class ScaleOffByOnePercent(HonestSession):
    def compute(self, inputs: Mapping[str, Array]) -> Array:
        return super().compute(inputs) * np.float32(1.01)


class ForgetsTheMask(HonestSession):
    def compute(self, inputs: Mapping[str, Array]) -> Array:
        if self.problem.variant == "causal":
            plain = replace(self.sized(inputs), variant="cross" if self.problem.part == "core" else "self", mask="none")
            return reference_output(plain, inputs, self.weights).astype(numpy_dtype(self.problem.dtype))
        return super().compute(inputs)


class OtherThreads(HonestSession):
    def facts(self) -> Facts:
        return replace(super().facts(), threads=7)


class KernelWithoutEvidence(HonestSession):
    def facts(self) -> Facts:
        return replace(super().facts(), kernel_evidence="")


class UnknownPrecision(HonestSession):
    def facts(self) -> Facts:
        return replace(super().facts(), compute_precision="half")


class DetailIsNotJson(HonestSession):
    def facts(self) -> Facts:
        return replace(super().facts(), detail={"array": np.zeros(2)})


class NoVersion(HonestSession):
    def facts(self) -> Facts:
        return replace(super().facts(), runtime_version="")


def test_an_honest_runtime_passes() -> None:
    conformance.check_runtime(Honest())


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (CachesOutput, "off the float64 reference"),
        (ComputesInBind, "it computed ahead"),
        (WrongDtype, "must be float32 for fp32, got float64"),
        (WrongShape, r"must have shape \(1, 6, 64\), got \(1, 1, 6, 64\)"),
        (IgnoresSeed, "off the float64 reference"),
        (KeepsTheCallersArrays, "inputs must be copied by bind"),
        (HandsOutItsBuffer, "outputs.. must be a copy"),
        (AnswersBeforeTheCall, "must raise NotRunError"),
        (KeepsOutputsOverBind, "after bind.. and before the call must raise NotRunError"),
        (ScaleOffByOnePercent, "off the float64 reference"),
        (ForgetsTheMask, "causal .* off the float64 reference"),
        (OtherThreads, "threads 1 were asked, facts.. has 7"),
        (KernelWithoutEvidence, "kernel 'math' with evidence ''"),
        (UnknownPrecision, "compute_precision must be one of"),
        (DetailIsNotJson, "plain JSON"),
        (NoVersion, "has version '', probe.. had '1.0'"),
    ],
)  # fmt: skip
def test_a_lying_session_is_caught(session: type[HonestSession], words: str) -> None:
    problems = [PROBLEMS[2]] if session is ForgetsTheMask else PROBLEMS[:1]
    with pytest.raises(ConformanceError, match=words):
        conformance.check_runtime(runtime_of(session), problems)


class TakesAnyDevice(Honest):
    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> Iterator[HonestSession]:
        yield HonestSession(problem, settings)


class SaysNoWithoutAReason(Honest):
    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        return Support(ok=False)


class SupportsNothing(Honest):
    def supports(self, problem: Problem, artifact: Artifact | None) -> Support:
        return Support(ok=False, reason="never")


class LoadsOnce(Honest):
    loaded = False

    @contextlib.contextmanager
    def load(self, problem: Problem, artifact: Artifact | None, settings: Settings) -> Iterator[HonestSession]:
        if self.loaded:
            raise NotRunError("again?")
        self.loaded = True
        yield HonestSession(problem, settings)


class TwoWordName(Honest):
    name = "two words"


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        (TakesAnyDevice(), "load.. must refuse Settings.*no-such-device"),
        (SaysNoWithoutAReason(), "says no without a reason"),
        (SupportsNothing(), "there is nothing to check"),
        (LoadsOnce(), "raised NotRunError: again"),
        (TwoWordName(), "must be one word"),
    ],
)
def test_a_runtime_that_breaks_the_contract_is_caught(runtime: Honest, words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        conformance.check_runtime(runtime, PROBLEMS[:1])


def test_an_unavailable_runtime_cannot_be_checked() -> None:
    class NotHere(Honest):
        def probe(self) -> Probe:
            return Probe(available=False, reason="no driver", fix="install it")

    with pytest.raises(UnavailableError, match="no driver; install it"):
        conformance.check_runtime(NotHere())


class FreezesADim(OnnxContrib):
    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        artifact = super().export(problem, opset, path, seed=seed)
        model = onnx.load(path)
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 24
        onnx.save(model, path)
        return rehashed(artifact)


class OtherOpset(OnnxContrib):
    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        return replace(super().export(problem, 18 if opset == 20 else opset, path, seed=seed), opset=opset)


class LeavesAFile(OnnxContrib):
    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        artifact = super().export(problem, opset, path, seed=seed)
        path.with_name("leftover").write_text("x", encoding="utf-8")
        return artifact


class SameWeights(OnnxContrib):
    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        return super().export(problem, opset, path, seed=0)


class WrongHash(OnnxContrib):
    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        return replace(super().export(problem, opset, path, seed=seed), sha256="0" * 64)


class WrongScale(OnnxContrib):
    def export(self, problem: Problem, opset: int, path: Path, *, seed: int) -> Artifact:
        artifact = super().export(problem, opset, path, seed=seed)
        model = onnx.load(path)
        (scale,) = (a for node in model.graph.node for a in node.attribute if a.name == "scale")
        scale.f *= 1.01
        onnx.save(model, path)
        return rehashed(artifact)


def rehashed(artifact: Artifact) -> Artifact:
    import hashlib

    blob = artifact.path.read_bytes()
    return replace(artifact, sha256=hashlib.sha256(blob).hexdigest(), size_bytes=len(blob))


@pytest.mark.parametrize(
    ("exporter", "words"),
    [
        (FreezesADim(), "the file has .*24.*, promised was"),
        (OtherOpset(), r"opset 20 was asked, the file has \[18\]"),
        (LeavesAFile(), "something else was left"),
        (SameWeights(), "another seed gave the same weights"),
        (WrongHash(), "artifact.sha256 is 0000"),
        (WrongScale(), "run by ort-cpu at .* off the float64 reference"),
    ],
)
def test_a_lying_exporter_is_caught(exporter: OnnxContrib, words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        conformance.check_exporter(exporter, PROBLEMS[:1])


def test_a_runtime_without_a_cpu_is_asked_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TorchSdpa()
    monkeypatch.setattr(runtime, "probe", lambda: Probe(available=True, version="1", devices=("cuda:0",)))
    assert conformance._settings(runtime).device == "cuda:0"
    assert conformance._settings(OrtCpu()).device == "cpu"
