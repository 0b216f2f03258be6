"""The checks of a bundle of the built-in attention, on files that our own exporters write."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from attnbench import plugins
from attnbench.deploy.checks_attention import check_attention
from attnbench.errors import FrozenDimError
from attnbench.problem import Problem

ORT = {
    "name": "ort-cpu", "distribution": "onnxruntime", "module": "onnxruntime", "version": "",
    "settings": {"providers": ["CPUExecutionProvider"]},
}  # fmt: skip
EXAMPLES = {
    "cross": Problem.make(part="block", variant="cross", seq_len=11, kv_len=7, batch_size=3, num_heads=2, head_dim=8),
    "decode": Problem.make(part="block", variant="decode", seq_len=18, batch_size=3, num_heads=2, head_dim=8).at(
        q_len=11, kv_len=18, batch_size=3
    ),
    "masked": Problem.make(
        part="core", variant="self", mask="bool_b1qk", seq_len=11, batch_size=3, num_heads=2, head_dim=8
    ),
}


def plan(example: Problem) -> dict[str, Any]:
    dims, kinds = example.symbolic_dims(), example.input_kinds()
    tensors = [{"name": n, "dtype": kinds.get(n, example.dtype), "dims": list(d)} for n, d in dims.items()]
    count = len(example.input_dims())
    return {
        "runtime": ORT, "model": "model.onnx", "inputs": tensors[:count], "outputs": tensors[count:], "golden": [],
    }  # fmt: skip


def export(example: Problem, folder: Path) -> int:
    exporter = plugins.load_exporter("onnx-blocked" if example.variant != "decode" else "onnx-decomposed")
    exporter.export(example, exporter.opsets[0], folder / "model.onnx", seed=0)
    return exporter.opsets[0]


@pytest.mark.parametrize("which", EXAMPLES)
def test_a_file_of_ours_passes_every_check(tmp_path: Path, which: str) -> None:
    example = EXAMPLES[which]
    opset = export(example, tmp_path)
    found = check_attention(
        folder=str(tmp_path), plan=plan(example), problem=example.as_dict(), seed=0, opset=opset, max_len=64
    )
    results = {check["name"]: check["result"] for check in found["checks"]}
    masked = "passed" if which == "masked" else "not run"
    assert results == {
        "opset": "passed", "checker": "passed", "contract": "passed", "weights": "passed", "constants": "passed",
        "free sizes": "passed", "NaN at fully masked rows": masked,
    }  # fmt: skip


def test_a_file_that_needs_its_own_length_is_found(tmp_path: Path) -> None:
    """The input is cut to 40 of its tokens and put together again: right up to T = 40, too short after it."""
    example = EXAMPLES["cross"]
    opset = export(example, tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "query":
                node.input[index] = "cut"
    for name, value in (("from", 0), ("to", 40), ("axis", 1)):
        model.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [1], [value]))
    model.graph.node.insert(0, onnx.helper.make_node("Slice", ["query", "from", "to", "axis"], ["cut"]))
    onnx.save(model, tmp_path / "model.onnx")
    fields = {"folder": str(tmp_path), "plan": plan(example), "problem": example.as_dict(), "seed": 0, "opset": opset}
    assert check_attention(**fields, max_len=40)["checks"]
    with pytest.raises(FrozenDimError, match=r"not at batch_size=2, q_len=64, kv_len=2: output y has shape \(2, 40"):
        check_attention(**fields, max_len=64)
