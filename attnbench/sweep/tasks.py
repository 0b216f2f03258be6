"""What a worker can be asked to do. Every answer is JSON; arrays stay in the worker or in files of the run."""

import gc
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from attnbench import plugins
from attnbench.errors import AttnbenchError, ExportError, NotRunError, PluginError, ReadBackError, UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Array, Artifact, Exporter, Facts, Runtime, Session, Settings, Support, numpy_dtype
from attnbench.measure import allocator, caches, determinism, memory, numerics, roofline, timing
from attnbench.problem import Problem
from attnbench.reference import reference_output

# Small sizes for the call before the memory baseline: lazy initialisation must not count as this T's memory.
TINY_LEN = 8

# A timed call this much faster than a call on inputs it has not seen gives remembered results.
MEMOISED_RATIO = 5.0
MEMOISED_MIN_NS = 200_000
MEMOISED_TRIES = 10  # on a busy machine three calls in a row may each lose their time slice

INF = float("inf")
_FACT_TYPES: dict[str, Any] = {
    "runtime_version": str, "device": str, "device_name": str, "threads": int | None, "compute_precision": str,
    "attention_kernel": str, "kernel_evidence": str, "build_ms": int | float | None,
}  # fmt: skip


class WrongOutputError(AttnbenchError):
    """The output has another shape or dtype than the problem's, or a decode step gave a wrong cache."""


class DishonestError(AttnbenchError):
    """The timed call does not do the work: it was done ahead, or its result was remembered."""


class Tasks:
    """The requests of one worker; holds at most one loaded session, released with `stack`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._session: Session | None = None
        self._call: Callable[[], object] | None = None
        self._seed = 0
        self._is_slow_to_compile = False

    def export(self, *, exporter: str, problem: dict[str, Any], opset: int, path: str, seed: int) -> dict[str, Any]:
        """Write one artifact; {"artifact": ..., "export_ms": ...}.

        Raises:
            ExportError: the file is not where it was asked, or has another opset than was asked.
        """
        plugin: Exporter = plugins.load_exporter(exporter)
        example = Problem.from_dict(problem)
        _require(plugin.supports(example, opset))
        start = time.perf_counter_ns()
        artifact = plugin.export(example, opset, Path(path), seed=seed)
        export_ms = (time.perf_counter_ns() - start) / 1e6
        if artifact.path != Path(path):
            raise ExportError(f"exporter {exporter} was asked to write {path}, it says that it wrote {artifact.path}")
        if (found := written_opset(artifact.path)) != opset:
            raise ExportError(f"exporter {exporter} was asked for opset {opset}, its file has {found or 'none'}")
        return {"artifact": artifact_as_dict(artifact), "export_ms": export_ms}

    def load(
        self,
        *,
        runtime: str,
        problem: dict[str, Any],
        artifact: dict[str, Any] | None,
        settings: dict[str, Any],
        purpose: str | None = None,
    ) -> dict[str, Any]:
        """Load what is needed to run the problem; {"load_ms": ..., "allocator": what was set for the purpose}.

        purpose: "time" or "memory", if that will be measured.

        Raises:
            UnsupportedError: the runtime says that it cannot.
        """
        plugin: Runtime = plugins.load_runtime(runtime)
        target, file = Problem.from_dict(problem), artifact_from_dict(artifact)
        wanted = Settings(**settings)
        _require(plugin.supports(target, file))
        self._seed, self._is_slow_to_compile = wanted.seed, plugin.opt_in
        state = ""
        if purpose is not None:
            state = {"time": allocator.keep_heap, "memory": allocator.exact_heap}[purpose]()
        start = time.perf_counter_ns()
        self._session = self._stack.enter_context(plugin.load(target, file, wanted))
        return {"load_ms": (time.perf_counter_ns() - start) / 1e6, "allocator": state}

    def check(
        self,
        *,
        problem: dict[str, Any],
        input_class: str,
        reference: str,
        rows: list[int] | None,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """One call on inputs of a class, judged by the reference file; {"agreement": ..., "first_call_ns": ...}.

        The inputs stay bound for the timing.

        Raises:
            DishonestError: the output was right before the call.
            WrongOutputError: another shape or dtype than the problem's, or a wrong cache.
        """
        target = Problem.from_dict(problem)
        expected = np.load(reference, mmap_mode="r")
        seed = self._seed if seed is None else seed
        self._call = self._bind(target, input_class, seed)
        self._refuse_early_output(target, expected, rows)
        start = time.perf_counter_ns()
        self._call()
        first_call_ns = time.perf_counter_ns() - start
        agreement = numerics.compare(self._output(target, rows), expected)
        self._refuse_wrong_cache(target, input_class, seed)
        gc.collect()
        return {"agreement": asdict(agreement), "first_call_ns": first_call_ns}

    def _bind(self, target: Problem, input_class: str, seed: int) -> Callable[[], object]:
        assert self._session is not None
        inputs = make_inputs(target, seed=seed, input_class=input_class)
        call = self._session.bind(inputs)
        for array in inputs.values():  # a session that kept a view instead of a copy computes rubbish from here on
            array.fill(0)
        return call

    def _output(self, target: Problem, rows: list[int] | None) -> Array:
        assert self._session is not None
        output = self._session.outputs()
        shape = target.output_shape()
        if output.shape != shape:
            raise WrongOutputError(f"the output has shape {output.shape}, the problem's is {shape}")
        if output.dtype != numpy_dtype(target.dtype):
            raise WrongOutputError(f"the output is {output.dtype}, the problem's dtype is {target.dtype}")
        return output if rows is None else output[..., rows, :]

    def _refuse_wrong_cache(self, target: Problem, input_class: str, seed: int) -> None:
        assert self._session is not None
        if target.variant == "decode":
            inputs = make_inputs(target, seed=seed, input_class=input_class)
            fault = caches.session_fault(self._session, target, inputs, seed=self._seed)
            if fault:
                raise WrongOutputError(fault)

    def _refuse_early_output(self, target: Problem, expected: Array, rows: list[int] | None) -> None:
        try:
            early = self._output(target, rows)
        except NotRunError:
            return
        agreement = numerics.compare(early, expected)
        if agreement.worst_row_rel_err < 0.05:
            raise DishonestError(
                "the output was right before the timed call ran: bind() or outputs() does the work; "
                "compute in the call that bind() returns"
            )

    def determinism(self, *, problem: dict[str, Any]) -> dict[str, Any]:
        """Same bits for the same question? {"answers": property -> yes, no or None, "reasons": why None}."""
        assert self._session is not None
        if self._is_slow_to_compile:
            reason = "compiled for each shape, which takes seconds: not asked"
            names = determinism.PROPERTIES
            return {"answers": dict.fromkeys(names), "reasons": dict.fromkeys(names, reason)}
        return asdict(determinism.ask_session(self._session, Problem.from_dict(problem), seed=self._seed))

    def ping(self) -> dict[str, Any]:
        """Answer at once."""
        return {}

    def bind(self, *, problem: dict[str, Any], repeat: int = 1) -> dict[str, Any]:
        """Bind inputs of the normal class without judging anything; the call to time runs `repeat` times."""
        call = self._bind(Problem.from_dict(problem), "normal", self._seed)

        def repeated() -> None:
            for _ in range(repeat):
                call()

        self._call = call if repeat == 1 else repeated
        return {}

    def spike(self, *, size_bytes: int) -> dict[str, Any]:
        """Measure a call that holds size_bytes for a millisecond, as the memory of a case is measured."""

        def touch(count: int) -> None:
            held = np.full(count, 1, np.uint8)
            time.sleep(0.001)
            del held

        touch(1)  # as the tiny call of a case: what NumPy sets up at its first call is not the spike
        return asdict(memory.measure_peak(lambda: touch(size_bytes)))

    def oracle_speed(self, *, problem: dict[str, Any]) -> dict[str, Any]:
        """Seconds and peak bytes, beyond the inputs, of the judge's first call in this process."""
        target = Problem.from_dict(problem)
        inputs, weights = make_inputs(target), make_weights(target)
        found = memory.measure_peak(lambda: reference_output(target, inputs, weights))
        return {"seconds": found.first_call_ns / 1e9, "peak_bytes": found.peak_bytes}

    def warm_up(self, *, cpus: list[int] | None = None, is_warm: bool = False) -> dict[str, Any]:
        """Warm up the bound call unless it is warm, then stay on these CPUs; {"typical_ns": of a call, or None}."""
        assert self._call is not None
        typical_ns = None if is_warm else timing.warm_up(self._call).typical_ns
        if cpus is not None:
            timing.pin_to(cpus)
        return {"typical_ns": typical_ns}

    def visit(self, *, drop: int, keep: int) -> dict[str, Any]:
        """Time the bound call: `drop` calls unseen, then `keep` samples."""
        assert self._call is not None
        return asdict(timing.visit(self._call, drop=drop, keep=keep))

    def recheck(self, *, problem: dict[str, Any], reference: str, rows: list[int] | None) -> dict[str, Any]:
        """Whether the last timed call still computed what it should; {"agreement": ...}.

        Raises:
            WrongOutputError: another shape or dtype than the problem's, or a wrong cache.
        """
        target = Problem.from_dict(problem)
        agreement = numerics.compare(self._output(target, rows), np.load(reference, mmap_mode="r"))
        self._refuse_wrong_cache(target, "normal", self._seed)
        return {"agreement": asdict(agreement)}

    def refuse_memoised(
        self, *, problem: dict[str, Any], median_ns: int, cpus: list[int] | None = None
    ) -> dict[str, Any]:
        """Compare the timed median with calls on inputs never seen before; {"unseen_ns": the quickest of up to ten}.

        `cpus`: to run on from here, since several workers are asked at once.

        Raises:
            DishonestError: calls on unseen inputs are over five times slower.
        """
        target = Problem.from_dict(problem)
        if cpus is not None:
            timing.pin_to(cpus)
        unseen_ns = 0
        for attempt in range(MEMOISED_TRIES):
            call = self._bind(target, "normal", self._seed + 1_000_003 + attempt)
            start = time.perf_counter_ns()
            call()
            took_ns = time.perf_counter_ns() - start
            unseen_ns = min(unseen_ns or took_ns, took_ns)
            if unseen_ns < MEMOISED_RATIO * median_ns or unseen_ns - median_ns < MEMOISED_MIN_NS:
                return {"unseen_ns": unseen_ns}
        raise DishonestError(
            f"a call on inputs it has not seen takes {unseen_ns / 1e6:.3g} ms, the timed median is "
            f"{median_ns / 1e6:.3g} ms: results are remembered, not computed"
        )

    def supports(
        self, *, plugin: str, problem: dict[str, Any], opset: int | None, artifact: dict[str, Any] | None
    ) -> dict[str, Any]:
        """What a plug-in itself says: an exporter of an opset, a runtime (opset None) of a file; {"ok", "reason"}."""
        target = Problem.from_dict(problem)
        if opset is not None:
            return asdict(plugins.load_exporter(plugin).supports(target, opset))
        return asdict(plugins.load_runtime(plugin).supports(target, artifact_from_dict(artifact)))

    def probe(self, *, problem: dict[str, Any], fill: str) -> dict[str, Any]:
        """One probe (see `attnbench.probes`) on the loaded session; {"ok", "how", "error", "limit", ...}."""
        from attnbench.sweep import probing

        assert self._session is not None
        return probing.run_probe(self._session, Problem.from_dict(problem), fill, self._seed)

    def onnx_cases(self, *, folder: str) -> dict[str, Any]:
        """Write the cases of the onnx package for `Attention`; {"cases": name, opset and folder of each}."""
        from attnbench.sweep import onnx_cases

        return {"cases": onnx_cases.write_cases(Path(folder))}

    def onnx_case(self, *, runtime: str, folder: str) -> dict[str, Any]:
        """Run one of them; as `probe`, or {"unsupported": why}."""
        from attnbench.sweep import onnx_cases, probing

        run_model = getattr(plugins.load_runtime(runtime), "run_model", None)
        if run_model is None:
            return {"unsupported": f"{runtime} runs files of its own problems only: it has no run_model"}
        expected = onnx_cases.read_tensors(Path(folder), "out")
        found = run_model(Path(folder) / "model.onnx", onnx_cases.read_tensors(Path(folder), "in"))
        answer = probing.judge_arrays([(name, found[name], array) for name, array in expected.items()])
        if not answer["ok"]:
            ignored = onnx_cases.ignored_attributes(Path(folder), found[next(iter(expected))])
            answer["how"] = "; ".join(filter(None, [ignored, answer["how"]]))
        return answer

    def facts(self) -> dict[str, Any]:
        """What really ran, as the session tells it."""
        assert self._session is not None
        return facts_as_dict(self._session.facts())

    def measure_memory(self, *, problem: dict[str, Any], static_shape: bool = False) -> dict[str, Any]:
        """Peak and kept bytes of calls at this size, beyond a loaded, bound, once called process."""
        target = Problem.from_dict(problem)
        if not static_shape:
            self._bind(determinism.shortened(target, TINY_LEN), "normal", self._seed)()
        call = self._bind(target, "normal", self._seed)
        return asdict(memory.measure_peak(call))

    def reference(self, *, problem: dict[str, Any], seed: int, input_class: str, folder: str) -> dict[str, Any]:
        """The judge's output of an input class, as a file, with the floor and torch eager's own error."""
        from attnbench.sweep.oracle import make_reference

        return make_reference(Problem.from_dict(problem), seed, input_class, Path(folder))

    def machine_peak(self, *, dtype: str, threads: int, seconds: float) -> dict[str, Any]:
        """The most GFLOP/s that any library reaches here in this dtype."""
        gflops_per_s, by = roofline.measure_peak_flops(dtype, threads, seconds)
        return {"gflops_per_s": gflops_per_s, "by": by, "threads": threads}

    def machine_bandwidth(self, *, threads: int, seconds: float) -> dict[str, Any]:
        """The most GB/s that copying in memory reaches here."""
        return {"gbytes_per_s": roofline.measure_bandwidth(threads, seconds), "by": "copy", "threads": threads}


def facts_as_dict(facts: Facts) -> dict[str, Any]:
    """The facts as JSON.

    Raises:
        ReadBackError: one of them is not of the kind that it must be.
    """
    fields = asdict(facts)
    for name, kind in _FACT_TYPES.items():
        value = fields[name]
        if (
            not isinstance(value, kind)
            or isinstance(value, bool)
            or (name == "build_ms" and not 0 <= (value or 0) < INF)
        ):
            raise ReadBackError(
                f"facts of the runtime: {name} must be {getattr(kind, '__name__', kind)}, got {value!r}"
            )
    fields["detail"] = json.loads(json.dumps(fields["detail"], default=str))
    return fields


def _require(support: object) -> None:
    """Go on only with a yes.

    Raises:
        UnsupportedError: a no, with its reason.
        PluginError: the plug-in gave something else than a `Support`.
    """
    if not isinstance(support, Support):
        raise PluginError(f"supports() gave {support!r} instead of an attnbench.interfaces.Support")
    if not support.ok:
        raise UnsupportedError(support.reason or "the plug-in gives no reason")


def written_opset(path: Path) -> int | None:
    """The opset of the default domain that a file declares; None: it declares none."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)


def artifact_as_dict(artifact: Artifact) -> dict[str, Any]:
    """The artifact as JSON, with the sha256 of the file as it is on disk.

    Raises:
        AttnbenchError: the exporter's sha256 is not that of the file, or the file is larger than it says.
    """
    found = hashlib.sha256(artifact.path.read_bytes()).hexdigest()
    if artifact.sha256 != found:
        raise AttnbenchError(f"exporter {artifact.exporter} says sha256 {artifact.sha256}, the file has {found}")
    size_bytes = artifact.path.stat().st_size
    if type(artifact.size_bytes) is not int or artifact.size_bytes < size_bytes:
        raise AttnbenchError(
            f"exporter {artifact.exporter} says {artifact.size_bytes} bytes, the file has {size_bytes}"
        )
    return {**asdict(artifact), "path": str(artifact.path), "problem": artifact.problem.as_dict()}


def artifact_from_dict(fields: dict[str, Any] | None) -> Artifact | None:
    """The inverse of `artifact_as_dict`; None stays None."""
    if fields is None:
        return None
    return Artifact(**{**fields, "path": Path(fields["path"]), "problem": Problem.from_dict(fields["problem"])})
