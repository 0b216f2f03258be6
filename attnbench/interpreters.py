"""Runtimes under another Python: `ort-cpu@/opt/ort131/bin/python` runs its workers there.

The other environment needs the runtime and NumPy. attnbench lends its own source (see `attnbench.guest`); plans,
references, exports and judgements stay here.
"""

import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import plugins
from attnbench.errors import InputError, UnavailableError

if TYPE_CHECKING:  # importing it costs NumPy, which the command line does not need to read its flags
    from attnbench.interfaces import Probe

LEAST_PYTHON = (3, 11)
ASK_TIMEOUT_S = 20.0  # NumPy from a cold disk
DISTRIBUTIONS = ("numpy", "ml-dtypes", "onnxruntime", "onnxruntime-gpu", "openvino", "torch", "tensorrt",
                 "tensorrt-rtx")  # fmt: skip
TRAIT = "interpreter"  # of a probe: the fields of an `Interpreter`

# Any Python since 2.7 can run this: an old one must be able to say that it is old.
_ASK = """
import json, os, platform, sys
sys.path[:] = [p for p in sys.path if p]
found = {"python_version": platform.python_version(), "architecture": platform.machine(),
         "is_64bit": sys.maxsize > 2**32, "implementation": platform.python_implementation(),
         "no_numpy": "", "versions": {}, "pid": os.getpid(), "executable": sys.executable}
try:
    import numpy
except Exception as err:
    found["no_numpy"] = str(err) or type(err).__name__
try:
    from importlib import metadata
    for name in sys.argv[2:]:
        try:
            found["versions"][name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
except ImportError:
    pass
sys.stdout.write("\\n" + sys.argv[1] + json.dumps(found) + "\\n")
"""
_MARK = "attnbench asks: "
_SAID = {"python_version", "architecture", "is_64bit", "implementation", "no_numpy", "versions", "pid", "executable"}
_MAX_LINES = 64  # of what an interpreter may print by itself before it answers


_ANOTHER = "name the python of an environment that has the runtime"


class UnfitError(UnavailableError):
    """A Python that cannot run workers: `reason`, and `fix`, what to do about it."""

    def __init__(self, reason: str, fix: str = _ANOTHER) -> None:
        super().__init__(f"{reason}: {fix}")
        self.reason, self.fix = reason, fix


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """What another Python says of itself."""

    python: str  # the path, as it was asked
    python_version: str  # "3.12.4"
    implementation: str  # "CPython"
    versions: Mapping[str, str]  # distribution -> version, of those that decide what runs


def split(runtime: str) -> tuple[str, str]:
    """`ort-cpu@/opt/x/bin/python` as name and path; the path of a runtime that runs here is empty."""
    name, _, python = runtime.partition("@")
    return name, python


def base(runtime: str) -> str:
    """The plug-in's own name: `ort-cpu` of `ort-cpu@/opt/x/bin/python`."""
    return split(runtime)[0]


def split_arm(text: str) -> tuple[str, str]:
    """Exporter and runtime of an arm as a person writes it; the exporter of `torch-sdpa` is empty.

    `a@b` is exporter and runtime; where the last part is a path, it is the interpreter of the part before it.
    """
    first, at, rest = text.partition("@")
    if not at or "/" in rest.partition("@")[0].partition("[")[0]:
        return "", text
    return first, rest


def absolute(runtime: str) -> str:
    """A runtime with the path of its interpreter made absolute; links stay, since they tell environments apart.

    Raises:
        InputError: what follows the runtime's name is no path.
    """
    name, at, python = runtime.partition("@")
    if not at:
        return runtime
    if "/" not in python:
        raise InputError(
            f"{runtime!r} names no interpreter: after {name}@ comes the path of a python, "
            f"such as {name}@/opt/other/bin/python"
        )
    return f"{name}@{os.path.abspath(os.path.expanduser(python))}"  # noqa: PTH100, PTH111  # resolve() follows links


def absolute_arm(text: str) -> str:
    """As `absolute`, of an arm or runtime as a person writes it.

    Raises:
        InputError: as `absolute`.
    """
    exporter, runtime = split_arm(text)
    return f"{exporter}@{absolute(runtime)}" if exporter else absolute(runtime)


def names(pythons: Iterable[str]) -> dict[str, str]:
    """A short name for each path, none twice: the folder of the environment, longer where two share it."""
    wanted = list(dict.fromkeys(pythons))
    for choice in (_environment, _with_file, _with_parent, _whole):
        found = {python: re.sub(r"[^A-Za-z0-9.+_-]", "_", choice(Path(python))) for python in wanted}
        if len(set(found.values())) == len(found):
            return found
    return {python: f"{_whole(Path(python))}-{i}" for i, python in enumerate(wanted, 1)}


def _environment(python: Path) -> str:
    folder = python.parent.parent if python.parent.name in ("bin", "Scripts") else python.parent
    return folder.name or python.name


def _with_file(python: Path) -> str:
    return f"{_environment(python)}-{python.name}"


def _with_parent(python: Path) -> str:
    return "-".join(python.parts[1:][-4:])


def _whole(python: Path) -> str:
    return "-".join(python.parts[1:])


def told(probes: Mapping[str, "Probe"]) -> dict[str, tuple[str, str]]:
    """What labels of arms say of their interpreters, by runtime: name of the environment, version of the runtime."""
    short = names(python for _, python in map(split, probes) if python)
    found = {}
    for runtime, probe in probes.items():
        _, python = split(runtime)
        if python:
            found[runtime] = (short[python], probe.version or "unknown")
    return found


def names_interpreter(label: str, runtimes: Iterable[str]) -> bool:
    """Is a label, such as `onnx-attention@ort-cpu[ort131=1.31.1]`, that of another interpreter of these runtimes?"""
    plugin, _, said = split_arm(label)[1].partition("[")
    pairs = [split(runtime) for runtime in runtimes]
    short = names(python for _, python in pairs if python)
    return any(name == plugin and python and said.startswith(f"{short[python]}=") for name, python in pairs)


def probe_runtimes(runtimes: Iterable[str], *, timeout_s: float = plugins.PROBE_TIMEOUT_S) -> dict[str, "Probe"]:
    """Ask runtimes, each under its own interpreter, whether they can work; in the order given.

    Raises:
        InputError: no plug-in of that name.
        PluginError: attnbench is not installed, or two distributions declare the same name.
    """
    from concurrent.futures import ThreadPoolExecutor  # here, as in `plugins.probe_all`

    wanted = list(runtimes)
    for runtime in wanted:
        plugins.find("runtime", base(runtime))
    elsewhere = [runtime for runtime in wanted if split(runtime)[1]]
    found = plugins.probe_all("runtime", [r for r in wanted if r not in elsewhere], timeout_s=timeout_s)
    if elsewhere:
        with ThreadPoolExecutor(max_workers=2) as pool:
            answers = pool.map(lambda runtime: _probe(*split(runtime), timeout_s), elsewhere)
            found |= dict(zip(elsewhere, answers, strict=True))
    return {runtime: found[runtime] for runtime in wanted}


def _probe(name: str, python: str, timeout_s: float) -> "Probe":
    from attnbench.interfaces import Probe

    try:
        interpreter = describe(python)
    except UnfitError as err:
        return Probe(available=False, reason=err.reason, fix=err.fix)
    answer = plugins.ask("runtime", name, [*launcher(python, name, "-E"), "attnbench.plugins"], timeout_s)
    fix = re.sub(r"\bpip (?=(un)?install )", lambda _: f"{shlex.quote(python)} -m pip ", answer.fix)
    if fix == plugins.show_command("runtime", name):
        fix = shlex.join([sys.executable, "-P", "-m", "attnbench.interpreters", python, name])
    reason = f"{answer.reason} (in {python})" if answer.reason else ""
    return replace(answer, reason=reason, fix=fix, traits={**answer.traits, TRAIT: asdict(interpreter)})


def describe(python: str) -> Interpreter:
    """Ask a Python what it is.

    Raises:
        UnfitError: it cannot run workers; the message says why in a sentence.
    """
    found = _asked(python)
    version = found["python_version"]
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < LEAST_PYTHON:
        raise UnfitError(f"{python} is Python {version}; workers need {'.'.join(map(str, LEAST_PYTHON))} or later")
    if found["architecture"] != platform.machine() or found["is_64bit"] != (sys.maxsize > 2**32):
        bits = "" if found["is_64bit"] else ", 32-bit"
        raise UnfitError(
            f"{python} is a Python for {found['architecture']}{bits}, this one is for {platform.machine()}: what is "
            "emulated is not timed"
        )
    if found["no_numpy"]:
        why = plugins.one_line(found["no_numpy"])
        raise UnfitError(f"{python} cannot import NumPy ({why})", f"{shlex.quote(python)} -m pip install numpy")
    return Interpreter(
        python=python, python_version=version, implementation=found["implementation"], versions=found["versions"]
    )


def _asked(python: str) -> dict[str, Any]:
    command = [python, "-E", "-c", _ASK, _MARK, *DISTRIBUTIONS]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except FileNotFoundError as err:
        missing = "does not exist" if not Path(python).exists() else "names a program that does not exist"
        raise UnfitError(f"{python} {missing}") from err
    except PermissionError as err:
        raise UnfitError(f"{python} cannot be executed") from err
    except OSError as err:
        raise UnfitError(f"{python} is no program for this machine ({err.strerror})") from err
    assert child.stdout is not None
    try:
        blob, timed_out = plugins.listen(child.stdout.fileno(), child, _MAX_LINES, time.monotonic() + ASK_TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        child.stdout.close()
    found = _answer_in(python, blob, None if timed_out else code)
    if found["pid"] != child.pid:
        raise UnfitError(
            f"{python} starts {found['executable']} as a process of its own, which could outlive a run",
            f"name {found['executable']}",
        )
    return found


def _answer_in(python: str, blob: bytes, code: int | None) -> dict[str, Any]:
    for line in blob.decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            with suppress(ValueError, AttributeError):  # no JSON, no object
                found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                if found.keys() >= _SAID:
                    return found
    if code is None:
        raise UnfitError(f"{python} had not said what it is after {ASK_TIMEOUT_S:g} s and was killed")
    if blob:
        printed = plugins.one_line(blob.decode(errors="replace"), 60)
        raise UnfitError(f"{python} is no Python: asked what it is, it printed {printed!r}")
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    raise UnfitError(f"{python} is no Python that works: asked what it is, it {ended} without an answer")


def launcher(python: str, runtime: str, *flags: str) -> list[str]:
    """The command that runs a module of attnbench under `python`, with the plug-in of a runtime; the module follows.

    Raises:
        InputError: no plug-in of that name.
    """
    plugin = plugins.find("runtime", runtime)
    ours = next(found for found in plugins.runtimes().values() if found.builtin)
    packages = {root: _origin(root) for root in ("attnbench", plugin.value.partition(":")[0].partition(".")[0])}
    lent = {"packages": packages, "distributions": _distributions([plugin, ours])}
    return [python, *flags, "-P", _origin("attnbench.guest"), json.dumps(lent)]


def _origin(package: str) -> str:
    spec = find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    return spec.origin


def _distributions(wanted: Sequence[plugins.Plugin]) -> list[tuple[str, str, str]]:
    """Name, version and entry points of the distributions of some runtimes."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for plugin in wanted:
        found.setdefault((plugin.distribution, plugin.version), {})[plugin.name] = plugin.value
    group = plugins.GROUPS["runtime"]
    return [
        (name, version, "\n".join([f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]))
        for (name, version), points in found.items()
    ]


if __name__ == "__main__":
    # Everything that a broken probe prints: PYTHON RUNTIME.
    os.execv(sys.argv[1], [*launcher(sys.argv[1], sys.argv[2], "-E"), "attnbench.plugins", "runtime", "1", sys.argv[2]])
