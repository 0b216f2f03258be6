"""A case as a zip that anyone can run: the same error as in the record, without attnbench."""

import dataclasses
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from attnbench.analysis.lookup import find_case, problem_of
from attnbench.errors import InputError, RecordsError
from attnbench.inputs import make_inputs, make_weights
from attnbench.measure import numerics
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.sweep import repro, repro_run
from attnbench.sweep.repro_text import readme

# Nothing of attnbench can be imported in the process that runs a reproduction, nor what its runtime does not need.
BLOCKED = ("attnbench", "attnbench_exporters", "attnbench_runtimes", "pandas", "pydantic", "ml_dtypes", "onnx")
ALONE = """
import sys, runpy
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked")
sys.meta_path.insert(0, Blocker())
sys.argv = ["run.py", *sys.argv[1:]]
runpy.run_path("run.py", run_name="__main__")
"""


def run_alone(folder, *arguments, allow=()):
    blocked = tuple(name for name in BLOCKED if name not in allow)
    code = ALONE.format(blocked=blocked)
    return subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def unpacked(what, folder):
    names = repro.write(what, folder / "case.zip")
    with zipfile.ZipFile(folder / "case.zip") as archive:
        assert archive.namelist() == names
        assert not [name for name in names if "/" in name or ".." in name]
        archive.extractall(folder / "case")
    return folder / "case"


def reproduction(problem, **changes):
    fields = {
        "problem": problem, "arm": "torch-sdpa", "runtime": "torch-sdpa", "threads": 1, "seed": 3,
        "input_class": "normal", "model": None, "error": 1e-7, "limit": 5e-5, "gain_limit": 2e-6, "found": "ok",
        "versions": {"attnbench": "0.1.0"},
    }  # fmt: skip
    return repro.Reproduction(**{**fields, **changes})


def printed_error(output):
    return float(output.split("worst row error ")[1].split(",")[0])


def exported(problem, folder, exporter="onnx-decomposed", seed=3):
    from attnbench.plugins import load_exporter

    plugin = load_exporter(exporter)
    return plugin.export(problem, plugin.opsets[0], folder / "model.onnx", seed=seed).path


def error_here(problem, model, runtime, seed=3):
    """The worst row error by attnbench's own adapter."""
    from attnbench.interfaces import Artifact, Settings
    from attnbench.plugins import load_runtime

    artifact = None
    if model is not None:
        artifact = Artifact(path=model, exporter="x", opset=20, sha256="", size_bytes=1, problem=problem)
    inputs = make_inputs(problem, seed=seed)
    with load_runtime(runtime).load(problem, artifact, Settings(seed=seed)) as session:
        session.bind(inputs)()
        y = session.outputs()
    return numerics.compare(y, reference_output(problem, inputs, make_weights(problem, seed=seed))).worst_row_rel_err


MASKED = Problem.make(
    variant="causal", seq_len=24, batch_size=2, num_heads=4, head_dim=8, num_kv_heads=2,
    mask="causal_top_left+bool_b1qk", bias=True, scale=0.3,
)  # fmt: skip


@pytest.mark.parametrize("runtime", ["ort-cpu", "openvino"])
def test_a_file_shows_the_error_of_the_run_without_attnbench(tmp_path, runtime):
    pytest.importorskip({"ort-cpu": "onnxruntime"}.get(runtime, runtime))
    model = exported(MASKED, tmp_path)
    error = error_here(MASKED, model, runtime)
    folder = unpacked(reproduction(MASKED, runtime=runtime, model=model, error=error), tmp_path)
    done = run_alone(folder)
    assert done.returncode == 0, done.stderr
    assert printed_error(done.stdout) == pytest.approx(error, rel=0.05)
    assert done.stdout.endswith("right\n")


@pytest.mark.parametrize(("backend", "code"), [("math", 0), ("efficient", 1)])
def test_a_pinned_kernel_is_pinned_in_the_reproduction(tmp_path, backend, code):
    """A CPU has no efficient kernel: pinned to it, the script must fail."""
    folder = unpacked(reproduction(MASKED, options={"backend": backend}), tmp_path)
    done = run_alone(folder)
    assert done.returncode == code, done.stderr
    assert ("No viable backend" in done.stderr) == bool(code)


@pytest.mark.parametrize("runtime", ["torch-eager", "torch-sdpa"])
@pytest.mark.parametrize(
    "problem",
    [
        MASKED,
        Problem.make(variant="cross", seq_len=20, num_heads=2, head_dim=16, dtype="bf16", mask="alibi"),
        Problem.make(variant="decode", seq_len=20, q_len=3, num_heads=4, head_dim=8, num_kv_heads=1),
        Problem.make(seq_len=12, num_heads=2, head_dim=8, value_map="low_rank", bias=True),
        Problem.make(part="core", variant="causal", seq_len=20, kv_len=9, mask="sliding_window_4", v_head_dim=16),
    ],
    ids=lambda p: p.label() if isinstance(p, Problem) else p,
)  # fmt: skip
def test_the_script_of_a_torch_arm_computes_what_the_arm_does(tmp_path, problem, runtime):
    error = error_here(problem, None, runtime)
    folder = unpacked(reproduction(problem, runtime=runtime, error=error, limit=6e-2, gain_limit=None), tmp_path)
    done = run_alone(folder)
    assert done.returncode == 0, done.stderr
    assert printed_error(done.stdout) == pytest.approx(error, rel=0.05)


def test_a_wrong_model_shows_its_mismatch(tmp_path):
    problem = Problem.make(seq_len=16, num_heads=2, head_dim=8)
    model = exported(Problem.make(variant="causal", seq_len=16, num_heads=2, head_dim=8), tmp_path)  # a mask too many
    folder = unpacked(reproduction(problem, runtime="ort-cpu", model=model, found="mismatch: off by 1"), tmp_path)
    done = run_alone(folder)
    assert done.returncode == 1
    assert done.stdout.endswith("WRONG\n")
    assert printed_error(done.stdout) > 0.1
    assert "Found: mismatch: off by 1" in (folder / "README.md").read_text()


def test_an_output_of_another_shape_is_wrong():
    case = {"outputs": {"y": {"shape": [1, 2, 3], "kind": "fp32"}}}
    text, is_right = repro_run.report(case, {}, {"y": np.zeros((1, 2, 4), np.float32)})
    assert not is_right
    assert "(1, 2, 4)" in text


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (np.s_[:, :, 0, 0], "present_key: 2 of 112 values of old tokens are others; new ones are off by "),
        (np.s_[:, :, -1, :], "present_key: 0 of 112 values of old tokens are others; new ones are off by "),
    ],
)
def test_the_cache_of_a_decode_step_is_judged(tmp_path, monkeypatch, where, words):
    problem = Problem.make(variant="decode", seq_len=9, q_len=2, num_heads=2, head_dim=8)
    model = exported(problem, tmp_path)
    folder = unpacked(reproduction(problem, runtime="ort-cpu", model=model), tmp_path)
    done = run_alone(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "and what is wrong with the cache" in (folder / "README.md").read_text()
    monkeypatch.setattr(repro_run, "HERE", folder)
    case = repro_run.read_case()
    inputs, expected = repro_run.read_arrays(case, "inputs"), np.load(folder / "expected.npz")
    new = expected["present_key"].astype(np.float32)
    outputs = {"y": expected["y"].astype(np.float32), "present_key": np.concatenate([inputs["past_key"], new], 2)}
    assert repro_run.report(case, inputs, outputs)[1]
    outputs["present_key"][where] += 1.0
    text, is_right = repro_run.report(case, inputs, outputs)
    assert not is_right
    assert text.endswith("WRONG\n")
    assert words in text


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("mask", ["none", "key_padding", "bias_1hqk", "alibi"])
@pytest.mark.parametrize("input_class", ["normal", "peaked"])
def test_inputs_that_are_not_stored_are_drawn_again_bit_for_bit(tmp_path, monkeypatch, dtype, mask, input_class):
    monkeypatch.setattr(repro, "MAX_STORED_BYTES", 0)
    problem = Problem.make(seq_len=9, num_heads=2, head_dim=8, dtype=dtype, mask=mask, bias=True)
    what = reproduction(problem, input_class=input_class)
    folder = unpacked(what, tmp_path)
    assert not (folder / "inputs.npz").exists()
    case = json.loads((folder / "case.json").read_text())
    for name, array in make_inputs(problem, seed=3, input_class=input_class).items():
        assert repro_run.draw(3, name, case["inputs"][name]).tobytes() == array.tobytes()


def test_a_script_runs_on_inputs_drawn_from_the_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(repro, "MAX_STORED_BYTES", 0)
    folder = unpacked(reproduction(MASKED), tmp_path)
    done = run_alone(folder)
    assert done.returncode == 0, done.stderr
    assert "seed 3" in (folder / "README.md").read_text()


def test_a_long_output_is_judged_on_some_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(repro, "MAX_EXPECTED_BYTES", 5 * 8 * 16)  # five rows of 16 numbers
    folder = unpacked(reproduction(Problem.make(seq_len=40, num_heads=2, head_dim=8)), tmp_path)
    with np.load(folder / "expected.npz", allow_pickle=False) as stored:
        assert stored["y"].shape == (1, 5, 16)
        assert stored["rows"][[0, -1]].tolist() == [0, 39]
    done = run_alone(folder)
    assert done.returncode == 0, done.stderr
    assert "of 5)" in done.stdout


def test_the_same_case_gives_the_same_bytes(tmp_path):
    for name in ("a.zip", "b.zip"):
        repro.write(reproduction(MASKED), tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_nothing_is_left_behind_on_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(repro, "reference_output", lambda *_, **__: (_ for _ in ()).throw(MemoryError("no room")))
    with pytest.raises(MemoryError):
        repro.write(reproduction(MASKED), tmp_path / "a.zip")
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_the_script_is_that_of_the_judge():
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((2, 5, 4))
    expected[1, 2] = 0.0  # a row with every key masked
    found = (expected + 1e-3 * rng.standard_normal(expected.shape)).astype(np.float32)
    judged, own = numerics.compare(found, expected), repro_run.compare(found.astype(np.float64), expected)
    assert own["worst_row"] == pytest.approx(judged.worst_row_rel_err)
    assert (own["row"], own["rows"]) == (judged.worst_row_index, judged.rows)
    assert own["gain"] == pytest.approx(judged.gain_err)
    found[0, 0, 0] = np.nan
    own = repro_run.compare(found.astype(np.float64), expected)
    assert np.isnan(own["worst_row"])
    assert own["nan"] == 1


def test_the_readme_has_the_commands_of_other_tools():
    case = repro._case(reproduction(Problem.make(variant="cross", seq_len=8, kv_len=3, num_heads=1, head_dim=4)),
                       is_stored=True, weights={})  # fmt: skip
    text = readme("ok", case, has_model=True)
    assert "trtexec --onnx=model.onnx --shapes=query:1x8x4,context:1x3x4 --loadInputs=query:query.bin" in text
    assert "--trt-opt-shapes query:[1,8,4] context:[1,3,4]" in text
    assert "trtexec" not in readme("ok", case, has_model=False)


def test_raw_inputs_are_written_for_trtexec(tmp_path):
    folder = unpacked(reproduction(MASKED), tmp_path)
    assert run_alone(folder, "--write-raw").returncode == 0
    assert (folder / "x.bin").read_bytes() == make_inputs(MASKED, seed=3)["x"].tobytes()


# ---- from rows


def test_a_row_says_which_problem_it_is_about(lab):
    for problem in (
        MASKED,
        Problem.make(seq_len=8),
        Problem.make(part="core", variant="cross", seq_len=8, v_head_dim=16),
    ):
        record = lab.make_record(problem, "torch-sdpa") if problem is not MASKED else None
        fields = {k: v for k, v in problem.as_dict().items() if k != "given_scale"}
        record = record or lab.make_record(Problem.make(seq_len=8), "torch-sdpa").model_copy(
            update={**fields, "problem_id": problem.problem_id, "scale": problem.scale}
        )
        assert problem_of(record) == problem


def test_a_row_of_another_problem_is_refused(lab):
    record = lab.make_record(Problem.make(seq_len=8), "torch-sdpa", problem_id="000000000000")
    with pytest.raises(RecordsError, match="its fields are not those"):
        problem_of(record)


def test_a_case_is_found_by_its_id_a_beginning_and_its_name(lab):
    records = lab.default_records()
    record = records[10]
    for text in (record.case_id, record.case_id[:7], record.case_id.upper(), f"{record.arm}:self:{record.q_len}"):
        assert find_case(records, text) is record


@pytest.mark.parametrize("text", ["", "zzz", "torch-sdpa:self:77", "torch-sdpa:self", "nobody:self:128", ":::", "\n"])
def test_an_unknown_case_is_refused_with_an_example(lab, text):
    records = lab.default_records()
    with pytest.raises(InputError, match="CASE must be a case_id") as caught:
        find_case(records, text)
    assert records[0].case_id in str(caught.value)


def test_a_name_that_means_several_cases_is_refused_with_their_ids(lab):
    records = [lab.make_record(Problem.make(seq_len=128, batch_size=b), "torch-sdpa") for b in (1, 8)]
    with pytest.raises(InputError, match="means 2 cases") as caught:
        find_case(records, "torch-sdpa:self:128")
    assert all(r.case_id in str(caught.value) for r in records)


def test_a_runtime_without_a_script_is_refused(lab, tmp_path):
    problem = Problem.make(seq_len=128)
    with pytest.raises(InputError, match="ran in ort-cuda, for which there is no script"):
        repro.of_record(lab.make_record(problem, "onnx-attention@ort-cuda"), problem, tmp_path, {})


def test_a_case_of_a_gpu_is_not_quietly_run_on_the_cpu(lab, tmp_path):
    problem = Problem.make(seq_len=128)
    record = lab.make_record(problem, "torch-sdpa", device="cuda:0")
    with pytest.raises(InputError, match=r"ran on cuda:0, and run\.py computes on the CPU.* --device cpu"):
        repro.of_record(record, problem, tmp_path, {})


def test_a_file_that_is_gone_or_another_is_refused(lab, tmp_path):
    problem = Problem.make(seq_len=128)
    record = lab.make_record(problem, "onnx-attention@ort-cpu")
    with pytest.raises(RecordsError, match="is not in the run"):
        repro.of_record(record, problem, tmp_path, {})
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / f"onnx-attention-opset23-{problem.static_key()}.onnx").write_bytes(b"other")
    with pytest.raises(RecordsError, match="has sha256"):
        repro.of_record(record, problem, tmp_path, {})
    with pytest.raises(InputError, match="never had a file: unsupported, no kernel"):
        repro.of_record(lab.without_figures(record, "unsupported", "no kernel"), problem, tmp_path, {})


def test_peaked_inputs_are_taken_where_only_they_show_the_fault(lab, tmp_path):
    problem = Problem.make(seq_len=128)
    record = lab.make_record(
        problem, "torch-sdpa", status="mismatch", peaked_worst_row_rel_err=0.5, peaked_worst_row_limit=1e-6
    )
    what = repro.of_record(record, problem, tmp_path, {})
    assert (what.input_class, what.error, what.limit) == ("peaked", 0.5, 1e-6)
    record = record.model_copy(update={"worst_row_rel_err": 0.3})
    what = repro.of_record(record, problem, tmp_path, {})
    assert (what.input_class, what.error) == ("normal", 0.3)


def test_weights_beside_a_model_go_with_it(tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"...weights-0123456789abcdef.data...")
    (tmp_path / "weights-0123456789abcdef.data").write_bytes(b"1")
    (tmp_path / "weights-fedcba9876543210.data").write_bytes(b"2")
    what = dataclasses.replace(reproduction(Problem.make(seq_len=4, num_heads=1, head_dim=4)), model=model)
    assert repro.write(what, tmp_path / "a.zip")[-2:] == ["model.onnx", "weights-0123456789abcdef.data"]
