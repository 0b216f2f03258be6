"""Bundles that several tests look at; a test that changes one takes a copy."""

import shutil

import pytest

from attnbench.deploy.attention import AttentionSource
from attnbench.deploy.targets import find_target
from attnbench.deploy.write import write_bundle
from attnbench.problem import Problem

CAUSAL = Problem.make(variant="causal", seq_len=64, num_heads=4, head_dim=8)


def made(tmp_path_factory, target, problem=CAUSAL, recipe="auto", external_bytes=None):
    out = tmp_path_factory.mktemp(target) / "bundle"
    more = {} if external_bytes is None else {"external_bytes": external_bytes}
    write_bundle(AttentionSource(problem=problem, seed=3, max_len=48, **more), find_target(target), out, recipe=recipe)
    return out


@pytest.fixture(scope="session")
def ort_bundle(tmp_path_factory):
    """A causal block for ONNX Runtime, its weights beside the .onnx."""
    pytest.importorskip("onnxruntime")
    return made(tmp_path_factory, "onnxruntime-cpu", recipe="onnx-decomposed", external_bytes=1000)


@pytest.fixture(scope="session")
def openvino_bundle(tmp_path_factory):
    """The same for OpenVINO."""
    pytest.importorskip("openvino")
    return made(tmp_path_factory, "openvino", recipe="onnx-attention")


@pytest.fixture(scope="session")
def torch_bundle(tmp_path_factory):
    """A decode step, as torch's own program."""
    problem = Problem.make(variant="decode", seq_len=64, num_heads=4, head_dim=8, dtype="bf16")
    return made(tmp_path_factory, "torch", problem)


@pytest.fixture
def copy(tmp_path):
    """A copy of a bundle, to be spoilt."""
    return lambda bundle: shutil.copytree(bundle, tmp_path / "copy")
