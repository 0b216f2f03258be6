"""Bundles of the built-in attention, made for real: they verify alone, and whatever is done to them is found."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnbench import bundles
from attnbench.deploy.manifest import read_manifest
from attnbench.inputs import make_weights
from attnbench.problem import Problem
from tests.deploy.bundles import edit, names_in, run_verify, update_hash, verify_here


def test_verify_py_runs_with_only_numpy_and_the_runtime(ort_bundle, tmp_path):
    """An environment of its own, into which nothing else is linked."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "clean"], check=True)
    packages = next((tmp_path / "clean" / "lib").glob("python*")) / "site-packages"
    import onnxruntime

    here = Path(onnxruntime.__file__).parents[1]
    for name in ("numpy", "numpy.libs", "onnxruntime"):
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    python = tmp_path / "clean" / "bin" / "python"
    tried = "import importlib.util as u; print([n for n in ('attnbench', 'torch', 'onnx') if u.find_spec(n)])"
    alone = subprocess.run([python, "-c", tried], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert alone.stdout == "[]\n"
    moved = shutil.copytree(ort_bundle, tmp_path / "moved to ä b")
    done = run_verify(moved, python=python)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [line for line in done.stdout.splitlines() if line.startswith("golden/")]
    assert len(cases) == len(read_manifest(ort_bundle).golden) == 6
    assert done.stdout.splitlines()[-1].startswith("right: 6 cases")
    (packages / "onnxruntime").unlink()
    missing = run_verify(moved, python=python)
    assert missing.returncode == 5
    assert "No module named 'onnxruntime'" in missing.stdout


@pytest.mark.parametrize("bundle", ["ort_bundle", "openvino_bundle", "torch_bundle"])
def test_the_python_of_the_readme_runs_and_is_right(request, bundle):
    folder = request.getfixturevalue(bundle)
    code = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 11
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    shape, error = done.stdout.rsplit(maxsplit=1)
    y = read_manifest(folder).outputs[0]
    assert shape == ("(2, 3, 32)" if y.dtype == "bf16" else "(2, 17, 32)")
    assert float(error) < (0.1 if y.dtype == "bf16" else 1e-5)


def test_openvino_verifies_its_own_format(openvino_bundle):
    code, told = verify_here(openvino_bundle)
    assert code == 0, told
    assert told.count("golden/") == 6


def test_sizes_classes_and_the_certificate_are_those_that_were_asked(ort_bundle):
    bundle = read_manifest(ort_bundle)
    assert bundle.ranges == {"batch_size": (1, 2), "seq_len": (1, 48)}
    assert {case.sizes["seq_len"] for case in bundle.golden} == {1, 17, 48}
    assert {case.file.rsplit("-", 1)[1] for case in bundle.golden} == {"normal.npz", "peaked.npz"}
    for case in bundle.golden:
        assert 0 < case.errors["y"] <= case.limits["y"] <= 5e-5
        assert case.reason
        assert "float64" in case.reference
    assert {found["verdict"] for found in bundle.conformance} == {"conforms"}
    assert "poison" in {found["probe"] for found in bundle.conformance}
    assert {check.name for check in bundle.checks if check.result == "not run"} == {"speed", "NaN at fully masked rows"}
    assert bundle.recipe.chosen_by == "asked"


def test_expected_outputs_are_attention_in_float64(ort_bundle):
    """By a few lines of NumPy."""
    weights = make_weights(Problem.from_dict(read_manifest(ort_bundle).problem), seed=3)
    w_q, w_k, w_v, w_o = (weights[f"w_{letter}"].astype(np.float64) for letter in "qkvo")
    with np.load(ort_bundle / "golden" / "batch2-seq17-peaked.npz", allow_pickle=False) as case:
        x, due = case["in_x"].astype(np.float64), case["out_y"]
    q, k, v = ((x @ w).reshape(2, 17, 4, 8).swapaxes(1, 2) for w in (w_q, w_k, w_v))
    scores = np.where(np.tri(17, dtype=bool), q @ k.swapaxes(2, 3) / np.sqrt(8.0), -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(2, 17, 32) @ w_o
    assert due.dtype == np.float64
    np.testing.assert_allclose(y, due, rtol=0, atol=1e-12)


def test_one_changed_byte_of_any_file_is_found(ort_bundle, copy):
    folder = copy(ort_bundle)
    for name in names_in(folder):
        path = folder / name
        blob = bytearray(path.read_bytes())
        for at in {0, len(blob) // 2, len(blob) - 1}:
            blob[at] ^= 1
            path.write_bytes(blob)
            code, told = verify_here(folder)
            assert code == 4, f"{name}, byte {at}: {told}"
            blob[at] ^= 1
        path.write_bytes(blob)
    assert verify_here(folder)[0] == 0


def test_a_changed_byte_anywhere_in_bundle_json_is_found(ort_bundle, copy):
    folder = copy(ort_bundle)
    path = folder / "bundle.json"
    blob = bytearray(path.read_bytes())
    for at in range(0, len(blob), 11):
        blob[at] ^= 4
        path.write_bytes(blob)
        assert verify_here(folder)[0] == 4, f"byte {at}: {bytes(blob[at - 20 : at + 20])!r}"
        blob[at] ^= 4


@pytest.mark.parametrize("weight", range(4))
def test_weights_changed_by_one_percent_drift_even_with_their_hash_updated(ort_bundle, copy, weight):
    folder = copy(ort_bundle)
    values = np.fromfile(folder / "model.onnx.data", np.float32)
    assert values.size == 4 * 32 * 32
    values[weight * 1024 : (weight + 1) * 1024] *= 1.01
    values.tofile(folder / "model.onnx.data")
    update_hash(folder, "model.onnx.data")
    code, told = verify_here(folder)
    assert code == 3
    assert "drifted" in told.splitlines()[-1]


@pytest.mark.parametrize("weight", range(4))
def test_one_weight_changed_by_one_percent_drifts_in_fp32(ort_bundle, copy, weight):
    """The largest of a projection; fp16 and bf16 have fewer digits than that."""
    folder = copy(ort_bundle)
    values = np.fromfile(folder / "model.onnx.data", np.float32)
    one = weight * 1024 + np.abs(values[weight * 1024 : (weight + 1) * 1024]).argmax()
    values[one] *= 1.01
    values.tofile(folder / "model.onnx.data")
    update_hash(folder, "model.onnx.data")
    assert verify_here(folder)[0] == 3


def test_a_lower_precision_of_the_runtime_drifts(openvino_bundle):
    import openvino

    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU computes nothing in bfloat16")
    done = run_verify(openvino_bundle, "--option", "INFERENCE_PRECISION_HINT=bf16")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "WRONG: y is off by 0.0" in done.stdout


def test_a_runtime_of_another_version_says_both(ort_bundle, tmp_path):
    old = tmp_path / "onnxruntime"
    old.mkdir()
    words = "Unsupported model IR version: 10, max supported IR version: 9"
    (old / "__init__.py").write_text(
        "__version__ = '1.16.0'\nSessionOptions = type('S', (), {'add_session_config_entry': lambda *a: None})\n"
        "def get_available_providers():\n    return ['CPUExecutionProvider']\n"
        f"def InferenceSession(*a, **k):\n    raise RuntimeError({words!r})\n",
        encoding="utf-8",
    )
    done = run_verify(ort_bundle, variables={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 5
    assert "onnxruntime 1.16.0 on" in done.stdout
    assert words in done.stdout
    assert f"made with onnxruntime {read_manifest(ort_bundle).runtime['version']}" in done.stdout


def test_a_missing_provider_is_named_with_those_that_are_there(ort_bundle):
    code, told = verify_here(ort_bundle, providers="CUDAExecutionProvider")
    assert code == 5
    assert "no CUDAExecutionProvider; it has " in told


def test_a_setting_that_is_none_is_bad_usage(ort_bundle, torch_bundle):
    assert run_verify(ort_bundle, "--option", "fast").returncode == 2
    assert run_verify(ort_bundle, "--fast").returncode == 2
    code, told = verify_here(torch_bundle, fast="yes")
    assert code == 2
    assert "PyTorch has no setting fast" in told


def test_links_and_names_that_lead_outside_are_refused(ort_bundle, copy, tmp_path):
    folder = copy(ort_bundle)
    elsewhere = tmp_path / "elsewhere.data"
    (folder / "model.onnx.data").rename(elsewhere)
    assert "model.onnx.data is missing" in verify_here(folder)[1]
    (folder / "model.onnx.data").symlink_to(elsewhere)
    code, told = verify_here(folder)
    assert code == 4
    assert "symbolic link" in told
    for name in ("../elsewhere.data", str(elsewhere), "golden/../../elsewhere.data", "C:evil", "a\\b"):
        edit(folder, lambda fields, name=name: fields["files"].update({name: {"sha256": "0" * 64, "size_bytes": 1}}))
        (folder / "model.onnx.data").unlink(missing_ok=True)
        shutil.copy(elsewhere, folder / "model.onnx.data")
        code, told = verify_here(folder)
        assert code == 4
        assert repr(name) in told
        edit(folder, lambda fields, name=name: fields["files"].pop(name))


def test_data_that_the_bundle_does_not_list_is_never_loaded(ort_bundle, copy):
    import onnx

    folder = copy(ort_bundle)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    (folder / "other.data").write_bytes((folder / "model.onnx.data").read_bytes())
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "other.data" if entry.key == "location" else entry.value
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    update_hash(folder, "model.onnx")
    code, told = verify_here(folder)
    assert code == 4
    assert "asks for the file 'other.data'" in told


def test_attnbench_verify_adds_torch_of_this_machine(ort_bundle):
    found = bundles.verify(ort_bundle)
    assert found.exit_code == 0
    assert len(found.cases) == 6
    for case in found.cases:
        assert 0 < case.errors["y"] < 1e-5
        assert 0 < case.torch_errors["y"] < 1e-5
    assert found.torch[0].isdigit()


@pytest.mark.parametrize(("bundle", "cases"), [("openvino_bundle", 6), ("torch_bundle", 8)])
def test_attnbench_verify_takes_every_kind_of_model(request, bundle, cases):
    found = bundles.verify(request.getfixturevalue(bundle))
    assert (found.exit_code, len(found.cases)) == (0, cases), found.sentence


def test_a_decode_step_is_proved_with_an_empty_cache(torch_bundle):
    manifest = read_manifest(torch_bundle)
    assert manifest.ranges["past_len"] == (0, 47)
    assert [case.sizes["q_len"] for case in manifest.golden if case.sizes["past_len"] == 0] == [5, 5]


def test_a_setting_that_could_write_or_load_files_is_refused(ort_bundle, copy):
    folder = copy(ort_bundle)
    edit(folder, lambda fields: fields["runtime"]["settings"].update({"session.x_path": "/etc/passwd"}))
    assert bundles.verify(folder).exit_code == 4
    assert "sets 'session.x_path' of onnxruntime" in bundles.verify(folder).sentence
    edit(folder, lambda fields: fields["runtime"]["settings"].pop("session.x_path"))
    edit(folder, lambda fields: fields["runtime"]["settings"].update({"provider_options": [{"path": "x"}]}))
    assert "sets 'path'" in bundles.verify(folder).sentence


def test_attnbench_verify_survives_a_model_that_asks_for_all_memory(ort_bundle, copy):
    """A bomb with right hashes ends in the worker."""
    from onnx import TensorProto, helper, numpy_helper

    folder = copy(ort_bundle)
    shape = numpy_helper.from_array(np.array([1 << 44]), "shape")
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["big"]),
             helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0),
             helper.make_node("Add", ["x", "sum"], ["y"])]  # fmt: skip
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch_size", "seq_len", 32]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    update_hash(folder, "model.onnx")
    found = bundles.verify(folder, memory_limit_bytes=2 << 30)
    assert found.exit_code in (4, 5)
    assert found.sentence


def test_the_problem_and_the_manifest_are_plain_json(ort_bundle):
    fields = json.loads((ort_bundle / "bundle.json").read_text(encoding="utf-8"))
    assert Problem.from_dict(fields["problem"]).variant == "causal"
    assert fields["inputs"] == [{"name": "x", "dtype": "fp32", "dims": ["batch_size", "seq_len", 32],
                                 "means": "tokens, one vector of size E each"}]  # fmt: skip
    assert set(fields["files"]) == set(names_in(ort_bundle)) - {"bundle.json"}
