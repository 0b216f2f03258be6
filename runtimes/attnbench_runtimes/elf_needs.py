"""Which shared libraries a shared library of Linux is linked against (ELF's DT_NEEDED), and which of them do not load.

The loader names only the first that is missing; whoever installs CUDA wants all of them at once.
"""

import ctypes
import mmap
import struct
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_END, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
_ELF64_LITTLE = b"\x7fELF\x02\x01"


def missing_libraries(library: Path) -> list[str]:
    """The names of those that do not load here, sorted; what the loader finds only beside the library counts as there.

    Raises:
        OSError: the file cannot be read.
    """
    return sorted(name for name in needed(library) if not _loads(name) and not (library.parent / name).exists())


def needed(library: Path) -> list[str]:
    """The names in the order of the file; none where it is no 64-bit little-endian ELF file.

    Raises:
        OSError: the file cannot be read.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _needed(content) if content[:6] == _ELF64_LITTLE else []


def _needed(content: mmap.mmap) -> list[str]:
    """See System V ABI, chapter 5: program headers, then the dynamic section, then its table of strings."""
    table_at, (size, count) = struct.unpack_from("<Q", content, 32)[0], struct.unpack_from("<HH", content, 54)
    loads, dynamic = [], (0, 0)
    for at in range(table_at, table_at + size * count, size):
        kind, _, offset, address, _, in_file = struct.unpack_from("<IIQQQQ", content, at)
        if kind == _PT_LOAD:
            loads.append((address, offset, in_file))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, in_file)
    names, strings_at = [], 0
    for at in range(dynamic[0], dynamic[0] + dynamic[1], 16):
        tag, value = struct.unpack_from("<qQ", content, at)
        if tag == _DT_END:
            break
        if tag == _DT_NEEDED:
            names.append(value)
        elif tag == _DT_STRTAB:
            strings_at = next(value - a + offset for a, offset, n in loads if a <= value < a + n)
    return [_text(content, strings_at + name) for name in names]


def _text(content: mmap.mmap, at: int) -> str:
    return content[at : content.find(b"\0", at)].decode(errors="replace")


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
