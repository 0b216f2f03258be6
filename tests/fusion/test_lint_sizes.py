"""At which sizes a model is linted."""

from attnbench.fusion.lint_sizes import sizes_of
from attnbench.untrusted import ModelFacts, Value


def facts(*inputs: Value) -> ModelFacts:
    return ModelFacts(
        sha256="", size_bytes=1, ir_version=8, opsets={"": 17}, producer="", inputs=inputs, outputs=(), operators={},
        custom_domains=(), functions=(), initializer_bytes=0, files={}, tensors=(), metadata={},
    )  # fmt: skip


def test_a_batch_is_1_and_all_else_follows_t() -> None:
    ids = Value(name="ids", dtype="int64", dims=("batch", "seq"))
    at = sizes_of(facts(ids), "m.onnx", {}, {}, 1024)
    assert at.sizes == [{"batch": 1, "seq": 1024}, {"batch": 1, "seq": 2048}]
    assert at.words == "batch=1, seq=T"
    assert at.notes == ("assumed: batch=1, seq=T; say otherwise with --set NAME=8 or --bind NAME=T",)


def test_an_empty_cache_is_a_size_like_any_other() -> None:
    inputs = (
        Value(name="ids", dtype="int64", dims=("batch", "seq")),
        Value(name="past", dtype="fp16", dims=("batch", 8, "past", 64)),
    )
    at = sizes_of(facts(*inputs), "m.onnx", {"batch": 1, "past": 0}, {"seq": "T"}, 512)
    assert at.words == "batch=1, seq=T, past=0"
    assert [shapes["past"] for shapes in at.shapes] == [[1, 8, 0, 64]] * 2
    assert at.notes == ()


def test_dims_without_a_name_are_called_after_their_input() -> None:
    at = sizes_of(facts(Value(name="x", dtype="fp16", dims=(None, None, 64))), "m.onnx", {}, {}, 512)
    assert at.words == "x_dim0=1, x_dim1=T"


def test_a_model_of_fixed_sizes_has_one() -> None:
    at = sizes_of(facts(Value(name="x", dtype="fp16", dims=(1, 128, 64))), "m.onnx", {}, {}, 512)
    assert (at.seq_lens, at.words, len(at.sizes)) == ((), "fixed sizes", 1)
