"""Every check before a model is called good: a small model that has the fault, and one that has not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from attnbench.deploy.checks import Subject, check_example, check_model, nan_count, sizes_to_run
from attnbench.deploy.checks_file import check_same_constants, check_weights
from attnbench.deploy.manifest import Tensor
from attnbench.errors import ArtifactError, FrozenDimError, InputError, OpsetError
from attnbench.interfaces import Array
from attnbench.untrusted import inspect_model

EXAMPLE = {"batch_size": 3, "seq_len": 11}
MOST = {"batch_size": 5, "seq_len": 40}
X = Tensor(name="x", dtype="fp32", dims=("batch_size", "seq_len", 4))
Y = Tensor(name="y", dtype="fp32", dims=("batch_size", "seq_len", 4))
KEEP = Tensor(name="keep", dtype="bool", dims=("batch_size", "seq_len"))


def value(tensor: Tensor, *, kind: int = TensorProto.FLOAT, dims: Any = None) -> Any:
    kinds = {"bool": TensorProto.BOOL, "fp16": TensorProto.FLOAT16}
    return helper.make_tensor_value_info(tensor.name, kinds.get(tensor.dtype, kind), dims or list(tensor.dims))


def save(
    folder: Path, nodes: list[Any], constants: dict[str, Array] | None = None, *, inputs: Any = None,
    outputs: Any = None, opset: int = 20, name: str = "m.onnx",
) -> Path:  # fmt: skip
    stored = [numpy_helper.from_array(np.asarray(array), key) for key, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs or [value(X)], outputs or [value(Y)], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    (folder / name).write_bytes(model.SerializeToString())
    return folder / name


def by_onnx(path: Path) -> Any:
    """Runs the file by onnx's own evaluator, which is enough for these."""
    evaluator = ReferenceEvaluator(str(path))

    def run(inputs: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        return dict(zip(shapes, evaluator.run(list(shapes), dict(inputs)), strict=True))

    return run


def make_inputs(sizes: Mapping[str, int]) -> dict[str, Array]:
    x = np.random.default_rng(0).standard_normal((sizes["batch_size"], sizes["seq_len"], 4), dtype=np.float32)
    return {"x": x}


def make_masked(sizes: Mapping[str, int]) -> dict[str, Array]:
    return make_inputs(sizes) | {"keep": np.ones((sizes["batch_size"], sizes["seq_len"]), np.bool_)}


def check(path: Path, make: Any = make_inputs, **fields: Any) -> dict[str, Any]:
    given = {"opset": 20, "inputs": (X,), "outputs": (Y,), "example": EXAMPLE, "most": MOST, **fields}
    return {c.name: c for c in check_model(Subject(path=path, **given), by_onnx(path), make)}


def add(constant: str = "w") -> list[Any]:
    return [helper.make_node("Add", ["x", constant], ["y"])]


W = np.arange(4, dtype=np.float32)


def test_a_sound_model_passes_every_check(tmp_path: Path) -> None:
    found = check(save(tmp_path, add(), {"w": W}))
    assert {name: c.result for name, c in found.items()} == {
        "opset": "passed", "checker": "passed", "contract": "passed", "weights": "passed", "constants": "passed",
        "free sizes": "passed", "NaN at fully masked rows": "not run",
    }  # fmt: skip
    assert found["free sizes"].detail == (
        "ran at batch_size=3, seq_len=5; batch_size=5, seq_len=3; batch_size=2, seq_len=2; "
        "batch_size=5, seq_len=22; batch_size=5, seq_len=2; batch_size=2, seq_len=40; batch_size=1, seq_len=1"
    )


def test_another_opset_than_asked_is_an_opset_error(tmp_path: Path) -> None:
    path = save(tmp_path, add(), {"w": W}, opset=18)
    with pytest.raises(OpsetError, match="opset 26 was asked, the file has 18"):
        check(path, opset=26)


def test_what_the_checker_refuses_is_an_artifact_error(tmp_path: Path) -> None:
    path = save(tmp_path, [helper.make_node("Add", ["x", "nowhere"], ["y"])])
    with pytest.raises(ArtifactError, match="checker refuses"):
        check_model_without_running(path)


def check_model_without_running(path: Path) -> None:
    def never(inputs: Any, shapes: Any) -> Any:
        raise AssertionError("a file that is refused must not run")

    check_model(Subject(path=path, opset=20, inputs=(X,), outputs=(Y,), example=EXAMPLE, most=MOST), never, make_inputs)


def test_types_that_only_shape_inference_sees_are_an_artifact_error(tmp_path: Path) -> None:
    path = save(tmp_path, add(), {"w": np.arange(4)})
    with pytest.raises(ArtifactError, match="checker refuses"):
        check_model_without_running(path)


# ---- the contract


def test_a_number_where_a_free_dim_is_due_is_a_frozen_dim(tmp_path: Path) -> None:
    path = save(tmp_path, add(), {"w": W}, inputs=[value(X, dims=["batch_size", 11, 4])])
    with pytest.raises(FrozenDimError, match="x, axis 1: seq_len is the number 11"):
        check(path)


def test_two_lengths_that_are_one_symbol_are_a_frozen_dim(tmp_path: Path) -> None:
    context = Tensor(name="c", dtype="fp32", dims=("batch_size", "kv_len", 4))
    y = Tensor(name="y", dtype="fp32", dims=("batch_size", "seq_len", "kv_len"))
    nodes = [
        helper.make_node("Transpose", ["c"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    sizes = {"example": {**EXAMPLE, "kv_len": 13}, "most": {**MOST, "kv_len": 40}}

    def make(at: Mapping[str, int]) -> dict[str, Array]:
        return make_inputs(at) | {"c": np.ones((at["batch_size"], at["kv_len"], 4), np.float32)}

    merged = ["batch_size", "seq_len", 4]
    path = save(tmp_path, nodes, inputs=[value(X), value(context, dims=merged)], outputs=[value(y)])
    with pytest.raises(FrozenDimError, match="kv_len and seq_len are one symbol 'seq_len'"):
        check(path, make, inputs=(X, context), outputs=(y,), **sizes)
    path = save(tmp_path, nodes, inputs=[value(X), value(context)], outputs=[value(y)])
    assert check(path, make, inputs=(X, context), outputs=(y,), **sizes)["free sizes"].result == "passed"


@pytest.mark.parametrize(
    ("promised", "words"),
    [
        (Tensor(name="z", dtype="fp32", dims=Y.dims), r"has outputs \['y'\]"),
        (Tensor(name="y", dtype="fp16", dims=Y.dims), "y is fp32 in the file, fp16 was promised"),
        (Tensor(name="y", dtype="fp32", dims=("batch_size", "seq_len", 5)), "4 in the file, 5 was promised"),
        (Tensor(name="y", dtype="fp32", dims=("batch_size", 4)), "has 3 dims"),
    ],
)
def test_another_output_than_promised_is_an_artifact_error(tmp_path: Path, promised: Tensor, words: str) -> None:
    path = save(tmp_path, add(), {"w": W})
    with pytest.raises(ArtifactError, match=words):
        check(path, outputs=(promised,))


# ---- frozen sizes


def test_a_mask_of_the_traced_length_is_found_among_the_constants(tmp_path: Path) -> None:
    path = save(tmp_path, add("mask"), {"mask": np.zeros((11, 1), np.float32)})
    with pytest.raises(FrozenDimError, match=r"'mask' is of dims \[11, 1\]"):
        check(path)


def test_a_length_that_the_model_has_anyway_tells_nothing(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])]
    path = save(tmp_path, nodes, {"a": np.ones((4, 11), np.float32), "b": np.ones((11, 4), np.float32)})
    found = check(path, known_sizes=(11,))
    assert (found["constants"].result, "seq_len = 11" in found["constants"].detail) == ("not run", True)


def test_a_reshape_to_the_traced_length_is_found_among_the_constants(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "to"], ["y"])]
    path = save(tmp_path, nodes, {"to": np.array([-1, 11, 4])})
    with pytest.raises(FrozenDimError, match=r"'to' is \[-1, 11, 4\]"):
        check(path)


@pytest.mark.parametrize("length", [11, 22, 30])
def test_a_baked_length_is_found_by_running_where_the_constants_do_not_tell(tmp_path: Path, length: int) -> None:
    """A mask cut to T works up to its own length: only a longer T than the example shows it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["t"], start=1, end=2),
        helper.make_node("Slice", ["mask", "zero", "t", "zero"], ["cut"]),
        helper.make_node("Add", ["x", "cut"], ["y"]),
    ]
    constants = {"mask": np.zeros((length, 4), np.float32), "zero": np.array([0])}
    path = save(tmp_path, nodes, constants)
    with pytest.raises(FrozenDimError, match="runs at its example, batch_size=3, seq_len=11, but not at"):
        check(path, known_sizes=(11,))
    path = save(tmp_path, nodes, constants | {"mask": np.zeros((40, 4), np.float32)})
    assert check(path, known_sizes=(11,))["free sizes"].result == "passed"


def test_a_wrong_output_shape_away_from_the_example_is_a_frozen_dim(tmp_path: Path) -> None:
    nodes = [helper.make_node("Slice", ["x", "from", "to", "axis"], ["y"])]
    constants = {"from": np.array([0]), "to": np.array([11]), "axis": np.array([1])}
    path = save(tmp_path, nodes, constants)
    with pytest.raises(FrozenDimError, match=r"seq_len=22: output y has shape \(5, 11, 4\), \(5, 22, 4\) is due"):
        check(path, known_sizes=(11,))


def test_a_file_that_fails_at_its_own_example_is_not_called_frozen(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "to"], ["y"])]
    path = save(tmp_path, nodes, {"to": np.array([7, 7, 4])}, outputs=[value(Y, dims=["a", "b", 4])])
    with pytest.raises(ArtifactError, match="does not even run at its example"):
        check(path)


def test_a_second_trace_shows_what_one_alone_cannot(tmp_path: Path) -> None:
    def traced(length: int) -> Path:
        nodes = [helper.make_node("Add", ["x", "m"], ["y"])]
        return save(tmp_path, nodes, {"m": np.zeros((1, length), np.float32)[:, :4]}, name=f"{length}.onnx")

    def baked(length: int) -> Path:
        nodes = [helper.make_node("Reshape", ["x", "to"], ["y"])]
        return save(tmp_path, nodes, {"to": np.array([0, length, 4])}, name=f"baked-{length}.onnx")

    assert check(traced(11), other_trace=traced(13))["constants"].detail.startswith("all 1 are the same")
    with pytest.raises(FrozenDimError, match=r"'to' is \[0, 4, 4\] in one trace and \[0, 6, 4\]"):
        check_same_constants(inspect_model(baked(4)), inspect_model(baked(6)))
    with pytest.raises(ArtifactError, match="control flow depends on a size"):
        check_same_constants(inspect_model(traced(11)), inspect_model(save(tmp_path, add(), {"w": W, "v": W})))


def test_sizes_are_odd_then_two_then_twice_then_the_most_then_one() -> None:
    found = list(sizes_to_run({"q_len": 7, "kv_len": 11}, {"q_len": 100, "kv_len": 50}))
    assert found == [
        {"q_len": 3, "kv_len": 5}, {"q_len": 5, "kv_len": 3}, {"q_len": 2, "kv_len": 2}, {"q_len": 14, "kv_len": 22},
        {"q_len": 100, "kv_len": 2}, {"q_len": 2, "kv_len": 50}, {"q_len": 1, "kv_len": 1},
    ]  # fmt: skip


# ---- the example


def test_an_example_that_cannot_show_free_sizes_is_refused() -> None:
    good = {"x": np.ones((3, 11, 4))}
    check_example(EXAMPLE, good)
    with pytest.raises(InputError, match="seq_len = 1,"):
        check_example({"batch_size": 3, "seq_len": 1}, good)
    with pytest.raises(InputError, match="q_len = kv_len = 11"):
        check_example({"q_len": 11, "kv_len": 11}, good)
    with pytest.raises(InputError, match="x is not contiguous"):
        check_example(EXAMPLE, {"x": np.ones((11, 3, 4)).swapaxes(0, 1)})


# ---- dtypes and NaN


def test_a_runtime_that_gives_another_dtype_is_an_artifact_error(tmp_path: Path) -> None:
    path = save(tmp_path, add(), {"w": W})

    def in_double(inputs: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        return {name: array.astype(np.float64) for name, array in by_onnx(path)(inputs, shapes).items()}

    subject = Subject(path=path, opset=20, inputs=(X,), outputs=(Y,), example=EXAMPLE, most=MOST)
    with pytest.raises(ArtifactError, match="y is float64 at batch_size=3, seq_len=11, fp32 was promised"):
        check_model(subject, in_double, make_inputs)


def masked_softmax(fill: float) -> tuple[list[Any], dict[str, Array]]:
    """Each sample's row of scores, softmax over seq_len; masked by `fill`."""
    nodes = [
        helper.make_node("Unsqueeze", ["keep", "last"], ["k"]),
        helper.make_node("Where", ["k", "x", "fill"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=1),
    ]
    return nodes, {"last": np.array([2]), "fill": np.float32(fill)}


def test_nan_where_no_key_is_allowed_is_an_artifact_error(tmp_path: Path) -> None:
    nodes, constants = masked_softmax(-np.inf)
    path = save(tmp_path, nodes, constants, inputs=[value(X), value(KEEP)])
    with pytest.raises(ArtifactError, match=r"y has 20 NaN at batch_size=3, seq_len=5"), np.errstate(invalid="ignore"):
        check(path, make_masked, inputs=(X, KEEP))
    nodes, constants = masked_softmax(-1e9)
    path = save(tmp_path, nodes, constants, inputs=[value(X), value(KEEP)])
    assert check(path, make_masked, inputs=(X, KEEP))["NaN at fully masked rows"].result == "passed"


def test_nan_is_counted_in_the_bits_of_bfloat16() -> None:
    array = np.array([1.0, np.nan, np.inf, -np.inf, -np.nan], ml_dtypes.bfloat16)
    assert nan_count(array.view(np.uint16), "bf16") == 2
    assert nan_count(np.array([1.0, np.nan], np.float16), "fp16") == 1
    assert nan_count(np.array([1, 2]), "int64") == 0


# ---- weights


def test_weights_that_the_source_has_once_are_stored_once(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((4, 1 << 16), dtype=np.float32)  # 1 MiB
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Transpose", ["b"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["y"]),
    ]
    twice = save(tmp_path, nodes, {"a": weight, "b": weight})
    facts = inspect_model(twice)
    with pytest.raises(ArtifactError, match="stores 2,097,152 bytes of weights, the source has 1,048,576: a = b"):
        check_weights(twice, facts, weight.nbytes)
    assert (
        check_weights(twice, facts, 2 * weight.nbytes).detail
        == "2,097,152 bytes in tensors of 65,536 and more; equal bytes: a = b"
    )
    assert check_weights(twice, facts, None).result == "passed"
    once = save(tmp_path, nodes, {"a": weight, "b": weight + 1}, name="two.onnx")
    assert (
        check_weights(once, inspect_model(once), 2 * weight.nbytes).detail
        == "2,097,152 bytes in tensors of 65,536 and more, none of them twice"
    )


def test_weights_that_share_their_bytes_beside_the_model_count_once(tmp_path: Path) -> None:
    path = save(tmp_path, add(), {"w": W})
    model = onnx.load(path)
    (tmp_path / "w.data").write_bytes(bytes(range(256)) * 1024)  # 256 KiB
    for name in ("a", "b"):
        tensor = model.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[1 << 16])
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", "w.data"), ("offset", "0"), ("length", str(1 << 18))):
            tensor.external_data.add(key=key, value=text)
    path.write_bytes(model.SerializeToString())
    assert (
        check_weights(path, inspect_model(path), 1 << 18).detail
        == "262,144 bytes in tensors of 65,536 and more, none of them twice"
    )


def test_sizes_stay_above_the_least_that_is_promised() -> None:
    found = list(sizes_to_run({"T": 7, "B": 5}, {"T": 100, "B": 50}, {"T": 2}))
    assert {sizes["T"] for sizes in found} == {2, 3, 5, 14, 100}
    assert {"T": 2, "B": 1} in found
