"""Arms timed by a GPU's own clock: who is compared with whom, and what their rows say."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.errors import InputError, UnavailableError
from attnbench.interfaces import Probe
from attnbench.measure.timing import Visit
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.sweep import device_arms, rounds, rows, runtime_options
from attnbench.sweep.cases import Case
from attnbench.sweep.grid import Arm
from attnbench.sweep.rounds import Lane

SDPA, EAGER = Arm(exporter="torch", runtime="torch-sdpa"), Arm(exporter="torch", runtime="torch-eager")
ORT = Arm(exporter="onnx-attention", runtime="ort-cpu")
DEVICES = {"torch-sdpa": "cuda:0", "torch-eager": "cuda:0", "ort-cpu": "cpu"}
FACTS = {
    "runtime_version": "2", "device": "cuda:0", "device_name": "GPU", "threads": 1, "compute_precision": "fp32",
    "attention_kernel": "flash", "kernel_evidence": "profile", "detail": {},
}  # fmt: skip


def asked(arm: Arm, *options: tuple[str, str]) -> Arm:
    return Arm(exporter=arm.exporter, runtime=arm.runtime, options=options)


def labels(arms: Sequence[Arm]) -> list[str]:
    return [arm.label for arm in arms]


def test_an_arm_on_a_gpu_is_timed_by_both_clocks_and_one_on_the_cpu_by_the_hosts() -> None:
    assert labels(device_arms.with_scopes([SDPA, EAGER, ORT], "torch-sdpa", DEVICES)) == [
        "torch-sdpa", "torch-sdpa[scope=device]", "torch-eager", "torch-eager[scope=device]", "onnx-attention@ort-cpu",
    ]  # fmt: skip


def test_a_cold_cache_is_the_devices_affair_and_has_a_baseline_of_its_own() -> None:
    backend = ("backend", "math")
    found = device_arms.with_scopes([SDPA, asked(SDPA, backend, ("l2", "cold"))], "torch-sdpa", DEVICES)
    cold = "torch-sdpa[backend=math;scope=device;l2=cold]"
    assert labels(found) == [
        "torch-sdpa", "torch-sdpa[scope=device]", "torch-sdpa[scope=device;l2=cold]", "torch-sdpa[backend=math]", cold,
    ]  # fmt: skip
    compared = {arm.label: device_arms.baseline_of(arm, found, "torch-sdpa") for arm in found}
    assert compared[cold] == "torch-sdpa[scope=device;l2=cold]"
    assert compared["torch-sdpa[backend=math]"] == "torch-sdpa"


def test_only_the_clock_that_was_asked_is_taken() -> None:
    found = device_arms.with_scopes([SDPA, asked(EAGER, ("scope", "device"))], "torch-sdpa", DEVICES)
    assert "torch-eager" not in labels(found)
    assert "torch-eager[scope=device]" in labels(found)


def test_a_run_on_the_cpu_is_as_it_was() -> None:
    assert device_arms.with_scopes([SDPA, ORT], "torch-sdpa", DEVICES | {"torch-sdpa": "cpu"}) == [SDPA, ORT]


def test_the_cpu_has_no_clock_to_ask() -> None:
    with pytest.raises(InputError, match="runs on cpu, which has no clock of its own: leave out scope=device"):
        device_arms.with_scopes([SDPA, asked(ORT, ("scope", "device"))], "torch-sdpa", DEVICES)


def test_options_of_timing_are_known_where_there_is_a_gpu_and_not_told_to_the_runtime() -> None:
    on_gpu, on_cpu = (Probe(available=True, devices=(name,), traits={}) for name in ("cuda:0", "cpu"))
    runtime_options.check(["torch-sdpa:scope=device", "torch-sdpa:l2=cold"], {"torch-sdpa": on_gpu})
    with pytest.raises(InputError, match="has no option scope=device"):
        runtime_options.check(["torch-sdpa:scope=device"], {"torch-sdpa": on_cpu})
    with pytest.raises(InputError, match="scope=device; l2=cold"):
        runtime_options.check(["torch-sdpa:l2=hot"], {"torch-sdpa": on_gpu})
    assert runtime_options.of_runtime((("scope", "device"), ("backend", "math"))) == (("backend", "math"),)


def test_options_of_a_runtime_that_is_unavailable_are_checked_all_the_same() -> None:
    lacking = Probe(available=False, reason="no driver", traits={"options": {"cuda_graph": ["off", "on"]}})
    runtime_options.check(["ort-cuda:cuda_graph=on"], {"ort-cuda": lacking})
    with pytest.raises(InputError, match=r"ort-cuda has no option cuda_graph=maybe; it has cuda_graph=off\|on"):
        runtime_options.check(["ort-cuda:cuda_graph=maybe"], {"ort-cuda": lacking})
    with pytest.raises(
        UnavailableError, match="'ort-cuda:scope=device' is about a GPU's clock: no driver; leave it out"
    ):
        runtime_options.check(["ort-cuda:scope=device"], {"ort-cuda": lacking})
    broken = Probe(available=False, reason="its probe was killed by signal 11")  # nobody knows its options
    runtime_options.check(["ort-cuda:cuda_graph=maybe"], {"ort-cuda": broken})


class Parked:
    """Visits that take as long as they are told, by the clock of a GPU that holds its clocks down or not."""

    def __init__(self, order: list[str], name: str, took_ns: int, throttle: Sequence[str] = ()) -> None:
        self._order, self._name, self._took_ns, self._throttle = order, name, took_ns, throttle

    def visit(self, *, drop: int, keep: int) -> Visit:
        self._order.append(self._name)
        state = {"sm_clock_mhz": 1980, "memory_clock_mhz": None, "power_w": 300.0, "temperature_c": 50,
                 "throttle": list(self._throttle)}  # fmt: skip
        return Visit(
            samples_ns=[self._took_ns] * keep, involuntary_switches=0, steal_ticks=0, wall_ns=10**7, thread_cpu_ns=0,
            process_cpu_ns=0, dropped=drop, waits_for_device=True, device_state=state,
        )  # fmt: skip


def run(arms: Sequence[Arm], took_ns: dict[str, int], **lane: Any) -> tuple[list[str], list[Record]]:
    """The order of visits and the rows of a problem, with the baseline's replicas."""
    problem, order = Problem.make(seq_len=8, num_heads=2, head_dim=8), []
    cases = [Case(problem=problem, arm=arm, status="ok", facts=dict(FACTS)) for arm in arms]
    lanes = []
    for case in cases:
        label = case.arm.label
        for replica in (0, 1) if device_arms.baseline_of(case.arm, arms, "torch-sdpa") == label else (0,):
            parked = Parked(order, label, took_ns[label], **lane)
            scope = "device" if "scope" in dict(case.arm.options) else "host"
            made = Lane(arm=label, replica=replica, parked=parked, call_s=took_ns[label] / 1e9, scope=scope)
            lanes.append(made)
            case.lane = case.lane or made
        case.device_peak = {"peak_bytes": 8 << 20, "is_shared": True, "sharing": "on the device before: process 7",
                            "allocator_peak_bytes": 6 << 20}  # fmt: skip
    turns = device_arms.rotations(
        lanes, lambda lane: device_arms.baseline_of(next(a for a in arms if a.label == lane.arm), arms, "torch-sdpa")
    )
    for group in turns:
        rounds.run_rounds(group, rng=random.Random(0), threads=1, budget_s=1e9)
    sweep = SimpleNamespace(baseline="torch-sdpa", seed=0, memory_limit_bytes=None, stress=False)
    probes = {name: Probe(available=True, version="2") for name in DEVICES}
    bench: Any = SimpleNamespace(sweep=sweep, arms=arms, runtime_probes=probes, threads=1, run_id="r")
    return order, rows.records_of(bench, cases, [lane for group in turns for lane in group])


TOOK = {
    "torch-sdpa": 300_000, "torch-sdpa[scope=device]": 250_000, "torch-eager": 600_000,
    "torch-eager[scope=device]": 1_000_000,
}  # fmt: skip


def test_rows_of_two_clocks_never_share_a_ratio_a_rotation_or_a_fastest_set() -> None:
    order, found = run(device_arms.with_scopes([SDPA, EAGER], "torch-sdpa", DEVICES), TOOK)
    is_device = ["scope=device" in name for name in order]
    assert is_device == sorted(is_device)
    by_arm = {record.arm: record for record in found}
    host, device = by_arm["torch-eager"], by_arm["torch-eager[scope=device]"]
    assert (host.latency_scope, host.baseline_arm, host.speedup_vs_baseline) == ("host", "torch-sdpa", 0.5)
    assert (device.latency_scope, device.baseline_arm) == ("device", "torch-sdpa[scope=device]")
    assert device.speedup_vs_baseline == 0.25
    assert device.latency_ms_median == 1.0
    assert by_arm["torch-sdpa"].ratio_to_fastest == 1.0  # of the host's clock, though the device's figure is smaller
    for name in ("torch-sdpa", "torch-sdpa[scope=device]"):
        assert by_arm[name].noise_log_ratio == 0.0
        assert by_arm[name].speedup_vs_baseline is None


def test_a_row_says_what_was_seen_of_the_gpu() -> None:
    _, found = run([SDPA], TOOK, throttle=["power cap"])
    assert found[0].flags == ["throttled", "device_shared"]
    assert found[0].peak_device_bytes == 8 << 20
    assert found[0].facts["device_sharing"] == "on the device before: process 7"
    assert found[0].facts["device_allocator_peak_bytes"] == 6 << 20
    clocks = found[0].facts["device_clocks"]
    assert clocks["sm_clock_mhz"] == [1980, 1980]
    assert clocks["throttled_readings"] == clocks["readings"] > 0


def test_a_quiet_gpu_gives_no_flag() -> None:
    _, found = run([SDPA], TOOK)
    assert "throttled" not in found[0].flags


def test_why_a_gpu_row_has_no_peak_is_said() -> None:
    problem = Problem.make(seq_len=8, num_heads=2, head_dim=8)
    case = Case(problem=problem, arm=SDPA, status="ok", facts=dict(FACTS), device_peak={"reason": "no growth"})
    assert rows.empty_reasons(case, {"device": "cuda:0"})["peak_device_bytes"] == "no growth"
    assert rows.empty_reasons(case, {"device": "cpu"})["peak_device_bytes"] == "runs on the CPU"
