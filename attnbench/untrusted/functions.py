"""Functions that a model defines for itself: how much they write out to, and that they end."""

from collections import Counter
from collections.abc import Callable, Mapping

from attnbench.errors import UntrustedModelError

MAX_CALL_DEPTH = 64

CallKey = tuple[str, str, str]  # domain, operator, overload


def expanded_nodes(
    calls: Counter[CallKey], bodies: Mapping[CallKey, Counter[CallKey]], refuse: Callable[[str], UntrustedModelError]
) -> int:
    """How many nodes the calls are once every function is written out.

    Args:
        calls: nodes of the graph and its subgraphs.
        bodies: nodes of every function.
        refuse: makes the error.

    Raises:
        UntrustedModelError: a function calls itself, or functions call each other over `MAX_CALL_DEPTH` deep.
    """
    sizes: dict[CallKey, int] = {}

    def size(key: CallKey, above: tuple[CallKey, ...]) -> int:
        if key not in bodies:
            return 1
        if key in above:
            raise refuse(f"its function {key[1]!r} calls itself; functions of ONNX are written out, so this never ends")
        if len(above) >= MAX_CALL_DEPTH:
            raise refuse(f"its functions call each other over {MAX_CALL_DEPTH} deep")
        if key not in sizes:
            sizes[key] = sum(count * size(called, (*above, key)) for called, count in bodies[key].items())
        return sizes[key]

    for key in bodies:  # those that nothing calls too
        size(key, ())
    return sum(count * size(key, ()) for key, count in calls.items())
