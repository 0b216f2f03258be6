"""What is shown of a matrix: table, sentence, CSV, page, picture."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.fusion import page, picture, text
from attnbench.fusion.matrix import Matrix
from attnbench.fusion.questions import Question
from tests.fusion.matrices import ARCHS, QUESTIONS, made_answer, made_matrix

TABLES = """\
sm75
              fp32      fp16
               dec  att  dec  att
head_dim 64      r    r    F    F
head_dim 512     r    r    x   x*

sm80, sm89
              fp32      fp16
               dec  att  dec  att
head_dim 64      x    x    F    F
head_dim 512     x   x*    x   x*
"""


def test_architectures_with_equal_verdicts_share_a_table_within_80_columns() -> None:
    shown = text.matrix_text(made_matrix(), width=80)
    assert TABLES in shown + "\n"
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.startswith("tensorrt-rtx 9.9: is attention fused?")
    assert " ".join(shown.split("The two witnesses differ:")[1].split("Refused:")[0].split()) == (
        "fp32, head_dim 64, onnx-attention on sm80, sm89: builds as strict attention, yet its memory grows with T x T"
    )
    assert " ".join(shown.split("Refused:")[1].split()) == (
        "4 questions of fp32 onnx-decomposed and fp32 onnx-attention on sm75: Cannot compile operation NODE for "
        "Turing: FP32 GEMM is not there"
    )


def test_columns_that_do_not_fit_come_below_and_rows_without_marks_are_left_out() -> None:
    whole = made_matrix()
    more = [Question(dtype="fp8", recipe=recipe) for recipe in ("fp8-qkpv", "fp8-qk")]
    questions = (*QUESTIONS, *more)
    answers = [made_answer(question, arch) for question in questions for arch in ARCHS]
    found = replace(whole, plan=replace(whole.plan, questions=questions), answers=answers)
    shown = text.matrix_text(found, width=40)
    assert max(map(len, shown.splitlines())) <= 40
    below = "\n\n              fp8\n               qk\nhead_dim 64     x\n\n"
    assert shown.count(below) == 2
    assert below not in text.matrix_text(found, width=80)


def test_one_question_is_answered_in_a_sentence_for_equal_answers() -> None:
    asked = [Question(dtype="fp16"), Question(dtype="fp16", recipe="onnx-attention")]
    whole = made_matrix()
    answers = [made_answer(question, arch) for question in asked for arch in ARCHS]
    found = replace(whole, plan=replace(whole.plan, questions=tuple(asked)), answers=answers)
    assert " ".join(text.ask_text(found, width=80).split()) == (
        "tensorrt-rtx 9.9: fp16, head_dim 64 as onnx-decomposed is fused: planned memory 1.00 MiB at T = 2048, "
        "2.00 MiB at 4096, grows linearly (sm75, sm80, sm89). tensorrt-rtx 9.9: fp16, head_dim 64 as onnx-attention is "
        "fused: planned memory 1.00 MiB at T = 2048, 2.00 MiB at 4096, grows linearly; as strict attention it builds "
        "(sm75, sm80, sm89)."
    )


def test_architectures_whose_memory_differs_share_a_sentence_with_the_span() -> None:
    whole, asked = made_matrix(), Question(dtype="fp32", recipe="onnx-attention")
    answers = [made_answer(asked, arch) for arch in ("sm80", "sm89")]
    answers[1] = replace(answers[1], planned_activation_bytes=(0, 3 << 20), score_matrices=1.0)
    found = replace(whole, plan=replace(whole.plan, questions=(asked,)), answers=answers)
    assert " ".join(text.ask_text(found, width=80).split()) == (
        "tensorrt-rtx 9.9: fp32, head_dim 64 as onnx-attention is not fused: planned memory 0 B to 1.00 MiB at T = "
        "2048, 3.00 MiB to 4.00 MiB at 4096, grows by 1.0 to 2.0 score matrices; as strict attention it builds (sm80, "
        "sm89)."
    )


def test_the_csv_has_a_row_for_every_architecture_and_no_number_where_there_is_none() -> None:
    rows = list(csv.DictReader(io.StringIO(text.matrix_csv(made_matrix()))))
    assert len(rows) == len(QUESTIONS) * len(ARCHS)
    first = rows[0]
    assert (first["dtype"], first["arch"], first["verdict"], first["compiler"]) == (
        "fp32", "sm75", "refused", "tensorrt-rtx 9.9",
    )  # fmt: skip
    assert [first[name] for name in ("planned_activation_bytes", "planned_activation_bytes_2", "score_matrices")] == [
        ""
    ] * 3
    assert (rows[1]["seq_len"], rows[1]["seq_len_2"], rows[1]["planned_activation_bytes_2"]) == (
        "2048", "4096", str(4 << 20),
    )  # fmt: skip


def test_the_page_labels_every_verdict_with_the_compiler_and_escapes_its_words() -> None:
    whole = made_matrix()
    hostile = replace(whole.answers[0], words="<script>alert(1)</script>")
    shown = page.matrix_page(replace(whole, answers=[hostile, *whole.answers[1:]]))
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.count("<td class=") == 2 * len(QUESTIONS)  # sm75, and sm80 with sm89
    assert shown.count("tensorrt-rtx 9.9: ") == 2 * len(QUESTIONS)
    assert "grows by 2.00 score matrices; builds as strict attention, yet" in shown


def test_the_picture_has_a_panel_for_every_group_and_is_written_twice(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    svg = picture.save(made_matrix(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"fusion.png", "fusion.svg"}
    for words in ("sm75", "sm80, sm89", "head_dim 512", "fp16 att", "tensorrt-rtx 9.9", "x*"):
        assert words in svg


def test_every_verdict_has_a_mark_and_a_colour() -> None:
    assert set(text.MARKS) == set(text.MEANING) == set(picture.COLORS) == set(page._CLASS)
    assert len(set(text.MARKS.values())) == len(text.MARKS)


def test_counts_leave_out_what_there_is_none_of() -> None:
    whole: Matrix = made_matrix()
    assert list(whole.counts) == ["fused", "not fused", "refused"]
