"""What a worker can be asked to do. Every answer is JSON; arrays stay in the worker or in files of the run."""

import gc
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from attnbench import plugins
from attnbench.errors import ExportError, PluginError, ReadBackError, UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Array, Artifact, Exporter, Facts, ModelSession, Runtime, Session, Settings, Support
from attnbench.measure import allocator, determinism, memory, roofline, timing
from attnbench.model_problem import AnyProblem, ModelProblem, problem_from_dict
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.sweep import honesty, judging, model_runs
from attnbench.sweep.artifacts import artifact_as_dict, artifact_from_dict, written_opset
from attnbench.sweep.device_tasks import HOST, DeviceWork
from attnbench.sweep.model_runs import GivenInputs

# Small sizes for the call before the memory baseline: lazy initialisation must not count as this T's memory.
TINY_LEN = 8
MEMOISED_RATIO = honesty.RATIO

INF = float("inf")
_FACT_TYPES: dict[str, Any] = {
    "runtime_version": str, "device": str, "device_name": str, "threads": int | None, "compute_precision": str,
    "attention_kernel": str, "kernel_evidence": str, "build_ms": int | float | None,
}  # fmt: skip


class Tasks:
    """The requests of one worker; holds at most one loaded session, released with `stack`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._session: Session | ModelSession | None = None
        self._call: Callable[[], object] | None = None
        self._given: GivenInputs | None = None
        self._device: DeviceWork | None = None  # of a session on a GPU
        self._seed = 0
        self._is_slow_to_compile = False
        self._checked: tuple[AnyProblem, int] | None = None  # bound by `check`, and its first call in ns

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
        inputs: str | None = None,
        timed: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Load what is needed to run the problem; {"load_ms": ..., "allocator": what was set for the purpose}.

        purpose: "time" or "memory", if that will be measured.
        inputs: of a model, a .npz whose arrays are bound instead of drawn ones.
        timed: on a GPU, by whose clock and with which caches (`runtime_options.TIMING`); none: by the host's.

        Raises:
            UnsupportedError: the runtime says that it cannot.
        """
        plugin: Runtime = plugins.load_runtime(runtime)
        target, file = problem_from_dict(problem), artifact_from_dict(artifact)
        wanted = Settings(**settings)
        opened = self._opening(plugin, target, file, wanted)
        self._given = GivenInputs(Path(inputs), wanted.seed) if inputs is not None else None
        self._seed, self._is_slow_to_compile = wanted.seed, plugin.opt_in
        state = ""
        if purpose is not None:
            state = {"time": allocator.keep_heap, "memory": allocator.exact_heap}[purpose]()
        if wanted.device.startswith("cuda"):
            self._device = DeviceWork(wanted.device, timed or {})
        start = time.perf_counter_ns()
        self._session = self._stack.enter_context(opened)
        load_ms = (time.perf_counter_ns() - start) / 1e6
        if self._device is not None:
            self._device.require(self._session)
        return {"load_ms": load_ms, "allocator": state}

    @staticmethod
    def _opening(
        plugin: Runtime, target: AnyProblem, file: Artifact | None, wanted: Settings
    ) -> AbstractContextManager[Session | ModelSession]:
        """What loads when it is entered."""
        if isinstance(target, Problem):
            _require(plugin.supports(target, file))
            return plugin.load(target, file, wanted)
        load_model = getattr(plugin, "load_model", None)
        if load_model is None or file is None:
            raise UnsupportedError(f"{plugin.name} runs the built-in attention only, no models of yours")
        opened: AbstractContextManager[ModelSession] = load_model(target, file, wanted)
        return opened

    def check(
        self,
        *,
        problem: dict[str, Any],
        input_class: str,
        reference: str,
        rows: list[int] | None,
        limits: dict[str, Any] | None = None,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """One call on inputs of a class, judged by the reference file; {"agreement", "output", "first_call_ns"}.

        The inputs stay bound for the timing. limits: of a model, by output.

        Raises:
            DishonestError: the output was right before the call.
            WrongOutputError: another shape or dtype than the problem's, or a wrong cache.
        """
        assert self._session is not None
        target = problem_from_dict(problem)
        seed = self._seed if seed is None else seed
        inputs = judging.Bound(target=target, input_class=input_class, seed=seed, weights_seed=self._seed)
        judged_by = judging.make_judge(self._session, inputs, reference, rows, limits)
        self._call = self._bind(target, input_class, seed)
        judging.refuse_early_output(judged_by)
        start = time.perf_counter_ns()
        self._call()
        first_call_ns = time.perf_counter_ns() - start
        self._checked = (target, first_call_ns)
        found = judged_by.answer()
        gc.collect()
        return {**found, "first_call_ns": first_call_ns}

    def _bind(self, target: AnyProblem, input_class: str, seed: int) -> Callable[[], object]:
        inputs = self._inputs(target, input_class, seed)
        call = cast(Session, self._session).bind(inputs)
        for array in inputs.values():  # a session that kept a view instead of a copy computes rubbish from here on
            array.fill(0)
        return call

    def _inputs(self, target: AnyProblem, input_class: str, seed: int) -> dict[str, Array]:
        if self._given is not None and isinstance(target, ModelProblem):
            return self._given.arrays(target, seed)
        return make_inputs(target, seed=seed, input_class=input_class)

    def run_model(self, *, problem: dict[str, Any], path: str) -> dict[str, Any]:
        """One call of a loaded model; its outputs as a reference for others (see `model_runs.write_reference`)."""
        target = problem_from_dict(problem)
        assert isinstance(target, ModelProblem)
        self._bind(target, "normal", self._seed)()
        return model_runs.write_reference(cast(ModelSession, self._session), target, Path(path))

    def save_outputs(self, *, path: str) -> dict[str, Any]:
        """Write the outputs of a model's last call as a .npz; {}."""
        model_runs.save_outputs(cast(ModelSession, self._session), Path(path))
        return {}

    def determinism(self, *, problem: dict[str, Any]) -> dict[str, Any]:
        """Same bits for the same question? {"answers": property -> yes, no or None, "reasons": why None}."""
        if self._is_slow_to_compile:
            reason = "compiled for each shape, which takes seconds: not asked"
            names = determinism.PROPERTIES
            return {"answers": dict.fromkeys(names), "reasons": dict.fromkeys(names, reason)}
        session = cast(Session, self._session)
        return asdict(determinism.ask_session(session, Problem.from_dict(problem), seed=self._seed))

    def ping(self) -> dict[str, Any]:
        """Answer at once."""
        return {}

    def bind(self, *, problem: dict[str, Any], repeat: int = 1) -> dict[str, Any]:
        """Bind inputs of the normal class without judging anything; the call to time runs `repeat` times."""
        call = self._bind(problem_from_dict(problem), "normal", self._seed)

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
        """Warm up the bound call unless it is warm, then stay on these CPUs.

        Returns:
            {"typical_ns": of a call, or None, "scope": whose clock the visits are timed by}.

        Raises:
            DishonestError: of a model, bind() does the work.
        """
        assert self._call is not None
        if self._device is not None:
            typical_ns = self._device.warm(self._session, self._call, is_warm=is_warm)
        else:
            typical_ns = None if is_warm else timing.warm_up(self._call).typical_ns
            self._refuse_work_in_bind(typical_ns)
        if cpus is not None:
            timing.pin_to(cpus)
        return {"typical_ns": typical_ns, "scope": self._device.scope if self._device else HOST}

    def _refuse_work_in_bind(self, typical_ns: float | None) -> None:
        """Of the built-in attention the roofline tells; a model has none. What `check` bound stays bound."""
        if self._checked is None or not isinstance(self._checked[0], ModelProblem):
            return
        target, first_call_ns = self._checked
        bind, call_ns = cast(ModelSession, self._session).bind, int(typical_ns or first_call_ns)
        honesty.refuse_work_in_bind(bind, lambda seed: self._inputs(target, "normal", seed), self._seed, call_ns)
        self._call = self._bind(target, "normal", self._seed)

    def visit(self, *, drop: int, keep: int) -> dict[str, Any]:
        """Time the bound call: `drop` calls unseen, then `keep` samples."""
        assert self._call is not None
        if self._device is not None:
            return asdict(self._device.visit(self._call, drop=drop, keep=keep))
        return asdict(timing.visit(self._call, drop=drop, keep=keep))

    def recheck(
        self,
        *,
        problem: dict[str, Any],
        reference: str,
        rows: list[int] | None,
        limits: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Whether the last timed call still computed what it should; {"agreement": ..., "output": ...}.

        Raises:
            WrongOutputError: another shape or dtype than the problem's, or a wrong cache.
        """
        assert self._session is not None
        target = problem_from_dict(problem)
        inputs = judging.Bound(target=target, input_class="normal", seed=self._seed, weights_seed=self._seed)
        return judging.make_judge(self._session, inputs, reference, rows, limits).answer()

    def refuse_memoised(
        self, *, problem: dict[str, Any], median_ns: int, cpus: list[int] | None = None
    ) -> dict[str, Any]:
        """Compare the timed median with calls on inputs never seen before; {"unseen_ns": the quickest of up to ten}.

        `cpus`: to run on from here, since several workers are asked at once.

        Raises:
            DishonestError: calls on unseen inputs are over five times slower.
        """
        target = problem_from_dict(problem)
        if cpus is not None:
            timing.pin_to(cpus)
        unseen_ns = honesty.unseen_call_ns(lambda seed: self._bind(target, "normal", seed), self._seed, median_ns)
        return {"unseen_ns": unseen_ns}

    def supports(
        self, *, plugin: str, problem: dict[str, Any], opset: int | None, artifact: dict[str, Any] | None
    ) -> dict[str, Any]:
        """What a plug-in itself says: an exporter of an opset, a runtime (opset None) of a file; {"ok", "reason"}."""
        target = Problem.from_dict(problem)
        if opset is not None:
            return asdict(plugins.load_exporter(plugin).supports(target, opset))
        return asdict(plugins.load_runtime(plugin).supports(target, artifact_from_dict(artifact)))

    def probe(self, *, problem: dict[str, Any], fill: str, limit_of: str = "") -> dict[str, Any]:
        """A probe of `attnbench.probes`, by the limit of a dtype or its own; {"ok", "how", "error", "limit", ...}."""
        from attnbench.sweep import probing

        return probing.run_probe(cast(Session, self._session), Problem.from_dict(problem), fill, self._seed, limit_of)

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
        found = facts_as_dict(self._session.facts())
        if self._device is not None:
            found["detail"] |= self._device.facts()
        return found

    def measure_memory(self, *, problem: dict[str, Any], static_shape: bool = False) -> dict[str, Any]:
        """Peak and kept bytes of calls at this size, beyond a loaded, bound, once called process; of a GPU `device`."""
        target = problem_from_dict(problem)
        if not static_shape:
            self._bind(_tiny(target), "normal", self._seed)()
        meter = self._device.meter() if self._device is not None else None
        call = self._bind(target, "normal", self._seed)
        if self._device is None or meter is None:
            return asdict(memory.measure_peak(call))
        of_host = asdict(memory.measure_peak(meter.watched(call)))
        return {**of_host, "device": self._device.peak(meter)}

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


def _tiny(target: AnyProblem) -> AnyProblem:
    """The problem at a length so short that what stays after a call is not this T's memory."""
    if isinstance(target, Problem):
        return determinism.shortened(target, TINY_LEN)
    assert target.bound is not None
    return target.at({target.bound: min(TINY_LEN, target.sizes[target.bound])})


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
