"""The older exporter: right at any length, or an error with a name before anything runs."""

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

from attnbench.errors import FrozenDimError, OpsetError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact
from attnbench.measure.numerics import compare
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters.torchscript import OnnxTorchscript, refuse_frozen, trace

# Example, then sizes of a public bug report: shorter, other batch, one token, odd (batch_size, T).
SIZES = ((2, 10), (2, 7), (3, 10), (1, 1), (5, 33))


def small(**fields: Any) -> Problem:
    return Problem.make(seq_len=10, num_heads=4, head_dim=8, **fields)


def run(artifact: Artifact, inputs: dict[str, Any]) -> Any:
    session = onnxruntime.InferenceSession(artifact.path, providers=["CPUExecutionProvider"])
    return session.run(["y"], inputs)[0]


@pytest.mark.parametrize("opset", [14, 17, 20])
@pytest.mark.parametrize(
    "problem",
    [
        small(),
        small(variant="causal", num_kv_heads=2),
        small(variant="cross", mask="bool_b1qk"),
        small(variant="decode", q_len=2),
        small(part="core", variant="causal", mask="causal_bottom_right"),
    ],
    ids=Problem.label,
)
def test_a_file_of_the_older_exporter_is_right_at_other_lengths(problem: Problem, opset: int, tmp_path: Path) -> None:
    artifact = OnnxTorchscript().export(problem, opset, tmp_path / "m.onnx", seed=0)
    opsets = [entry.version for entry in onnx.load(artifact.path).opset_import if not entry.domain]
    assert opsets == [opset]
    for batch_size, q_len in SIZES:
        sized = problem.at(q_len=q_len, batch_size=batch_size)
        inputs = make_inputs(sized, seed=1)
        expected = reference_output(sized, inputs, make_weights(sized, seed=0))
        assert compare(run(artifact, inputs), expected).worst_row_rel_err <= 1e-5, sized.label()


@pytest.mark.parametrize("opset", [11, 13, 23])
def test_an_opset_that_it_does_not_write_is_refused_by_name(opset: int, tmp_path: Path) -> None:
    with pytest.raises(OpsetError, match=f"14, 15, 16, 17, 18, 19, 20, not {opset}"):
        OnnxTorchscript().export(small(), opset, tmp_path / "m.onnx", seed=0)
    assert list(tmp_path.iterdir()) == []


def test_the_same_request_gives_the_same_bytes(tmp_path: Path) -> None:
    made = [OnnxTorchscript().export(small(), 17, tmp_path / f"{n}.onnx", seed=0).sha256 for n in range(2)]
    assert made[0] == made[1]


class CausalAboveOneToken(torch.nn.Module):
    """Causality by a shape: while it is traced the condition is decided once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ x.transpose(1, 2)
        if x.shape[1] > 1:
            scores = scores.tril()
        return scores.softmax(-1) @ x


class FixedLength(torch.nn.Module):
    """A length that leaves the graph as a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, int(x.shape[1]), 4, 8).transpose(1, 2).softmax(-1).transpose(1, 2).reshape(x.shape)


def frozen(module: torch.nn.Module, *lengths: int) -> list[list[str]]:
    """The operators of both traces; an error where a length became a number."""
    traces = [trace(module.eval(), small().at(q_len=n, batch_size=n), 17, as_given=True) for n in lengths]
    refuse_frozen(traces[0], traces[1], small())
    return [[node.op_type for node in model.graph.node] for model in traces]


def test_a_length_that_became_a_number_is_an_error_with_its_name() -> None:
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)  # weights with gradients: no fused fast path

    class OfOneInput(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    with torch.enable_grad(), pytest.raises(FrozenDimError, match="a length or the batch size is a number"):
        frozen(OfOneInput(), 10, 7)


def test_causality_by_a_shape_is_an_error_with_its_name() -> None:
    with pytest.raises(FrozenDimError, match="traced at two sizes the graphs differ"):
        frozen(CausalAboveOneToken(), 10, 1)


def test_a_graph_without_lengths_is_no_error() -> None:
    assert frozen(torch.nn.Softmax(dim=-1), 10, 7) == [["Softmax"], ["Softmax"]]
