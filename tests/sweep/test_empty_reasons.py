"""Why a cell is empty is true of its own case."""

from attnbench.problem import Problem
from attnbench.sweep import rows
from attnbench.sweep.cases import Case
from attnbench.sweep.grid import Arm


def reason_of(exporter: str, runtime: str) -> str:
    case = Case(problem=Problem.make(seq_len=8), arm=Arm(exporter=exporter, runtime=runtime), status="unsupported")
    return rows.empty_reasons(case, {})["artifact_sha256"]


def test_an_arm_whose_file_was_not_written_is_not_said_to_need_none() -> None:
    assert reason_of("onnx-contrib", "ort-cpu") == "no file was written"
    assert reason_of("torch", "torch-sdpa") == "torch runs the block itself: there is no file"
