"""How sizes of a model are said on the command line: `--bind seq=T`, `--set batch=1,8`, `--shapes x:8x512`."""

import re
from collections.abc import Sequence
from typing import Any

from attnbench import arm_flags, flags
from attnbench.errors import InputError


def parse_bind(given: Sequence[str] | None) -> dict[str, str]:
    """`--bind seq=T --bind kv=T/2` as {"seq": "T", "kv": "T/2"}; what may follow `=` is looked at with the model.

    Raises:
        InputError: without `=`, or a name twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        _add(found, "--bind", text, *_parted("--bind", text, "=", "--bind seq=T"))
    return found


def parse_set(given: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """`--set batch=1,8 --set heads=4` as {"batch": (1, 8), "heads": (4,)}.

    Raises:
        InputError: without `=`, a name or a size twice, or no whole numbers: an empty cache has a size of 0.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in given or ():
        if re.search(r"=[^=]*,[^=]*=", text):
            raise InputError(f"--set takes one name, got {text!r}; write --set once for each")
        name, values = _parted("--set", text, "=", "--set batch=8")
        sizes = [_parse_size(f"--set {name}=", size, "1") for size in values.split(",")]
        if len(set(sizes)) < len(sizes):
            raise InputError(f"--set {name}={values} has a size twice; give each size once")
        _add(found, "--set", text, name, tuple(sizes))
    return found


def parse_shapes(given: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """`--shapes x:8x512,mask:8x1x512` as trtexec has it; `x:scalar` has no dims.

    Raises:
        InputError: another form, a name twice, or a size that is no whole number.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in arm_flags.split_list("--shapes", given) or ():
        name, values = _parted("--shapes", text, ":", "--shapes x:8x512,mask:8x1x512")
        sizes = () if values == "scalar" else tuple(
            _parse_size(f"--shapes {name}:", size, "8x512") for size in values.split("x")
        )  # fmt: skip
        _add(found, "--shapes", text, name.strip("'"), sizes)
    return found


def _parse_size(flag: str, text: str, example: str) -> int:
    return flags.parse_int(flag, text.strip(), minimum=0, example=example)


def _parted(flag: str, text: str, sign: str, example: str) -> tuple[str, str]:
    name, found, value = text.rpartition(sign)
    if not found or not name.strip() or not value.strip():
        raise InputError(f"{flag} must be a name, {sign} and what it is, got {text!r}; write for example {example}")
    return name.strip(), value.strip()


def _add(found: dict[str, Any], flag: str, text: str, name: str, value: object) -> None:
    if name in found:
        raise InputError(f"{flag} has {name!r} twice, the second time as {text!r}; give it once")
    found[name] = value
