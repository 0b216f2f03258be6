"""At which sizes a model of the user is run."""

from collections.abc import Mapping, Sequence

import pytest

from attnbench.errors import InputError
from attnbench.model_problem import ModelProblem, TensorSpec
from attnbench.sweep import plan
from attnbench.sweep.grid import Arm
from attnbench.sweep.model_sizes import problems_of, tensor_bytes

IDS = TensorSpec(name="ids", dtype="int64", dims=("batch", "seq"))
MASK = TensorSpec(name="mask", dtype="fp32", dims=("batch", 1, "kv"))
LOGITS = TensorSpec(name="logits", dtype="fp32", dims=("batch", "seq", "vocabulary"))
STATIC = TensorSpec(name="x", dtype="fp16", dims=(8, 512))


def problems(
    inputs: Sequence[TensorSpec] = (IDS, MASK),
    *,
    bind: Mapping[str, str] = {},
    sizes: Mapping[str, Sequence[int]] = {},
    shapes: Mapping[str, tuple[int, ...]] = {},
    seq_lens: Sequence[int] = (),
) -> list[ModelProblem]:
    return problems_of("m.onnx", inputs, [LOGITS], bind=bind, sizes=sizes, shapes=shapes, seq_lens=seq_lens)


def refusal(inputs: Sequence[TensorSpec] = (IDS, MASK), **given: object) -> str:
    with pytest.raises(InputError) as caught:
        problems(inputs, **given)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_bound_dim_takes_every_t_and_a_set_one_every_size() -> None:
    found = problems(bind={"seq": "T", "kv": "T/2"}, sizes={"batch": [1, 8]}, seq_lens=[128, 256])
    assert [dict(p.sizes) for p in found] == [
        {"batch": 1, "seq": 128, "kv": 64},
        {"batch": 8, "seq": 128, "kv": 64},
        {"batch": 1, "seq": 256, "kv": 128},
        {"batch": 8, "seq": 256, "kv": 128},
    ]
    assert {p.bound for p in found} == {"seq"}
    assert found[0].inputs == (IDS, MASK)
    assert found[0].outputs == (LOGITS,)
    assert found[0].name == "m.onnx"


def test_four_lengths_where_none_is_given() -> None:
    assert [p.sizes["seq"] for p in problems([IDS], bind={"seq": "T"}, sizes={"batch": [1]})] == [128, 256, 512, 1024]


@pytest.mark.parametrize(
    ("form", "size"), [("T", 12), ("T/3", 4), ("T*2", 24), ("T+1", 13), ("T-1", 11), (" T + 1", 13)]
)
def test_forms_of_t(form: str, size: int) -> None:
    found = problems(bind={"kv": form, "seq": "T"}, sizes={"batch": [1]}, seq_lens=[12])
    assert found[0].sizes["kv"] == size
    assert found[0].bound == ("kv" if form == "T" else "seq")


@pytest.mark.parametrize("form", ["", "t", "2T", "T/0", "T*0", "T/2+1", "T**2", "T/x", "8", "T/-1", "T/٣"])
def test_another_form_is_refused_with_those_that_there_are(form: str) -> None:
    told = refusal(bind={"seq": form}, sizes={"batch": [1], "kv": [1]}, seq_lens=[8])
    assert told.startswith(f"--bind seq={form} must be T, T/N, T*N, T+N or T-N")
    assert "--set seq=8" in told


def test_a_form_that_gives_no_size_at_some_t() -> None:
    def told(form: str) -> str:
        return refusal(bind={"seq": "T", "kv": form}, sizes={"batch": [1]}, seq_lens=[8, 9])

    assert "no whole number at T = 9" in told("T/2")
    assert "--bind kv=T-9 is -1 at T = 8" in told("T-9")


def test_one_bound_dim_must_be_t_itself() -> None:
    told = refusal(bind={"seq": "T+1"}, sizes={"batch": [1], "kv": [1]})
    assert told == "--bind needs one free dim that is T itself, got seq=T+1; write --bind seq=T"


def test_a_model_of_fixed_sizes_runs_once_without_t() -> None:
    (only,) = problems([STATIC])
    assert only.sizes == {}
    assert only.bound is None


def test_lengths_without_a_bound_dim_are_refused() -> None:
    assert "--seq-lens needs a free dim that follows T" in refusal([STATIC], seq_lens=[128])


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert refusal(bind={"sq": "T"}) == "no free dim 'sq'; the model has batch, seq, kv; did you mean 'seq'?"
    assert refusal(sizes={"bach": [1]}).endswith("did you mean 'batch'?")
    assert refusal(shapes={"idx": (1, 2)}) == "no input 'idx'; the model has ids, mask; did you mean 'ids'?"
    assert "all its sizes are fixed" in refusal([STATIC], sizes={"batch": [1]})


def test_every_free_dim_without_a_size_is_named_with_the_way_out() -> None:
    told = refusal(sizes={"batch": [1]})
    assert "without a size: seq, kv; add for example --set seq=1 --set kv=1" in told
    assert "--bind kv=T" in told


def test_a_name_that_a_shell_would_take_apart_is_quoted_in_the_way_out() -> None:
    told = refusal([TensorSpec(name="x", dtype="fp32", dims=("past + 1",))])
    assert '--set "past + 1=1"' in told


def test_shapes_give_sizes_to_free_dims() -> None:
    (only,) = problems(shapes={"ids": (2, 16), "mask": (2, 1, 9)})
    assert only.sizes == {"batch": 2, "seq": 16, "kv": 9}
    assert only.bound is None


def test_shapes_may_leave_what_is_bound_or_set() -> None:
    found = problems(shapes={"mask": (2, 1, 9)}, bind={"seq": "T"}, sizes={"batch": [2]}, seq_lens=[4])
    assert [p.sizes for p in found] == [{"batch": 2, "seq": 4, "kv": 9}]


def test_shapes_that_contradict_are_refused_with_both_sides() -> None:
    assert refusal(shapes={"ids": (2, 16), "mask": (3, 1, 9)}) == (
        "mask of shape 3x1x9 makes 'batch' 3, but ids of shape 2x16 makes it 2; a free dim has one size"
    )
    assert "has 4 at dim 1, the model has it fixed at 1" in refusal(shapes={"mask": (2, 4, 9)})
    assert "has 3 dims, the model's ids has 2: batchxseq" in refusal(shapes={"ids": (2, 16, 1)})
    assert "--set batch=1,2 contradicts ids of shape 2x16" in refusal(shapes={"ids": (2, 16)}, sizes={"batch": [1, 2]})
    assert "'seq' is bound to T and ids of shape 2x16 gives it 16" in refusal(
        shapes={"ids": (2, 16)}, bind={"seq": "T"}
    )
    assert "'seq' has both --bind and --set" in refusal(bind={"seq": "T"}, sizes={"seq": [1]})


def test_a_cache_may_be_empty_and_t_may_not() -> None:
    (problem,) = problems([IDS], sizes={"batch": [1], "seq": [0]})
    assert problem.sizes == {"batch": 1, "seq": 0}
    assert "--seq-lens must be from 1 to" in refusal([IDS], bind={"seq": "T"}, sizes={"batch": [1]}, seq_lens=[0])


@pytest.mark.parametrize("size", [-1, 2**31])
def test_a_size_that_no_dim_can_have_is_refused(size: int) -> None:
    assert f"batch must be from 0 to 2147483647, got {size}" in refusal([IDS], sizes={"batch": [size], "seq": [1]})
    assert f"--seq-lens must be from 1 to 2147483647, got {size}" in refusal(
        [IDS], bind={"seq": "T"}, sizes={"batch": [1]}, seq_lens=[size]
    )


def test_a_tensor_that_no_machine_holds_is_refused() -> None:
    told = refusal([IDS], sizes={"batch": [2**20], "seq": [2**20]})
    assert "ids of shape 1048576x1048576 would need 8796093022208 bytes" in told


def test_the_bytes_of_a_problem_are_those_of_the_tensors_whose_shapes_are_known() -> None:
    """ids 2 x 3 of 8 bytes, mask 2 x 1 x 5 of 4; logits have a dim that no input has."""
    (only,) = problems(sizes={"batch": [2], "seq": [3], "kv": [5]})
    assert tensor_bytes(only) == 2 * 3 * 8 + 2 * 5 * 4


def test_the_plan_of_a_model_counts_its_inputs_and_outputs_for_every_arm() -> None:
    y = TensorSpec(name="y", dtype="fp16", dims=("batch", "seq"))
    (only,) = problems_of("m", [IDS], [y], bind={}, sizes={"batch": [1], "seq": [10**9]}, shapes={}, seq_lens=())
    arms = [Arm(exporter="file", runtime=name) for name in ("ort-cpu", "openvino")]
    assert plan._memory_bytes(only, arms) >= 2 * 2 * 10 * 10**9
