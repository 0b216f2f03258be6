"""Flags that name exporters, runtimes and arms: text in, checked names out."""

from collections.abc import Sequence

from attnbench import interpreters, plugins
from attnbench.errors import InputError

BARE_RUNTIME_EXPORTER = "torch"  # how an arm of a runtime that takes no file calls its exporter
GIVEN_FILES = ("file", "engine")  # the same of every arm of an ONNX file or an engine of the user


def split_list(flag: str, given: Sequence[str] | None) -> list[str] | None:
    """`--flag a,b --flag c` as [a, b, c]; None when the flag was not given.

    Raises:
        InputError: an empty value, or one given twice.
    """
    if not given:
        return None
    values = [value.strip() for text in given for value in text.split(",")]
    if not all(values):
        raise InputError(f"{flag} must be values with commas between, got {','.join(given)!r}; leave no value empty")
    for value in values:
        if values.count(value) > 1:
            raise InputError(f"{flag} has {value!r} twice; give each value once")
    return values


def parse_plugins(flag: str, kind: plugins.Kind, given: Sequence[str] | None) -> list[str] | None:
    """Names of installed exporters or runtimes.

    Raises:
        InputError: an unknown one; the message has the installed ones and the nearest.
    """
    values = split_list(flag, given)
    for value in values or ():
        if kind == "runtime" and "@" in value:
            raise InputError(
                f"{flag} takes runtimes of this environment, got {value!r}; another interpreter is for the --runtimes "
                "of bench"
            )
        plugins.find(kind, value)
    return values


def parse_runtimes(flag: str, given: Sequence[str] | None) -> list[str] | None:
    """Names of installed runtimes, each maybe under another interpreter: `ort-cpu@/opt/other/bin/python`.

    Raises:
        InputError: an unknown one, or no path of an interpreter; relative paths become absolute.
    """
    values = split_list(flag, given)
    for value in values or ():
        plugins.find("runtime", interpreters.base(value))
    try:
        return None if values is None else [interpreters.absolute(value) for value in values]
    except InputError as err:
        raise InputError(f"{flag}: {err}") from err


def parse_arms(flag: str, given: Sequence[str] | None, *, is_file: bool = False) -> list[str] | None:
    """Arms: `torch-sdpa`, `torch-sdpa[backend=math]`, `onnx-attention@ort-cpu`, `onnx-attention[opset=24]@ort-cpu`.

    Raises:
        InputError: an exporter or runtime in one of them is unknown.
    """
    values = split_list(flag, given)
    for value in values or ():
        exporter, runtime = interpreters.split_arm(value)
        plugins.find("runtime", interpreters.base(runtime).partition("[")[0])
        name = exporter.partition("[")[0]
        if name and name not in (GIVEN_FILES if is_file else (BARE_RUNTIME_EXPORTER,)):
            plugins.find("exporter", name)
    return values
