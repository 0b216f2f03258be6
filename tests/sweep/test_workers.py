import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench import interpreters, plugins
from attnbench.errors import (
    ArtifactError,
    AttnbenchError,
    FrozenDimError,
    InputError,
    OpsetError,
    ProblemError,
    WorkerError,
)
from attnbench.interfaces import Probe
from attnbench.measure import environment
from attnbench.sweep import grid, runner
from attnbench.sweep.bench import ALWAYS_PRELOADED
from attnbench.sweep.grid import Arm
from attnbench.sweep.workers import ForkServer, ForkServers, ReportedError, Worker, as_exception


@pytest.fixture
def servers() -> Iterator[ForkServers]:
    env, _ = environment.scrubbed_environment(1)
    with ForkServers(env) as found:
        yield found


def test_a_forkserver_outlives_the_thread_that_asked_for_it(servers: ForkServers) -> None:
    made: list[ForkServer] = []

    def ask() -> None:
        made.append(servers.get(ALWAYS_PRELOADED))
        made[0].wait_ready()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    for _ in range(2):
        with Worker(made[0]) as worker:
            assert worker.ask("ping", timeout_s=30.0) == {}


def test_a_dead_forkserver_is_a_worker_error_and_the_next_one_is_new(servers: ForkServers) -> None:
    server = servers.get(ALWAYS_PRELOADED)
    server.wait_ready()
    server.process.kill()
    server.process.wait()
    with pytest.raises(WorkerError, match="forkserver is gone"):
        Worker(server)
    with Worker(servers.get(ALWAYS_PRELOADED)) as worker:
        assert worker.ask("ping", timeout_s=30.0) == {}


@pytest.mark.parametrize("kind", [OpsetError, FrozenDimError, ArtifactError, ProblemError])
def test_an_error_of_ours_comes_back_without_the_name_of_its_class(kind: type[AttnbenchError]) -> None:
    found = as_exception({"kind": kind.__name__, "message": "opset 17 was asked, the file has 18", "cause": ""})
    assert str(found) == "opset 17 was asked, the file has 18"
    assert isinstance(found, ReportedError if kind is ProblemError else kind)


def test_an_error_of_a_library_keeps_its_name() -> None:
    assert str(as_exception({"kind": "KeyError", "message": "'q'", "cause": ""})) == "KeyError: 'q'"


def test_a_task_of_a_layer_above_is_named_by_its_module(servers: ForkServers) -> None:
    with Worker(servers.get(ALWAYS_PRELOADED)) as worker:
        assert "machine" in worker.ask("attnbench.measure.environment:describe", timeout_s=30.0)
        with pytest.raises(WorkerError, match=r"ModuleNotFoundError: No module named 'attnbench.nowhere'"):
            worker.ask("attnbench.nowhere:task", timeout_s=30.0)


def test_bad_input_that_a_worker_finds_is_bad_input_to_the_user(servers: ForkServers) -> None:
    with Worker(servers.get(ALWAYS_PRELOADED)) as worker, pytest.raises(InputError, match="no target 'abacus'"):
        worker.ask("attnbench.deploy.targets:find_target", timeout_s=30.0, name="abacus")


def test_only_what_the_arms_need_is_imported_ahead() -> None:
    started: list[tuple[str, str]] = []
    probe = Probe(available=True, version="1")
    bench: Any = SimpleNamespace(
        arms=[Arm(exporter="torch", runtime="torch-sdpa"), Arm(exporter="onnx-contrib", runtime="ort-cpu")],
        runtime_probes={"torch-sdpa": probe, "ort-cpu": probe, "ort-cuda": Probe(available=False, reason="no driver")},
        exporter_probes={"onnx-contrib": probe, "onnx-attention": probe},
        server=lambda kind, name: started.append((kind, name)),
    )
    runner._start_importing(bench)
    assert started == [("runtime", "torch-sdpa"), ("runtime", "ort-cpu"), ("exporter", "onnx-contrib")]


@pytest.mark.parametrize(
    ("runtimes", "asked"), [(("torch-sdpa",), []), (("torch-sdpa", "ort-cpu"), ["onnx-decomposed", "onnx-contrib"])]
)
def test_only_exporters_of_arms_are_asked_whether_they_work_here(
    monkeypatch: pytest.MonkeyPatch, runtimes: tuple[str, ...], asked: list[str]
) -> None:
    probe = Probe(available=True, version="1", devices=("cpu",))
    answers = {name: replace(probe, traits={"takes_artifact": name != "torch-sdpa"}) for name in runtimes}
    monkeypatch.setattr(interpreters, "probe_runtimes", lambda names: answers)
    monkeypatch.setattr(plugins, "probe_all", lambda kind, names: dict.fromkeys(names, probe))
    sweep = grid.validate({"runtimes": runtimes, "exporters": ("onnx-decomposed", "onnx-contrib")}, where="test")
    assert list(runner.prepare(sweep).exporter_probes) == asked
