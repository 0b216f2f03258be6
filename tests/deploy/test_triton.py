"""The model repository of Triton Inference Server, as its ModelConfig says."""

import re
from pathlib import Path

import pytest

from attnbench import bundles
from attnbench.deploy import triton
from attnbench.deploy.attention import AttentionSource
from attnbench.deploy.manifest import Tensor
from attnbench.deploy.targets import TARGETS, find_target
from attnbench.errors import UnsupportedError
from attnbench.problem import Problem


def text_of(target: str, **problem: object) -> str:
    source = AttentionSource(problem=Problem.make(seq_len=8, num_heads=2, head_dim=8, **problem), seed=0)
    return triton.config(find_target(target), "model.onnx", *source.tensors(), {"batch_size": (1, 2)}, "m")


def tensor(name: str, dtype: str, *dims: str | int) -> Tensor:
    return Tensor.model_validate({"name": name, "dtype": dtype, "dims": dims})


def text_of_tensors(*tensors: Tensor, **ranges: tuple[int, int]) -> str:
    return triton.config(TARGETS["onnxruntime-cpu"], "model.onnx", tensors[:-1], tensors[-1:], ranges, "m")


def test_a_batch_in_front_of_every_tensor_lets_the_server_put_requests_together() -> None:
    assert text_of("onnxruntime-cpu", variant="cross", dtype="fp16").splitlines() == [
        'name: "m"',
        'backend: "onnxruntime"',
        'default_model_filename: "model.onnx"',
        "max_batch_size: 2",
        'input [ { name: "query" data_type: TYPE_FP16 dims: [ -1, 16 ] } ]',
        'input [ { name: "context" data_type: TYPE_FP16 dims: [ -1, 16 ] } ]',
        'output [ { name: "y" data_type: TYPE_FP16 dims: [ -1, 16 ] } ]',
        "dynamic_batching { }",
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
    ]


def test_a_mask_for_all_samples_leaves_every_axis_to_the_request() -> None:
    text = text_of("onnxruntime-cuda", mask="bool_qk")
    assert "max_batch_size: 0\n" in text
    assert "dynamic_batching" not in text
    assert 'name: "x" data_type: TYPE_FP32 dims: [ -1, -1, 16 ]' in text
    assert 'name: "mask" data_type: TYPE_BOOL dims: [ -1, -1 ]' in text
    assert "KIND_GPU" in text


@pytest.mark.parametrize("target", ["torch", "tensorrt-rtx"])
def test_a_file_that_no_backend_loads_is_refused_with_those_that_are(target: str) -> None:
    with pytest.raises(UnsupportedError, match=r"take --target onnxruntime-cpu, onnxruntime-cuda, tensorrt, openvino"):
        triton.require_backend(TARGETS[target])


@pytest.mark.parametrize(
    ("least", "most", "largest", "batches"), [(1, 1, 1, False), (1, 2, 2, True), (1, 64, 64, True), (2, 64, 0, False)]
)
@pytest.mark.parametrize("name", ["batch", "batch_size", "B"])
def test_batches_are_those_that_were_proved(name: str, least: int, most: int, largest: int, batches: bool) -> None:
    x, y = (tensor(n, "fp32", name, "T", 16) for n in "xy")
    text = text_of_tensors(x, y, **{name: (least, most)})
    assert f"max_batch_size: {largest}\n" in text
    assert ("dynamic_batching { }" in text) == batches
    assert f"dims: [ {'-1, 16' if largest else '-1, -1, 16'} ]" in text


@pytest.mark.parametrize(
    "first",
    [tensor("x", "fp32", 4, "T", 16), tensor("x", "fp32", "T", 16), tensor("x", "int64", "batch"), tensor("x", "fp32")],
    ids=["fixed", "tokens alone", "batch alone", "scalar"],
)
def test_without_a_batch_of_its_own_the_server_makes_none(first: Tensor) -> None:
    text = text_of_tensors(first, tensor("y", "fp32", "batch", "T", 16), batch=(1, 8), T=(1, 64))
    assert "max_batch_size: 0\n" in text
    assert "dynamic_batching" not in text


def test_every_type_of_a_model_is_the_one_of_the_server() -> None:
    kinds = {"fp32": "FP32", "fp16": "FP16", "bool": "BOOL", "int32": "INT32", "int64": "INT64"}
    text = text_of_tensors(*(tensor(f"t_{kind}", kind, "T") for kind in kinds), T=(1, 8))
    for kind, name in kinds.items():
        assert f'name: "t_{kind}" data_type: TYPE_{name} dims: [ -1 ]' in text


def test_bfloat16_which_no_backend_takes_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="take no bf16, which x is; leave --triton out, or take --dtype fp32"):
        bundles.export_bundle(target="onnxruntime-cpu", dtype="bf16", triton=True, out=tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_the_repository_has_the_model_with_all_its_files_under_version_1(tmp_path: Path) -> None:
    for name in ("model.xml", "model.bin", "README.md"):
        (tmp_path / name).write_bytes(name.encode())
    source = AttentionSource(problem=Problem.make(seq_len=8, num_heads=2, head_dim=8), seed=0)
    ranges = {"batch_size": (1, 2)}
    made = triton.write_repository(tmp_path, TARGETS["openvino"], "model.xml", *source.tensors(), ranges, "my block.v2")
    assert made == tmp_path / "triton" / "my_block_v2"
    assert {p.relative_to(made).as_posix() for p in made.rglob("*")} == {
        "1", "1/model.bin", "1/model.xml", "config.pbtxt",
    }  # fmt: skip
    assert (made / "config.pbtxt").read_text(encoding="utf-8").startswith('name: "my_block_v2"\nbackend: "openvino"\n')


@pytest.mark.parametrize("target", ["onnxruntime-cpu", "tensorrt", "openvino"])
@pytest.mark.parametrize("problem", [{}, {"mask": "bool_qk"}, {"variant": "decode", "dtype": "fp16"}], ids=str)
def test_the_text_is_a_model_config_of_triton(target: str, problem: dict[str, object]) -> None:
    made = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed")
    from google.protobuf import text_format

    text = text_of(target, **problem)
    found = text_format.Parse(text, made.ModelConfig())
    assert [list(tensor.dims) for tensor in found.input] == [
        [int(size) for size in dims.split(",")] for dims in re.findall(r"^input .*dims: \[ (.*) \] \}", text, re.M)
    ]
    assert found.max_batch_size == (0 if problem.get("mask") else 2)
    assert found.HasField("dynamic_batching") == (not problem.get("mask"))
    assert found.backend in ("onnxruntime", "openvino")
    assert bool(found.optimization.execution_accelerators.gpu_execution_accelerator) == (target == "tensorrt")


FIELD = re.compile(r'\s*(?:(\w+)\s*:\s*("[^"]*"|-?\w+|\[)|(\w+)\s*([{\[]))')


def test_the_text_has_only_known_fields_where_no_tritonclient_is() -> None:
    """What the test above does with the server's own protobuf, for the names alone."""
    known = {"name", "backend", "default_model_filename", "max_batch_size", "input", "output", "data_type", "dims",
             "dynamic_batching", "instance_group", "count", "kind", "reshape", "shape", "optimization",
             "execution_accelerators", "gpu_execution_accelerator"}  # fmt: skip
    scalar = text_of_tensors(tensor("t", "fp32"), tensor("y", "fp32", "T", 2), T=(1, 2))
    assert 'name: "t" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] }' in scalar
    for text in (scalar, text_of("tensorrt"), text_of("openvino", mask="bool_qk")):
        assert {a or b for a, _, b, _ in FIELD.findall(text)} <= known
        assert text.count("[") == text.count("]")
        assert text.count("{") == text.count("}")
