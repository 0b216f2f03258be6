"""The parts of verify.py: comparing, reading, refusing."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from attnbench.deploy import golden, verify_bundle, verify_runtimes
from attnbench.deploy.attention import AttentionSource
from attnbench.deploy.manifest import Recipe
from attnbench.deploy.targets import TARGETS
from attnbench.deploy.write import _prove, runtime_of, verifier
from attnbench.errors import ArtifactError, InputError
from attnbench.problem import Problem
from attnbench.sweep.repro import as_npz
from tests.deploy.bundles import verify_here

CASE = {"limits": {"y": 1e-3}, "gain_limits": {"y": 1e-4}}


def judged(found, expected, **case):
    return verify_bundle.judge({**CASE, **case}, {"y": "fp32"}, {"y": found}, {"y": expected})


def test_the_worst_row_decides():
    due = np.ones((3, 4))
    found = np.ones((3, 4), np.float32)
    found[1, 2] = 1.5
    error, gain = verify_bundle.compare(found, due)
    assert error == pytest.approx(0.25)  # 0.5 over the row's size of 2
    assert gain == pytest.approx(0.5 / 12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nan_or_an_infinity_is_wrong(bad):
    due = np.ones((2, 2))
    found = np.array([[1, 1], [1, bad]], np.float32)
    errors, faults = judged(found, due)
    assert not errors["y"] <= 1e30
    assert faults
    assert judged(np.full((2, 2), bad, np.float32), np.full((2, 2), np.nan))[1]


def test_equal_infinities_and_rows_of_zeros_agree():
    due = np.array([[0.0, 0.0], [3.0, -np.inf]])
    assert judged(due.astype(np.float32), due) == ({"y": 0.0}, [])
    errors, faults = judged(np.array([[0.1, 0.0], [3.0, -np.inf]], np.float32), due)
    assert errors["y"] == pytest.approx(0.1 / math.sqrt(9 / 2), rel=1e-6)
    assert faults


def test_a_wrong_scale_below_the_limit_of_rows_is_found():
    due = np.random.default_rng(0).standard_normal((50, 8))
    found = (due * 1.0005).astype(np.float32)
    assert "scaled wrong by 0.0005" in judged(found, due)[1][0]
    assert judged(found, due, gain_limits={})[1] == []


def test_another_shape_or_dtype_is_wrong():
    due = np.ones((2, 2))
    assert "y is float64 of shape (2, 2), it should be fp32 of (2, 2)" in judged(due, due)[1][0]
    assert "of shape (1, 2)" in judged(np.ones((1, 2), np.float32), due)[1][0]


def test_bfloat16_is_read_from_its_bits():
    numbers = np.array([[1.0, -2.5, 0.15625]], np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    assert verify_bundle.as_numbers(bits, "bf16").tolist() == numbers.tolist()


def test_external_data_is_found_wherever_a_tensor_may_be():
    """In subgraphs, attributes, sparse tensors and functions, by onnx's own classes."""
    from onnx import ModelProto

    model = ModelProto()

    def outside(tensor, name):
        tensor.data_location = 1
        tensor.external_data.add(key="offset", value="0")
        tensor.external_data.add(key="location", value=name)

    outside(model.graph.initializer.add(), "initializer")
    attribute = model.graph.node.add().attribute.add()
    outside(attribute.t, "attribute")
    outside(attribute.tensors.add(), "attributes")
    outside(attribute.g.initializer.add(), "subgraph")
    outside(attribute.graphs.add().node.add().attribute.add().t, "deep")
    outside(attribute.sparse_tensor.values, "sparse attribute")
    outside(model.graph.sparse_initializer.add().indices, "sparse")
    outside(model.functions.add().node.add().attribute.add().t, "function")
    outside(model.training_info.add().algorithm.initializer.add(), "training")
    found = set(verify_bundle.external_files(memoryview(model.SerializeToString()), "model"))
    assert found == {"initializer", "attribute", "attributes", "subgraph", "deep", "sparse attribute", "sparse",
                     "function", "training"}  # fmt: skip


@pytest.mark.parametrize("blob", [b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x05a", b"\xff" * 20, b"\x3b", b"\x3a"])
def test_bytes_that_are_no_onnx_file_are_refused(blob):
    with pytest.raises(verify_runtimes.Fault, match="no ONNX file"):
        verify_bundle.check_external(blob, {})


def test_a_folder_without_or_with_a_foreign_bundle_json_is_refused(tmp_path):
    assert verify_here(tmp_path) == (4, "changed: bundle.json is missing: No such file or directory")
    fields = {"schema_version": 2}
    (tmp_path / "bundle.json").write_text(json.dumps({**fields, "digest": verify_bundle.digest(fields)}))
    assert verify_here(tmp_path) == (5, "cannot load: bundle.json has version 2, this script reads 1")
    for text in ("[]", "{}", "{", "null", "\xff"):
        (tmp_path / "bundle.json").write_text(text, encoding="latin-1")
        assert verify_here(tmp_path)[0] == 4


def test_the_shipped_script_needs_nothing_of_attnbench(tmp_path):
    text = verifier()
    assert "import attnbench" not in text
    assert "from attnbench" not in text
    (tmp_path / "verify.py").write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", tmp_path / "verify.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "")


def test_products_on_another_provider_are_named():
    ort = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "n"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    placed = verify_runtimes.placed_elsewhere(session, "CUDAExecutionProvider")
    assert placed == {"MatMul": "CPUExecutionProvider"}
    assert verify_runtimes.placed_elsewhere(session, "CPUExecutionProvider") == {}


def test_a_probe_that_differs_refuses_the_bundle(tmp_path):
    """The shop answers as a worker would."""

    class Shop:
        def ask(self, op, **fields):
            cell = {"probe": "poison", "problem": "core causal T=3", "verdict": "differs", "how": "keys leak"}
            return {"errors": {}, "faults": [], "conformance": [cell]}

    source = AttentionSource(problem=Problem.make(variant="causal", seq_len=8), seed=0)
    recipe = Recipe(exporter="onnx-blocked", opset=20, chosen_by="asked", reason="")
    with pytest.raises(ArtifactError, match=r"onnx-blocked means something else .* poison .* keys leak; take another"):
        _prove(source, TARGETS["onnxruntime-cpu"], recipe, "model.onnx", (), Shop(), tmp_path)


def test_npz_files_are_the_same_bytes_for_the_same_arrays_and_have_no_pickle():
    arrays = {"in_x": np.arange(4, dtype=np.float32), "in_mask": np.array([True])}
    assert as_npz(arrays) == as_npz({name: array.copy() for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("problem", "sizes"),
    [
        (Problem.make(variant="causal", seq_len=8), [(2, 17, 17), (1, 1, 1), (1, 40, 40)]),
        (Problem.make(variant="cross", seq_len=8), [(2, 17, 9), (2, 9, 17), (1, 1, 1), (1, 40, 40)]),
        (Problem.make(variant="decode", seq_len=8), [(2, 3, 20), (1, 1, 2), (2, 5, 5), (1, 1, 40)]),
    ],
)
def test_the_sizes_of_golden_cases(problem, sizes):
    assert [(p.batch_size, p.q_len, p.kv_len) for p in golden.sizes_of(problem, 40)] == sizes


@pytest.mark.parametrize(("max_len", "words"), [(1, "at least 17, got 1"), (1 << 20, "use a smaller one")])
def test_a_max_len_that_cannot_be_proved_is_refused(max_len, words):
    with pytest.raises(InputError, match=words):
        golden.sizes_of(Problem.make(seq_len=8), max_len)


def test_settings_keep_the_precision_of_the_model():
    source = AttentionSource(problem=Problem.make(seq_len=8), seed=0)
    settings = {name: runtime_of(target, source)["settings"] for name, target in TARGETS.items()}
    assert settings["openvino"]["INFERENCE_PRECISION_HINT"] == "f32"
    assert settings["onnxruntime-cuda"]["provider_options"] == [{"use_tf32": "0"}]
    assert settings["torch"]["float32_matmul_precision"] == "highest"


def test_an_onnx_bundle_is_compiled_by_the_calls_of_tensorrt(ort_bundle):
    """TensorRT-RTX has the same ones, and compiles without a GPU."""
    trt = pytest.importorskip("tensorrt_rtx")
    fields = json.loads((ort_bundle / "bundle.json").read_bytes())
    log = verify_runtimes.quiet_log(trt)
    blob = verify_runtimes.compile_engine(trt, log, ort_bundle / "model.onnx", fields, tf32=False)
    assert blob.nbytes > 10_000
    fields["ranges"]["seq_len"] = [1, 0]
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        verify_runtimes.compile_engine(trt, log, ort_bundle / "model.onnx", fields, tf32=False)
