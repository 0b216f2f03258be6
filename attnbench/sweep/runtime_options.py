"""Settings that one runtime has, as a flag or in a sweep file: `torch-sdpa:backend=math` makes an arm of its own."""

import itertools
import re
from collections.abc import Iterable, Mapping

from attnbench.errors import InputError, UnavailableError
from attnbench.interfaces import Probe

Options = tuple[tuple[str, str], ...]  # names and values
# Of every arm on a GPU: how it is timed. The runtime is not told.
TIMING: Mapping[str, tuple[str, ...]] = {"scope": ("device",), "l2": ("cold",)}


def combinations(texts: Iterable[str], runtime: str) -> list[Options]:
    """The options of each arm of a runtime: every combination of the values of its names; [()] where it has none.

    Raises:
        InputError: a text that is not RUNTIME:NAME=VALUE.
    """
    values: dict[str, list[str]] = {}
    for of, name, value in map(_split, texts):
        if of == runtime:
            values.setdefault(name, []).append(value)
    return [tuple(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def check(texts: Iterable[str], probes: Mapping[str, Probe]) -> None:
    """Every option is one that its runtime has; `probes` are those of the runtimes of the sweep.

    A runtime that is unavailable knows its options all the same, unless it could not even be loaded.

    Raises:
        InputError: it is not; the message has those that there are.
        UnavailableError: it is about a GPU's clock, and the runtime cannot be used here; the message says why.
    """
    for text in texts:
        runtime, name, value = _split(text)
        if runtime not in probes:
            raise InputError(f"option {text!r} is of none of the runtimes {', '.join(probes)}; add it to runtimes")
        probe = probes[runtime]
        known: Mapping[str, Iterable[str]] = probe.traits.get("options", {})
        if not probe.available and value in TIMING.get(name, ()):
            raise UnavailableError(f"option {text!r} is about a GPU's clock: {probe.reason}; leave it out")
        if any(device.startswith("cuda") for device in probe.devices):
            known = {**known, **TIMING}
        if (probe.available or "options" in probe.traits) and value not in known.get(name, ()):
            told = "; ".join(f"{key}={'|'.join(choices)}" for key, choices in known.items()) or "none"
            raise InputError(f"{runtime} has no option {name}={value}; it has {told}")


def of_runtime(options: Options) -> Options:
    """Those that the runtime itself is asked for."""
    return tuple(option for option in options if option[0] not in TIMING)


def _split(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"([^:=\s]+):([^:=\s]+)=([^:=\s]+)", text)
    if found is None:
        raise InputError(f"option {text!r} is not RUNTIME:NAME=VALUE; write for example torch-sdpa:backend=math")
    runtime, name, value = found.groups()
    return runtime, name, value
