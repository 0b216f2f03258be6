"""A model of the user from the command line to the report."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attnbench.report.tables import read_csv
from tests.conftest import Call
from tests.model_bench import models

pytest.importorskip("onnxruntime")


def test_a_file_is_benched_and_every_text_says_agree(
    run: Callable[..., Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnbench.sweep.runner.PEAK_SECONDS", 0.01)
    monkeypatch.setattr("attnbench.sweep.plan.Budget.timing_s", lambda *_: 0.0)
    file = models.save_two(tmp_path / "two é.onnx")
    out, kept, summary = tmp_path / "my run", tmp_path / "out.npz", tmp_path / "s.md"
    code, text, err = run(
        "bench", "--onnx", str(file), "--set", "batch=2", "--bind", "seq=T", "-s", "8", "-o", str(out), "-q",
        "--save-outputs", str(kept), "--markdown", str(summary), "--time-budget", "1000s",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "every other arm is compared with file@ort-cpu" in " ".join(text.split())
    for shown in (text, summary.read_text(encoding="utf-8")):
        assert "agree" in shown
        assert "right" not in shown
    table = read_csv(out / "records.csv")
    assert set(table["model"]) == {"two é.onnx"}
    assert [json.loads(sizes) for sizes in table["sizes"]] == [{"batch": 2, "seq": 8}] * len(table)
    with np.load(kept, allow_pickle=False) as arrays:
        assert {name.rpartition("/")[0] for name in arrays.files} == {"reference", *table["arm"]}
    code, text, _ = run("explain", str(out), table["case_id"].iloc[0])
    assert code == 0
    assert "two é.onnx batch=2 seq=8" in " ".join(text.split())
