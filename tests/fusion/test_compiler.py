"""What the real compiler says: verdicts that were seen, in real workers, and the command around them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.fusion import matrix
from attnbench.fusion.questions import Question, parse_ask
from attnbench.fusion.verdicts import Answer

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

# Not the script beside it: an environment may be a copy, whose scripts start the Python of the original.
ATTNBENCH = (sys.executable, "-P", "-c", "import sys; from attnbench.cli import main; sys.exit(main())")
ASKED = (
    "fp16", "fp32", "fp16,head_dim=512", "fp8-qkpv", "fp8-qk", "bf16,gqa,causal,onnx-attention", "fp16,onnx-contrib",
    "bf16,onnx-contrib", "fp32,head_dim=64,bias_1hqk,onnx-attention",
)  # fmt: skip


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, str], Answer]:
    """Label and architecture -> answer."""
    asked = tuple(question for text in ASKED for question in parse_ask(text))
    plan = matrix.Plan(version=matrix.installed_version(), archs=("sm75", "sm89"), seq_len=1024, questions=asked)
    return {(a.question.label, a.arch): a for a in matrix.run(plan, None, lambda text: None).answers}


@pytest.mark.parametrize(
    ("label", "arch", "verdict", "strict"),
    [
        ("fp16, head_dim 64, onnx-decomposed", "sm89", "fused", ""),
        ("fp16, head_dim 64, onnx-attention", "sm89", "fused", "builds"),
        ("fp16, head_dim 64, onnx-attention", "sm75", "fused", "builds"),
        ("fp16, head_dim 512, onnx-decomposed", "sm89", "not fused", ""),
        ("fp16, head_dim 512, onnx-attention", "sm89", "not fused", "refused"),
        ("fp32, head_dim 64, onnx-decomposed", "sm89", "not fused", ""),
        ("fp32, head_dim 64, onnx-attention", "sm89", "not fused", "refused"),
        ("fp32, head_dim 64, bias_1hqk, onnx-attention", "sm89", "not fused", "refused"),
        ("fp32, head_dim 64, onnx-decomposed", "sm75", "refused", ""),
        ("fp8, head_dim 64, fp8-qkpv", "sm89", "fused", ""),
        ("fp8, head_dim 64, fp8-qk", "sm89", "not fused", ""),
        ("fp8, head_dim 64, fp8-qkpv", "sm75", "refused", ""),
        ("bf16, head_dim 64, causal, GQA, onnx-attention", "sm89", "fused", "builds"),
        ("fp16, head_dim 64, onnx-contrib", "sm89", "refused", ""),
        ("bf16, head_dim 64, onnx-contrib", "sm89", "unsupported", ""),
    ],
)
def test_the_compiler_says_what_was_seen(
    answers: dict[tuple[str, str], Answer], label: str, arch: str, verdict: str, strict: str
) -> None:
    found = answers[label, arch]
    assert (found.verdict, found.strict) == (verdict, strict), found
    has_engines = verdict in ("fused", "not fused")
    assert all((count is not None) == has_engines for count in found.planned_activation_bytes)
    assert bool(found.words) == (not has_engines)


def test_what_is_not_fused_holds_two_score_matrices(answers: dict[tuple[str, str], Answer]) -> None:
    for label in ("fp32, head_dim 64, onnx-decomposed", "fp16, head_dim 512, onnx-decomposed"):
        assert answers[label, "sm89"].score_matrices == pytest.approx(2.0, abs=0.05)


def test_refusals_are_in_the_words_of_who_refused(answers: dict[tuple[str, str], Answer]) -> None:
    turing = answers["fp32, head_dim 64, onnx-decomposed", "sm75"]
    assert (turing.stage, "FP32 GEMM is not supported" in turing.words) == ("compiler", True)
    contrib = answers["fp16, head_dim 64, onnx-contrib", "sm89"]
    assert contrib.stage == "parser"
    assert "UNSUPPORTED_NODE, node MultiHeadAttention" in contrib.words


def test_one_question_on_the_command_line_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["fusion", "--ask", "fp16,head_dim=80,causal,onnx-decomposed", "--gpu-archs", "sm89", "-s", "1024"])
    said = " ".join(capsys.readouterr().out.split())
    version = matrix.installed_version()
    assert code == 0
    assert said.startswith(f"tensorrt-rtx {version}: fp16, head_dim 80, causal as onnx-decomposed is fused: planned")
    assert said.endswith("grows linearly (sm89).")


def test_a_stopped_matrix_keeps_its_answers_and_is_finished_by_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*ATTNBENCH, "fusion", "--gpu-archs", "sm89", "-s", "1024", "-q", "-o", "m"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    records = tmp_path / "m" / matrix.RECORDS
    deadline = time.monotonic() + 120
    while not (records.exists() and records.read_text(encoding="utf-8").count("\n") >= 2):
        assert time.monotonic() < deadline, "no question is answered"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "go on with attnbench fusion --resume m" in errors
    plan = matrix.read_plan(records)
    kept = matrix.read_answers(records, plan)
    assert 1 <= len(kept) < len(plan.questions)
    few = [*kept, *[question for question in plan.questions if question not in kept][:1]]
    lines = records.read_text(encoding="utf-8").splitlines(keepends=True)
    first = json.loads(lines[0])
    first["plan"]["questions"] = [question.as_dict() for question in few]
    records.write_text("".join([json.dumps(first) + "\n", *lines[1:]]), encoding="utf-8")
    assert main(["fusion", "--resume", os.fspath(tmp_path / "m"), "-q", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    asked = [Question(**{name: row[name] for name in Question.__dataclass_fields__}) for row in found["answers"]]
    assert asked == few
    assert {path.name for path in (tmp_path / "m").iterdir()} >= {"fusion.csv", "fusion.json", "fusion.html"}
