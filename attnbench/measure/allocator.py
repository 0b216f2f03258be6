"""Two fixed states of glibc's allocator, so that what is measured does not depend on which one a process drifted into.

By default glibc moves its thresholds with the sizes that were freed, and gives the top of its heap back when enough of
it is free. Both depend on chance (addresses, the order of frees). Seen with the same code in many processes:

- time: a block at T = 512 took 17.4 ms without a page fault in some, 19.7 ms with 1248 per call in others, for life;
- memory: torch's SDPA at T = 4096 peaked at 40, 80 or 104 MiB, eager at 1081 to 1145 MiB.
"""

import ctypes

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_INITIAL_MMAP_THRESHOLD = 128 << 10  # where glibc starts
_FINAL_MMAP_THRESHOLD = 32 << 20  # where its moving threshold ends, and the most it takes
_NEVER = (1 << 31) - 1


def keep_heap() -> str:
    """For timing: the state of a long-lived process. Blocks below 32 MiB come from a heap that is never given back.

    Larger blocks are mapped and unmapped by every call, as they are by default. Returns what was set, or why not.
    """
    return _set(_FINAL_MMAP_THRESHOLD, _NEVER, "mmap threshold 32 MiB, heap never given back")


def exact_heap() -> str:
    """For memory: every block from 128 KiB on is mapped and unmapped by itself, so resident bytes are live bytes.

    Returns what was set, or why not.
    """
    return _set(_INITIAL_MMAP_THRESHOLD, _INITIAL_MMAP_THRESHOLD, "mmap threshold fixed at 128 KiB")


def _set(mmap_threshold: int, trim_threshold: int, done: str) -> str:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return "not set: the C library has no mallopt"
    taken = mallopt(_M_MMAP_THRESHOLD, mmap_threshold) and mallopt(_M_TRIM_THRESHOLD, trim_threshold)
    return done if taken else "not set: mallopt refused"
