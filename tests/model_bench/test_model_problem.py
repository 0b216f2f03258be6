"""A model of the user as a problem: sizes, ids, JSON."""

import json

import pytest

from attnbench.errors import ProblemError, RecordsError
from attnbench.model_problem import ANY_RANK, ModelProblem, TensorSpec, problem_from_dict
from attnbench.problem import Problem
from attnbench.records import Record, known_size

IDS = TensorSpec(name="ids", dtype="int64", dims=("batch", "seq"), most=31999)
MASK = TensorSpec(name="mask", dtype="fp16", dims=("batch", "seq"))
MODEL = ModelProblem(
    name="bert.onnx", inputs=(IDS, MASK), sizes={"batch": 2, "seq": 128}, bound="seq",
    outputs=(
        TensorSpec(name="y", dtype="fp16", dims=("batch", "seq", 32)),
        TensorSpec(name="count", dtype="int64", dims=("count_dim0",)),
        TensorSpec(name="any", dtype="fp16", dims=ANY_RANK),
    ),
)  # fmt: skip


def test_both_kinds_of_problem_come_back_from_json() -> None:
    attention = Problem.make(seq_len=8)
    for problem in (MODEL, attention):
        assert problem_from_dict(json.loads(json.dumps(problem.as_dict()))) == problem


def test_fields_of_no_problem_are_refused() -> None:
    with pytest.raises(ProblemError, match="not the fields of a model"):
        problem_from_dict({"inputs": [], "outputs": []})
    with pytest.raises(ProblemError, match="not the fields of a model"):
        problem_from_dict({**MODEL.as_dict(), "color": "red"})


def test_t_is_the_bound_dim_and_unknown_without_one() -> None:
    assert (MODEL.q_len, MODEL.kv_len) == (128, 128)
    unbound = ModelProblem(name="m", inputs=MODEL.inputs, outputs=MODEL.outputs, sizes=MODEL.sizes)
    assert (unbound.q_len, unbound.kv_len) == (None, None)


def test_shapes_follow_the_sizes_and_unknown_outputs_have_none() -> None:
    at = MODEL.at({"seq": 3})
    assert at.input_shapes() == {"ids": (2, 3), "mask": (2, 3)}
    assert at.output_shapes() == {"y": (2, 3, 32), "count": None, "any": None}


def test_a_size_of_no_free_dim_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"no free dim 'T'; it has batch, seq"):
        MODEL.at({"T": 3})


def test_a_free_dim_without_a_size_is_named() -> None:
    with pytest.raises(ProblemError, match="without a size: seq"):
        ModelProblem(name="m", inputs=(IDS,), outputs=(), sizes={"batch": 1}).input_shapes()


def test_a_file_serves_all_sizes_and_values_but_not_another_dtype() -> None:
    others = ModelProblem(name="bert.onnx", inputs=(IDS, TensorSpec(name="mask", dtype="fp32", dims=("batch", "seq"))),
                          outputs=MODEL.outputs)  # fmt: skip
    drawn = TensorSpec(name="ids", dtype="int64", dims=("batch", "seq"), most=5)
    same_file = ModelProblem(name="bert.onnx", inputs=(drawn, MASK), outputs=MODEL.outputs, inputs_sha256="ab")
    assert MODEL.at({"seq": 3}).static_key() == same_file.static_key() == MODEL.static_key()
    assert MODEL.static_key() != others.static_key()
    assert len({MODEL.problem_id, MODEL.at({"seq": 3}).problem_id, same_file.problem_id}) == 3


def test_the_coarsest_dtype_of_a_model_is_what_its_outputs_are_held_to() -> None:
    fp32 = ModelProblem(name="m", inputs=(TensorSpec(name="x", dtype="fp32", dims=(2,)),), outputs=())
    assert fp32.coarsest == "fp32"
    assert MODEL.coarsest == "fp16"
    weights = ModelProblem(name="m", inputs=fp32.inputs, outputs=(), precision="bf16")
    assert (weights.coarsest, weights.dtype) == ("bf16", "fp32")


def test_a_row_of_before_models_is_read_and_a_row_of_a_model_has_no_heads() -> None:
    row = {"run_id": "r", "started_at_utc": "t", "case_id": "c", "problem_id": "p", "arm": "a", "variant": "self",
           "dtype": "fp32", "exporter": "torch", "runtime": "a", "status": "ok", "seed": 0,
           "attnbench_version": "0"}  # fmt: skip
    sizes = {"mask": "none", "batch_size": 1, "q_len": 8, "kv_len": 8, "num_heads": 2, "num_kv_heads": 2,
             "head_dim": 4, "embed_dim": 8}  # fmt: skip
    old = Record.model_validate({**row, **sizes, "part": "block"})
    assert (old.model, old.sizes, known_size(old.num_heads)) == (None, {}, 2)
    of_a_model = Record.model_validate({**row, "part": "model", "model": "bert.onnx", "sizes": {"seq": 8}})
    with pytest.raises(RecordsError, match="no sizes of attention"):
        known_size(of_a_model.num_heads)
