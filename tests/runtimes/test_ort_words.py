"""ONNX Runtime's messages, copied from real refusals, become one sentence."""

import pytest

from attnbench_runtimes.ort_words import plain

_FAIL = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Attention node. Name:'{node}' Status "
    "Message: /onnxruntime_src/onnxruntime/core/providers/cpu/llm/attention_helper.h:164 onnxruntime::common::Status "
    "onnxruntime::attention_helper::ComputeOutputShapeForAttention(const onnxruntime::Tensor*, bool, float) "
    "attn_mask->Shape()[1] == parameters.total_sequence_length was false. {why}\n"
)


@pytest.mark.parametrize(
    ("words", "dtype", "sentence"),
    [
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Expand(13) node with "
            "name ''",
            "",
            "onnxruntime has no kernel for Expand of opset 13",
        ),
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for MatMul(13) node with name "
            "'/w_q/MatMul'",
            "bf16",
            "onnxruntime has no kernel for MatMul of opset 13, which this bf16 file needs (node /w_q/MatMul)",
        ),
        (
            _FAIL.format(node="", why="inconsistent total_sequence_length (between attn_mask and past_key)"),
            "",
            "Attention fails in onnxruntime: inconsistent total_sequence_length (between attn_mask and past_key)",
        ),
        (
            _FAIL.format(node="core", why=""),
            "",
            "Attention (node core) fails in onnxruntime: "
            "attn_mask->Shape()[1] == parameters.total_sequence_length does not hold",
        ),
        (
            "Error in execution: Non-zero status code returned while running Pad node. Name:'widen' Status Message: "
            "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:360 void* "
            "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory "
            "for requested buffer of size 4398046511360\n",
            "",
            "Pad (node widen) fails in onnxruntime: out of memory for a buffer of 4398046511360 bytes",
        ),
        ("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model failed:Protobuf parsing failed.", "",
         "Load model failed:Protobuf parsing failed."),
        ("", "", "onnxruntime gives no reason"),
    ],
)  # fmt: skip
def test_a_message_becomes_one_sentence(words: str, dtype: str, sentence: str) -> None:
    assert plain(RuntimeError(words), dtype=dtype) == sentence
