"""Faults of attention that others reported in public, each as a test with an answer known by hand."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from attnbench import probes
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact, Runtime, Settings
from attnbench.plugins import load_exporter, load_runtime
from attnbench.probes import Probe
from attnbench.reference import reference_attention
from attnbench.sweep.probing import run_probe
from attnbench.torch_model import build_module, to_torch

ALL = {probe.name: probe for probe in probes.all_probes()}
FILES = (("onnx-torchscript", 14), ("onnx-torchscript", 17), ("onnx-decomposed", 18), ("onnx-attention", 23),
         ("onnx-attention", 24))  # fmt: skip
RUNTIMES = ("ort-cpu", "onnx-reference", "openvino")
Exported = Callable[[str, int, Probe], Artifact]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("files")
    made: dict[str, Artifact] = {}

    def get(exporter: str, opset: int, probe: Probe) -> Artifact:
        name = f"{exporter}-{opset}-{probe.problem.static_key()}"
        if name not in made:
            path = folder / f"{name}.onnx"
            made[name] = load_exporter(exporter).export(probe.problem, opset, path, seed=0)
        return made[name]

    return get


def answers(exported: Exported, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What every file and runtime answers to probes."""
    for name in names:
        probe = ALL[name]
        for exporter, opset in FILES:
            artifact = exported(exporter, opset, probe)
            for runtime in RUNTIMES:
                where = f"{exporter}[{opset}]@{runtime}: {name}"
                yield where, ask(load_runtime(runtime), probe, artifact)


def ask(runtime: Runtime, probe: Probe, artifact: Artifact | None) -> dict[str, Any]:
    with runtime.load(probe.problem, artifact, Settings()) as session:
        return run_probe(session, probe.problem, probe.fill, 0)


def assert_all_conform(exported: Exported, *names: str) -> None:
    faults = {where: found["how"] for where, found in answers(exported, list(names)) if not found["ok"]}
    assert faults == {}


@pytest.mark.slow
def test_a_query_or_sample_without_a_key_is_zero_in_every_exported_graph(exported: Exported) -> None:
    """onnxscript #2479, #2561, #2654: NaN, later the mean of V, where torch gives zeros."""
    assert_all_conform(exported, "bool_b1qk no key for a row", "bool_b1qk no key for a sample")


@pytest.mark.slow
def test_causal_is_top_left_in_every_exported_graph(exported: Exported) -> None:
    """onnxruntime #29020: bottom-right for one query, top-left on another device."""
    names = [f"causal top-left {lengths}" for lengths in ("1x5", "3x7", "7x3", "4x4")]
    assert_all_conform(exported, *names)


@pytest.mark.slow
def test_causality_does_not_depend_on_a_length(exported: Exported) -> None:
    """transformers #35791: `T > 1` decided once, while the graph is traced."""
    assert_all_conform(exported, "block causal 10", "block causal, one token")


@pytest.mark.slow
def test_seventy_thousand_keys_in_fp16_show_that_onnx_own_evaluator_is_wrong(exported: Exported) -> None:
    """tract #2586: a sum in fp16 overflows. The judge is float64, so the evaluator is found out."""
    found = dict(answers(exported, ["fp16 70000 keys"]))
    wrong = {where for where, answer in found.items() if not answer["ok"]}
    assert wrong == {where for where in found if "@onnx-reference" in where}
    assert {found[where]["how"] for where in wrong} == {"zeros instead of values"}
    for runtime in ("torch-eager", "torch-sdpa"):
        assert ask(load_runtime(runtime), ALL["fp16 70000 keys"], None)["ok"]


def attention_file(path: Path, inputs: dict[str, np.ndarray], output: tuple[int, ...], **attributes: Any) -> Path:
    """One standard Attention node of opset 23 on inputs of these shapes."""
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
             np.dtype(np.bool_): TensorProto.BOOL}  # fmt: skip
    infos = [helper.make_tensor_value_info(n, kinds[a.dtype], a.shape) for n, a in inputs.items()]
    out = helper.make_tensor_value_info("y", kinds[inputs["q"].dtype], output)
    node = helper.make_node("Attention", list(inputs), ["y"], **attributes)
    model = helper.make_model(
        helper.make_graph([node], "attention", infos, [out]), opset_imports=[helper.make_opsetid("", 23)], ir_version=10
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def ort_output(path: Path, inputs: dict[str, np.ndarray], level: str) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (1, 3, 4, 5), (1, 1, 4, 5), (4, 5), (3, 4, 5)], ids=str)
def test_a_mask_is_broadcast_right_at_every_level_of_optimisation(shape: tuple[int, ...], tmp_path: Path) -> None:
    """onnxruntime #24017, #18945: a wrong stride for the second sample; right only for prefix-shaped padding."""
    rng = np.random.default_rng(4)
    inputs = {
        "q": rng.standard_normal((2, 3, 4, 8)).astype(np.float32),
        "k": rng.standard_normal((2, 3, 5, 8)).astype(np.float32),
        "v": rng.standard_normal((2, 3, 5, 8)).astype(np.float32),
        "mask": rng.random(shape) < 0.6,
    }
    inputs["mask"][..., 0] = True
    path = attention_file(tmp_path / "m.onnx", inputs, (2, 3, 4, 8))
    expected = reference_attention(inputs["q"], inputs["k"], inputs["v"], mask_tensor=inputs["mask"])
    found = {level: ort_output(path, inputs, level) for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")}
    for name in ("onnx-reference", "openvino"):
        runtime: Any = load_runtime(name)
        found[name] = runtime.run_model(path, inputs)["y"]
    for where, output in found.items():
        np.testing.assert_allclose(output, expected, atol=1e-5, err_msg=where)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_softcap_leaves_a_masked_key_masked(dtype: type, tmp_path: Path) -> None:
    """onnx #7865: softcap behind the mask squashed -inf to a finite score, and the masked key leaked."""
    rng = np.random.default_rng(7)
    inputs = {name: rng.standard_normal((1, 2, length, 8)).astype(dtype) for name, length in (("q", 4), ("k", 6))}
    inputs["v"] = np.ones((1, 2, 6, 8), dtype)
    inputs["v"][:, :, -1] = 10000.0
    inputs["mask"] = np.zeros((4, 6), dtype)
    inputs["mask"][:, -1] = -np.inf
    path = attention_file(tmp_path / "m.onnx", inputs, (1, 2, 4, 8), softcap=5.0)
    for name in RUNTIMES:
        runtime: Any = load_runtime(name)
        output = runtime.run_model(path, inputs)["y"]
        np.testing.assert_allclose(output.astype(np.float64), 1.0, atol=2e-3, err_msg=name)


def test_query_heads_attend_with_the_key_head_of_their_group(tmp_path: Path) -> None:
    """onnx #7274, onnxruntime #25966: heads tiled (1, 2, 1, 2) instead of repeated (1, 1, 2, 2)."""
    inputs = {"q": np.zeros((1, 4, 3, 8), np.float32), "k": np.ones((1, 2, 5, 8), np.float32)}
    inputs["v"] = np.broadcast_to(np.array([1.0, 2.0], np.float32)[:, None, None], (1, 2, 5, 8)).copy()
    path = attention_file(tmp_path / "m.onnx", inputs, (1, 4, 3, 8))
    for name in RUNTIMES:
        runtime: Any = load_runtime(name)
        output = runtime.run_model(path, inputs)["y"]
        np.testing.assert_allclose(output[0, :, 0, 0], [1, 1, 2, 2], atol=1e-6, err_msg=name)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_block_gives_one_answer_with_and_without_gradients(attention: Any) -> None:
    """pytorch #190486, #107084: the ordinary and the fast path disagree where every key of a sample is padded."""
    probe = ALL["block key_padding no key"]
    inputs = probes.make_probe_inputs(probe.problem, probe.fill, seed=0)
    module = build_module(probe.problem, attention=attention)
    tensors = [to_torch(array) for array in inputs.values()]
    found = {}
    for name, mode in (("grad", torch.enable_grad), ("no_grad", torch.no_grad), ("inference", torch.inference_mode)):
        with mode():
            found[name] = module(*tensors).numpy()
    bias = make_weights(probe.problem, seed=0)["b_o"]
    for name, output in found.items():
        np.testing.assert_array_equal(output, found["no_grad"], err_msg=name)
        np.testing.assert_allclose(output[1], np.broadcast_to(bias, output[1].shape), atol=1e-6)
        assert np.isfinite(output).all()
    with torch.enable_grad():
        plain = module(*(to_torch(array) for array in make_inputs(probe.problem, seed=1).values()))
    assert not plain.requires_grad  # the reference path is one: weights without gradients, whatever the mode
