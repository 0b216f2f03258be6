"""From what a compiler planned to a verdict: fused is what builds and whose memory grows linearly with T.

A graph that is not fused holds whole score matrices in device memory, of which each grows by 3 H T^2 elements from T to
2T. So growth is counted in score matrices: 0.04 is linear, 2.01 holds two of them. Below half a matrix is fused: a mask
of T x T for all heads alike, which some fused graphs hold, is an eighth of one.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.fusion.questions import Question

FUSED, UNFUSED, REFUSED, UNSUPPORTED, FAILED = "fused", "not fused", "refused", "unsupported", "failed"
VERDICTS = (FUSED, UNFUSED, REFUSED, UNSUPPORTED, FAILED)
BUILDS = "builds"  # of the strict witness; the other word is REFUSED
MOST_FUSED_MATRICES = 0.5


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the compiler made of one question for one architecture."""

    question: Question
    arch: str
    verdict: str  # of VERDICTS
    seq_lens: tuple[int, int]  # T and 2T
    planned_activation_bytes: tuple[int | None, int | None] = (None, None)  # at T and 2T; None: no engine
    score_matrices: float | None = None  # that planned memory grows by from T to 2T
    strict: str = ""  # second witness, of an Attention node alone: BUILDS or REFUSED
    words: str = ""  # of the compiler or its parser that refused; why unsupported or failed
    stage: str = ""  # parser or compiler, where it refused
    build_ms: float | None = None  # both engines of the verdict

    @property
    def disagreement(self) -> str:
        """What the two witnesses say where they differ; empty where not."""
        if self.strict == BUILDS and self.verdict == UNFUSED:
            return f"builds as strict attention, yet its memory grows with T x T{self._made_mask}"
        if self.strict == REFUSED and self.verdict == FUSED:
            return "refused as strict attention, yet its memory grows linearly when it may be taken apart"
        return ""

    @property
    def _made_mask(self) -> str:
        """What explains one matrix: rule and bias are joined to a mask for every head before the attention."""
        mask = self.question.problem(1).masking
        is_made = mask.position and mask.form is not None and "num_heads" in mask.form.dims
        is_one = self.score_matrices is not None and round(self.score_matrices) == 1
        return (
            ", as much as the mask for every head that the graph makes of rule and bias" if is_made and is_one else ""
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON: one flat row."""
        fields = {**asdict(self), "disagreement": self.disagreement}
        return {**fields.pop("question"), **fields}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Answer":
        """The inverse of `as_dict`."""
        own = {name: value for name, value in fields.items() if name in cls.__dataclass_fields__}
        asked = {name: value for name, value in fields.items() if name in Question.__dataclass_fields__}
        for name in ("seq_lens", "planned_activation_bytes"):
            own[name] = tuple(own[name])
        return cls(question=Question(**asked), **own)


def judge(planned: Sequence[int], score_bytes: Sequence[int]) -> tuple[str, float]:
    """The verdict on two engines, and by how many score matrices their memory differs.

    Args:
        planned: activation bytes at T and at 2T.
        score_bytes: of one score matrix at T and at 2T.
    """
    matrices = (planned[1] - planned[0]) / (score_bytes[1] - score_bytes[0])
    return (FUSED if matrices < MOST_FUSED_MATRICES else UNFUSED), round(matrices, 4)
