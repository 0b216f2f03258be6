"""In a worker: is the work done in the call that is timed, or was it done before, or once for all calls?"""

import time
from collections.abc import Callable, Mapping

from attnbench.interfaces import Array
from attnbench.sweep.judging import DishonestError

RATIO = 5.0  # a timed call this much faster than the honest one does not do the work
MIN_NS = 200_000  # below this much a difference says nothing
TRIES = 10  # on a busy machine three calls in a row may each lose their time slice
_UNSEEN = 1_000_003  # beyond the run's own seed
_UNBOUND = 2_000_003


def unseen_call_ns(bind: Callable[[int], Callable[[], object]], seed: int, median_ns: int) -> int:
    """The quickest of up to ten calls on inputs never seen before.

    Args:
        bind: gives the call for the inputs of a seed.
        seed: of the run.
        median_ns: of the timed call.

    Raises:
        DishonestError: they are over five times slower.
    """
    unseen_ns = 0
    for attempt in range(TRIES):
        call = bind(seed + _UNSEEN + attempt)
        start = time.perf_counter_ns()
        call()
        took_ns = time.perf_counter_ns() - start
        unseen_ns = min(unseen_ns or took_ns, took_ns)
        if unseen_ns < RATIO * median_ns or unseen_ns - median_ns < MIN_NS:
            return unseen_ns
    raise DishonestError(
        f"a call on inputs it has not seen takes {unseen_ns / 1e6:.3g} ms, the timed median is "
        f"{median_ns / 1e6:.3g} ms: results are remembered, not computed"
    )


def refuse_work_in_bind(
    bind: Callable[[Mapping[str, Array]], object], inputs_of: Callable[[int], Mapping[str, Array]], seed: int,
    call_ns: int,
) -> None:  # fmt: skip
    """Binding again at a size that was bound before is copying: it takes no longer than the call and the copies.

    What is compiled for a size is compiled once, so the quickest of up to ten counts.

    Args:
        bind: of the session.
        inputs_of: inputs of a seed, always of one size.
        seed: of the run.
        call_ns: of the call that will be timed.

    Raises:
        DishonestError: it takes over five times as long.
    """
    excess: list[tuple[int, int]] = []  # bind_ns, copy_ns
    for attempt in range(TRIES):
        inputs = inputs_of(seed + _UNBOUND + attempt)
        start = time.perf_counter_ns()
        copies = {name: array.copy() for name, array in inputs.items()}
        copied = time.perf_counter_ns()
        bind(copies)
        bind_ns, copy_ns = time.perf_counter_ns() - copied, copied - start
        if bind_ns < RATIO * (call_ns + copy_ns) or bind_ns - call_ns - copy_ns < MIN_NS:
            return
        excess.append((bind_ns, copy_ns))
    bind_ns, copy_ns = min(excess)
    raise DishonestError(
        f"bind() takes {bind_ns / 1e6:.3g} ms each time, copying the inputs {copy_ns / 1e6:.3g} ms, the call to time "
        f"{call_ns / 1e6:.3g} ms: bind() does the work, or compiles anew for a size that it had; compute in the call "
        "that bind() returns"
    )
