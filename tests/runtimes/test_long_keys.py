"""Half-precision sums over very many keys, and the reference that is itself wrong (known fault 6)."""

import numpy as np
import pytest

from attnbench import plugins
from attnbench.interfaces import Array, Settings
from attnbench.problem import Problem
from attnbench.reference import reference_output
from tests.runtimes.conftest import Exported

KEYS = (2048, 4096, 70_000)  # from 2048 on a running fp16 sum of ones sticks, above 65,504 it overflows
TOLERANCE = 2e-3


def _problem(kv_len: int) -> Problem:
    return Problem.make(
        part="core", variant="cross", seq_len=1, kv_len=kv_len, num_heads=1, head_dim=8, dtype="fp16"
    )  # fmt: skip


def _inputs(kv_len: int) -> dict[str, Array]:
    """Q = 0, so every key weighs the same; V = 0.5, but 0, 1, 0, 1, ... in channel 0: the answer is 0.5 everywhere."""
    v = np.full((1, 1, kv_len, 8), 0.5, np.float16)
    v[..., 0] = np.arange(kv_len) % 2
    k = np.random.default_rng(0).standard_normal((1, 1, kv_len, 8)).astype(np.float16)
    return {"q": np.zeros((1, 1, 1, 8), np.float16), "k": k, "v": v}


def _error(runtime: str, exporter: str | None, kv_len: int, exported: Exported) -> float:
    artifact = None if exporter is None else exported(exporter, _problem(16), None)
    with plugins.load_runtime(runtime).load(_problem(kv_len), artifact, Settings()) as session:
        session.bind(_inputs(kv_len))()
        return float(np.abs(session.outputs().astype(np.float64) - 0.5).max())


@pytest.mark.parametrize("kv_len", KEYS)
def test_the_oracle_sums_very_many_keys_exactly(kv_len: int) -> None:
    assert np.abs(reference_output(_problem(kv_len), _inputs(kv_len), {}) - 0.5).max() < 1e-12


@pytest.mark.parametrize(
    ("runtime", "exporter"),
    [
        ("torch-eager", None), ("torch-sdpa", None), ("ort-cpu", "onnx-decomposed"), ("ort-cpu", "onnx-attention"),
        ("openvino", "onnx-decomposed"), ("openvino", "onnx-attention"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kv_len", KEYS)
def test_runtimes_weigh_very_many_keys_in_fp16_the_same(
    exported: Exported, runtime: str, exporter: str | None, kv_len: int
) -> None:
    assert _error(runtime, exporter, kv_len, exported) <= TOLERANCE


@pytest.mark.filterwarnings("ignore:overflow encountered in reduce:RuntimeWarning")
def test_onnx_own_evaluator_is_wrong_for_70000_keys_and_so_no_judge(exported: Exported) -> None:
    assert _error("onnx-reference", "onnx-decomposed", 4096, exported) <= TOLERANCE
    assert _error("onnx-reference", "onnx-decomposed", 70_000, exported) == 0.5  # its sum overflows: all weights are 0
