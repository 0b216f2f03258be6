import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench import plugins
from attnbench.errors import InputError, PluginError

RUNTIME = """
from attnbench.interfaces import Probe, SUPPORTED

class Fake:
    name = "fake"
    takes_artifact = False
    opt_in = False
    preload = ()

    def probe(self):
        {probe}

    def supports(self, problem, artifact):
        return SUPPORTED

    def load(self, problem, artifact, settings):
        raise NotImplementedError
"""

Install = Callable[..., Path]


@pytest.fixture
def probing(install_plugin: Install) -> Callable[[str], str]:
    """Probe a runtime whose `probe` has the given body; gives the reason."""

    def ask(body: str, timeout_s: float = 10.0) -> str:
        install_plugin(runtimes={"fake": "fake_runtime:Fake"}, modules={"fake_runtime": RUNTIME.format(probe=body)})
        answer = plugins.probe("runtime", "fake", timeout_s=timeout_s)
        assert not answer.available
        assert "\n" not in answer.reason
        return answer.reason

    return ask


def test_builtin_plugins_are_found_with_their_distribution() -> None:
    found = plugins.runtimes()
    assert {"null", "ort-cpu", "torch-sdpa", "torch-eager", "torch-compile", "openvino"} <= set(found)
    assert found["ort-cpu"].value == "attnbench_runtimes.ort:OrtCpu"
    assert found["ort-cpu"].builtin
    assert found["ort-cpu"].distribution == "attnbench"
    assert {"onnx-decomposed", "onnx-attention", "onnx-contrib"} <= set(plugins.exporters())


def test_finding_plugins_imports_none_of_them() -> None:
    code = (
        "import sys; from attnbench import plugins; plugins.runtimes(); plugins.exporters();"
        "print([m for m in sys.modules if m.startswith(('attnbench_', 'torch', 'numpy', 'onnx'))])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_installed_third_party_runtime_is_found_and_not_builtin(install_plugin: Install) -> None:
    install_plugin("acme-attention", runtimes={"acme": "acme:Acme"})
    found = plugins.runtimes()["acme"]
    assert (found.distribution, found.version, found.builtin) == ("acme-attention", "1.2.3", False)


def test_an_uninstalled_clone_is_told_to_run_make_setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(PluginError, match="make setup"):
        plugins.runtimes()


def test_a_name_declared_twice_is_an_error_that_names_both_packages(install_plugin: Install) -> None:
    install_plugin("acme-one", runtimes={"acme": "acme_one:Acme"})
    install_plugin("acme-two", runtimes={"acme": "acme_two:Acme"})
    with pytest.raises(PluginError, match=r"acme-one.*acme-two|acme-two.*acme-one"):
        plugins.runtimes()


def test_an_unknown_name_is_answered_with_the_nearest_one(install_plugin: Install) -> None:
    install_plugin("acme-attention", runtimes={"acme-gpu": "acme:Acme"})
    with pytest.raises(InputError, match=r"^no runtime 'acme-gpo'; installed: .*null, .*; did you mean 'acme-gpu'\?$"):
        plugins.find("runtime", "acme-gpo")


def test_an_unknown_name_like_nothing_gets_no_guess() -> None:
    assert (
        plugins.unknown_name("runtime", "zzzzz", ["null", "ort-cpu"]) == "no runtime 'zzzzz'; installed: null, ort-cpu"
    )


def test_a_plugin_that_is_there_loads_as_an_object(install_plugin: Install) -> None:
    body = 'return Probe(available=True, version="7.1")'
    install_plugin(runtimes={"fake": "fake_runtime:Fake"}, modules={"fake_runtime": RUNTIME.format(probe=body)})
    assert plugins.load_runtime("fake").name == "fake"
    answer = plugins.probe("runtime", "fake")
    assert (answer.available, answer.version, answer.reason) == (True, "7.1", "")
    assert answer.traits == {"takes_artifact": False, "opt_in": False, "preload": []}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError"),
        ("class Other: pass", "AttributeError"),
        ("def Fake(needed): pass", "TypeError"),
        ("class Fake:\n    name = 'fake'\n    opt_in = True", "lacks load, preload, probe, supports, takes_artifact"),
        (RUNTIME.format(probe="pass").replace('name = "fake"', 'name = "fakes"'), "calls itself 'fakes'"),
        ("class Fake(:", "SyntaxError"),
    ],
)
def test_a_plugin_that_is_not_what_it_should_be_is_a_plugin_error(
    install_plugin: Install, source: str, complaint: str
) -> None:
    module = f"fake_{abs(hash(source))}"
    install_plugin(runtimes={"fake": f"{module}:Fake"}, modules={module: source})
    with pytest.raises(PluginError, match=complaint) as caught:
        plugins.load_plugin("runtime", "fake")
    assert "fake-runtime 1.2.3" in str(caught.value)


def test_an_exporter_lacking_members_is_a_plugin_error(install_plugin: Install) -> None:
    install_plugin(
        exporters={"fake": "fake_exporter:Fake"}, modules={"fake_exporter": "class Fake:\n    name = 'fake'"}
    )
    with pytest.raises(PluginError, match="lacks export, opsets, preload, probe, supports"):
        plugins.load_exporter("fake")


def test_a_package_that_cannot_be_imported_is_one_line(install_plugin: Install) -> None:
    install_plugin(
        runtimes={"fake": "fake_broken:Fake"},
        modules={"fake_broken": "raise RuntimeError('driver too old\\nsecond line')"},
    )
    answer = plugins.probe("runtime", "fake")
    assert answer.reason == "its probe raised RuntimeError: driver too old second line"
    assert answer.fix == "python -E -P -m attnbench.plugins runtime 1 fake"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('no\\nluck')", "its probe raised ValueError: no luck"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", r"killed by signal 11 \("),
        ("import os; os._exit(0)", "ended with exit code 0 and gave no answer"),
        ("raise SystemExit(0)", "ended with exit code 0 and gave no answer"),
        ("return 'yes'", "gave 'yes' instead of an attnbench.interfaces.Probe"),
        ('import os, sys; os.write(int(sys.argv[2]), b\'{"name": "fa\'); os._exit(0)', "unreadable answer"),
        ("import os, sys; os.write(int(sys.argv[2]), b'x\\n' * 30000); os._exit(0)", "unreadable answer"),
        ("return Probe(available=False, reason='needs\\na GPU')", "needs a GPU"),
        (
            "import sys; sys.stderr.write('x' * 50_000_000); print('y' * 50_000_000); raise OSError('full')",
            "OSError: full",
        ),
        ("return Probe(available=False, reason='r' * 100_000)", r"r{297}\.\.\."),
    ],
)
def test_a_broken_probe_costs_one_line(probing: Callable[[str], str], body: str, reason: str) -> None:
    assert re.search(reason, probing(body))


@pytest.mark.alone
def test_a_probe_that_hangs_is_killed_with_its_children(probing: Callable[..., str], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = (
        "import subprocess, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "child = subprocess.Popen(['sleep', '600'], close_fds=False); "
        f"open({str(pid_file)!r}, 'w').write(str(child.pid)); "
        "time.sleep(600)"
    )
    assert probing(body, timeout_s=2.0) == "its probe had not ended after 2 s and was killed"
    assert_gone(int(pid_file.read_text()))


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_probe(probing: Callable[..., str], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = (
        "import subprocess, os, sys; "
        "child = subprocess.Popen(['sleep', '600'], pass_fds=(int(sys.argv[2]),)); "
        f"open({str(pid_file)!r}, 'w').write(str(child.pid)); os._exit(3)"
    )
    assert probing(body, timeout_s=60.0) == "its probe ended with exit code 3 and gave no answer"
    assert_gone(int(pid_file.read_text()))


def test_a_child_that_closes_the_pipe_and_lives_on_is_killed_at_the_deadline(probing: Callable[..., str]) -> None:
    body = "import os, sys, time; os.close(int(sys.argv[2])); time.sleep(600)"
    assert probing(body, timeout_s=2.0) == "its probe had not ended after 2 s and was killed"


def test_a_module_in_the_working_directory_does_not_shadow(
    install_plugin: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    install_plugin(
        runtimes={"fake": "fake_good:Fake"}, modules={"fake_good": RUNTIME.format(probe="return Probe(available=True)")}
    )
    assert plugins.probe("runtime", "fake").available


def test_builtins_that_share_a_child_are_asked_again_alone_when_it_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnbench.interfaces import Probe

    asked: list[list[str]] = []

    def ask(kind: plugins.Kind, names: list[str], timeout_s: float) -> dict[str, Probe]:
        asked.append(names)
        return {names[0]: Probe(available=len(names) == 1)}

    monkeypatch.setattr(plugins, "_ask_child", ask)
    answers = plugins.probe_all("runtime", ["torch-eager", "torch-sdpa", "torch-compile"])
    assert asked == [["torch-eager", "torch-sdpa", "torch-compile"], ["torch-sdpa"], ["torch-compile"]]
    assert [answers[name].available for name in ("torch-eager", "torch-sdpa", "torch-compile")] == [False, True, True]


def assert_gone(pid: int) -> None:
    """No process of that id runs (a zombie that nobody has reaped yet does not run)."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "ZX":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")
