"""Which kernel ran is told for every mask, grouped heads and decode; what is pinned must run."""

from typing import Any

import pytest

from attnbench.errors import ReadBackError, UnsupportedError
from attnbench.inputs import make_inputs
from attnbench.interfaces import Facts, Runtime, Settings
from attnbench.problem import Problem
from attnbench_runtimes.openvino import OpenVino
from attnbench_runtimes.ort import OrtCpu
from attnbench_runtimes.torch_arms import TorchEager, TorchSdpa
from tests.runtimes.conftest import Exported

PROBLEMS: list[dict[str, Any]] = [
    {"mask": "key_padding"}, {"mask": "bias_1hqk"}, {"mask": "bool_qk", "num_kv_heads": 2}, {"num_kv_heads": 1},
    {"variant": "causal", "mask": "sliding_window_7"}, {"variant": "causal", "mask": "causal_top_left+key_padding"},
    {"variant": "decode", "num_kv_heads": 2}, {"scale": 0.2, "bias": True},
]  # fmt: skip


def _problem(fields: dict[str, Any]) -> Problem:
    return Problem.make(seq_len=16, num_heads=4, head_dim=8, **fields)


def _facts(runtime: Runtime, problem: Problem, artifact: Any = None, **options: str) -> Facts:
    with runtime.load(problem, artifact, Settings(options=options)) as session:
        session.bind(make_inputs(problem))()
        return session.facts()


@pytest.mark.parametrize("fields", PROBLEMS, ids=str)
def test_torch_tells_its_kernel_by_a_profile(fields: dict[str, Any]) -> None:
    problem = _problem(fields)
    for runtime, kernel in ((TorchSdpa(), "flash"), (TorchEager(), "math")):
        facts = _facts(runtime, problem)
        assert (facts.attention_kernel, facts.kernel_evidence) == (kernel, "profile")


@pytest.mark.parametrize("fields", PROBLEMS, ids=str)
def test_sdpa_computes_no_scores_beside_its_kernel(fields: dict[str, Any]) -> None:
    assert "aten::bmm" not in _facts(TorchSdpa(), _problem(fields)).detail["profiled_operators"]


def test_values_of_another_size_make_sdpa_write_the_scores_out_and_that_is_told() -> None:
    facts = _facts(TorchSdpa(), _problem({"v_head_dim": 4}))
    assert (facts.attention_kernel, facts.kernel_evidence) == ("math", "profile")


@pytest.mark.parametrize("fields", PROBLEMS, ids=str)
def test_onnxruntime_tells_its_kernel_by_the_optimised_graph_and_places_every_node(
    exported: Exported, fields: dict[str, Any]
) -> None:
    problem = _problem(fields)
    for exporter, kernel in (("onnx-attention", "fused"), ("onnx-decomposed", "unfused")):
        facts = _facts(OrtCpu(), problem, exported(exporter, problem, None))
        assert (facts.attention_kernel, facts.kernel_evidence) == (kernel, "graph")
        assert list(facts.detail["placement"]) == ["CPUExecutionProvider"]
        assert ("::Attention" in facts.detail["optimised_operators"]) == (kernel == "fused")


def test_openvino_claims_no_kernel_of_its_own(exported: Exported) -> None:
    problem = _problem({})
    facts = _facts(OpenVino(), problem, exported("onnx-attention", problem, None))
    assert (facts.attention_kernel, facts.kernel_evidence) == ("unknown", "")


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_a_pinned_kernel_runs_and_is_told_as_pinned(backend: str) -> None:
    facts = _facts(TorchSdpa(), _problem({"variant": "causal"}), backend=backend)
    assert (facts.attention_kernel, facts.kernel_evidence) == (backend, "pinned")


def test_another_kernel_than_the_pinned_one_is_an_error_with_both() -> None:
    import torch

    problem = _problem({})
    with TorchSdpa().load(problem, None, Settings(options={"backend": "flash"})) as session:
        session.bind(make_inputs(problem))()
        math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        with math, pytest.raises(ReadBackError, match="kernel flash was asked, torch ran math"):
            session.facts()


def test_a_pinned_kernel_that_cannot_do_the_problem_is_unsupported() -> None:
    problem = _problem({"v_head_dim": 4})
    with TorchSdpa().load(problem, None, Settings(options={"backend": "flash"})) as session:
        call = session.bind(make_inputs(problem))
        with pytest.raises(UnsupportedError, match="pinned to flash, torch has no such kernel for block self"):
            call()


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_kernel_that_this_torch_has_for_no_problem_on_a_cpu_is_unsupported(backend: str) -> None:
    with pytest.raises(UnsupportedError, match=f"pinned to {backend}, torch has no such kernel"):
        _facts(TorchSdpa(), _problem({}), backend=backend)


@pytest.mark.parametrize(("runtime", "backend"), [(TorchSdpa(), "flsh"), (TorchEager(), "flash")])
def test_an_unknown_kernel_and_a_pin_where_none_is_chosen_are_refused(runtime: Runtime, backend: str) -> None:
    with pytest.raises(UnsupportedError, match="backend"):
        _facts(runtime, _problem({}), backend=backend)
