"""What a worker is asked about an engine of the user: to copy it, and to open the copy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnbench import plugins
from attnbench.errors import InputError
from attnbench.untrusted import snapshot_file


def take(*, path: str, to: str, runtimes: Sequence[str], device: str) -> dict[str, Any]:
    """Copy an engine and open the copy by the first runtime that opens engines; {"runtime": ..., "facts": ...}.

    Args:
        path: of the user's file.
        to: of the copy, which must not exist.
        runtimes: that were asked for.
        device: `cuda:0`.

    Raises:
        UntrustedModelError: the file cannot be read, or is no plain file.
        InputError: the copy cannot be written, it is no engine of that runtime, or no runtime opens engines.
        UnavailableError: the package or a GPU lacks.
        UnsupportedError: the runtime refuses the engine, in its own words.
    """
    try:
        snapshot_file(Path(path), Path(to))
    except OSError as err:
        raise InputError(f"{path!r} cannot be copied to {to!r}: {err.strerror}; make room there") from err
    for name in runtimes:
        plugin: Any = plugins.load_runtime(name)
        if getattr(plugin, "opens_engines", False):
            return {"runtime": name, "facts": plugin.read_engine(Path(to), device).as_dict()}
    raise InputError(f"none of the runtimes {', '.join(runtimes)} opens engines; add tensorrt or tensorrt-rtx")
