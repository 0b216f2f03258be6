"""On which device arms run, and which precision of fp32 the policy admits there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench import api
from attnbench.errors import InputError, UnavailableError
from attnbench.interfaces import Probe
from attnbench.measure import numerics
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.sweep import devices, grid, precision, runner
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from tests.conftest import Call, assert_one_sentence, make_installer

pytestmark = pytest.mark.usefixtures("little_timing")

NO_CUDA = "torch 2.13.0+cpu is built without CUDA"
TORCH_CPU = Probe(available=True, no_cuda=NO_CUDA)
TORCH_CUDA = Probe(available=True, devices=("cuda:0", "cuda:1", "cpu"))
ORT_CPU = Probe(available=True)
ORT_CUDA = Probe(available=True, devices=("cuda:0", "cuda:1"))
ON_GPU = {"fp32": "default", "device": "cuda:0", "options": {}}


@pytest.mark.parametrize(
    ("asked", "torch", "ort_cuda"),
    [("auto", "cuda:0", "cuda:0"), ("cpu", "cpu", "cuda:0"), ("cuda:1", "cuda:1", "cuda:1")],
)
def test_runtimes_with_a_choice_follow_and_the_others_stay(asked: str, torch: str, ort_cuda: str) -> None:
    probes = {"torch-sdpa": TORCH_CUDA, "ort-cpu": ORT_CPU, "ort-cuda": ORT_CUDA}
    chosen, left = devices.choose(asked, probes)
    assert chosen == {"torch-sdpa": torch, "ort-cpu": "cpu", "ort-cuda": ort_cuda}
    assert left == probes


def test_without_cuda_auto_is_the_cpu() -> None:
    assert devices.choose("auto", {"torch-sdpa": TORCH_CPU, "ort-cpu": ORT_CPU})[0] == {
        "torch-sdpa": "cpu", "ort-cpu": "cpu"
    }  # fmt: skip


def test_a_device_that_nothing_has_is_refused_with_the_reason() -> None:
    with pytest.raises(UnavailableError, match=f"device cuda:0 was asked.* torch-sdpa: {NO_CUDA.replace('+', '.')}"):
        devices.choose("cuda:0", {"torch-sdpa": TORCH_CPU, "ort-cpu": ORT_CPU})
    lacking = Probe(available=False, reason="no driver")
    with pytest.raises(UnavailableError, match="built without CUDA; ort-cuda is unavailable: no driver; leave"):
        devices.choose("cuda:0", {"torch-sdpa": TORCH_CPU, "ort-cuda": lacking})
    with pytest.raises(UnavailableError, match="none of ort-cpu runs on one"):
        devices.choose("cuda:0", {"ort-cpu": ORT_CPU})
    with pytest.raises(UnavailableError, match=r"torch-sdpa: it has cuda:0, cuda:1, not cuda:7"):
        devices.choose("cuda:7", {"torch-sdpa": TORCH_CUDA})


def test_what_cannot_follow_becomes_unavailable_and_never_runs_on_the_cpu_instead() -> None:
    _, probes = devices.choose("cuda:0", {"torch-sdpa": TORCH_CPU, "ort-cpu": ORT_CPU, "ort-cuda": ORT_CUDA})
    assert (probes["torch-sdpa"].available, probes["torch-sdpa"].reason) == (False, NO_CUDA)
    assert probes["ort-cpu"].available


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_other_names_of_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="device must be auto, cpu, or a CUDA device such as cuda:0"):
        devices.check_name(name)
    with pytest.raises(InputError, match="device must be auto, cpu") as caught:
        grid.resolve("quick", {"device": name})
    assert str(caught.value).count("got") == 1


def test_the_command_refuses_a_device_that_is_not_there_with_exit_code_3(run: object, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    code, out, err = run("bench", "quick", "--device", "cuda:0", "--runtimes", "torch-sdpa", "-o", str(tmp_path / "r"))  # type: ignore[operator]
    assert (code, out) == (3, "")
    assert err.startswith("attnbench: device cuda:0 was asked, there is none here: torch-sdpa: ")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("flag", "value"), [("--device", "gpu"), ("--fp32", "loose")])
def test_the_command_refuses_other_words(run: object, flag: str, value: str) -> None:
    call: Call = run("bench", "quick", flag, value)  # type: ignore[operator]
    assert_one_sentence(call, flag.removeprefix("--"), value)


# The policy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "admits"),
    [
        (ON_GPU, True),
        (ON_GPU | {"fp32": "strict"}, False),
        (ON_GPU | {"device": "cpu"}, False),
        (ON_GPU | {"fp32": "strict", "options": {"use_tf32": "on"}}, True),
        (ON_GPU | {"options": {"use_tf32": "off"}}, False),
    ],
)
def test_tf32_is_admitted_on_a_gpu_by_the_policy_or_the_arm(settings: dict[str, object], admits: bool) -> None:
    assert precision.admits_tf32(settings) is admits
    assert ("tf32" in precision.allowed(settings)) is admits
    limits = precision.limits(Problem.make(seq_len=16), settings, "normal")
    # The ceiling of fp16: TF32 emulated in block and core at T = 1 to 384 stays below 0.44 of it.
    assert (limits.worst_row if limits else None) == (3.1e-3 if admits else None)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_other_dtypes_are_held_to_their_own_limits(dtype: str) -> None:
    assert precision.limits(Problem.make(seq_len=16, dtype=dtype), ON_GPU, "normal") is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "error", "ran"),
    [
        ("tf32", 8e-4, "tf32"), ("tf32", 3e-7, "fp32"), ("unknown", 3e-7, "fp32"), ("unknown", 8e-4, "tf32"),
        ("fp32", 3e-7, "fp32"), ("unknown", 0.5, "unknown"),
    ],
)  # fmt: skip
def test_the_error_proves_what_ran(told: str, error: float, ran: str) -> None:
    assert precision.proven("fp32", told, error) == ran


def test_nothing_is_proven_of_other_dtypes() -> None:
    assert precision.proven("fp16", "unknown", 3e-4) == "unknown"


FAKES = '''
from contextlib import contextmanager
import numpy as np
from attnbench.inputs import make_weights
from attnbench.interfaces import Facts, Probe, SUPPORTED
from attnbench.reference import reference_output


class Session:
    def __init__(self, problem, settings, runtime):
        self.problem, self.settings, self.runtime, self.out = problem, settings, runtime, None
        self.weights = make_weights(problem, seed=settings.seed)

    def bind(self, inputs):
        inputs = {name: self.runtime.rounded(array.copy()) for name, array in inputs.items()}
        weights = {name: self.runtime.rounded(array) for name, array in self.weights.items()}
        self.out = None
        batch_size, q_len, _ = next(iter(inputs.values())).shape

        def call():
            sized = self.problem.at(q_len=q_len, kv_len=q_len, batch_size=batch_size)
            self.out = reference_output(sized, inputs, weights).astype("float32")

        return call

    def outputs(self):
        from attnbench.errors import NotRunError
        if self.out is None:
            raise NotRunError("call first")
        return self.out.copy()

    def facts(self):
        return Facts(runtime_version="1", device=self.runtime.tells or self.settings.device, device_name="fake GPU",
                     threads=1, compute_precision=self.runtime.precision)


class Full:
    """Computes on its accelerator, which has no clock that the harness reads, in full precision."""
    name = "full"
    precision, bits, tells = "fp32", 23, ""
    takes_artifact, opt_in, preload = False, False, ()

    def rounded(self, array):
        drop = 23 - self.bits
        if not drop:
            return array
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32) + np.uint32(1 << (drop - 1))
        return (bits >> drop << drop).view(np.float32)

    def probe(self):
        return Probe(available=True, version="1", devices=("accelerator:0",))

    def supports(self, problem, artifact):
        return SUPPORTED

    @contextmanager
    def load(self, problem, artifact, settings):
        yield Session(problem, settings, self)


class Tf32(Full):
    """Computes in TF32 and says so."""
    name, precision, bits = "tf32", "tf32", 10


class Liar(Full):
    """Computes in TF32 and calls it fp32."""
    name, bits = "liar", 10


class Silent(Full):
    """Computes in TF32 and cannot tell."""
    name, precision, bits = "silent", "unknown", 10


class Unused(Full):
    """Was allowed TF32 and did not use it."""
    name, precision = "unused", "tf32"


class Elsewhere(Full):
    """Says that it runs on a GPU and ran on the CPU."""
    name, tells = "elsewhere", "cpu"
'''
NAMES = ("full", "tf32", "liar", "silent", "unused", "elsewhere")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Record]]]:
    """Policy -> runtime -> its record."""
    with pytest.MonkeyPatch.context() as patch:
        install = make_installer(tmp_path_factory.mktemp("plugins"), patch)
        points = {name: f"fake_gpus:{name.capitalize()}" for name in NAMES}
        install(runtimes=points, modules={"fake_gpus": FAKES})
        rows = {}
        for policy in ("strict", "default"):
            fields = {
                "variants": ("self",), "seq_lens": (8,), "num_heads": (2,), "head_dims": (8,), "runtimes": NAMES,
                "baseline": "full", "time_budget_s": 300.0, "threads": 1, "fp32": policy,
            }  # fmt: skip
            prepared = runner.prepare(grid.validate(fields, where="test"))
            path = tmp_path_factory.mktemp(policy) / "run"
            runner.run(prepared, RunDirectory.create(path), command="test", progress=Silent())
            rows[policy] = {record.runtime: record for record in api.open_run(path).rows}
        yield rows


Found = dict[str, dict[str, Record]]


@pytest.mark.parametrize("name", ["liar", "silent", "tf32"])
def test_strict_fails_a_row_whose_error_is_that_of_tf32(found: Found, name: str) -> None:
    row = found["strict"][name]
    assert row.status == "mismatch"
    assert "an error of this size is that of tf32, the row is labelled fp32" in row.reason
    assert numerics.precision_class(row.worst_row_rel_err or 0.0) == "tf32"


@pytest.mark.parametrize(("name", "ran"), [("full", "fp32"), ("tf32", "tf32"), ("silent", "tf32"), ("unused", "fp32")])
def test_default_admits_tf32_and_records_what_the_error_proves(found: Found, name: str, ran: str) -> None:
    row = found["default"][name]
    assert (row.status, row.compute_precision, row.device) == ("ok", ran, "accelerator:0")


def test_a_row_that_is_called_fp32_and_is_tf32_fails_under_default_too(found: Found) -> None:
    row = found["default"]["liar"]
    assert row.status == "mismatch"
    assert "the runtime tells fp32, its error is that of tf32" in row.reason


@pytest.mark.parametrize("policy", ["strict", "default"])
def test_a_gpu_that_was_asked_and_did_not_run_is_an_error(found: Found, policy: str) -> None:
    row = found[policy]["elsewhere"]
    assert (row.status, row.latency_ms_median) == ("error", None)
    assert "device asked: accelerator:0, in force: cpu" in row.reason
