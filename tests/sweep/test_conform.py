"""The matrix is whole whatever the arms do: a crash, a hang or a wrong answer costs one cell."""

import errno
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnbench.errors import AttnbenchError, InputError
from attnbench.interfaces import Probe as Available
from attnbench.probes import all_probes
from attnbench.sweep import conform as conforming
from attnbench.sweep import conform_run, runner
from attnbench.sweep.conform_run import Matrix
from attnbench.sweep.grid import validate
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from tests.conftest import make_installer

pytestmark = pytest.mark.usefixtures("little_timing")

FAKES = """
import os, signal, time
from contextlib import contextmanager
import numpy as np
from attnbench.errors import NotRunError
from attnbench.inputs import make_weights
from attnbench.interfaces import Facts, Probe, SUPPORTED, Support, numpy_dtype
from attnbench.reference import reference_new_cache, reference_output

class Session:
    def __init__(self, owner, problem, settings):
        self.owner, self.problem, self.out = owner, problem, None
        self.weights = make_weights(problem, seed=settings.seed)

    def bind(self, inputs):
        inputs = {name: array.copy() for name, array in inputs.items()}
        first = next(iter(inputs.values()))
        keys = inputs[next(n for n in ("k", "context", "x") if n in inputs)].shape[-2]
        keys += inputs["past_key"].shape[-2] if "past_key" in inputs else 0
        p = self.problem.at(q_len=first.shape[-2], kv_len=keys, batch_size=first.shape[0])
        self.out, self.inputs, self.sized = None, inputs, p

        def call():
            out = reference_output(p, inputs, self.weights)
            self.out = self.owner.spoil(p, inputs, out).astype(numpy_dtype(p.dtype))

        return call

    def outputs(self):
        if self.out is None:
            raise NotRunError("call first")
        return self.out.copy()

    def cache(self):
        new = reference_new_cache(self.sized, self.inputs, self.weights)
        past = {name: self.inputs[name.replace("present", "past")] for name in new}
        return {name: np.concatenate([past[name], new[name]], 2).astype(past[name].dtype) for name in new}

    def facts(self):
        return Facts(runtime_version="1", device="cpu", device_name="fake", threads=1, compute_precision="unknown")

class Right:
    name = "right"
    takes_artifact = False
    opt_in = False
    preload = ()
    def spoil(self, problem, inputs, out):
        return out
    def probe(self):
        return Probe(available=True, version="7")
    def supports(self, problem, artifact):
        return SUPPORTED
    @contextmanager
    def load(self, problem, artifact, settings):
        yield Session(self, problem, settings)

class Crasher(Right):
    name = "crasher"
    def spoil(self, problem, inputs, out):
        if problem.mask == "bool_qk" and problem.part == "core":
            os.kill(os.getpid(), signal.SIGSEGV)
        return out

class Doomed(Right):
    name = "doomed"
    def supports(self, problem, artifact):
        if problem.mask == "alibi":  # of one probe only
            os.kill(os.getpid(), signal.SIGKILL)
        return SUPPORTED

class Shaky(Right):
    # its first load is killed, as by something outside, and every load of a file with a mask bool_b1qk
    name = "shaky"
    @contextmanager
    def load(self, problem, artifact, settings):
        is_first = not os.path.exists(__file__ + ".shaky")
        if is_first or problem.mask == "bool_b1qk":
            with open(__file__ + ".shaky", "a") as f:
                f.write(f"{problem.mask} {problem.static_key()}\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        yield Session(self, problem, settings)

class Hanger(Right):
    name = "hanger"
    def spoil(self, problem, inputs, out):
        if problem.mask == "alibi":
            time.sleep(1000)
        return out

class Wrong(Right):
    name = "wrong"
    def spoil(self, problem, inputs, out):
        mask = inputs.get("mask")
        if mask is not None and mask.dtype == bool:
            shape = (problem.batch_size, problem.num_heads, problem.q_len, problem.kv_len)
            dead = ~np.broadcast_to(mask, shape).any(-1)
            if problem.part == "core":
                mean = np.broadcast_to(inputs["v"].mean(-2, keepdims=True), out.shape)
                out = np.where(dead[..., None], mean, out)
        return out

class Refuser(Right):
    name = "refuser"
    def supports(self, problem, artifact):
        return Support(ok=False, reason="never")

class Loader(Right):
    name = "loader"
    @contextmanager
    def load(self, problem, artifact, settings):
        raise RuntimeError("no kernel for this") from ValueError("9 : FAIL at line 164")
        yield

class Absent(Right):
    name = "absent"
    def probe(self):
        return Probe(available=False, reason="no such library", fix="pip install it")

class Checker(Right):
    name = "checker"
    checks_only = True

class Leaker(Right):
    # right on every mask that a bench draws; a sample without a key attends to all
    name = "leaker"
    def spoil(self, problem, inputs, out):
        mask = inputs.get("mask")
        dead = None if mask is None else ~mask.any((1, 2, 3))
        if dead is not None and dead.any():
            free = {**inputs, "mask": mask | dead[:, None, None, None]}
            out[dead] = reference_output(problem, free, make_weights(problem))[dead]
        return out
"""
NAMES = ("right", "crasher", "doomed", "shaky", "hanger", "wrong", "refuser", "loader", "absent", "checker")
BENCHED = (*NAMES, "leaker")
TOTAL = len(all_probes())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        install = make_installer(tmp_path_factory.mktemp("plugins"), patch)
        folder = install(
            runtimes={n: f"conform_fakes:{n.capitalize()}" for n in BENCHED}, modules={"conform_fakes": FAKES}
        )
        patch.setattr(conforming, "TIMEOUT_S", 4.0)
        yield folder


@pytest.fixture(scope="module")
def matrix(installed: Path) -> Matrix:
    return conform_run.conform(exporters=[], runtimes=NAMES, opsets=conform_run.FIRST_OPSET, say=lambda text: None)


def verdicts(matrix: Matrix, runtime: str) -> Counter[str]:
    return Counter(cell.verdict for cell in matrix.cells if cell.arm.runtime == runtime)


def test_every_probe_has_a_row_for_every_arm(matrix: Matrix) -> None:
    assert len(matrix.cells) == TOTAL * len(NAMES)
    assert len({(cell.probe, cell.arm) for cell in matrix.cells}) == len(matrix.cells)
    assert all(cell.how for cell in matrix.cells if cell.verdict != "conforms")


def test_a_right_runtime_conforms_everywhere(matrix: Matrix) -> None:
    assert verdicts(matrix, "right") == {"conforms": TOTAL}


def test_a_crash_costs_the_cells_of_the_probes_that_crash(matrix: Matrix) -> None:
    refused = [cell for cell in matrix.cells if cell.arm.runtime == "crasher" and cell.verdict == "refuses"]
    assert [cell.probe for cell in refused] == ["bool_qk uniform", "bool_qk poison", "bool_qk no key for a row"]
    assert all("signal 11" in cell.how for cell in refused)
    assert verdicts(matrix, "crasher") == {"conforms": TOTAL - 3, "refuses": 3}


def test_a_worker_killed_before_it_is_asked_to_load_costs_one_cell(matrix: Matrix) -> None:
    refused = [cell for cell in matrix.cells if cell.arm.runtime == "doomed" and cell.verdict != "conforms"]
    assert [(cell.probe, cell.verdict) for cell in refused] == [("alibi normal", "refuses")]
    assert "signal 9" in refused[0].how


def test_a_worker_killed_while_it_loads_costs_one_cell_and_twice_the_file(matrix: Matrix, installed: Path) -> None:
    refused = [cell.probe for cell in matrix.cells if cell.arm.runtime == "shaky" and cell.verdict == "refuses"]
    masked = [probe.name for probe in all_probes() if probe.problem.mask == "bool_b1qk"]
    assert refused == [all_probes()[0].name, *masked]
    loads = (installed / "conform_fakes.py.shaky").read_text().split("\n")
    assert max(Counter(line for line in loads if line.startswith("bool_b1qk")).values()) == 2


def test_a_hang_costs_one_cell(matrix: Matrix) -> None:
    assert verdicts(matrix, "hanger") == {"conforms": TOTAL - 1, "refuses": 1}


def test_a_wrong_answer_is_named_with_its_numbers(matrix: Matrix) -> None:
    wrong = [cell for cell in matrix.cells if cell.arm.runtime == "wrong" and cell.verdict == "differs"]
    assert {cell.how for cell in wrong} == {"mean of V instead of zeros"}
    assert len(wrong) == 5  # a row of three masks, a sample of two
    assert all(cell.error is not None and cell.expected == "0 0 0 0 ..." and cell.got for cell in wrong)
    assert matrix.exit_code == 1


def test_what_a_plugin_does_not_claim_is_unsupported_and_what_fails_is_refused(matrix: Matrix) -> None:
    assert verdicts(matrix, "refuser") == {"unsupported": TOTAL}
    assert verdicts(matrix, "loader") == {"refuses": TOTAL}
    assert {c.how for c in matrix.cells if c.arm.runtime == "loader"} == {"RuntimeError: no kernel for this"}
    assert {c.words for c in matrix.cells if c.arm.runtime == "loader"} == {"9 : FAIL at line 164"}


def test_an_unavailable_runtime_has_rows_that_say_what_to_do(matrix: Matrix) -> None:
    assert verdicts(matrix, "absent") == {"unsupported": TOTAL}
    assert {c.how for c in matrix.cells if c.arm.runtime == "absent"} == {
        "absent is not available here: no such library; pip install it"
    }


def test_nothing_that_runs_is_exit_code_three(installed: Path) -> None:
    found = conform_run.conform(
        exporters=[], runtimes=["absent", "refuser"], opsets=conform_run.FIRST_OPSET, say=lambda text: None
    )
    assert found.exit_code == 3


def test_versions_and_the_lack_of_onnx_cases_are_told(matrix: Matrix) -> None:
    assert matrix.versions["right"] == "7"
    assert "absent" not in matrix.versions
    assert matrix.notices == ["no cases of the onnx package were run: no runtime of the selection takes files"]


def full_disk() -> None:
    with conform_run.scratch_folder() as folder:
        (folder / "log").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_temporary_folder_is_a_sentence_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(AttnbenchError, match=f"no space is left in '{tmp_path}'.*set TMPDIR"):
        full_disk()
    assert not list(tmp_path.iterdir())


def test_an_opset_that_an_exporter_does_not_write_is_told() -> None:
    writers = {
        "a": Available(available=True, traits={"opsets": (23, 20)}),
        "b": Available(available=True, traits={"opsets": (99,)}),
    }
    assert conform_run.unwritten_opsets(writers, [20, 99]) == ["a does not write opset 99; it writes 20, 23",
                                                               "b does not write opset 20; it writes 99"]  # fmt: skip
    assert conform_run.unwritten_opsets(writers, "all") == []


def test_opsets_that_nobody_writes_are_refused_before_anything_runs() -> None:
    writers = {
        "a": Available(available=True, traits={"opsets": (23, 20)}),
        "b": Available(available=True, traits={"opsets": (17,)}),
    }
    with pytest.raises(
        InputError, match="--opsets 12,99 is of no exporter of the selection: a writes 20, 23; b writes"
    ):
        conform_run.check_opsets(writers, [12, 99])
    for asked in ([12, 20], "all", "first"):
        conform_run.check_opsets(writers, asked)
    conform_run.check_opsets({**writers, "mute": Available(available=False)}, [12])
    conform_run.check_opsets({}, [12])


def run_bench(path: Path, *names: str, **fields: Any) -> dict[str, tuple[str, str]]:
    settings: dict[str, Any] = {
        "variants": ("self",), "seq_lens": (16,), "num_heads": (2,), "head_dims": (8,), "baseline": "right",
        "runtimes": ("right", *names), "time_budget_s": 300.0, "timeout_s": 20.0, "threads": 1, **fields,
    }  # fmt: skip
    prepared = runner.prepare(validate(settings, where="test"))
    runner.run(prepared, RunDirectory.create(path), command="test", progress=Silent())
    records, _ = RunDirectory.open(path).read()
    return {record.arm: (record.status, record.reason) for record in records}


def test_a_runtime_for_checks_is_not_timed(installed: Path, tmp_path: Path) -> None:
    found = run_bench(tmp_path / "run", "checker")
    assert found["checker"] == ("unsupported", "checker is checked by attnbench conform, never timed")
    assert found["right"][0] == "ok"


def test_an_arm_that_does_not_conform_for_the_mask_is_not_ranked(installed: Path, tmp_path: Path) -> None:
    found = run_bench(tmp_path / "run", "leaker", masks=("key_padding",), batch_sizes=(2,))
    status, reason = found["leaker"]
    assert status == "mismatch"
    assert reason.startswith("does not conform: keys leak: a query without a key attends to all (probe no_key_sample")
    assert found["right"] == ("ok", "")


def test_an_arm_is_not_held_to_masks_that_the_problem_does_not_use(installed: Path, tmp_path: Path) -> None:
    assert run_bench(tmp_path / "run", "leaker")["leaker"] == ("ok", "")
