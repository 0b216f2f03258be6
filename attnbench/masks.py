"""Masks by name: which keys a query may attend to. True means attend, everywhere in this package.

A name is `none`, or a position rule, or a tensor, or both joined by `+`: `causal_top_left`, `key_padding`,
`causal_top_left+key_padding`. A position rule is computed from positions; a tensor is an input of the problem.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from attnbench.errors import ProblemError

if TYPE_CHECKING:  # the command line parses masks, and starts without NumPy
    import numpy as np
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

NO_MASK = "none"
CAUSAL = ("causal_top_left", "causal_bottom_right")
_WINDOW = re.compile(r"sliding_window_([1-9][0-9]{0,8})")


class TensorForm(NamedTuple):
    """A mask that is given as a tensor."""

    dims: tuple[str | int, ...]  # batch_size, num_heads, q_len, kv_len, or 1
    is_bool: bool  # else it is added to the scores, in the problem's dtype


TENSORS = {
    "key_padding": TensorForm(("batch_size", 1, 1, "kv_len"), True),
    "bool_b1qk": TensorForm(("batch_size", 1, "q_len", "kv_len"), True),
    "bool_1hqk": TensorForm((1, "num_heads", "q_len", "kv_len"), True),
    "bool_qk": TensorForm(("q_len", "kv_len"), True),
    "bias_1hqk": TensorForm((1, "num_heads", "q_len", "kv_len"), False),
    "alibi": TensorForm((1, "num_heads", "q_len", "kv_len"), False),
}
EXAMPLES = (NO_MASK, *CAUSAL, "sliding_window_128", *TENSORS, "causal_top_left+key_padding")


@dataclass(frozen=True, kw_only=True)
class Mask:
    """A parsed name.

    `causal_top_left`: query i sees keys 0..i. `causal_bottom_right`: the last query sees every key, the one before all
    but one, and so on. `sliding_window_N`: of what causal_top_left lets a query see, the last N keys.
    """

    name: str
    position: str  # empty, causal_top_left, causal_bottom_right, sliding_window
    window: int | None
    tensor: str  # empty, or a key of TENSORS

    @property
    def form(self) -> TensorForm | None:
        """Of its tensor."""
        return TENSORS.get(self.tensor)

    @property
    def is_added(self) -> bool:
        """Is its tensor added to the scores?"""
        return self.form is not None and not self.form.is_bool

    @property
    def rule(self) -> str:
        """The name of its position rule alone."""
        return self.name.split("+")[0] if self.position else NO_MASK

    def visible(self, positions: "Int64", q_len: int, kv_len: int) -> "tuple[Int64, Int64]":
        """The first key that each query position sees by the position rule, and the first behind the last it sees."""
        first = positions * 0
        if not self.position:
            return first, first + kv_len
        offset = kv_len - q_len if self.position == "causal_bottom_right" else 0
        end = (positions + 1 + offset).clip(0, kv_len)
        if self.window is not None:
            first = (positions + 1 - self.window).clip(0, end)
        return first, end

    @property
    def may_mask_rows(self) -> bool:
        """Can a query be left without any key, at some lengths?"""
        form = self.form
        return (form is not None and form.is_bool) or self.position in ("causal_bottom_right", "sliding_window")


def parse_mask(name: str) -> Mask:
    """The mask of a name.

    Raises:
        ProblemError: an unknown name, two position rules or two tensors.
    """
    terms = name.split("+") if isinstance(name, str) else []
    positions = [t for t in terms if t in CAUSAL or _WINDOW.fullmatch(t)]
    tensors = [t for t in terms if t in TENSORS]
    known = len(positions) + len(tensors) == len(terms) and terms
    if name != NO_MASK and not (known and len(positions) <= 1 and len(tensors) <= 1 and terms == positions + tensors):
        known_names = ", ".join(EXAMPLES[:-1])
        raise ProblemError(f"mask must be {known_names}, or a rule and a tensor as {EXAMPLES[-1]}; got {name!r}")
    position = positions[0] if positions else ""
    window = _WINDOW.fullmatch(position)
    return Mask(
        name=name, position="sliding_window" if window else position, window=int(window[1]) if window else None,
        tensor=tensors[0] if tensors else "",
    )  # fmt: skip
