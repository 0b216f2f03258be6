"""One step with a cache: every runtime gives a right cache back, and where it can it copies no old token."""

import sys
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest

from attnbench import conformance
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact, Runtime, Settings
from attnbench.measure import caches, environment
from attnbench.measure.numerics import compare
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.sweep.artifacts import artifact_as_dict
from attnbench.sweep.bench import ALWAYS_PRELOADED
from attnbench.sweep.workers import ForkServers, Worker
from attnbench_runtimes.onnx_reference import OnnxReference
from attnbench_runtimes.openvino import OpenVino
from attnbench_runtimes.ort import OrtCpu
from attnbench_runtimes.torch_arms import TorchEager, TorchSdpa

IN_PLACE, COPIED = "written in place", "copied"
ARMS: dict[str, tuple[Runtime, str, str]] = {
    "torch-eager": (TorchEager(), "", IN_PLACE),
    "torch-sdpa": (TorchSdpa(), "", IN_PLACE),
    "contrib@ort-cpu": (OrtCpu(), "onnx-contrib", IN_PLACE),
    "attention@ort-cpu": (OrtCpu(), "onnx-attention", COPIED),
    "decomposed@ort-cpu": (OrtCpu(), "onnx-decomposed", COPIED),
    "attention@openvino": (OpenVino(), "onnx-attention", COPIED),
    "decomposed@onnx-reference": (OnnxReference(), "onnx-decomposed", ""),
}


def step(**fields: object) -> Problem:
    sizes = {"seq_len": 12, "q_len": 3, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, **fields}
    return Problem.make(variant="decode", **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("mask", ["", "causal_bottom_right+key_padding"])
def test_output_and_cache_are_right_after_every_call_at_every_size(
    name: str, mask: str, exported: Callable[..., Artifact]
) -> None:
    runtime, exporter, written = ARMS[name]
    problem = step(mask=mask)
    artifact = exported(exporter, problem) if exporter else None
    with runtime.load(problem, artifact, Settings()) as session:
        for q_len, kv_len, batch_size in ((3, 12, 2), (1, 40, 1), (2, 3, 3), (4, 4, 2), (1, 1, 1)):
            sized = problem.at(q_len=q_len, kv_len=kv_len, batch_size=batch_size)
            inputs = make_inputs(sized)
            expected = reference_output(sized, inputs, make_weights(sized))
            call = session.bind(inputs)
            for _ in range(3):
                call()
                assert compare(session.outputs(), expected).worst_row_rel_err < 5e-6, sized.label()
                assert caches.session_fault(session, sized, inputs, seed=0) == ""
        assert session.facts().detail.get("cache", "") == written


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_cache_is_right_in_half_precision(dtype: str, exported: Callable[..., Artifact]) -> None:
    problem = step(dtype=dtype)
    inputs = make_inputs(problem)
    arms = ["torch-sdpa", "attention@openvino", *(["contrib@ort-cpu"] if dtype == "fp16" else [])]
    for runtime, exporter, _ in (ARMS[name] for name in arms):
        artifact = exported(exporter, problem) if exporter else None
        with runtime.load(problem, artifact, Settings()) as session:
            session.bind(inputs)()
            assert caches.session_fault(session, problem, inputs, seed=0) == ""


def fresh_peak_bytes(artifact: Artifact, problem: Problem) -> int | None:
    """Of a step in a process of its own: this one has freed memory that a copy could take unseen."""
    env, _ = environment.scrubbed_environment(1)
    with ForkServers(env) as servers, Worker(servers.get(ALWAYS_PRELOADED)) as worker:
        worker.ask(
            "load", timeout_s=60.0, runtime="ort-cpu", problem=problem.as_dict(), artifact=artifact_as_dict(artifact),
            settings=asdict(Settings()), purpose="memory",
        )  # fmt: skip
        peak: int | None = worker.ask("measure_memory", timeout_s=60.0, problem=problem.as_dict())["peak_bytes"]
        return peak


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_a_step_in_place_holds_no_second_cache(exported: Callable[..., Artifact]) -> None:
    """Keys and values of 8,191 old tokens take 8 MiB here; a copy is what a step holds beyond what was bound."""
    problem = step(seq_len=8192, q_len=1, num_heads=4, num_kv_heads=4, head_dim=32)
    peaks = {name: fresh_peak_bytes(exported(name, problem), problem) for name in ("onnx-contrib", "onnx-attention")}
    assert peaks["onnx-contrib"] is not None
    assert peaks["onnx-attention"] is not None
    assert peaks["onnx-contrib"] < 2 << 20
    assert peaks["onnx-attention"] > 7 << 20


def test_the_callers_cache_stays_as_it_was(exported: Callable[..., Artifact]) -> None:
    problem = step()
    inputs = make_inputs(problem)
    before = {name: array.copy() for name, array in inputs.items()}
    with OrtCpu().load(problem, exported("onnx-contrib", problem), Settings()) as session:
        session.bind(inputs)()
    for name, array in before.items():
        np.testing.assert_array_equal(inputs[name], array)


@pytest.mark.parametrize("name", ["torch-sdpa", "contrib@ort-cpu"])
def test_a_runtime_of_decode_keeps_the_contract(name: str) -> None:
    from attnbench.plugins import load_exporter

    runtime, exporter, _ = ARMS[name]

    def export(problem, path, seed):
        plugin = load_exporter(exporter)
        return plugin.export(problem, plugin.opsets[0], path, seed=seed)

    conformance.check_runtime(runtime, [step()], export=export if exporter else None)
