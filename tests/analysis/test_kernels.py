"""Where the runtime does not tell which kernel ran, the law of memory decides, or the cell says unknown and why."""

import numpy as np
import pytest

from attnbench.analysis.kernels import kernel_of, with_kernels
from attnbench.analysis.laws import Estimate
from attnbench.records import Record
from tests.analysis.synthetic import Terms, make_run

OPENVINO = "onnx-attention@openvino"
SCORES = 8 * 4  # bytes of a score matrix (B = 1, H = 8, fp32) per T^2


def _untold(
    matrices: float, *, seq_lens: tuple[int, ...] = (128, 256, 512, 1024, 2048), **update: object
) -> list[Record]:
    laws: dict[str, Terms] = {"torch-sdpa": (0.3, 0.02, 2e-5), OPENVINO: (0.3, 0.02, 2e-5)}
    memory: dict[str, Terms] = {"torch-sdpa": (5e5, 1e4, 0.0), OPENVINO: (5e5, 1e4, matrices * SCORES)}
    records, _ = make_run(laws, np.random.default_rng(0), memory=memory, seq_lens=seq_lens)
    fields = {"attention_kernel": "unknown", "kernel_evidence": None, **update}
    return with_kernels([r.model_copy(update=fields) if r.arm == OPENVINO else r for r in records])


def _told(records: list[Record]) -> set[tuple[str | None, str | None]]:
    return {(r.attention_kernel, r.kernel_evidence) for r in records if r.arm == OPENVINO}


def test_memory_without_a_quadratic_term_means_a_fused_kernel() -> None:
    assert _told(_untold(0.0)) == {("fused", "memory-law")}


def test_two_score_matrices_mean_that_scores_are_written_out() -> None:
    assert _told(_untold(2.0)) == {("unfused", "memory-law")}


def test_the_memory_law_overrides_nothing_that_was_told() -> None:
    records = _untold(2.0)
    sdpa = [r for r in records if r.arm == "torch-sdpa"]
    assert {(r.attention_kernel, r.kernel_evidence) for r in sdpa} == {("flash", "profile")}


def test_too_few_lengths_leave_the_kernel_unknown_with_the_reason() -> None:
    records = _untold(2.0, seq_lens=(128, 256, 512))
    assert _told(records) == {("unknown", None)}
    reasons = {r.empty_reasons["kernel_evidence"] for r in records if r.arm == OPENVINO}
    assert reasons == {"the runtime does not tell; the law of memory needs 4 lengths, 3 there"}


def test_one_peak_without_room_for_half_a_matrix_means_a_fused_kernel() -> None:
    # T = 2048: a score matrix is 8 x 2048^2 x 4 = 128 MiB, the peak 5e5 + 1e4 x 2048 bytes = 20 MiB.
    assert _told(_untold(0.0, seq_lens=(2048,))) == {("fused", "memory-law")}
    # T = 512: a matrix is 8 MiB, the peak 5.4 MiB, which may be scores or not.
    assert _told(_untold(0.0, seq_lens=(512,))) == {("unknown", None)}


def test_a_peak_that_was_not_measured_is_no_proof() -> None:
    assert _told(_untold(0.0, seq_lens=(2048,), peak_host_bytes=None)) == {("unknown", None)}


def test_an_interval_around_half_a_matrix_leaves_the_kernel_unknown() -> None:
    kernel, reason = kernel_of(Estimate(0.3, 0.5, 0.8), 0.0)
    assert kernel == "unknown"
    assert "0.30 to 0.80 score matrices" in reason


@pytest.mark.parametrize(
    ("mask", "heads", "kernel"), [("causal_top_left", 1, "unknown"), ("causal_top_left", 8, "unfused")]
)
def test_copies_of_the_mask_are_not_taken_for_scores(mask: str, heads: int, kernel: str) -> None:
    # A causal mask is one (T, T) matrix for all heads: with one head as large as the scores, with eight an eighth.
    records = _untold(1.5 * heads / 8, mask="causal_top_left", variant="causal", num_heads=heads)
    assert {k for k, _ in _told(records)} == {kernel}


def test_a_mask_of_every_head_may_be_copied_twice_before_scores_are_suspected() -> None:
    assert kernel_of(Estimate(1.9, 2.0, 2.1), 1.0)[0] == "unknown"
    assert kernel_of(Estimate(2.9, 3.0, 3.1), 1.0)[0] == "unfused"


def test_a_fused_operator_that_was_written_out_is_flagged() -> None:
    records = _untold(2.0)
    assert {tuple(r.flags) for r in records if r.arm == OPENVINO} == {("other_kernel",)}
    assert not any(r.flags for r in records if r.arm == "torch-sdpa")


def test_sdpa_that_ran_the_written_out_kernel_is_flagged_and_eager_is_not() -> None:
    records = _untold(0.0)
    math = [r.model_copy(update={"attention_kernel": "math"}) for r in records if r.arm == "torch-sdpa"]
    eager = [r.model_copy(update={"arm": "torch-eager", "runtime": "torch-eager"}) for r in math]
    assert all(r.flags == ["other_kernel"] for r in with_kernels(math))
    assert not any(r.flags for r in with_kernels(eager))


@pytest.mark.parametrize(("ran", "flags"), [("math", []), ("flash", ["other_kernel"])])
def test_a_row_that_asked_for_math_is_flagged_when_another_kernel_ran(ran: str, flags: list[str]) -> None:
    rows = [r for r in _untold(0.0) if r.arm == "torch-sdpa"]
    rows = [r.model_copy(update={"attention_kernel": ran, "runtime_options": {"backend": "math"}}) for r in rows]
    assert all(r.flags == flags for r in with_kernels(rows))


def test_deciding_again_changes_nothing() -> None:
    once = _untold(2.0)
    assert with_kernels(once) == once


def test_problems_that_differ_in_more_than_length_share_no_law() -> None:
    mixed = [r.model_copy(update={"scale": 0.2 if r.q_len > 512 else 0.125}) for r in _untold(2.0)]
    assert _told(with_kernels(mixed)) == {("unknown", None)}
