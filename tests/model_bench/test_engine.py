"""A bench of an engine of the user: what is asked of the file before anything runs, and who judges it."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnbench import api
from attnbench.errors import InputError, RecordsError, UnavailableError, UnsupportedError, WorkerError
from attnbench.model_bench.engines import stage_engine
from attnbench.records import Record
from tests.conftest import Call, InstallPlugin, assert_one_sentence
from tests.model_bench import engines
from tests.runtimes.engine_rig import save_plan

pytest.importorskip("onnxruntime")


pytestmark = pytest.mark.usefixtures("little_timing")


@pytest.fixture(autouse=True)
def fake_trt(install_plugin: InstallPlugin) -> None:
    """A runtime that opens engines here."""
    install_plugin(runtimes=engines.RUNTIMES, modules={"fake_trt": engines.SOURCE})


def bench(folder: Path, engine: Path, **more: Any) -> api.Run:
    """A run of the engine at 2 x 8, unless other sizes are given."""
    if not any(name in more for name in ("onnx", "bind", "shapes")):
        more["shapes"] = {"x": (2, 8)}
    return api.bench(
        engine=engine, out=folder / "run", time_budget_s=1000.0, **{"runtimes": ["fake-trt"], **more}
    )  # fmt: skip


def by_arm(run: api.Run) -> dict[str, Record]:
    return {r.arm: r for r in run.rows}


def test_an_engine_alone_is_judged_by_nobody_and_resumed_as_it_was(tmp_path: Path, run: Callable[..., Call]) -> None:
    cli = run
    file = engines.save_engine(tmp_path / "m ü 1.plan")
    run = bench(tmp_path, file, bind={"x_dim1": "T"}, sizes={"x_dim0": 1}, seq_lens=[8, 64])
    assert [(r.arm, r.q_len, r.status, r.model, r.opset) for r in run.rows] == [
        ("engine@fake-trt", 8, "ok", "m ü 1.plan", None), ("engine@fake-trt", 64, "ok", "m ü 1.plan", None),
    ]  # fmt: skip
    assert all(r.flags[:1] == ["judged_by_engine@fake-trt"] and r.worst_row_rel_err is None for r in run.rows)
    facts = run.manifest["model"]["facts"]
    assert facts["sha256"] == {"engine/engine.plan": run.rows[0].artifact_sha256}
    assert facts["engine"]["facts"]["version"] == "9.9"
    assert any("an engine alone has nothing that it is compared with" in notice for notice in run.manifest["notices"])
    assert run.exit_code == 0
    told = cli("explain", str(run.path), run.rows[0].case_id)
    assert "took the engine as it was given" in " ".join(told[1].split())

    records = run.path / "records.jsonl"
    first = records.read_text(encoding="utf-8").splitlines(keepends=True)[0]
    records.write_text(first, encoding="utf-8")
    file.unlink()
    assert [(r.q_len, r.status) for r in api.bench(resume=run.path).rows] == [(8, "ok"), (64, "ok")]
    records.write_text(first, encoding="utf-8")
    copy = run.path / "artifacts" / "model" / "engine" / "engine.plan"
    copy.write_bytes(copy.read_bytes() + b" ")
    with pytest.raises(RecordsError, match="the model was changed; start a new run"):
        api.bench(resume=run.path)


def test_the_file_that_it_was_compiled_from_judges_it(tmp_path: Path) -> None:
    file, onnx = engines.save_engine(tmp_path / "m.plan"), engines.save_twice(tmp_path / "m.onnx")
    run = bench(tmp_path, file, onnx=onnx, sizes={"batch": 2, "seq": 8}, runtimes=["fake-trt", "ort-cpu"],
                baseline="engine@fake-trt")  # fmt: skip
    rows = by_arm(run)
    assert {arm: r.status for arm, r in rows.items()} == {"engine@fake-trt": "ok", "file@ort-cpu": "ok"}
    assert all("judged_by_file@ort-cpu" in r.flags for r in run.rows)  # though the engine is the baseline
    assert rows["engine@fake-trt"].worst_row_rel_err == 0.0
    assert rows["engine@fake-trt"].artifact_sha256 != rows["file@ort-cpu"].artifact_sha256
    assert rows["file@ort-cpu"].speedup_vs_baseline is not None


@pytest.mark.parametrize(
    ("mood", "told"),
    [("coarse", r"output y: .*; an engine that was compiled for fewer digits than its file \(trtexec --fp16\) differs"),
     ("lies", r"output y has shape \(1, 8\), the reference's has \(2, 8\)")],
)  # fmt: skip
def test_an_engine_that_gives_something_else_is_a_mismatch(tmp_path: Path, mood: str, told: str) -> None:
    file, onnx = engines.save_engine(tmp_path / "m.plan", mood=mood), engines.save_twice(tmp_path / "m.onnx")
    run = bench(tmp_path, file, onnx=onnx, sizes={"batch": 2, "seq": 8}, runtimes=["ort-cpu", "fake-trt"])
    row = by_arm(run)["engine@fake-trt"]
    assert row.status == "mismatch"
    assert re.search(told, row.reason), row.reason


@pytest.mark.parametrize("shape", [(5, 8), (2, 17), (1, 65)])
def test_sizes_outside_of_every_profile_are_refused_before_anything_runs(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    told = (
        f"--engine 'm.plan': x of shape {shape[0]}x{shape[1]} is outside of the engine's 2 profiles: x from 1x1 to "
        "4x16; x from 1x17 to 1x64"
    )
    with pytest.raises(InputError, match=told):
        bench(tmp_path, engines.save_engine(tmp_path / "m.plan"), shapes={"x": shape})
    onnx = engines.save_twice(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=told):
        bench(tmp_path, tmp_path / "m.plan", onnx=onnx, sizes={"batch": shape[0], "seq": shape[1]})
    assert not (tmp_path / "run").exists()


def test_sizes_that_lack_are_asked_with_the_ranges_that_there_are(tmp_path: Path) -> None:
    told = r"free dims without a size: x_dim1; .*; the engine takes x from 1x1 to 4x16; x from 1x17 to 1x64$"
    with pytest.raises(InputError, match=told):
        bench(tmp_path, engines.save_engine(tmp_path / "m.plan"), bind={"x_dim0": "T"})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"inputs": [["x", "fp16", ["a", "b"]]]}, "the engine's inputs are x fp16 of 2 dims, the model's are x fp32"),
        ({"inputs": [["x", "fp32", ["a", "b", "c"]]]}, "inputs are x fp32 of 3 dims, the model's are x fp32 of 2 dims"),
        ({"outputs": [["z", "fp32", ["a", "b"]]]}, "the engine's outputs are z fp32 .*: the engine was not compiled"),
    ],
)
def test_an_engine_of_another_file_is_refused(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    file, onnx = engines.save_engine(tmp_path / "m.plan", **changed), engines.save_twice(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=told):
        bench(tmp_path, file, onnx=onnx, sizes={"batch": 2, "seq": 8})


@pytest.mark.parametrize(
    ("mood", "error", "told"),
    [
        ("killed", WorkerError, r"--engine '.*m 1\.plan' cannot be opened: killed by signal 9 \(SIGKILL\)"),
        ("away", UnavailableError, r"--engine '.*m 1\.plan' opens on cuda:0 only: there is no NVIDIA driver"),
        ("old", UnsupportedError, r"does not open --engine '.*m 1\.plan': Version tag does not match"),
    ],
)
def test_what_goes_wrong_at_opening_is_told_with_the_users_name(
    tmp_path: Path, mood: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        bench(tmp_path, engines.save_engine(tmp_path / "m 1.plan", mood=mood))
    assert not (tmp_path / "run").exists()


def test_a_file_runs_where_its_engine_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TRT_AWAY", "1")
    file, onnx = engines.save_engine(tmp_path / "m.plan", mood="away"), engines.save_twice(tmp_path / "m.onnx")
    run = bench(tmp_path, file, onnx=onnx, sizes={"batch": 2, "seq": 8}, runtimes=["ort-cpu", "fake-trt"])
    assert {r.arm: r.status for r in run.rows} == {"file@ort-cpu": "ok", "engine@fake-trt": "unavailable"}
    assert any("the engine was not opened, so its sizes were not compared" in n for n in run.manifest["notices"])
    assert run.exit_code == 3  # it was asked for
    assert run.missing == [by_arm(run)["engine@fake-trt"]]
    run.manifest["sweep"]["runtimes"] = []  # as where no --runtimes was given: the engine was asked for all the same
    assert run.exit_code == 3


@pytest.mark.parametrize("name", ["random.plan", "zero.plan", "folder.plan", "fifo.plan", "closed.plan", "gone.plan"])
def test_what_is_no_engine_is_one_sentence(run: Callable[..., Call], tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder.plan":
        path.mkdir()
    elif name == "fifo.plan":
        os.mkfifo(path)
    elif name != "gone.plan":
        path.write_bytes(b"" if name == "zero.plan" else os.urandom(4096))
    if name == "closed.plan":
        if os.geteuid() == 0:
            pytest.skip("root reads every file")
        path.chmod(0)
    call = run("bench", "--engine", str(path), "--set", "x_dim0=1", "--runtimes", "tensorrt")
    assert_one_sentence(call)
    assert name in call[2]


@pytest.mark.parametrize("name", ["a b.plan", "Modell ü 模型.plan", "-x.plan", "link.plan"])
def test_an_engine_may_be_called_anything(run: Callable[..., Call], tmp_path: Path, name: str) -> None:
    path = engines.save_engine(tmp_path / ("m.plan" if name == "link.plan" else name))
    if name == "link.plan":
        (tmp_path / name).symlink_to(path)
    code, out, err = run(
        "bench", f"--engine={tmp_path / name}", "--shapes", "x:2x8", "--runtimes", "fake-trt", "--dry-run"
    )
    assert (code, err) == (0, "")
    assert "1 case: 1 problem x 1 arm" in out
    assert ", a guess for a model\n" in out


def test_a_name_with_a_line_break_is_one_sentence(run: Callable[..., Call], tmp_path: Path) -> None:
    path = engines.save_engine(tmp_path / "line\nbreak.plan")
    assert_one_sentence(run("bench", f"--engine={path}", "--shapes", "x:2x8", "--runtimes", "fake-trt"))


def test_a_real_engine_without_a_gpu_is_unavailable_and_no_other_file_is(
    run: Callable[..., Call], tmp_path: Path
) -> None:
    from attnbench_runtimes import cuda_driver

    if not cuda_driver.why_no_gpu():
        pytest.skip("there is a GPU here")
    plan, onnx = save_plan(tmp_path / "m.plan", b"ftrt"), engines.save_twice(tmp_path / "named.plan")
    code, _, err = run("bench", "--engine", str(plan), "--set", "b=1")
    assert code == 3
    assert "TensorRT" in err
    assert "bench the ONNX file that it was compiled from with --onnx" in err
    told = run("bench", "--engine", str(onnx), "--set", "b=1")
    assert_one_sentence(told)
    assert "is no engine: it begins with" in told[2]
    assert "an ONNX file goes with --onnx" in told[2]


def test_an_engine_goes_with_its_file_and_with_no_module(run: Callable[..., Call], tmp_path: Path) -> None:
    plan = engines.save_engine(tmp_path / "m.plan")
    toml = tmp_path / "inputs.toml"
    toml.touch()
    told = run("bench", "--engine", str(plan), "--module", "a:B", "--inputs", str(toml))
    assert_one_sentence(told)
    assert "--module and --engine are different models; give one" in told[2]
    with pytest.raises(InputError, match=r"--save-outputs '.*m\.plan' is a file that the run reads"):
        bench(tmp_path, plan, save_outputs=plan)
    with pytest.raises(InputError, match=r"opened in this environment first, and tensorrt@/opt/x/bin/python is of an"):
        stage_engine(plan, None, tmp_path, runtimes=["tensorrt@/opt/x/bin/python"], device="auto", is_alone=True)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name one model"):
        api.bench(engine=plan, module="a:B", inputs=toml)
    told = run("bench", "--engine", str(plan), "--exporters", "onnx-attention")
    assert "the model is a file already" in told[2]
    told = run("bench", "--engine", str(plan), "--shapes", "x:2x8", "--runtimes", "ort-cpu")
    assert_one_sentence(told)
    assert "none of the runtimes ort-cpu opens engines; add tensorrt or tensorrt-rtx" in told[2]
