"""The sizes of what an operator makes, as far as its stored integers say them."""

from collections.abc import Sequence

# Operators that are told how large their output is, and the inputs that tell it.
ASKING = {"ConstantOfShape": (0,), "Expand": (1,), "Tile": (1,), "Reshape": (1,), "Pad": (1,), "OneHot": (1,),
          "Range": (0, 1, 2)}  # fmt: skip


def sizes_asked(op: str, told: Sequence[Sequence[int]]) -> list[int]:
    """Dims that the output has at least, those that are not known left out.

    Args:
        op: of `ASKING`.
        told: the stored integers of its inputs, in the order of `ASKING`.
    """
    first = list(told[0])
    if op == "Pad":  # before and behind every axis; what is cut off is negative
        half = len(first) // 2
        first = [before + behind for before, behind in zip(first[:half], first[half:], strict=False)]
    if op == "Range":
        start, limit, delta = (numbers[0] if len(numbers) == 1 else 0 for numbers in told)
        first = [-((start - limit) // delta)] if delta else []
    return [size for size in first if size > 0]  # Reshape has 0 and -1 for sizes that it works out
