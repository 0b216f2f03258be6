"""Exporters and runtimes: found by entry point without importing them, probed in a child, loaded by name.

Nothing here imports a plug-in in the process that plans a run: `exporters` and `runtimes` read installed metadata,
`probe` and `probe_all` start children, and only `load_plugin`, which workers call, imports.
"""

import difflib
import importlib
import importlib.metadata
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from attnbench.errors import AttnbenchError, InputError, PluginError

if TYPE_CHECKING:  # importing it costs NumPy (0.1 s), which listing does not need
    from attnbench.interfaces import Exporter, Probe, Runtime

Kind = Literal["exporter", "runtime"]
GROUPS: dict[Kind, str] = {"exporter": "attnbench.exporters", "runtime": "attnbench.runtimes"}
# What a plan needs to know without importing.
TRAITS = ("takes_artifact", "opens_engines", "opt_in", "checks_only", "preload", "opsets", "options")
DISTRIBUTION = "attnbench"
PROBE_TIMEOUT_S = 10.0
MAX_REASON_CHARS = 300
_MAX_ANSWER_BYTES = 4096  # below PIPE_BUF's and the pipe's size, so that a child never blocks on answering


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One entry point, as its distribution declares it. Nothing of it has been imported."""

    kind: Kind
    name: str  # "ort-cpu"
    value: str  # "attnbench_runtimes.ort:OrtCpu"
    distribution: str
    version: str  # of the distribution
    builtin: bool  # comes with attnbench itself


def exporters() -> dict[str, Plugin]:
    """The installed exporters by name, in alphabetical order.

    Raises:
        PluginError: attnbench is not installed, or two distributions declare the same name.
    """
    return _installed("exporter")


def runtimes() -> dict[str, Plugin]:
    """The installed runtimes by name, in alphabetical order.

    Raises:
        PluginError: attnbench is not installed, or two distributions declare the same name.
    """
    return _installed("runtime")


def find(kind: Kind, name: str) -> Plugin:
    """The plug-in of that name.

    Raises:
        InputError: there is none; the message has the installed names and the nearest one.
        PluginError: attnbench is not installed, or two distributions declare the same name.
    """
    found = _installed(kind)
    if name not in found:
        raise InputError(unknown_name(kind, name, found))
    return found[name]


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """One sentence: `no runtime 'ort-cude'; installed: null, ort-cuda; did you mean 'ort-cuda'?`."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no {what} {name!r}; installed: {', '.join(known)}{hint}"


def load_plugin(kind: Kind, name: str) -> Any:
    """Import the plug-in and construct it (an `Exporter` or a `Runtime`). For workers: this runs third-party code.

    Raises:
        InputError: no plug-in of that name.
        PluginError: it cannot be imported, or it is not what the protocol asks for.
    """
    plugin = find(kind, name)
    module_name, _, attribute = plugin.value.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), attribute)()
    except (ImportError, AttributeError, TypeError, SyntaxError) as err:
        raise PluginError(f"{_who(plugin)} cannot be loaded: {type(err).__name__}: {err}") from err
    missing = sorted(member for member in _members(kind) if not hasattr(made, member))
    if missing:
        raise PluginError(
            f"{_who(plugin)} lacks {', '.join(missing)}: "
            f"it must have all that attnbench.interfaces.{kind.capitalize()} has; run attnbench.conformance on it"
        )
    if made.name != name:
        raise PluginError(
            f"{_who(plugin)} calls itself {made.name!r}: the name of the class must equal the entry point's"
        )
    return made


def load_exporter(name: str) -> "Exporter":
    """`load_plugin` for exporters, typed."""
    return cast("Exporter", load_plugin("exporter", name))


def load_runtime(name: str) -> "Runtime":
    """`load_plugin` for runtimes, typed."""
    return cast("Runtime", load_plugin("runtime", name))


def probe(kind: Kind, name: str, timeout_s: float = PROBE_TIMEOUT_S) -> "Probe":
    """Ask one plug-in, in a child process, whether it can work here. A broken plug-in is a `Probe` with the reason.

    Raises:
        InputError: no plug-in of that name.
        PluginError: attnbench is not installed, or two distributions declare the same name.
    """
    return probe_all(kind, [name], timeout_s=timeout_s)[name]


def probe_all(
    kind: Kind, names: Iterable[str] | None = None, *, timeout_s: float = PROBE_TIMEOUT_S, at_once: int = 2
) -> dict[str, "Probe"]:
    """Ask several plug-ins (None: all of the kind), `at_once` children at a time.

    Built-in plug-ins of one module share a child, because most of a probe is one import; those left without an answer
    when it breaks are asked again, each alone. `timeout_s` holds per child.

    Raises:
        InputError: no plug-in of that name.
        PluginError: attnbench is not installed, or two distributions declare the same name.
    """
    from concurrent.futures import ThreadPoolExecutor  # here, because it imports logging and listing need not wait

    plugins = list(_installed(kind).values()) if names is None else [find(kind, name) for name in names]
    groups: dict[str, list[Plugin]] = {}
    for plugin in plugins:
        key = plugin.value.partition(":")[0] if plugin.builtin else plugin.name
        groups.setdefault(key, []).append(plugin)
    answers: dict[str, Probe] = {}
    pool = ThreadPoolExecutor(max_workers=at_once)
    try:
        for answer in pool.map(lambda group: _ask_group(kind, [p.name for p in group], timeout_s), groups.values()):
            answers.update(answer)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return {plugin.name: answers[plugin.name] for plugin in plugins}


def ask(kind: Kind, name: str, program: Sequence[str], timeout_s: float = PROBE_TIMEOUT_S) -> "Probe":
    """`probe` through a program that runs this module, such as another interpreter with what it needs of attnbench."""
    return _ask_child(kind, [name], timeout_s, program)[name]


def one_line(text: str, limit: int = MAX_REASON_CHARS) -> str:
    """The text on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _installed(kind: Kind) -> dict[str, Plugin]:
    found: dict[str, Plugin] = {}
    names: dict[int, tuple[str, str]] = {}  # of each distribution, because every look parses its metadata again
    for point in sorted(importlib.metadata.entry_points(group=GROUPS[kind]), key=lambda point: point.name):
        dist = point.dist
        assert dist is not None  # entry points of installed metadata always have one
        if id(dist) not in names:
            names[id(dist)] = (dist.name, dist.version)
        distribution, version = names[id(dist)]
        plugin = Plugin(
            kind=kind, name=point.name, value=point.value, distribution=distribution, version=version,
            builtin=distribution == DISTRIBUTION,
        )  # fmt: skip
        other = found.setdefault(plugin.name, plugin)
        if other != plugin:
            raise PluginError(
                f"{kind} {plugin.name!r} is declared by two packages, {other.distribution} ({other.value}) and "
                f"{plugin.distribution} ({plugin.value}); uninstall one of them"
            )
    if not any(plugin.builtin for plugin in found.values()):
        raise PluginError(
            f"no {kind} of attnbench is installed: run `make setup` in the clone, or pip install attnbench"
        )
    return found


def _members(kind: Kind) -> set[str]:
    """What the protocol asks for: its attributes and its methods."""
    from attnbench import interfaces

    protocol = interfaces.Exporter if kind == "exporter" else interfaces.Runtime
    methods = {name for name, member in vars(protocol).items() if not name.startswith("_") and callable(member)}
    return methods | set(protocol.__annotations__)


def _who(plugin: Plugin) -> str:
    return f"{plugin.kind} {plugin.name!r} ({plugin.value}, from {plugin.distribution} {plugin.version})"


def _ask_group(kind: Kind, names: list[str], timeout_s: float) -> dict[str, "Probe"]:
    """Answers of a group that shares a child; whoever got none is asked alone."""
    answers = _ask_child(kind, names, timeout_s)
    if len(names) > 1:
        for name in names:
            if name not in answers:
                answers.update(_ask_group(kind, [name], timeout_s))
    return answers


def _ask_child(kind: Kind, names: list[str], timeout_s: float, program: Sequence[str] = ()) -> dict[str, "Probe"]:
    """Run one child to its end or its deadline; never raises for what the child does.

    A single name always gets an answer: without one from the child, the reason why there is none.
    """
    read_fd, write_fd = os.pipe()
    try:
        child = subprocess.Popen(
            [*(program or (sys.executable, "-E", "-P", "-m", "attnbench.plugins")), kind, str(write_fd), *names],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(write_fd,), start_new_session=True,
        )  # fmt: skip
    except OSError:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    try:
        blob, timed_out = listen(read_fd, child, len(names), time.monotonic() + timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        os.close(read_fd)
    answers = _parse(blob)
    if len(names) == 1 and names[0] not in answers:
        answers[names[0]] = _unanswered(kind, names[0], blob, None if timed_out else code, timeout_s)
    return {name: answers[name] for name in names if name in answers}


def listen(fd: int, child: "subprocess.Popen[bytes]", count: int, deadline: float) -> tuple[bytes, bool]:
    """What the child wrote to `fd` until it had answered `count` times or ended, and whether the deadline cut it off.

    The end of the child is looked for every 50 ms: a grandchild may hold the pipe open for ever.
    """
    blob = b""
    while blob.count(b"\n") < count:
        if time.monotonic() > deadline:
            return blob, True
        ended = child.poll() is not None
        ready, _, _ = select.select([fd], [], [], 0 if ended else 0.05)
        chunk = os.read(fd, 65536) if ready else b""
        blob += chunk
        if (ended and not chunk) or len(blob) > _MAX_ANSWER_BYTES * count:
            break
        if ready and not chunk:  # it closed the pipe and still runs
            time.sleep(0.05)
    return blob, False


def _parse(blob: bytes) -> dict[str, "Probe"]:
    """The answers in what a child wrote, by name. Lines that are not answers are left out."""
    from attnbench.interfaces import Probe

    answers: dict[str, Probe] = {}
    for line in blob.split(b"\n")[:-1]:
        try:
            fields = json.loads(line)
            name = fields.pop("name")
            answer = Probe(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        is_list = isinstance(answer.devices, list | tuple) and len(answer.devices) > 0
        texts = (name, answer.version, answer.reason, answer.fix, answer.no_cuda, answer.compiles_only)
        texts = (*texts, *(answer.devices if is_list else ()))
        if type(answer.available) is bool and is_list and all(type(text) is str for text in texts):
            answers[name] = replace(answer, devices=tuple(answer.devices))
    return answers


def _unanswered(kind: Kind, name: str, blob: bytes, code: int | None, timeout_s: float) -> "Probe":
    """Why there is no answer; `code` is the child's exit code, None when the deadline passed."""
    from attnbench.interfaces import Probe

    if code is None:
        what = f"its probe had not ended after {timeout_s:g} s and was killed"
    elif blob:
        what = "its probe gave an unreadable answer"
    elif code < 0:
        what = f"its probe was killed by signal {-code} ({signal.strsignal(-code)})"
    else:
        what = f"its probe ended with exit code {code} and gave no answer"
    return Probe(available=False, reason=what, fix=show_command(kind, name))


def show_command(kind: Kind, name: str) -> str:
    """The command that shows everything that a broken probe prints."""
    return f"python -E -P -m attnbench.plugins {kind} 1 {name}"


def _answer(fd: int, name: str, answer: "Probe") -> None:
    fields = {key: one_line(value) if isinstance(value, str) else value for key, value in asdict(answer).items()}
    os.write(fd, json.dumps({"name": name, **fields}, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _answer_exceptions(
    kind: Kind, fd: int, name: str
) -> Callable[[type[BaseException], BaseException, TracebackType | None], None]:
    """An excepthook that turns what a probe raised into the answer for `name`, and shows the traceback too."""
    from attnbench.interfaces import Probe

    def hook(error: type[BaseException], err: BaseException, trace: TracebackType | None) -> None:
        reason = f"its probe raised {error.__name__}: {err}"
        _answer(fd, name, Probe(available=False, reason=reason, fix=show_command(kind, name)))
        sys.__excepthook__(error, err, trace)

    return hook


def _child(kind: Kind, fd: int, names: list[str]) -> None:
    """The child's program: one line of JSON per plug-in on `fd`, then out without the exit hooks of anybody."""
    from attnbench.interfaces import Probe

    for name in names:
        sys.excepthook = _answer_exceptions(kind, fd, name)
        traits: dict[str, Any] = {}
        try:
            made = load_plugin(kind, name)
            traits = {trait: getattr(made, trait) for trait in TRAITS if hasattr(made, trait)}
            answer: Any = made.probe()
        except AttnbenchError as err:
            answer = Probe(available=False, reason=str(err))
        if not isinstance(answer, Probe):
            answer = Probe(
                available=False, reason=f"its probe gave {answer!r} instead of an attnbench.interfaces.Probe"
            )
        _answer(fd, name, replace(answer, traits=traits))
    os._exit(0)


if __name__ == "__main__":
    _child(cast(Kind, sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
