"""What the author of an exporter or runtime runs on it: `check_runtime(MyRuntime())`, `check_exporter(MyExporter())`.

Every rule of `attnbench.interfaces` that a program can check is checked, on problems small enough to take seconds.
The first rule that is broken is raised as a ConformanceError, which is an AssertionError too, so that pytest shows it
as a failed test. Values are compared with the float64 reference, never with another runtime.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnbench import conformance_files, plugins
from attnbench.errors import AttnbenchError, NotRunError, PluginError, UnavailableError, UnsupportedError
from attnbench.inputs import INPUT_CLASSES, make_inputs, make_weights
from attnbench.interfaces import (
    UNKNOWN,
    Array,
    Artifact,
    Exporter,
    Facts,
    Probe,
    Runtime,
    Session,
    Settings,
    Support,
    numpy_dtype,
)  # fmt: skip
from attnbench.measure import caches
from attnbench.measure.numerics import compare, tolerances
from attnbench.problem import Problem
from attnbench.reference import reference_output

PRECISIONS = ("fp32", "fp16", "bf16", "tf32", UNKNOWN)
KERNELS = ("flash", "efficient", "cudnn", "math", "fused", "unfused", UNKNOWN)
EVIDENCE = ("pinned", "profile", "log", "graph", "compiler", "memory-law")

# (q_len, batch_size) in the order they are bound: shorter, longer, one token, and back.
SIZES = ((6, 1), (33, 2), (1, 1), (33, 2), (17, 1))
_SEED = 5  # not the default, so that a runtime that ignores it is seen
_FLOPS_PER_S_LIMIT = 1e15  # no device answers one call at this rate; a call that only returns does
_EXPORTER = "onnx-decomposed"  # makes the files for runtimes that take one

Export = Callable[[Problem, Path, int], Artifact]


class ConformanceError(PluginError, AssertionError):
    """A rule of the contract is broken; the message says which, by what and how."""


def default_problems() -> list[Problem]:
    """Every part and variant in fp32, and one block in each of fp16 and bf16."""
    problems = [
        Problem.make(part=part, variant=variant, seq_len=24, num_heads=4, head_dim=16)
        for part in ("block", "core")
        for variant in ("self", "cross", "causal")
    ]
    return problems + [
        Problem.make(variant="causal", seq_len=24, num_heads=4, head_dim=16, dtype=dtype) for dtype in ("fp16", "bf16")
    ]


def check_runtime(
    runtime: Runtime, problems: Sequence[Problem] | None = None, *, export: Export | None = None, computes: bool = True
) -> None:
    """Check a runtime against the contract.

    Args:
        runtime: constructed, not loaded.
        problems: None: `default_problems()`; those it does not support are left out, one must remain.
        export: writes the file of a problem at a path with a seed, for a runtime that takes files; None: the installed
            exporter onnx-decomposed.
        computes: False for an instrument whose outputs mean nothing; values are not compared then.

    Raises:
        ConformanceError: a rule is broken.
        UnavailableError: the runtime cannot run on this machine, so that nothing can be said.
    """
    _check_declaration(runtime, {"takes_artifact": bool, "opt_in": bool})
    version = _check_probe(runtime.name, runtime.probe())
    supported = 0
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
        for number, problem in enumerate(problems or default_problems()):
            where = f"{runtime.name}, {problem.label()}"
            artifact = _artifact(runtime, problem, Path(folder) / f"{number}.onnx", export or _export)
            support = runtime.supports(problem, artifact)
            _check_support(where, support)
            if not support.ok:
                continue
            try:
                _check_loads(where, runtime, problem, artifact, version, computes)
                if not supported:
                    _check_settings(where, runtime, problem, artifact, computes)
            except UnsupportedError as err:
                _require(str(err), where, "raised UnsupportedError without a reason")
                continue
            supported += 1
    _require(supported, runtime.name, "supports none of the problems: there is nothing to check")


def check_exporter(
    exporter: Exporter, problems: Sequence[Problem] | None = None, *, runtime: Runtime | None = None
) -> None:
    """Check an exporter against the contract; its files are run at sizes that were not the example's.

    Args:
        exporter: constructed.
        problems: None: `default_problems()`; those it does not support are left out, one must remain.
        runtime: runs the files; None: ort-cpu, else openvino.

    Raises:
        ConformanceError: a rule is broken.
        UnavailableError: the exporter, or every runtime, cannot work on this machine.
    """
    _check_declaration(exporter, {"opsets": tuple})
    _require(exporter.opsets and all(type(o) is int for o in exporter.opsets), exporter.name, "opsets must be numbers")
    _check_probe(exporter.name, exporter.probe())
    runner = runtime or _any_file_runtime()
    opset, supported = exporter.opsets[0], 0
    for problem in problems or default_problems():
        where = f"{exporter.name}, {problem.label()}"
        support = exporter.supports(problem, opset)
        _check_support(where, support)
        if not support.ok:
            continue
        supported += 1
        with _reporting(where), tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
            path = Path(folder) / "model.onnx"
            artifact = exporter.export(problem, opset, path, seed=_SEED)
            conformance_files.check_artifact(where, exporter, artifact, problem, opset, _require)
            if supported == 1:
                conformance_files.check_again(where, exporter, artifact, _SEED, _require)
                conformance_files.check_refusals(where, exporter, problem, Path(folder), _require)
            _check_file_runs(where, runner, problem, artifact)
    _require(supported, exporter.name, "supports none of the problems: there is nothing to check")


def _require(condition: object, where: str, broken: str) -> None:
    if not condition:
        raise ConformanceError(f"{where}: {broken}")


@contextlib.contextmanager
def _reporting(where: str) -> Iterator[None]:
    """An error of ours where none is due says what was being checked."""
    try:
        yield
    except (ConformanceError, UnsupportedError, UnavailableError):
        raise
    except AttnbenchError as err:
        raise ConformanceError(f"{where}: raised {type(err).__name__}: {err}") from err


def _check_declaration(plugin: Runtime | Exporter, kinds: Mapping[str, type]) -> None:
    where = type(plugin).__name__
    for name, kind in {"name": str, "preload": tuple, **kinds}.items():
        _require(isinstance(getattr(plugin, name, None), kind), where, f"{name} must be a {kind.__name__}")
    fits = plugin.name and not set(plugin.name) & set("@ ,\t\n/")
    _require(fits, where, f"name {plugin.name!r} must be one word without @, comma or slash")
    _require(all(isinstance(module, str) for module in plugin.preload), where, "preload must hold module names")


def _check_probe(name: str, probe: Probe) -> str:
    _require(isinstance(probe, Probe), name, f"probe() must give a Probe, got {probe!r}")
    if not probe.available:
        _require(probe.reason, name, "probe() says unavailable without a reason")
        raise UnavailableError(f"{name} cannot be checked on this machine: {probe.reason}; {probe.fix}")
    _require(probe.version, name, "probe() says available without a version")
    return probe.version


def _check_support(where: str, support: Support) -> None:
    _require(isinstance(support, Support), where, f"supports() must give a Support, got {support!r}")
    _require(support.ok or support.reason, where, "supports() says no without a reason")


def _export(problem: Problem, path: Path, seed: int) -> Artifact:
    exporter = plugins.load_exporter(_EXPORTER)
    return exporter.export(problem, exporter.opsets[0], path, seed=seed)


def _artifact(runtime: Runtime, problem: Problem, path: Path, export: Export) -> Artifact | None:
    return export(problem, path, _SEED) if runtime.takes_artifact else None


def _settings(runtime: Runtime) -> Settings:
    """On the CPU, or on the first device of a runtime that has none there."""
    devices = runtime.probe().devices
    return Settings(seed=_SEED, device="cpu" if "cpu" in devices else devices[0])


def _check_loads(
    where: str, runtime: Runtime, problem: Problem, artifact: Artifact | None, version: str, computes: bool
) -> None:
    """Everything that needs a loaded session; loading twice must do the same."""
    settings = _settings(runtime)
    with _reporting(where):
        with runtime.load(problem, artifact, settings) as session:
            _check_session(where, session, problem, computes)
            _check_facts(where, session.facts(), settings, version)
        with runtime.load(problem, artifact, settings) as session:
            _check_call(where, session, problem, make_inputs(problem, seed=2), computes)


def _check_settings(where: str, runtime: Runtime, problem: Problem, artifact: Artifact | None, computes: bool) -> None:
    """What needs one problem only: a call takes time, and what is not there is refused."""
    if computes:
        with _reporting(where), runtime.load(problem, artifact, _settings(runtime)) as session:
            _check_work(where, session, problem)
    _check_not_asked(where, runtime, problem, artifact)


def _check_session(where: str, session: Session, problem: Problem, computes: bool) -> None:
    _must_not_have_run(where, session, "before anything was bound")
    for round_number, (q_len, batch_size) in enumerate(SIZES):
        sized = problem.at(q_len=q_len, batch_size=batch_size)
        for input_class in INPUT_CLASSES:
            inputs = make_inputs(sized, seed=round_number, input_class=input_class)
            name = f"{where}, bound at {sized.label()} {input_class}"
            _check_call(name, session, sized, inputs, computes, input_class)


def _must_not_have_run(where: str, session: Session, when: str) -> None:
    try:
        session.outputs()
    except NotRunError:
        return
    _require(False, where, f"outputs() {when} must raise NotRunError, it gave something")


def _check_call(
    where: str,
    session: Session,
    problem: Problem,
    inputs: dict[str, Array],
    computes: bool,
    input_class: str = "normal",
) -> None:
    """Bind, call, compare; then the same again from the caller's ruined arrays."""
    expected = reference_output(problem, inputs, make_weights(problem, seed=_SEED)) if computes else None
    given = {name: array.copy() for name, array in inputs.items()}
    for array in given.values():
        array.flags.writeable = False  # a reader's array need not be writable
    call = session.bind(given)
    _must_not_have_run(where, session, "after bind() and before the call")
    for name, array in given.items():
        _require(array.tobytes() == inputs[name].tobytes(), where, f"bind() changed the caller's input {name}")
        array.flags.writeable = True
        array[...] = np.nan  # bind must have copied
    call()
    first = session.outputs()
    _check_output(where, first, problem, expected, input_class)
    if first.flags.writeable:
        first[...] = np.nan  # outputs must have been a copy
    call()
    _check_output(f"{where}, called twice", session.outputs(), problem, expected, input_class)
    fault = caches.session_fault(session, problem, inputs, seed=_SEED) if computes else ""
    _require(not fault, where, fault)


def _check_output(where: str, output: Array, problem: Problem, expected: Array | None, input_class: str) -> None:
    _require(isinstance(output, np.ndarray), where, f"outputs() must give a NumPy array, got {type(output).__name__}")
    due = numpy_dtype(problem.dtype)
    _require(output.dtype == due, where, f"the output must be {due} for {problem.dtype}, got {output.dtype}")
    shape = problem.output_shape()
    _require(output.shape == shape, where, f"the output must have shape {shape}, got {output.shape}")
    if expected is None:
        return
    error = compare(output, expected).worst_row_rel_err
    limit = tolerances()[problem.part, problem.dtype, input_class].ceiling
    rule = "inputs must be copied by bind(), outputs() must be a copy, and each call must compute what is bound"
    _require(error <= limit, where, f"worst row is {error:.1e} off the float64 reference, at most {limit:.1e}; {rule}")


def _check_facts(where: str, facts: Facts, settings: Settings, version: str) -> None:
    _require(isinstance(facts, Facts), where, f"facts() must give Facts, got {facts!r}")
    same = facts.runtime_version == version
    _require(same, where, f"facts() has version {facts.runtime_version!r}, probe() had {version!r}")
    for name in ("device", "device_name"):
        _require(getattr(facts, name), where, f"facts() must say {name}")
    told = facts.threads is None or facts.threads == settings.threads
    _require(told, where, f"threads {settings.threads} were asked, facts() has {facts.threads}: raise ReadBackError")
    for name, value, allowed in (
        ("compute_precision", facts.compute_precision, PRECISIONS),
        ("attention_kernel", facts.attention_kernel, KERNELS),
    ):
        _require(value in allowed, where, f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    known = facts.attention_kernel != UNKNOWN
    evident = facts.kernel_evidence in EVIDENCE if known else not facts.kernel_evidence
    words = f"kernel {facts.attention_kernel!r} with evidence {facts.kernel_evidence!r}"
    _require(evident, where, f"{words}: a known kernel needs one of {', '.join(EVIDENCE)}, an unknown one none")
    _require(facts.build_ms is None or facts.build_ms > 0, where, "build_ms must be None or above 0")
    try:
        json.dumps(dict(facts.detail), allow_nan=False)
    except (TypeError, ValueError) as err:
        raise ConformanceError(f"{where}: facts().detail must be plain JSON: {err}") from err


def _check_work(where: str, session: Session, problem: Problem) -> None:
    """A call faster than any device could answer has not computed: it was done in bind(), or not at all."""
    sized = problem.at(q_len=1024, kv_len=2048 if problem.variant == "decode" else 1024, batch_size=4)
    call = session.bind(make_inputs(sized))
    times_ns = []
    for _ in range(3):
        start_ns = time.perf_counter_ns()
        call()
        times_ns.append(time.perf_counter_ns() - start_ns)
    flops = 4 * sized.batch_size * sized.num_heads * sized.q_len * sized.kv_len * sized.head_dim // 2  # if causal
    least_ns = flops / _FLOPS_PER_S_LIMIT * 1e9
    words = f"a call of {flops / 1e9:.1f} GFLOP took {min(times_ns)} ns"
    _require(min(times_ns) >= least_ns, where, f"{words}: it computed ahead, in bind(), or nothing")


def _check_not_asked(where: str, runtime: Runtime, problem: Problem, artifact: Artifact | None) -> None:
    """A device or option that it does not have must be refused, more threads be read back."""
    asked = _settings(runtime)
    for settings in (replace(asked, device="no-such-device"), replace(asked, options={"no-such-option": "1"})):
        try:
            with runtime.load(problem, artifact, settings):
                pass
        except AttnbenchError:
            continue
        _require(False, where, f"load() must refuse {settings}; it went on without a word")
    two = replace(asked, threads=2)
    try:
        with runtime.load(problem, artifact, two) as session:
            session.bind(make_inputs(problem))()
            found = session.facts().threads
    except AttnbenchError:  # this machine cannot, and the runtime says so
        return
    _require(found in (2, None), where, f"threads 2 were asked, facts() has {found}: raise ReadBackError")


def _any_file_runtime() -> Runtime:
    reasons = []
    for name in ("ort-cpu", "openvino"):
        runtime = plugins.load_runtime(name)
        probe = runtime.probe()
        if probe.available:
            return runtime
        reasons.append(f"{name}: {probe.reason}")
    raise UnavailableError(f"no runtime can run the exported files ({'; '.join(reasons)}); pip install onnxruntime")


def _check_file_runs(where: str, runner: Runtime, problem: Problem, artifact: Artifact) -> None:
    """Compare with the reference at sizes that were not the example's; what the runner refuses is not judged."""
    settings: Any = Settings(seed=_SEED)
    try:
        with runner.load(problem, artifact, settings) as session:
            for q_len, batch_size in SIZES:
                sized = problem.at(q_len=q_len, batch_size=batch_size)
                name = f"{where}, run by {runner.name} at {sized.label()}"
                _check_call(name, session, sized, make_inputs(sized), computes=True)
    except UnsupportedError:
        return
