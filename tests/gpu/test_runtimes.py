"""Every runtime of a GPU is right there, says that it ran there, and gives new outputs for new inputs."""

from pathlib import Path

import numpy as np
import pytest

from attnbench import plugins
from attnbench.errors import UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Artifact, Settings
from attnbench.measure.numerics import compare, tolerances
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench_exporters.decomposed import OnnxDecomposed

pytestmark = pytest.mark.gpu
RUNTIMES = ("torch-eager", "torch-sdpa", "ort-cuda", "ort-tensorrt", "tensorrt", "tensorrt-rtx")


def needs(name: str) -> None:
    """Skip with the runtime's own reason where it cannot use the GPU."""
    probe = plugins.probe("runtime", name)
    if not any(device.startswith("cuda") for device in probe.devices) or not probe.available:
        pytest.skip(f"{name}: {probe.reason or probe.no_cuda or 'it has no CUDA device here'}")


def a_file(name: str, problem: Problem, path: Path) -> Artifact | None:
    """The file that the runtime takes."""
    if name.startswith("torch"):
        return None
    exporter = OnnxDecomposed()
    return exporter.export(problem, exporter.opsets[0], path, seed=0)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("variant", ["self", "causal", "cross"])
@pytest.mark.parametrize("name", RUNTIMES)
def test_a_runtime_on_the_gpu_agrees_with_float64(
    device: str, name: str, variant: str, dtype: str, tmp_path: Path
) -> None:
    needs(name)
    problem = Problem.make(variant=variant, seq_len=64, num_heads=4, head_dim=32, dtype=dtype)  # type: ignore[arg-type]
    weights = make_weights(problem)
    limit = tolerances()[problem.part, dtype, "normal"].ceiling
    with plugins.load_runtime(name).load(
        problem, a_file(name, problem, tmp_path / "m.onnx"), Settings(device=device)
    ) as session:
        for seed in (0, 1):  # what is bound last is what is computed
            inputs = make_inputs(problem, seed=seed)
            call = session.bind(inputs)
            call()
            call()
            found = session.outputs()
            error = compare(found, reference_output(problem, inputs, weights)).worst_row_rel_err
            assert error <= limit, f"seed {seed}: {error:.1e} > {limit:.1e}"
        facts = session.facts()
    assert facts.device == device
    assert facts.device_name


def test_fp32_is_not_tf32_unless_asked(device: str, tmp_path: Path) -> None:
    needs("torch-sdpa")
    problem = Problem.make(seq_len=256, num_heads=8, head_dim=64)
    inputs, weights = make_inputs(problem), make_weights(problem)
    expected = reference_output(problem, inputs, weights)
    errors = {}
    for policy in ("strict", "default"):
        with plugins.load_runtime("torch-sdpa").load(problem, None, Settings(device=device, fp32=policy)) as session:
            session.bind(inputs)()
            errors[policy] = compare(session.outputs(), expected).worst_row_rel_err
    assert errors["strict"] < 1e-5
    if _has_tf32(device):
        assert errors["default"] > 10 * errors["strict"]


def _has_tf32(device: str) -> bool:
    import torch

    return torch.cuda.get_device_capability(device) >= (8, 0)


def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    needs("torch-sdpa")
    with (
        pytest.raises(UnsupportedError, match="cuda:99"),
        plugins.load_runtime("torch-sdpa").load(Problem.make(seq_len=8), None, Settings(device="cuda:99")),
    ):
        pass


def test_outputs_are_on_the_host(device: str) -> None:
    needs("torch-sdpa")
    problem = Problem.make(seq_len=16)
    with plugins.load_runtime("torch-sdpa").load(problem, None, Settings(device=device)) as session:
        session.bind(make_inputs(problem))()
        assert type(session.outputs()) is np.ndarray
