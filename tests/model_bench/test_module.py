"""A bench of a module of the user: each arm is judged by the module in float64."""

from pathlib import Path

import pytest

from attnbench import api
from attnbench.errors import InputError
from tests.conftest import InstallPlugin
from tests.model_bench import models

pytest.importorskip("onnxruntime")

WRONG = """
from attnbench_exporters.decomposed import OnnxDecomposed


class Scaled(OnnxDecomposed):
    name = "scaled"

    def export_program(self, program, problem, opset, path):
        import hashlib
        from dataclasses import replace
        import onnx

        artifact = super().export_program(program, problem, opset, path)
        model = onnx.load(path)
        for node in model.graph.node:  # the output `y` is doubled, `best` stays what it was
            for index, name in enumerate(node.output):
                if name == "y":
                    node.output[index] = "half_y"
            for index, name in enumerate(node.input):
                if name == "y":
                    node.input[index] = "half_y"
        model.graph.node.append(onnx.helper.make_node("Add", ["half_y", "half_y"], ["y"]))
        onnx.save(model, path)
        blob = path.read_bytes()
        return replace(artifact, sha256=hashlib.sha256(blob).hexdigest(), size_bytes=len(blob))
"""


@pytest.fixture
def little_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.sweep.runner.PEAK_SECONDS", 0.01)
    monkeypatch.setattr("attnbench.sweep.plan.Budget.timing_s", lambda *_: 0.0)


@pytest.mark.usefixtures("little_timing")
def test_a_module_judges_its_own_exports_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install_plugin: InstallPlugin
) -> None:
    install_plugin(exporters={"scaled": "scaled_export:Scaled"}, modules={"scaled_export": WRONG})
    monkeypatch.chdir(tmp_path)
    inputs = models.save_module(tmp_path, "head_of_mine")
    run = api.bench(
        module="head_of_mine:Head", inputs=inputs, bind={"seq": "T"}, sizes={"batch": 2}, seq_lens=[32],
        runtimes=["torch-eager", "torch-sdpa", "ort-cpu"], exporters=["onnx-decomposed", "scaled", "onnx-contrib"],
        out=tmp_path / "run", time_budget_s=1000.0,
    )  # fmt: skip
    rows = {row.arm: row for row in run.rows}
    assert {arm: row.status for arm, row in rows.items()} == {
        "torch-eager": "ok", "torch-sdpa": "unsupported", "onnx-decomposed@ort-cpu": "ok",
        "scaled@ort-cpu": "mismatch", "onnx-contrib@ort-cpu": "unsupported",
    }, {arm: row.reason for arm, row in rows.items()}  # fmt: skip
    assert rows["scaled@ort-cpu"].reason.startswith("output y: ")
    right = rows["onnx-decomposed@ort-cpu"]
    assert right.worst_row_rel_err is not None
    assert right.worst_row_limit is not None
    assert 0.0 < right.worst_row_rel_err <= right.worst_row_limit
    assert right.err_vs_floor is not None
    assert right.speedup_vs_baseline is not None
    assert not [flag for row in run.rows for flag in row.flags if flag.startswith("judged_by")]


def test_a_size_outside_the_range_of_a_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = models.save_module(tmp_path, "another_head")
    with pytest.raises(
        InputError, match=r"seq = 2000000 is outside its range of 1 to 1000000 .*\[ranges\.seq\] with max"
    ):
        api.bench(module="another_head:Head", inputs=inputs, bind={"seq": "T"}, sizes={"batch": 2}, seq_lens=[2000000],
                  out=tmp_path / "run")  # fmt: skip
    assert not (tmp_path / "run").exists()
