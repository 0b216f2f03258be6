import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from attnbench import arm_flags, interpreters, plugins
from attnbench.errors import InputError, UnavailableError
from attnbench.interfaces import Probe
from attnbench.sweep.workers import ForkServers, Worker
from tests.other_python import make_python

Script = Callable[[str], str]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A python with NumPy and an onnxruntime that calls itself 9.9.9."""
    return make_python(tmp_path_factory.mktemp("other") / "ort999", {"numpy": None, "onnxruntime": "9.9.9"})


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A python with NumPy alone."""
    return make_python(tmp_path_factory.mktemp("numpy") / "env", {"numpy": None})


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write a shell script where a python should be."""

    def write(body: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def guest(other: str) -> Iterator[Worker]:
    """A worker under the other python."""
    with ForkServers({"PATH": "/usr/bin:/bin"}) as servers:
        program = interpreters.launcher(other, "ort-cpu")
        with Worker(servers.get(("onnxruntime", "attnbench.sweep.tasks"), program)) as worker:
            yield worker


def why_not(python: str) -> str:
    """Why a python cannot run workers, in one sentence."""
    with pytest.raises(UnavailableError) as caught:
        interpreters.describe(python)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def answer(**fields: object) -> str:
    """A script that answers as a python with these properties would."""
    said = {
        "python_version": "3.12.1", "architecture": platform.machine(), "is_64bit": True, "implementation": "CPython",
        "no_numpy": "", "versions": {}, "executable": "", **fields,
    }  # fmt: skip
    return f"printf '%s%s, \"pid\": %s}}\\n' \"$4\" '{json.dumps(said)[:-1]}' $$"


def test_what_a_worker_imports_is_numpy_the_runtime_and_attnbench() -> None:
    code = (
        "import sys; before = set(sys.modules);"
        "import attnbench.sweep.zygote, attnbench.sweep.worker, attnbench.sweep.tasks;"
        "import attnbench_runtimes.ort, attnbench_runtimes.ort_models;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    names = {name for name in found.stdout.split() if not name.startswith("_")} - {"cython_runtime"}
    assert names == {"numpy", "attnbench", "attnbench_runtimes"}


def test_versions_are_read_from_inside(other: str) -> None:
    name = f"ort-cpu@{other}"
    probe = interpreters.probe_runtimes([name, "ort-cpu"])
    assert list(probe) == [name, "ort-cpu"]
    assert probe[name].available, probe[name].reason
    assert (probe[name].version, probe["ort-cpu"].version) == ("9.9.9", version("onnxruntime"))
    assert probe[name].traits["preload"] == ["onnxruntime"]
    told = probe[name].traits["interpreter"]
    assert told["python_version"] == platform.python_version()
    assert told["versions"] == {"numpy": version("numpy"), "onnxruntime": "9.9.9"}
    assert interpreters.told(probe) == {name: ("ort999", "9.9.9")}


def test_a_missing_runtime_is_told_with_the_command_of_that_python(ours: str) -> None:
    probe = interpreters.probe_runtimes([f"ort-cpu@{ours}"])[f"ort-cpu@{ours}"]
    assert not probe.available
    assert probe.reason == f"the package onnxruntime is not installed (in {ours})"
    assert probe.fix == f"{ours} -m pip install onnxruntime"


@pytest.mark.parametrize(
    ("fix", "expected"),
    [
        ("pip uninstall -y a && pip install b", "{0} -m pip uninstall -y a && {0} -m pip install b"),
        ("install the driver; then pip install 'a[b]'", "install the driver; then {0} -m pip install 'a[b]'"),
    ],
)
def test_every_pip_of_a_way_out_is_that_of_the_other_python(
    ours: str, monkeypatch: pytest.MonkeyPatch, fix: str, expected: str
) -> None:
    monkeypatch.setattr(plugins, "ask", lambda *_: Probe(available=False, reason="no", fix=fix))
    assert interpreters.probe_runtimes([f"ort-cpu@{ours}"])[f"ort-cpu@{ours}"].fix == expected.format(ours)


def test_a_probe_that_breaks_there_has_a_command_that_shows_why(ours: str, install_plugin: Callable[..., Path]) -> None:
    source = """
class Broken:
    name = "broken"
    takes_artifact, opt_in, preload = True, False, ()
    def supports(self, problem, artifact): ...
    def load(self, problem, artifact, settings): ...
    def probe(self): raise OSError("libbroken.so is missing")
"""
    install_plugin(runtimes={"broken": "broken_runtime:Broken"}, modules={"broken_runtime": source})
    probe = interpreters.probe_runtimes([f"broken@{ours}"])[f"broken@{ours}"]
    assert probe.reason == f"its probe raised OSError: libbroken.so is missing (in {ours})"
    shown = subprocess.run(probe.fix.split(), capture_output=True, text=True, check=False)
    assert "Traceback" in shown.stderr
    assert "libbroken.so is missing" in shown.stderr


def test_nothing_of_our_environment_but_what_is_lent_can_be_imported_there(guest: Worker) -> None:
    def is_there(name: str) -> bool:
        return guest.ask("importlib.util:find_spec", timeout_s=30.0, name=name) is not None

    assert not any(map(is_there, ("onnx", "ml_dtypes", "psutil", "pydantic", "torch", "attnbench_exporters")))


def test_a_worker_there_draws_our_inputs(guest: Worker) -> None:
    from attnbench import inputs

    assert guest.ask("attnbench.inputs:fingerprint", timeout_s=30.0) == inputs.fingerprint()


def test_bf16_without_ml_dtypes_there_says_what_to_install(guest: Worker) -> None:
    with pytest.raises(UnavailableError, match=r"bf16 needs the package ml_dtypes, .*-m pip install ml-dtypes"):
        guest.ask("attnbench.interfaces:numpy_dtype", timeout_s=30.0, dtype="bf16")


def test_preloading_what_is_not_there_names_the_python(ours: str) -> None:
    from attnbench.errors import WorkerError

    with ForkServers({"PATH": "/usr/bin:/bin"}) as servers:
        server = servers.get(("onnxruntime",), interpreters.launcher(ours, "ort-cpu"))
        with pytest.raises(WorkerError, match=rf"in {ours}: ModuleNotFoundError: No module named 'onnxruntime'"):
            server.wait_ready()


def test_a_python_without_numpy(tmp_path: Path) -> None:
    python = make_python(tmp_path / "bare", {})
    assert why_not(python) == (f"{python} cannot import NumPy (No module named 'numpy'): {python} -m pip install numpy")


def test_a_command_can_be_pasted_whatever_the_path(tmp_path: Path) -> None:
    python = make_python(tmp_path / "my @ env", {})
    found = interpreters.probe_runtimes([f"ort-cpu@{python}"])[f"ort-cpu@{python}"]
    assert found.fix == f"'{python}' -m pip install numpy"
    assert shlex.split(found.fix)[0] == str(python)


def test_a_python_that_is_unfit_has_its_own_way_out(tmp_path: Path) -> None:
    python = make_python(tmp_path / "bare", {})
    found = interpreters.probe_runtimes([f"ort-cpu@{python}", "ort-cpu@/no/python"])
    assert found[f"ort-cpu@{python}"].fix == f"{python} -m pip install numpy"
    assert found["ort-cpu@/no/python"].reason == "/no/python does not exist"
    assert found["ort-cpu@/no/python"].fix == "name the python of an environment that has the runtime"


def test_a_path_without_a_program(tmp_path: Path) -> None:
    assert "does not exist: name the python of an environment that has the runtime" in why_not(
        str(tmp_path / "no" / "python")
    )
    assert "cannot be executed" in why_not(str(tmp_path))
    (tmp_path / "text").write_text("no program", encoding="utf-8")
    assert "cannot be executed" in why_not(str(tmp_path / "text"))


def test_a_program_for_another_machine(tmp_path: Path) -> None:
    foreign = tmp_path / "python"
    foreign.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xff\xff" + bytes(44))
    foreign.chmod(0o755)
    assert "is no program for this machine (Exec format error)" in why_not(str(foreign))


def test_a_program_that_is_no_python(script: Script) -> None:
    assert "is no Python: asked what it is, it printed 'hello'" in why_not(script("echo hello"))
    for half in ("{}", "7", "{"):
        assert "is no Python: asked what it is, it printed" in why_not(script(f'echo "$4{half}"'))
    assert "ended with exit code 3 without an answer" in why_not(script("exit 3"))
    assert "was killed by signal 9 without an answer" in why_not(script("kill -9 $$"))


def test_a_program_that_prints_for_ever_is_cut_off(script: Script) -> None:
    assert "it printed 'rubbish rubbish" in why_not(script("while true; do echo rubbish; done"))


def test_a_program_that_hangs_is_killed(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "ASK_TIMEOUT_S", 0.5)
    assert "had not said what it is after 0.5 s and was killed" in why_not(script("sleep 60"))


def test_an_old_python(script: Script) -> None:
    assert "is Python 3.9.7; workers need 3.11 or later: name the python of an environment that has" in why_not(
        script(answer(python_version="3.9.7"))
    )


def test_a_python_of_another_architecture(script: Script) -> None:
    assert "is a Python for riscv64, this one is for" in why_not(script(answer(architecture="riscv64")))
    assert ", 32-bit, this one is for" in why_not(script(answer(is_64bit=False)))


def test_a_script_that_starts_a_python_beside_itself_is_refused(script: Script, tmp_path: Path) -> None:
    python = make_python(tmp_path / "env", {"numpy": None})
    wrapper = script(f'{python} "$@"')
    assert why_not(wrapper) == (
        f"{wrapper} starts {python} as a process of its own, which could outlive a run: name {python}"
    )
    exact = script(f'exec {python} "$@"')
    assert interpreters.describe(exact).python_version == platform.python_version()


def test_what_an_interpreter_prints_before_its_answer_does_no_harm(script: Script) -> None:
    found = interpreters.describe(script(f"echo welcome\n{answer(versions={'numpy': '2.0'})}"))
    assert (found.python_version, found.versions) == ("3.12.1", {"numpy": "2.0"})


@pytest.mark.parametrize(
    ("text", "exporter", "runtime"),
    [
        ("torch-sdpa", "", "torch-sdpa"),
        ("onnx-attention@ort-cpu", "onnx-attention", "ort-cpu"),
        ("onnx-attention[opset=24]@ort-cpu[a=b]", "onnx-attention[opset=24]", "ort-cpu[a=b]"),
        ("torch-sdpa@/opt/x/bin/python", "", "torch-sdpa@/opt/x/bin/python"),
        ("onnx-attention@ort-cpu@/opt/x/bin/python", "onnx-attention", "ort-cpu@/opt/x/bin/python"),
        ("ort-cpu@/opt/a@b/python", "", "ort-cpu@/opt/a@b/python"),
    ],
)  # fmt: skip
def test_arms_are_split_as_people_write_them(text: str, exporter: str, runtime: str) -> None:
    assert interpreters.split_arm(text) == (exporter, runtime)


def test_names_of_environments_are_short_and_differ() -> None:
    assert interpreters.names(["/opt/a/bin/python", "/opt/b c/bin/python"]) == {
        "/opt/a/bin/python": "a", "/opt/b c/bin/python": "b_c",
    }  # fmt: skip
    two = ["/usr/bin/python3.11", "/usr/bin/python3.12"]
    assert list(interpreters.names(two).values()) == ["usr-python3.11", "usr-python3.12"]
    two = ["/x/venv/bin/python", "/y/venv/bin/python"]
    assert list(interpreters.names(two).values()) == ["x-venv-bin-python", "y-venv-bin-python"]


def test_links_stay_in_the_path_of_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").symlink_to(sys.executable)
    assert interpreters.absolute("ort-cpu@./python") == f"ort-cpu@{tmp_path}/python"
    assert interpreters.absolute("ort-cpu") == "ort-cpu"


def test_runtimes_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert arm_flags.parse_runtimes("--runtimes", ["ort-cpu,ort-cpu@x/python"]) == [
        "ort-cpu",
        f"ort-cpu@{tmp_path}/x/python",
    ]
    with pytest.raises(InputError, match="no runtime 'ort-cude'"):
        arm_flags.parse_runtimes("--runtimes", ["ort-cude@/x/python"])
    with pytest.raises(InputError, match="--runtimes: 'ort-cpu@python3' names no interpreter: after ort-cpu@ comes"):
        arm_flags.parse_runtimes("--runtimes", ["ort-cpu@python3"])
    assert arm_flags.parse_arms("--baseline", ["onnx-attention@ort-cpu@/x/python"])
    with pytest.raises(InputError, match="no exporter 'onnx-attentoin'"):
        arm_flags.parse_arms("--baseline", ["onnx-attentoin@ort-cpu@/x/python"])
