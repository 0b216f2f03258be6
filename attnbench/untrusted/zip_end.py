"""Where a zip's list of members is: the same place for every reader, or the archive is refused.

Python looks for the list just before the record at the end, the reader in PyTorch at the offset that the record gives:
an archive can have a list for each of them.
"""

import struct
from typing import BinaryIO

_END, _END64, _LOCATOR64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_NO_NUMBERS = {0xFFFF, 0xFFFFFFFF}  # see the 64-bit record


def has_one_list(file: BinaryIO) -> bool:
    """The list of members ends where the records at the end begin, which end the file and say nothing else."""
    end = file.seek(0, 2) - _END.size
    if end < 0:
        return False
    sign, *rest, comment_bytes = _END.unpack(_read(file, end, _END.size))
    if sign != b"PK\x05\x06" or comment_bytes:
        return False
    at = end - _LOCATOR64.size
    locator = _read(file, at, _LOCATOR64.size) if at >= 0 else b""
    if not locator.startswith(b"PK\x06\x07"):
        return bool(rest[0] == rest[1] == 0 and rest[2] == rest[3] and rest[4] + rest[5] == end)
    end64 = at - _END64.size
    if end64 < 0 or _LOCATOR64.unpack(locator)[1:] != (0, end64, 1):
        return False
    sign, size, _, _, *rest64 = _END64.unpack(_read(file, end64, _END64.size))
    if sign != b"PK\x06\x06" or size != _END64.size - 12:
        return False
    agree = all(short in _NO_NUMBERS or short == long for short, long in zip(rest, rest64, strict=True))
    return bool(agree and rest64[0] == rest64[1] == 0 and rest64[2] == rest64[3] and rest64[4] + rest64[5] == end64)


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)
