"""A decode step is judged by the cache that it gives back, too: in the check, after the timing, and in conform."""

from collections.abc import Iterator

import pytest

from attnbench import api
from attnbench.interfaces import Settings
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.sweep import grid, probing, runner
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from tests.conftest import make_installer

pytestmark = pytest.mark.usefixtures("little_timing")

FAKES = '''
from contextlib import contextmanager
import numpy as np
from attnbench.errors import NotRunError
from attnbench.inputs import make_weights
from attnbench.interfaces import Facts, Probe, SUPPORTED
from attnbench.reference import reference_new_cache, reference_output


class Plain:
    """Decode in float64 NumPy, without a cache to give back."""

    def __init__(self, problem, settings):
        self.problem, self.weights, self.calls = problem, make_weights(problem, seed=settings.seed), 0

    def bind(self, inputs):
        self.inputs = {name: array.copy() for name, array in inputs.items()}
        batch_size, q_len = inputs["x"].shape[:2]
        self.sized = self.problem.at(
            q_len=q_len, kv_len=q_len + inputs["past_key"].shape[2], batch_size=batch_size)
        self.out = None

        def call():
            self.calls += 1
            self.out = reference_output(self.sized, self.inputs, self.weights).astype("float32")

        return call

    def outputs(self):
        if self.out is None:
            raise NotRunError("call first")
        return self.out.copy()

    def facts(self):
        return Facts(runtime_version="1", device="cpu", device_name="fake", threads=1, compute_precision="fp32")


class Right(Plain):
    def cache(self):
        new = reference_new_cache(self.sized, self.inputs, self.weights)
        return {name: np.concatenate([self.inputs[name.replace("present", "past")], array], 2).astype("float32")
                for name, array in new.items()}


class Unwritten(Right):
    """The new value is not put into the cache."""

    def cache(self):
        found = super().cache()
        found["present_value"][:, :, -1] = 0
        return found


class Drifting(Right):
    """From some call on, a key of an old token is another one."""

    def cache(self):
        found = super().cache()
        found["present_key"][0, 0, 0, 0] += self.calls > 60
        return found


class Runtime:
    takes_artifact, opt_in, preload = False, False, ()

    def __init__(self):
        self.name = type(self).__name__.removeprefix("Runtime").lower()

    def probe(self):
        return Probe(available=True, version="1")

    def supports(self, problem, artifact):
        return SUPPORTED

    @contextmanager
    def load(self, problem, artifact, settings):
        yield self.session(problem, settings)


class RuntimeRight(Runtime):
    session = Right


class RuntimePlain(Runtime):
    session = Plain


class RuntimeUnwritten(Runtime):
    session = Unwritten


class RuntimeDrifting(Runtime):
    session = Drifting
'''
NAMES = ("right", "plain", "unwritten", "drifting")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Record]]:
    settings = {
        "variants": ("decode",), "seq_lens": (16,), "num_heads": (2,), "head_dims": (8,), "baseline": "right",
        "runtimes": NAMES, "time_budget_s": 300.0, "timeout_s": 20.0, "threads": 1,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        install = make_installer(tmp_path_factory.mktemp("plugins"), patch)
        points = {name: f"decode_fakes:Runtime{name.capitalize()}" for name in NAMES}
        install(runtimes=points, modules={"decode_fakes": FAKES})
        path = tmp_path_factory.mktemp("run") / "run"
        prepared = runner.prepare(grid.validate(settings, where="test"))
        runner.run(prepared, RunDirectory.create(path), command="test", progress=Silent())
        yield {r.arm: r for r in api.open_run(path).rows}


def test_a_right_cache_is_ok(found: dict[str, Record]) -> None:
    assert (found["right"].status, found["right"].reason) == ("ok", "")
    assert found["right"].latency_ms_median is not None


def test_a_cache_without_the_new_token_is_a_mismatch_that_names_the_output(found: dict[str, Record]) -> None:
    assert found["unwritten"].status == "mismatch"
    assert "present_value: a new token is off by 1, 5e-05 is allowed" in found["unwritten"].reason
    assert found["unwritten"].verdict is None


def test_a_cache_that_goes_wrong_while_it_is_timed_is_a_mismatch(found: dict[str, Record]) -> None:
    assert found["drifting"].status == "mismatch"
    assert "after timing" in found["drifting"].reason
    assert "present_key: 1 of 240 values of old tokens are not those of past_key" in found["drifting"].reason


def test_a_session_that_gives_no_cache_back_is_a_mismatch(found: dict[str, Record]) -> None:
    assert found["plain"].status == "mismatch"
    assert "present_key and present_value cannot be judged" in found["plain"].reason


def test_a_probe_of_decode_judges_the_cache_too() -> None:
    namespace: dict[str, type] = {}
    exec(compile(FAKES, "decode_fakes", "exec"), namespace)
    problem = Problem.make(variant="decode", seq_len=9, q_len=3, batch_size=2, num_heads=4, head_dim=8)
    right, wrong = (
        probing.run_probe(namespace[name](problem, Settings()), problem, "normal", 0) for name in ("Right", "Unwritten")
    )
    assert (right["ok"], right["how"]) == (True, "")
    assert (wrong["ok"], wrong["how"].split(" is off")[0]) == (False, "present_value: a new token")
