"""Fused is what builds and grows linearly; the second witness may differ."""

import dataclasses

import pytest

from attnbench.fusion.questions import Question
from attnbench.fusion.verdicts import BUILDS, FUSED, REFUSED, UNFUSED, Answer, judge

SCORES = (8 * 2048 * 2048 * 2, 8 * 4096 * 4096 * 2)  # bytes of one score matrix in fp16 at T and 2T


@pytest.mark.parametrize(
    ("planned", "verdict", "matrices"),
    [
        ((0, 0), FUSED, 0.0),
        ((8388608, 16777216), FUSED, 0.0417),  # linear: doubles with T
        ((2048 * 2048 * 2, 4096 * 4096 * 2), FUSED, 0.125),  # one mask for all heads is no score matrix
        (SCORES, UNFUSED, 1.0),
        ((142409728, 545062912), UNFUSED, 2.0),  # head_dim 512 on sm89
    ],
)
def test_growth_is_counted_in_score_matrices(planned: tuple[int, int], verdict: str, matrices: float) -> None:
    found, growth = judge(planned, SCORES)
    assert (found, round(growth, 3)) == (verdict, round(matrices, 3))


def test_the_witnesses_disagree_only_where_one_says_fused() -> None:
    def said(strict: str, verdict: str) -> str:
        return Answer(question=Question(), arch="sm89", seq_lens=(1, 2), strict=strict, verdict=verdict).disagreement

    assert said(BUILDS, UNFUSED).startswith("builds as strict attention, yet")
    assert said(REFUSED, FUSED).startswith("refused as strict attention, yet")
    agreeing = [(BUILDS, FUSED), (REFUSED, UNFUSED), (REFUSED, REFUSED), ("", FUSED), ("", UNFUSED)]
    assert [said(*pair) for pair in agreeing] == [""] * 5


def test_a_mask_for_every_head_explains_one_matrix_and_no_second_one() -> None:
    def said(question: Question, matrices: float) -> str:
        lens, arch = (2048, 4096), "sm89"
        return Answer(
            question=question, arch=arch, seq_lens=lens, strict=BUILDS, verdict=UNFUSED, score_matrices=matrices
        ).disagreement

    joined = Question(mask="bias_1hqk", causal=True)
    assert said(joined, 1.04).endswith(
        "T x T, as much as the mask for every head that the graph makes of rule and bias"
    )
    for question, matrices in ((joined, 2.04), (Question(mask="bias_1hqk"), 1.0), (Question(causal=True), 1.0)):
        assert said(question, matrices).endswith("grows with T x T")


def test_an_answer_survives_being_written_as_one_flat_row() -> None:
    answer = Answer(
        question=Question(heads="mqa"), arch="sm80", verdict=UNFUSED, seq_lens=(2048, 4096),
        planned_activation_bytes=(1, None), score_matrices=2.0, strict=BUILDS, words="w", stage="compiler",
        build_ms=1.5,
    )  # fmt: skip
    fields = answer.as_dict()
    assert fields["heads"] == "mqa"
    assert "question" not in fields
    assert Answer.from_dict(fields) == answer
    assert {field.name for field in dataclasses.fields(Question)} <= set(fields)
