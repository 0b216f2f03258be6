"""What can be asked, and how one question is written."""

import re

import pytest

from attnbench.errors import InputError
from attnbench.fusion.questions import EXPORTED, FP8, Question, default_questions, full_questions, parse_ask


def test_a_question_names_every_word_once_and_is_asked_of_both_usual_recipes() -> None:
    found = parse_ask("fp16, head_dim=80,causal")
    assert found == [
        Question(dtype="fp16", head_dim=80, causal=True, recipe=recipe)
        for recipe in ("onnx-decomposed", "onnx-attention")
    ]
    assert found[0].label == "fp16, head_dim 80, causal, onnx-decomposed"
    assert parse_ask("causal_top_left,gqa,key_padding,onnx-contrib") == [
        Question(causal=True, heads="gqa", mask="key_padding", recipe="onnx-contrib")
    ]
    assert [q.recipe for q in parse_ask("fp8")] == list(FP8)
    assert parse_ask("fp8-qk") == [Question(dtype="fp8", recipe="fp8-qk")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "asks nothing"),
        ("fp16,fp32", "two words for dtype"),
        ("fp17", "knows no 'fp17'; such as fp16,head_dim=80,causal"),
        ("heads=8", "knows no 'heads=8'"),
        ("head_dim=0", "from 1 to 4096, got '0'"),
        ("head_dim=x", "from 1 to 4096, got 'x'"),
        ("fp8,causal", "have no mask"),
        ("fp16,fp8-qk", "recipe fp8-qk is not of fp16"),
        ("causal,sliding_window_128", "mask must be"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        parse_ask(text)


def test_the_problem_has_the_heads_the_mask_and_the_dtype_that_were_asked() -> None:
    grouped = Question(dtype="bf16", heads="gqa", causal=True, mask="key_padding", head_dim=32).problem(64)
    assert (grouped.num_heads, grouped.num_kv_heads, grouped.head_dim, grouped.dtype) == (8, 2, 32, "bf16")
    assert (grouped.mask, grouped.variant, grouped.part) == ("causal_top_left+key_padding", "causal", "core")
    assert Question(mask="sliding_window_128").problem(64).variant == "causal"
    assert Question(dtype="fp8", recipe="fp8-qk").problem(64).dtype == "fp16"  # what goes into QuantizeLinear


def test_the_default_changes_one_thing_at_a_time_and_full_has_everything_of_it() -> None:
    usual, full = default_questions(), full_questions()
    assert len(set(usual)) == len(usual)
    assert len(set(full)) == len(full)
    assert set(usual) < set(full)
    assert {q.recipe for q in full} == {*EXPORTED, *FP8}
    base = Question()
    for question in usual:
        changed = [name for name in ("head_dim", "mask", "heads") if getattr(question, name) != getattr(base, name)]
        assert len(changed) <= 1, question
