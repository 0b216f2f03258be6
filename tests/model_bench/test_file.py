"""A bench of an ONNX file of the user: what its rows say, and what they never say."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from attnbench import api
from attnbench.errors import InputError, RecordsError, UntrustedModelError
from attnbench.model_bench.bench import file_limits
from attnbench.model_bench.source import Source
from attnbench.model_problem import ModelProblem, TensorSpec
from attnbench.records import Record
from tests.conftest import InstallPlugin
from tests.model_bench import models

pytest.importorskip("onnxruntime")


def bench(tmp_path: Path, onnx: Path, **more: Any) -> api.Run:
    """A run with as little timing as there can be."""
    return api.bench(onnx=onnx, out=tmp_path / "run", time_budget_s=1000.0, **more)


@pytest.fixture
def little_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rounds of every group are enough where the figures are not looked at, and so is a guess of the machine."""
    monkeypatch.setattr("attnbench.sweep.runner.PEAK_SECONDS", 0.01)
    monkeypatch.setattr("attnbench.sweep.plan.Budget.timing_s", lambda *_: 0.0)


pytestmark = pytest.mark.usefixtures("little_timing")


def by_arm(run: api.Run) -> dict[str, Record]:
    """The rows of a run of one size."""
    return {r.arm: r for r in run.rows}


def test_two_runtimes_agree_on_a_file_and_none_is_called_right(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    file = models.save_two(tmp_path / "two.onnx")
    run = bench(tmp_path, file, bind={"seq": "T"}, sizes={"batch": 2}, seq_lens=[4, 16])
    assert [(r.arm, r.q_len, r.status) for r in run.rows] == [
        ("file@ort-cpu", 4, "ok"), ("file@openvino", 4, "ok"), ("file@ort-cpu", 16, "ok"), ("file@openvino", 16, "ok"),
    ]  # fmt: skip
    for row in run.rows:
        assert (row.part, row.model, row.bound, row.sizes) == (
            "model",
            "two.onnx",
            "seq",
            {"batch": 2, "seq": row.q_len},
        )
        assert "judged_by_file@ort-cpu" in row.flags
        assert row.num_heads is None
        assert row.empty_reasons["num_heads"] == "a model, not the built-in attention"
        assert row.latency_ms_median is not None
        if row.arm == "file@ort-cpu":
            assert row.worst_row_rel_err is None
            assert "this arm is the reference" in row.empty_reasons["worst_row_rel_err"]
        else:
            assert row.worst_row_rel_err is not None
            assert row.worst_row_limit == pytest.approx(1e-4)
            assert row.output == "y"
    assert run.exit_code == 0
    assert run.manifest["sweep"]["runtimes"] == []  # nobody named one, so one that is not installed is no failure
    assert run.manifest["model"]["facts"]["sha256"]["file/two.onnx"] == run.rows[0].artifact_sha256
    assert any("they agree and not that they are right" in notice for notice in run.manifest["notices"])


def test_every_output_of_a_runtime_is_judged(tmp_path: Path, install_plugin: InstallPlugin) -> None:
    install_plugin(runtimes=models.RUNTIMES, modules={"liars": models.LIARS})
    file = models.save_two(tmp_path / "two.onnx")
    liars = [name for name in models.RUNTIMES if name not in ("moody", "tired", "in-bind")]
    run = bench(tmp_path, file, sizes={"batch": 2, "seq": 4}, runtimes=["ort-cpu", *liars])
    found = {r.runtime: (r.status, r.reason) for r in run.rows}
    due = {
        "ort-cpu": ("ok", ""),
        "honest": ("ok", ""),
        "wrong-integer": ("mismatch", "output best: 1 of 8 integers differ"),
        "wrong-float": ("mismatch", "output y: row"),
        "wrong-dtype": ("mismatch", "output best is int32, the model's is int64"),
        "killed": ("crashed", "SIGKILL"),
        "old": ("unsupported", "old runs the built-in attention only, no models of yours"),
    }
    assert {runtime: status for runtime, (status, _) in found.items()} == {n: s for n, (s, _) in due.items()}, found
    for runtime, (_, reason) in due.items():
        assert reason in found[runtime][1]
    assert run.exit_code == 1


def test_a_runtime_that_is_right_only_when_it_is_checked_is_found_with_its_output(
    tmp_path: Path, install_plugin: InstallPlugin
) -> None:
    install_plugin(runtimes=models.RUNTIMES, modules={"liars": models.LIARS})
    file = models.save_two(tmp_path / "two.onnx")
    run = bench(tmp_path, file, sizes={"batch": 2, "seq": 4}, runtimes=["ort-cpu", "tired"])
    row = by_arm(run)["file@tired"]
    assert row.status == "mismatch"
    assert row.reason.startswith("after timing: output y: ")


def test_a_runtime_that_works_while_inputs_are_bound_is_found(tmp_path: Path, install_plugin: InstallPlugin) -> None:
    install_plugin(runtimes=models.RUNTIMES, modules={"liars": models.LIARS})
    file = models.save_two(tmp_path / "two.onnx")
    sizes = {"batch": 8, "seq": 4096}
    rows = by_arm(bench(tmp_path, file, sizes=sizes, runtimes=["ort-cpu", "honest", "in-bind"]))
    assert {row.runtime: row.status for row in rows.values()} == {
        "ort-cpu": "ok",
        "honest": "ok",
        "in-bind": "mismatch",
    }
    assert "bind() does the work" in rows["file@in-bind"].reason
    assert rows["file@in-bind"].verdict is None


def test_a_call_that_is_far_quicker_than_copying_its_inputs_is_honest(tmp_path: Path) -> None:
    file = models.save_first_row(tmp_path / "first.onnx")
    rows = by_arm(bench(tmp_path, file, sizes={"n": 8192}))
    assert {row.status for row in rows.values()} == {"ok"}, [row.reason for row in rows.values()]


def test_the_first_arm_that_runs_the_file_judges(tmp_path: Path, install_plugin: InstallPlugin) -> None:
    install_plugin(runtimes=models.RUNTIMES, modules={"liars": models.LIARS})
    file = models.save_two(tmp_path / "two.onnx")
    run = bench(tmp_path, file, sizes={"batch": 1, "seq": 4}, runtimes=["old", "honest", "ort-cpu"])
    assert by_arm(run)["file@old"].status == "unsupported"
    assert all("judged_by_file@honest" in row.flags for row in run.rows if row.status == "ok")
    assert by_arm(run)["file@ort-cpu"].worst_row_rel_err is not None


def test_a_judge_that_contradicts_itself_is_told(tmp_path: Path, install_plugin: InstallPlugin) -> None:
    install_plugin(runtimes=models.RUNTIMES, modules={"liars": models.LIARS})
    run = bench(tmp_path, models.save_two(tmp_path / "two.onnx"), sizes={"batch": 1, "seq": 4}, runtimes=["moody"])
    (row,) = run.rows
    assert row.status == "mismatch"
    assert row.reason.startswith("it does not give again what the others are compared with: output y")


def test_a_file_with_fixed_sizes_is_run_once_and_has_no_t(tmp_path: Path) -> None:
    run = bench(tmp_path, models.save_fixed(tmp_path / "fixed.onnx"), runtimes=["ort-cpu"])
    (row,) = run.rows
    assert (row.status, row.q_len, row.sizes) == ("ok", None, {})
    assert row.empty_reasons["q_len"] == "no free dim of the model follows T"
    assert row.peak_host_bytes is not None


def test_fp16_is_held_to_the_digits_that_it_has(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    run = bench(tmp_path, models.save_fixed(tmp_path / "half.onnx", kind=TensorProto.FLOAT16, scale=0.3))
    row = by_arm(run)["file@openvino"]
    assert (row.status, row.dtype) == ("ok", "fp16")
    assert row.worst_row_limit == pytest.approx(4e-3)


def test_the_first_step_of_a_decoder_has_an_empty_cache(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    run = bench(tmp_path, models.save_step(tmp_path / "step.onnx"), bind={"new": "T"}, sizes={"past": [0, 5]},
                seq_lens=[4])  # fmt: skip
    assert [(r.arm, r.sizes["past"], r.status) for r in run.rows] == [
        ("file@ort-cpu", 0, "ok"), ("file@openvino", 0, "ok"), ("file@ort-cpu", 5, "ok"), ("file@openvino", 5, "ok"),
    ], [r.reason for r in run.rows]  # fmt: skip


def test_nothing_is_said_of_a_model_whose_outputs_are_empty(tmp_path: Path) -> None:
    (row,) = bench(tmp_path, models.save_roots(tmp_path / "r.onnx"), sizes={"x_dim0": 0}, runtimes=["ort-cpu"]).rows
    assert row.status == "error"
    assert "the outputs are empty at these sizes (y (0, 8)), so nothing is computed" in row.reason


def test_nan_is_nothing_to_compare_with(tmp_path: Path) -> None:
    file = models.save_roots(tmp_path / "roots.onnx")
    run = bench(tmp_path, file, sizes={"x_dim0": 4}, runtimes=["ort-cpu"])
    (row,) = run.rows
    assert row.status == "error"
    assert "output y is NaN in" in row.reason
    assert row.latency_ms_median is None
    assert run.exit_code == 3


def test_a_file_that_no_runtime_takes_is_unsupported_in_the_words_of_each(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    onnx = pytest.importorskip("onnx")
    model = onnx.load(models.save_fixed(tmp_path / "fixed.onnx"))
    model.graph.node[0].domain = "nobody.knows"
    model.opset_import.append(onnx.helper.make_opsetid("nobody.knows", 1))
    onnx.save(model, tmp_path / "custom.onnx")
    run = bench(tmp_path, tmp_path / "custom.onnx")
    assert {r.runtime: r.status for r in run.rows} == {"ort-cpu": "unsupported", "openvino": "unsupported"}
    assert "nobody.knows" in by_arm(run)["file@ort-cpu"].reason
    assert "openvino" in by_arm(run)["file@openvino"].reason
    assert run.exit_code == 3


def test_given_inputs_are_bound_and_outputs_are_kept(tmp_path: Path) -> None:
    file = models.save_roots(tmp_path / "roots.onnx")
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    np.savez(tmp_path / "in.npz", x=x)
    run = bench(
        tmp_path, file, load_inputs=tmp_path / "in.npz", save_outputs=tmp_path / "out.npz", runtimes=["ort-cpu"]
    )
    (row,) = run.rows
    assert (row.status, row.sizes) == ("ok", {"x_dim0": 3})
    with np.load(tmp_path / "out.npz") as kept:
        assert sorted(kept.files) == ["file@ort-cpu/y", "reference/y"]
        np.testing.assert_allclose(kept["file@ort-cpu/y"], np.sqrt(x), rtol=1e-6)


@pytest.mark.parametrize("read", ["in.npz", "model.npz"])
def test_outputs_never_replace_a_file_that_the_run_reads(tmp_path: Path, read: str) -> None:
    file = models.save_roots(tmp_path / "model.npz")  # a file may be called anything
    np.savez(tmp_path / "in.npz", x=np.ones((3, 8), np.float32))
    before = (tmp_path / read).read_bytes()
    with pytest.raises(InputError, match=rf"--save-outputs '.*{read}' is a file that the run reads; name another"):
        bench(tmp_path, file, load_inputs=tmp_path / "in.npz", save_outputs=tmp_path / read, runtimes=["ort-cpu"])
    assert (tmp_path / read).read_bytes() == before
    assert not (tmp_path / "run").exists()


def test_a_model_of_sequences_is_told_so_and_not_asked_for_a_shape(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(models.save_fixed(tmp_path / "fixed.onnx"))
    listed = onnx.helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2, 24])
    model.graph.input[0].CopyFrom(listed)
    model.graph.node[0].CopyFrom(onnx.helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0))
    onnx.save(model, tmp_path / "listed.onnx")
    with pytest.raises(InputError, match="input 'x' is no tensor of a known dtype, but perhaps a sequence"):
        bench(tmp_path, tmp_path / "listed.onnx")


def test_given_inputs_must_fit_before_anything_runs(tmp_path: Path) -> None:
    file = models.save_fixed(tmp_path / "fixed.onnx")
    np.savez(tmp_path / "in.npz", x=np.zeros((2, 24), np.float64))
    with pytest.raises(InputError, match="x is float64, the model takes fp32"):
        bench(tmp_path, file, load_inputs=tmp_path / "in.npz")
    assert not (tmp_path / "run").exists()


def test_a_free_dim_without_a_size_is_named_with_the_way_out(tmp_path: Path) -> None:
    file = models.save_two(tmp_path / "two.onnx")
    with pytest.raises(InputError, match=r"without a size: batch; .*--set batch=1"):
        bench(tmp_path, file, bind={"seq": "T"})
    with pytest.raises(InputError, match=r"no free dim 'sek'; .*did you mean 'seq'"):
        bench(tmp_path, file, bind={"sek": "T"}, sizes={"batch": 2})
    assert not (tmp_path / "run").exists()


def test_what_only_attention_has_is_refused(tmp_path: Path) -> None:
    file = models.save_fixed(tmp_path / "fixed.onnx")
    with pytest.raises(InputError, match="num_heads is of the built-in attention"):
        bench(tmp_path, file, num_heads=[8])
    with pytest.raises(InputError, match="the model is a file already"):
        bench(tmp_path, file, exporters=["onnx-attention"])
    with pytest.raises(InputError, match="name one model"):
        api.bench(sizes={"batch": 1})


@pytest.mark.parametrize(
    ("runtimes", "why"),
    [
        (["torch-eager"], "torch-eager runs modules of torch, and the model is an ONNX file"),
        (["onnx-reference"], "onnx-reference is never timed, and attnbench conform checks it on the built-in"),
        (["torch-sdpa", "null"], "torch-sdpa runs modules of torch, .*; null computes nothing"),
    ],
)
def test_runtimes_of_which_none_runs_files_are_refused_with_those_that_do(
    tmp_path: Path, runtimes: list[str], why: str
) -> None:
    file = models.save_fixed(tmp_path / "fixed.onnx")
    with pytest.raises(
        InputError, match=rf"^--runtimes: {why}.*; runtimes here that run ONNX files: .*ort-cpu"
    ) as told:
        bench(tmp_path, file, runtimes=runtimes)
    listed = str(told.value).rpartition(": ")[2].split(", ")
    assert not {"torch-eager", "torch-sdpa", "torch-compile", "onnx-reference", "null"} & set(listed)
    assert not (tmp_path / "run").exists()


def test_a_runtime_that_cannot_run_files_beside_one_that_can_is_a_row(tmp_path: Path) -> None:
    file = models.save_fixed(tmp_path / "fixed.onnx")
    rows = by_arm(bench(tmp_path, file, runtimes=["ort-cpu", "torch-eager", "onnx-reference"]))
    assert {row.runtime: row.status for row in rows.values()} == {
        "ort-cpu": "ok", "torch-eager": "unsupported", "onnx-reference": "unsupported",
    }  # fmt: skip
    assert rows["file@onnx-reference"].reason == (
        "onnx-reference is checked by attnbench conform, never timed, and on the built-in attention only"
    )


def test_a_hostile_file_is_refused_before_a_run_exists(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(models.save_fixed(tmp_path / "fixed.onnx"))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    onnx.save(model, tmp_path / "hostile.onnx")
    with pytest.raises(UntrustedModelError, match="secret"):
        bench(tmp_path, tmp_path / "hostile.onnx")
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_moved_to_another_disk_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def move_within_a_disk(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.rename", move_within_a_disk)
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "pipe")
    source = Source(
        folder=tmp_path / "model", kind="onnx", name="m", file="m.onnx", inputs=(), outputs=(), precision="", opset=17,
        size_bytes=1, sha256={},
    )  # fmt: skip
    with pytest.raises(InputError, match=r"cannot be written to '.*run': .*is a named pipe.*; make room there"):
        source.moved_to(tmp_path / "run")


def test_a_plan_writes_nothing_and_says_the_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = models.save_two(tmp_path / "two.onnx")
    before = sorted(tmp_path.iterdir())
    plan = api.plan(onnx=file, bind={"seq": "T"}, sizes={"batch": [1, 8]}, seq_lens=[4])
    assert [group.problem.label() for group in plan.groups] == [
        "two.onnx batch=1 seq=4 fp32", "two.onnx batch=8 seq=4 fp32",
    ]  # fmt: skip
    assert any("drawn evenly: ids from 0 to 49;" in notice for notice in plan.notices)  # rows of the table
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupted_run_goes_on_with_the_file_that_it_began_with(tmp_path: Path) -> None:
    file = models.save_two(tmp_path / "two.onnx")
    run = bench(tmp_path, file, bind={"seq": "T"}, sizes={"batch": 1}, seq_lens=[4, 8], runtimes=["ort-cpu"])
    records = run.path / "records.jsonl"
    first = records.read_text(encoding="utf-8").splitlines(keepends=True)[0]
    records.write_text(first, encoding="utf-8")
    file.unlink()
    again = api.bench(resume=run.path)
    assert [(r.q_len, r.status) for r in again.rows] == [(4, "ok"), (8, "ok")]
    assert json.loads(first)["case_id"] == again.rows[0].case_id

    records.write_text(first, encoding="utf-8")
    copy = run.path / "artifacts" / "model" / "file" / "two.onnx"
    copy.write_bytes(copy.read_bytes()[:-1] + b"\x00")
    with pytest.raises(RecordsError, match="the model was changed"):
        api.bench(resume=run.path)


@pytest.mark.parametrize(("dtype", "most"), [("fp32", "1e-4"), ("fp16", "4e-3"), ("bf16", "7.2e-2")])
def test_the_limits_of_a_file_are_those_that_the_docs_tell(dtype: str, most: str) -> None:
    spec = TensorSpec(name="x", dtype=dtype, dims=(2,))
    limits = file_limits(ModelProblem(name="m", inputs=(spec,), outputs=()), "file@ort-cpu")
    assert limits["worst_row"] == pytest.approx(float(most))
    told = (Path(__file__).parents[2] / "docs" / "your-model.md").read_text(encoding="utf-8")
    assert f"{most} in {dtype}" in " ".join(told.split())
