"""Arms that can only be compiled here: rows with planned memory, neutral for the verdicts and the exit code."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench import api, trt_compiler
from attnbench.errors import AttnbenchError, PluginError, ReadBackError, UnsupportedError, WorkerCrashed
from attnbench.interfaces import CompiledFacts, Probe
from attnbench.problem import Problem
from attnbench.sweep import compile_task, compiling, runner
from attnbench.sweep.bench import Bench
from attnbench.sweep.cases import Case, Exported
from attnbench.sweep.grid import DEFAULT_COMPILER, Arm, arms, selected_runtimes, validate
from attnbench.sweep.plan import make_plan

COMPILER = Arm(exporter="onnx-attention", runtime="tensorrt-rtx", compiles_only=True)
TIMED = Arm(exporter="torch", runtime="torch-sdpa")
FACTS = CompiledFacts(
    runtime_version="1.7", device="sm89", planned_activation_bytes=1024, artifact_bytes=10, build_ms=5.0,
    compute_precision="fp16", attention_kernel="fused", kernel_evidence="compiler",
)  # fmt: skip
PROBLEMS = [Problem.make(seq_len=n) for n in (8, 16)]


def test_fp16_is_compiled_beside_fp32_only_where_something_is_compiled_and_it_is_not_in_the_sweep() -> None:
    assert [p.dtype for p in compiling.beside(PROBLEMS, [TIMED, COMPILER])] == ["fp16", "fp16"]
    assert compiling.beside(PROBLEMS, [TIMED]) == []
    assert compiling.beside([*PROBLEMS, replace(PROBLEMS[0], dtype="fp16")], [COMPILER]) == []


def test_the_plan_counts_the_rows_of_what_is_only_compiled_and_times_none_of_them() -> None:
    sweep = validate({"time_budget_s": None}, where="test")
    alone = make_plan(sweep, PROBLEMS, [TIMED], 1, None)
    beside = compiling.beside(PROBLEMS, [TIMED, COMPILER])
    plan = make_plan(sweep, PROBLEMS, [TIMED, COMPILER], 1, None, beside)
    assert plan.case_count == 2 * 2 + 2
    assert plan.timing_s() == alone.timing_s()
    assert plan.split()["compile"] > 0
    assert "compile" not in alone.split()


def test_the_compiler_is_a_default_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = {"torch-eager": False, "torch-sdpa": False, "ort-cpu": True, "openvino": True, DEFAULT_COMPILER: True}
    sweep = validate({}, where="test")
    monkeypatch.setattr(trt_compiler, "is_installed", lambda: True)
    labels = [arm.label for arm in arms(sweep, takes)]
    assert [label for label in labels if label.endswith("tensorrt-rtx")] == [
        "onnx-decomposed@tensorrt-rtx", "onnx-attention@tensorrt-rtx",
    ]  # fmt: skip
    assert DEFAULT_COMPILER not in selected_runtimes(validate({"runtimes": ["torch-sdpa"]}, where="test"))
    both = validate({"options": ["tensorrt-rtx:arch=sm89", "tensorrt-rtx:arch=sm120"]}, where="test")
    assert [arm.label for arm in arms(both, takes) if arm.exporter == "onnx-attention"][-2:] == [
        "onnx-attention@tensorrt-rtx[arch=sm89]", "onnx-attention@tensorrt-rtx[arch=sm120]",
    ]  # fmt: skip
    assert not [arm for arm in arms(both, takes) if arm.exporter == "onnx-contrib" and arm.runtime == DEFAULT_COMPILER]
    short = validate({"time_budget_s": 50.0}, where="test")  # has no room for it, unless it is asked
    assert "tensorrt-rtx" not in selected_runtimes(short)
    asked = validate({"time_budget_s": 50.0, "options": ["tensorrt-rtx:arch=sm89"]}, where="test")
    assert "tensorrt-rtx" in selected_runtimes(asked)
    monkeypatch.setattr(trt_compiler, "is_installed", lambda: False)
    assert DEFAULT_COMPILER not in selected_runtimes(sweep)


@pytest.mark.parametrize(
    ("facts", "error", "said"),
    [
        ({"planned_activation_bytes": 0}, PluginError, "instead of an attnbench.interfaces.CompiledFacts"),
        (replace(FACTS, planned_activation_bytes=-1), ReadBackError, "planned_activation_bytes must be a number of"),
        (replace(FACTS, artifact_bytes=0), ReadBackError, "artifact_bytes must be a number of bytes, got 0"),
        (replace(FACTS, build_ms=float("nan")), ReadBackError, "build_ms must be milliseconds, got nan"),
        (
            replace(FACTS, attention_kernel="flash"),
            ReadBackError,
            "attention_kernel must be of fused, unfused, unknown",
        ),
        (replace(FACTS, kernel_evidence=""), ReadBackError, "got 'fused' by ''"),
    ],
)
def test_facts_of_a_compiler_that_cannot_be_are_refused(facts: Any, error: type[AttnbenchError], said: str) -> None:
    with pytest.raises(error, match=said):
        compile_task.checked(facts)


class FakeWorker:
    """Answers a request to compile by the problem's length."""

    def __init__(self, answers: dict[int, Any], asked: list[int]) -> None:
        self.answers, self.asked = answers, asked

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *rest: object) -> None:
        pass

    def ask(self, op: str, *, problem: dict[str, Any], **rest: Any) -> Any:
        assert op == "attnbench.sweep.compile_task:compile_file"
        self.asked.append(problem["q_len"])
        answer = self.answers[problem["q_len"]]
        if isinstance(answer, AttnbenchError):
            raise answer
        return answer


def make_bench(answers: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, list[int]]:
    nothing: Any = None
    asked: list[int] = []
    probe = Probe(available=True, version="1.7", compiles_only="there is no NVIDIA driver")
    bench = Bench(
        sweep=validate({}, where="test"), threads=1, arms=[TIMED, COMPILER], runtime_probes={"tensorrt-rtx": probe},
        exporter_probes={}, run_dir=nothing, servers=nothing, run_id="test",
    )  # fmt: skip
    file = Exported(artifact={"opset": 23, "size_bytes": 5, "sha256": "a"}, export_ms=None, verified="")
    monkeypatch.setattr(Bench, "exported", lambda self, arm, problem: file)
    monkeypatch.setattr(Bench, "settings", lambda self, arm=None: {})
    monkeypatch.setattr(compiling, "_worker", lambda bench, arm: FakeWorker(answers, asked))
    return bench, asked


def concluded(bench: Bench, problem: Problem) -> Case:
    case = Case(problem=problem, arm=COMPILER)
    case.exported = bench.exported(COMPILER, problem)
    compiling.compile_case(bench, case)
    return case


def test_what_was_compiled_ahead_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {8: compile_task.checked(FACTS), 16: UnsupportedError("the parser refuses the file: X")}
    bench, asked = make_bench(answers, monkeypatch)
    compiling.compile_ahead(bench, PROBLEMS, say=lambda text: None, go_on=lambda: True)
    assert asked == [8, 16]
    fine, refused = (concluded(bench, p) for p in PROBLEMS)
    assert asked == [8, 16]
    assert (fine.status, fine.reason) == ("compiled", "there is no NVIDIA driver")
    assert (fine.planned_activation_bytes, fine.engine_bytes, fine.build_ms) == (1024, 10, 5.0)
    assert (refused.status, refused.reason) == ("unsupported", "the parser refuses the file: X")


def test_a_compiler_that_crashes_costs_only_the_problem_that_crashes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[int, Any] = {8: WorkerCrashed("signal 11"), 16: compile_task.checked(FACTS)}
    bench, _ = make_bench(answers, monkeypatch)
    compiling.compile_ahead(bench, PROBLEMS, say=lambda text: None, go_on=lambda: True)
    assert bench.compilations == {}
    assert [concluded(bench, p).status for p in PROBLEMS] == ["crashed", "compiled"]


def test_nothing_more_is_compiled_ahead_when_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, asked = make_bench({8: compile_task.checked(FACTS), 16: compile_task.checked(FACTS)}, monkeypatch)
    compiling.compile_ahead(bench, PROBLEMS, say=lambda text: None, go_on=lambda: False)
    assert asked == []


@pytest.mark.slow
def test_a_run_without_a_gpu_has_rows_of_the_compiler(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    run = api.bench(
        variants=["self"], seq_lens=[32, 64], exporters=["onnx-decomposed"], runtimes=["torch-sdpa", "tensorrt-rtx"],
        time_budget_s=900.0, num_heads=[2], head_dims=[32], out=tmp_path / "run",
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    compiled = [r for r in rows if r["runtime"] == "tensorrt-rtx"]
    if {r["status"] for r in compiled} == {"ok"}:
        pytest.skip("a GPU is here: tensorrt-rtx runs")
    assert {(r["status"], r["dtype"], r["device"]) for r in compiled} == {
        ("compiled", "fp32", "sm89"), ("compiled", "fp16", "sm89"),
    }  # fmt: skip
    assert len(compiled) == 4
    for r in compiled:
        assert r["planned_activation_bytes"] > 0
        assert r["build_ms"] > 0
        assert r["latency_ms_median"] is None
        assert r["verdict"] is None
        assert r["kernel_evidence"] in ("compiler", None)
        assert r["empty_reasons"]["latency_ms_median"] == "compiled only: there is no device here to run it on"
    assert {r["status"] for r in rows if r["runtime"] == "torch-sdpa"} == {"ok"}
    assert run.exit_code == 0
    run_dir, prepared = runner.resume(tmp_path / "run")
    assert len(runner._finished(run_dir, prepared)[0]) == len(rows)  # all of it: a resumed run has nothing to do
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Compiled, not run: tensorrt-rtx" in page
    assert (tmp_path / "run" / "plots" / "planned-memory.svg").exists()
