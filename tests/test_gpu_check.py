"""`make gpu-check` without a GPU: it says so; what it does with one is tested on made-up answers."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench import cli
from attnbench.measure.environment import nvidia_driver
from attnbench.records import FAILED
from tests import gpu_check

ROOT = Path(__file__).parents[1]
THERE = {"available": True, "reason": "", "fix": "", "devices": ["cuda:0", "cpu"], "no_cuda": ""}
ON_CPU = {**THERE, "devices": ["cpu"], "no_cuda": "torch 2.13.0+cpu was built without CUDA"}
MISSING = {"available": False, "reason": "libcublasLt.so.13 is missing", "fix": "pip install it", "devices": ["cpu"]}
ONLY_COMPILES = {**THERE, "compiles_only": "this GPU is sm90, so tensorrt-rtx compiles and runs nothing"}
ROW = {
    "arm": "torch-sdpa", "part": "block", "variant": "self", "dtype": "fp16", "q_len": "128", "status": "ok",
    "reason": "", "latency_ms_median": "0.12345", "device": "cuda:0",
}  # fmt: skip


@pytest.mark.skipif(nvidia_driver() is not None, reason="this machine has an NVIDIA driver")
def test_without_a_gpu_it_says_so_and_exits_3(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    command = [sys.executable, "-P", str(ROOT / "tests" / "gpu_check.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "gpu-check: no runtime can use a GPU here, so nothing is timed; the reasons are above"
    skipped = [found[1] for line in lines if (found := re.match(r"skipped ([a-z-]+): \S", line))]
    assert {"torch-eager", "torch-sdpa", "ort-cuda", "ort-tensorrt"} <= set(skipped)
    assert json.loads((folder / "doctor.json").read_text())["runtimes"]["torch-sdpa"]["available"]
    assert not (folder / "sweep").exists()


def test_a_folder_that_exists_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([str(tmp_path)]) == 2
    assert "exists already; name a new folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["a", "b"], "takes one new folder, got a b; write ARGS=results/mine"),
        (["--help"], "takes one new folder, got --help"),
        (["file/a"], "cannot make the folder file/a: Not a directory; name another"),
    ],
)
def test_an_argument_that_is_no_new_folder_is_refused(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert gpu_check.main(argv) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_runtimes_that_have_a_gpu_are_timed_and_the_others_say_why() -> None:
    told = {"ort-cpu": ON_CPU, "torch-sdpa": THERE, "torch-eager": ON_CPU, "ort-cuda": MISSING,
            "tensorrt-rtx": ONLY_COMPILES}  # fmt: skip
    assert gpu_check.usable(told) == ["torch-sdpa"]
    assert gpu_check.refused(told) == [
        "skipped torch-eager: torch 2.13.0+cpu was built without CUDA",
        "skipped ort-cuda: libcublasLt.so.13 is missing; fix: pip install it",
        "skipped tensorrt-rtx: this GPU is sm90, so tensorrt-rtx compiles and runs nothing",
    ]


def test_the_parts_fit_into_eight_minutes() -> None:
    parts = gpu_check.DOCTOR_S + gpu_check.TESTS_S + gpu_check.SWEEP_S + gpu_check.REPORT_S
    parts += 3 * gpu_check.END_S
    assert parts <= gpu_check.BUDGET_S == 480.0


def test_the_sweep_is_a_command_that_bench_takes(benched: dict[str, Any], tmp_path: Path) -> None:
    command = gpu_check.bench_command(["torch-eager", "ort-cpu"], 100.4, tmp_path / "sweep")
    assert command[1] == "bench"
    cli.main(command[1:])
    assert benched["seq_lens"] == [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert benched["dtypes"] == ["fp32", "fp16"]
    assert benched["part"] == ["block", "core"]
    assert benched["runtimes"] == ["torch-eager", "ort-cpu"]
    assert benched["time_budget_s"] == 100.0


def test_a_failed_case_and_a_case_on_the_cpu_are_faults() -> None:
    rows = [
        ROW, {**ROW, "status": "unsupported", "latency_ms_median": "", "device": ""},
        {**ROW, "status": "mismatch", "reason": "off by 2"}, {**ROW, "device": "cpu"},
    ]  # fmt: skip
    assert gpu_check.faults(rows) == [
        "torch-sdpa block self fp16 T = 128: mismatch: off by 2",
        "torch-sdpa block self fp16 T = 128: ran on cpu, not on the GPU",
    ]
    assert gpu_check.FAILED == FAILED


def test_the_table_has_a_figure_or_a_status_for_every_length() -> None:
    rows = [ROW, {**ROW, "q_len": "4096", "status": "oom", "latency_ms_median": ""}]
    head, line = gpu_check.render(rows).splitlines()
    assert head.split() == ["block", "self", "fp16,", "ms", "T=128", "T=1024", "T=4096", "T=16384"]
    assert line.split() == ["torch-sdpa", "0.123", "-", "oom", "-"]
    assert max(len(head), len(line)) <= 80


def test_the_two_clocks_of_an_arm_are_lines_of_their_own_and_columns_stay_below_each_other() -> None:
    arm = "onnx-decomposed@ort-tensorrt[scope=device]"
    refused = {**ROW, "arm": arm, "q_len": "1024", "status": "unsupported", "latency_ms_median": ""}
    rows = [ROW, {**ROW, "arm": arm, "latency_ms_median": "0.01"}, refused]
    lines = gpu_check.render(rows).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [arm, "torch-sdpa"]
    assert len({len(line) for line in lines}) == 1


def fake(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, str]], codes: dict[str, int]) -> list[str]:
    """Stand in for the three commands; gives their names in order."""
    called: list[str] = []

    def output_of(command: list[str], file: Path, timeout_s: float) -> tuple[int, str]:
        name = next(word for word in ("doctor", "pytest", "bench") if word in command)
        called.append(name)
        assert 0 < timeout_s <= gpu_check.BUDGET_S
        return codes.get(name, 0), json.dumps({"runtimes": {"torch-sdpa": THERE}}) if name == "doctor" else "2 passed"

    monkeypatch.setattr(gpu_check, "output_of", output_of)
    monkeypatch.setattr(gpu_check, "read_rows", lambda path: rows)
    return called


@pytest.mark.parametrize(
    ("rows", "codes", "expected"),
    [
        ([ROW], {}, 0),
        ([ROW], {"pytest": 5}, 0),
        ([ROW], {"pytest": 1}, 1),
        ([{**ROW, "status": "crashed"}], {"bench": 1}, 1),
        ([], {"bench": 3}, 1),
        ([ROW], {"bench": 124}, 1),
    ],
)
def test_the_exit_code_says_whether_all_is_well_and_the_table_comes_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    rows: list[dict[str, str]], codes: dict[str, int], expected: int,
) -> None:  # fmt: skip
    called = fake(monkeypatch, rows, codes)
    assert gpu_check.main([str(tmp_path / "check")]) == expected
    assert called == ["doctor", "pytest", "bench"]
    out = capsys.readouterr().out
    assert out.endswith((tmp_path / "check" / "table.txt").read_text(encoding="utf-8"))
    assert "pytest -m gpu: 2 passed" in out


def test_a_command_that_hangs_is_ended_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    monkeypatch.setattr(gpu_check, "END_S", 0.2)
    code, text = gpu_check.output_of([sys.executable, "-c", program], tmp_path / "x.txt", 0.5)
    assert code == 124
    assert "had not ended after" in text
    assert "had not ended after" in (tmp_path / "x.txt.stderr").read_text(encoding="utf-8")
