"""A second onnxruntime, from a wheel of its own, as arms of one paired run: `make gpu-wheels` makes its environment."""

import os
import sys
from pathlib import Path

import pytest

from attnbench import api, interpreters
from attnbench.measure.environment import nvidia_driver
from attnbench.records import Record

VARIABLE = "ATTNBENCH_TEST_PYTHON"
OTHER = os.environ.get(VARIABLE, "")
pytestmark = pytest.mark.skipif(
    not OTHER, reason=f"needs {VARIABLE}=build/gpu-wheels/bin/python, which make gpu-wheels makes and .ci/run sets"
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """One row by runtime: onnxruntime here, here once more (A/A), in the other environment, and its CUDA."""
    run = api.bench(
        variants=["self"], seq_lens=[64], num_heads=[2], head_dims=[16], exporters=["onnx-attention"], threads=1,
        runtimes=["ort-cpu", f"ort-cpu@{sys.executable}", f"ort-cpu@{OTHER}", f"ort-cuda@{OTHER}"],
        baseline="onnx-attention@ort-cpu", out=tmp_path_factory.mktemp("runs") / "run", time_budget_s=300.0,
    )  # fmt: skip
    return {row.arm: row for row in run.rows}


def row_of(rows: dict[str, Record], runtime: str, python: str) -> Record:
    """The only row of a runtime under an environment; its label has the environment's folder and the version there."""
    start = f"onnx-attention@{runtime}[{Path(python).parent.parent.name}="
    found = [row for arm, row in rows.items() if arm.startswith(start)]
    assert len(found) == 1, list(rows)
    return found[0]


def test_two_versions_of_onnxruntime_are_timed_in_one_run(rows: dict[str, Record]) -> None:
    here = rows["onnx-attention@ort-cpu"]
    again = row_of(rows, "ort-cpu", sys.executable)
    other = row_of(rows, "ort-cpu", OTHER)
    versions = interpreters.describe(OTHER).versions
    assert versions["onnxruntime-gpu"]
    assert "onnxruntime" not in versions
    for row in (here, again, other):
        assert row.status == "ok", row.reason
        assert row.latency_ms_median is not None
        assert row.device == "cpu"
    assert here.runtime_version == again.runtime_version != other.runtime_version == versions["onnxruntime-gpu"]


@pytest.mark.skipif(nvidia_driver() is not None, reason="this machine has an NVIDIA driver")
def test_its_cuda_is_unavailable_for_the_true_reason_and_has_no_figure(rows: dict[str, Record]) -> None:
    row = row_of(rows, "ort-cuda", OTHER)
    assert row.status == "unavailable"
    assert "there is no NVIDIA driver: libcuda.so.1 is missing" in row.reason
    assert "libcublasLt.so.13" in row.reason
    assert row.latency_ms_median is None
    assert row.device is None
