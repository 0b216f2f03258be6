"""A sweep on a GPU: rows that ran there, have a latency and are right."""

from pathlib import Path

import pytest

from attnbench import api, plugins

pytestmark = pytest.mark.gpu


def test_a_sweep_takes_the_gpu_by_itself_and_says_so(device: str, tmp_path: Path) -> None:
    if device not in plugins.probe("runtime", "torch-sdpa").devices:
        pytest.skip(plugins.probe("runtime", "torch-sdpa").no_cuda)
    run = api.bench(
        variants=["causal"], seq_lens=[128, 256], dtypes=["fp16"], runtimes=["torch-sdpa", "torch-eager"],
        out=tmp_path / "run", time_budget_s=30.0,
    )  # fmt: skip
    assert len(run.rows) >= 4
    for row in run.rows:
        assert row.status == "ok", row.reason
        assert row.device == device
        assert row.latency_ms_median is not None
        assert row.latency_ms_median > 0
