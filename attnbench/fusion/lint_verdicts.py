"""Fused or not, by how planned device memory grows from T to 2T."""

from collections.abc import Sequence
from typing import Literal

Verdict = Literal["fused", "unfused", "refused", "unknown"]
_SQUARE = 3.0  # scores that grow at least so much from T to 2T have both axes of it
_SHARE = 0.5  # of a matrix of scores; a fused kernel may be given a mask of T x T that all heads share
_CLEAR = 4.0  # a matrix of scores is told from inputs and outputs when it is so much larger


def verdict(planned: Sequence[int | None], scores: Sequence[int | None], passed: Sequence[int]) -> Verdict:
    """Is no matrix of scores in the planned memory?

    What grows in proportion to T is doubled at 2T, a matrix of scores is four times as large: memory(2T) - 2
    memory(T) is twice what is kept of such matrices at T, and about zero where none is. A whole model has much that
    grows in proportion to T, so a ratio would not tell. Where the scores do not grow with the square of T, planned
    memory is compared with one matrix of them.

    Args:
        planned: bytes at T and 2T, or at one size; None: refused.
        scores: bytes of one matrix of scores of all heads, in the same order; None: not known.
        passed: bytes of inputs and outputs.

    Returns:
        `unknown` where neither tells.
    """
    known = [size for size in planned if size is not None]
    sizes = [size for size in scores if size is not None]
    if len(known) < len(planned):
        return "refused"
    if not sizes or len(sizes) < len(scores) or min(sizes) == 0:
        return "unknown"
    if len(sizes) > 1 and sizes[1] >= _SQUARE * sizes[0]:
        return "unfused" if known[1] - 2 * known[0] > 2 * _SHARE * sizes[0] else "fused"
    if is_too_small(sizes[-1], passed[-1]):
        return "unknown"
    return "unfused" if known[-1] > _SHARE * sizes[-1] else "fused"


def is_too_small(scores: int | None, passed: int) -> bool:
    """Is a matrix of scores no more than what is beside it, so that planned memory does not tell of it?"""
    return scores is not None and scores < _CLEAR * passed
