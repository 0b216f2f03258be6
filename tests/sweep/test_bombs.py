"""Models that ask for more memory than there is: the worker ends, the harness does not."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from attnbench.errors import AttnbenchError
from attnbench.interfaces import Settings
from attnbench.measure import environment
from attnbench.problem import Problem
from attnbench.sweep.workers import ForkServers, Worker

LIMIT_BYTES = 2 << 30
PROBLEM = Problem.make(part="block", seq_len=4, num_heads=1, head_dim=4)


@pytest.fixture(scope="module")
def servers() -> Iterator[ForkServers]:
    env, _ = environment.scrubbed_environment(1)
    with ForkServers(env) as found:
        yield found


def constant_of_shape(path: Path) -> None:
    """About 150 bytes that ask for 2^44 floats."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [1 << 44])
    graph = helper.make_graph(
        [
            helper.make_node("ConstantOfShape", ["shape"], ["big"]),
            helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0),
            helper.make_node("Add", ["x", "sum"], ["y"]),
        ],
        "bomb",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch_size", "seq_len", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch_size", "seq_len", 4])],
        [shape],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def missing_data(path: Path) -> None:
    """An initializer of 10^6 x 10^6 floats without its data."""
    big = TensorProto(name="big", data_type=TensorProto.FLOAT, dims=[10**6, 10**6])
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0), helper.make_node("Add", ["x", "sum"], ["y"])],
        "bomb",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch_size", "seq_len", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch_size", "seq_len", 4])],
        [big],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


@pytest.mark.parametrize("make", [constant_of_shape, missing_data])
@pytest.mark.parametrize("runtime", ["ort-cpu", "openvino"])
def test_a_memory_bomb_ends_in_its_worker_within_the_limit(
    servers: ForkServers, tmp_path: Path, make: Any, runtime: str
) -> None:
    path = tmp_path / "bomb.onnx"
    make(path)
    reference = tmp_path / "y.npy"
    np.save(reference, np.ones(PROBLEM.output_shape()))
    artifact = {
        "path": str(path), "exporter": "test", "opset": 20, "sha256": "", "size_bytes": path.stat().st_size,
        "problem": PROBLEM.as_dict(), "operators": {},
    }  # fmt: skip
    server = servers.get(("attnbench.sweep.tasks",))
    with Worker(server, memory_limit_bytes=LIMIT_BYTES) as worker, pytest.raises(AttnbenchError) as found:
        load_and_call(worker, runtime, artifact, reference)
    assert str(found.value)
    with Worker(server) as fresh:
        assert fresh.ask("ping", timeout_s=10.0) == {}


def load_and_call(worker: Worker, runtime: str, artifact: dict[str, Any], reference: Path) -> None:
    worker.ask(
        "load", timeout_s=60.0, runtime=runtime, problem=PROBLEM.as_dict(), artifact=artifact,
        settings=asdict(Settings()),
    )  # fmt: skip
    worker.ask(
        "check", timeout_s=60.0, problem=PROBLEM.as_dict(), input_class="normal", reference=str(reference), rows=None
    )
