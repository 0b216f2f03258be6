"""The model repository of Triton Inference Server, as its ModelConfig says."""

import re
from pathlib import Path

import pytest

from attnbench.deploy import triton
from attnbench.deploy.attention import AttentionSource
from attnbench.deploy.targets import TARGETS, find_target
from attnbench.errors import UnsupportedError
from attnbench.problem import Problem


def text_of(target: str, **problem: object) -> str:
    source = AttentionSource(problem=Problem.make(seq_len=8, num_heads=2, head_dim=8, **problem), seed=0)
    return triton.config(find_target(target), "model.onnx", *source.tensors(), "m")


def test_a_batch_in_front_of_every_tensor_lets_the_server_put_requests_together() -> None:
    assert text_of("onnxruntime-cpu", variant="cross", dtype="fp16").splitlines() == [
        'name: "m"',
        'backend: "onnxruntime"',
        'default_model_filename: "model.onnx"',
        "max_batch_size: 8",
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


def test_the_repository_has_the_model_with_all_its_files_under_version_1(tmp_path: Path) -> None:
    for name in ("model.xml", "model.bin", "README.md"):
        (tmp_path / name).write_bytes(name.encode())
    source = AttentionSource(problem=Problem.make(seq_len=8, num_heads=2, head_dim=8), seed=0)
    made = triton.write_repository(tmp_path, TARGETS["openvino"], "model.xml", *source.tensors(), "my block.v2")
    assert made == tmp_path / "triton" / "my_block_v2"
    assert {p.relative_to(made).as_posix() for p in made.rglob("*")} == {
        "1", "1/model.bin", "1/model.xml", "config.pbtxt",
    }  # fmt: skip
    assert (made / "config.pbtxt").read_text(encoding="utf-8").startswith('name: "my_block_v2"\nbackend: "openvino"\n')


@pytest.mark.parametrize("target", ["onnxruntime-cpu", "tensorrt", "openvino"])
@pytest.mark.parametrize("problem", [{}, {"mask": "bool_qk"}, {"variant": "decode", "dtype": "bf16"}], ids=str)
def test_the_text_is_a_model_config_of_triton(target: str, problem: dict[str, object]) -> None:
    made = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed")
    from google.protobuf import text_format

    text = text_of(target, **problem)
    found = text_format.Parse(text, made.ModelConfig())
    assert [list(tensor.dims) for tensor in found.input] == [
        [int(size) for size in dims.split(",")] for dims in re.findall(r"^input .*dims: \[ (.*) \] \}", text, re.M)
    ]
    assert found.backend in ("onnxruntime", "openvino")
    assert bool(found.optimization.execution_accelerators.gpu_execution_accelerator) == (target == "tensorrt")
