"""What NVIDIA's compilers make of a file without a GPU: an engine and its planned memory, or their own words."""

import importlib
import types
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from attnbench import trt_compiler
from attnbench.errors import InputError, UnavailableError

LOG = "Total Activation Memory: 1024 bytes\nMax Scratch Memory: 512 bytes\nTotal Activation Memory: 2048 bytes\n"
HEADS, HEAD_DIM = 8, 64


def attention_model(dtype: int = TensorProto.FLOAT16, **attributes: Any) -> bytes:
    """A file of one Attention node on Q, K, V of shape (1, T, 512)."""
    free = [1, "T", HEADS * HEAD_DIM]
    values = {name: helper.make_tensor_value_info(name, dtype, free) for name in "qkvy"}
    node = helper.make_node(
        "Attention", ["q", "k", "v"], ["y"], "attend", q_num_heads=HEADS, kv_num_heads=HEADS, **attributes
    )
    graph = helper.make_graph([node], "g", [values[name] for name in "qkv"], [values["y"]])
    return onnx.ModelProto.SerializeToString(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    )


def at(seq_len: int) -> dict[str, tuple[int, ...]]:
    """The shapes of `attention_model`."""
    return dict.fromkeys("qkv", (1, seq_len, HEADS * HEAD_DIM))


def rtx() -> Any:
    """The real package, or a skip."""
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


def test_the_memory_that_a_build_log_plans_is_read_and_what_it_leaves_out_is_none() -> None:
    assert trt_compiler.planned_bytes(LOG) == {
        "planned_activation_bytes": 2048, "planned_scratch_bytes": 512, "planned_weights_bytes": None,
    }  # fmt: skip


def test_a_shape_alone_is_a_range_of_itself() -> None:
    assert trt_compiler.as_range((1, 5, 8)) == ((1, 5, 8),) * 3
    assert trt_compiler.as_range(((1, 1), (1, 4), (1, 8))) == ((1, 1), (1, 4), (1, 8))
    assert trt_compiler.as_range(()) == ((), (), ())


def test_architectures_that_the_compiler_does_not_know_are_refused_with_those_it_does() -> None:
    with pytest.raises(InputError, match="must be of sm75, sm80, sm86, sm89, sm120, sm121, got 'sm90'"):
        trt_compiler.parse_archs("sm90")


def test_architectures_become_an_arm_each() -> None:
    assert trt_compiler.arch_options("SM89, sm120") == ["tensorrt-rtx:arch=sm89", "tensorrt-rtx:arch=sm120"]
    assert trt_compiler.arch_options(None) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'tensorrt'", name="tensorrt"), "not installed; pip install tensorrt"),
        (ModuleNotFoundError("No module named 'x'", name="x"), "cannot be imported: No module named 'x'; pip install"),
        (ImportError("libnvinfer.so.11:\n cannot open"), "cannot be imported: libnvinfer.so.11: cannot open"),
    ],
)
def test_a_compiler_that_cannot_be_imported_says_why(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(UnavailableError, match=said):
        trt_compiler.load_module(trt_compiler.TRT)


@pytest.mark.parametrize(
    ("module", "version", "flags"),
    [("tensorrt", "10.14.1", 2), ("tensorrt", "11.0.0", 0), ("tensorrt_rtx", "1.7.1.116", 0)],
)
def test_networks_are_strongly_typed_in_every_version(module: str, version: str, flags: int) -> None:
    flag = types.SimpleNamespace(STRONGLY_TYPED=1)
    trt = types.SimpleNamespace(__name__=module, __version__=version, NetworkDefinitionCreationFlag=flag)
    assert trt_compiler.network_flags(trt) == flags


def test_fp16_attention_compiles_for_an_absent_gpu_and_its_memory_grows_linearly() -> None:
    rtx()
    small, large = (trt_compiler.compile_onnx(attention_model(is_causal=1), shapes=at(t)) for t in (1024, 8192))
    assert small.engine
    assert large.engine
    assert (small.arch, small.stage, small.words, small.attention_decomposed) == ("sm89", "", "", False)
    assert small.planned_activation_bytes is not None
    assert large.planned_activation_bytes is not None
    assert large.planned_activation_bytes < 16 * small.planned_activation_bytes


def test_a_node_that_has_no_kernel_is_refused_when_strict_and_taken_apart_when_allowed() -> None:
    rtx()
    model = attention_model(TensorProto.FLOAT, is_causal=1)
    refused = trt_compiler.compile_onnx(model, shapes=at(512), strict=True)
    assert refused.engine is None
    assert refused.stage == "compiler"
    assert "not supported by a dedicated kernel" in refused.words
    small, large = (trt_compiler.compile_onnx(model, shapes=at(t), strict=False) for t in (512, 2048))
    assert small.attention_decomposed is True
    assert small.planned_activation_bytes is not None
    assert large.planned_activation_bytes is not None
    assert large.planned_activation_bytes > 8 * small.planned_activation_bytes  # two score matrices: quadratic


def test_a_file_that_allows_it_is_taken_apart_unless_it_must_not_be() -> None:
    rtx()
    model = attention_model(TensorProto.FLOAT, is_causal=1, TRT_decomposable=1)
    assert trt_compiler.compile_onnx(model, shapes=at(64)).attention_decomposed is True
    assert trt_compiler.compile_onnx(model, shapes=at(64), strict=True).stage == "compiler"


def test_a_refusal_of_the_parser_names_code_operator_and_node() -> None:
    rtx()
    found = trt_compiler.compile_onnx(attention_model(softcap=30.0), shapes=at(64))
    assert found.stage == "parser"
    assert "softcap" in found.words
    assert "(code UNSUPPORTED_NODE, node Attention 'attend')" in found.words


def test_a_range_of_shapes_plans_for_the_largest() -> None:
    rtx()
    ranges = dict.fromkeys("qkv", ((1, 1, 512), (1, 512, 512), (1, 4096, 512)))
    ranged = trt_compiler.compile_onnx(attention_model(), shapes=ranges)
    exact = trt_compiler.compile_onnx(attention_model(), shapes=at(512))
    assert ranged.planned_activation_bytes is not None
    assert exact.planned_activation_bytes is not None
    assert ranged.planned_activation_bytes > 4 * exact.planned_activation_bytes


def test_a_file_on_disk_is_parsed_with_the_weights_beside_it(tmp_path: Path) -> None:
    rtx()
    weight = helper.make_tensor("w", TensorProto.FLOAT16, [512, 512], b"\0" * 2 * 512 * 512, raw=True)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, "T", 512]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    found = trt_compiler.compile_onnx(tmp_path / "m.onnx", shapes={"x": (1, 8, 512)})
    assert found.engine
    assert found.attention_decomposed is None


def test_an_engine_whose_log_is_silent_on_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rtx()
    monkeypatch.setattr(trt_compiler, "_PLANNED", {"planned_activation_bytes": "Not said: (\\d+)"})
    with pytest.raises(trt_compiler.ExportError, match="does not tell its memory"):
        trt_compiler.compile_onnx(attention_model(), shapes=at(64))
