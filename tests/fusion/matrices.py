"""A matrix that no compiler was asked for."""

from attnbench.fusion.matrix import Matrix, Plan
from attnbench.fusion.questions import Question
from attnbench.fusion.verdicts import BUILDS, FUSED, REFUSED, UNFUSED, Answer

ARCHS = ("sm75", "sm80", "sm89")
QUESTIONS = tuple(
    Question(dtype=dtype, recipe=recipe, head_dim=head_dim)
    for head_dim in (64, 512) for dtype in ("fp32", "fp16") for recipe in ("onnx-decomposed", "onnx-attention")
)  # fmt: skip
PLAN = Plan(version="9.9", archs=ARCHS, seq_len=2048, questions=QUESTIONS)
WORDS = "IBuilder::buildSerializedNetwork: Cannot compile operation 'node_matmul' for Turing: FP32 GEMM is not there"


def made_answer(question: Question, arch: str) -> Answer:
    """Fp16 at head_dim 64 is fused, the rest not; sm75 refuses fp32."""
    known = {"question": question, "arch": arch, "seq_lens": (2048, 4096)}
    if question.dtype == "fp32" and arch == "sm75":
        return Answer(verdict=REFUSED, words=WORDS, stage="compiler", **known)  # type: ignore[arg-type]
    is_fused = question.dtype == "fp16" and question.head_dim == 64
    has_node = question.recipe == "onnx-attention"
    return Answer(
        verdict=FUSED if is_fused else UNFUSED, score_matrices=0.0 if is_fused else 2.0,
        planned_activation_bytes=(1 << 20, (2 if is_fused else 4) << 20), build_ms=50.0,
        strict=(BUILDS if is_fused or question.head_dim == 64 else REFUSED) if has_node else "",
        **known,  # type: ignore[arg-type]
    )  # fmt: skip


def made_matrix() -> Matrix:
    """All of it."""
    answers = [made_answer(question, arch) for question in QUESTIONS for arch in ARCHS]
    return Matrix(plan=PLAN, answers=answers, seconds=1.0)
