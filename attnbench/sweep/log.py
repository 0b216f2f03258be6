"""What a worker printed, and whether it was a complaint about memory."""

LOG_HEAD_BYTES = LOG_TAIL_BYTES = 32 << 10

# What allocators say when they cannot get memory (torch, ONNX Runtime, C++, OpenVINO, CUDA).
OOM_WORDS = (
    "can't allocate memory",
    "std::bad_alloc",
    "bad allocation",
    "failed to allocate memory",
    "not enough memory",
    "out of memory",
    "cannot allocate memory",
    "unable to allocate",
    "memoryerror",
)


def looks_like_oom(text: str) -> bool:
    """Whether an error message or log is an allocator's complaint."""
    lowered = text.lower()
    return any(word in lowered for word in OOM_WORDS)


class Log:
    """What a worker printed: the first and the last 32 KiB; what is between is counted, not kept."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.total_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Take a chunk of output."""
        self.total_bytes += len(chunk)
        room = LOG_HEAD_BYTES - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:] if room < len(chunk) else b""
        if len(self.tail) > 2 * LOG_TAIL_BYTES:
            del self.tail[:-LOG_TAIL_BYTES]

    def text(self) -> str:
        """The kept output, with a line that says how much was cut."""
        tail = self.tail[-LOG_TAIL_BYTES:]
        cut = self.total_bytes - len(self.head) - len(tail)
        middle = f"\n[... {cut} bytes cut ...]\n" if cut > 0 else ""
        return self.head.decode(errors="replace") + middle + tail.decode(errors="replace")
