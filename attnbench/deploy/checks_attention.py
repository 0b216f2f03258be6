"""The checks of a bundle of the built-in attention, as a question to a worker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench.deploy.checks import Subject, check_model, check_running
from attnbench.deploy.golden import free_sizes
from attnbench.deploy.manifest import Tensor
from attnbench.deploy.prove import plain
from attnbench.deploy.verify_runtimes import Fault, load
from attnbench.errors import UnsupportedError
from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Array
from attnbench.problem import Problem

MOST_SAMPLES = 5  # of a batch


def check_attention(
    *, folder: str, plan: dict[str, Any], problem: dict[str, Any], seed: int, opset: int | None, max_len: int
) -> dict[str, Any]:
    """In a worker with the runtime: {"checks": entries of bundle.json}.

    Args:
        folder: that is to become the bundle; its golden cases are there.
        plan: what bundle.json will say of runtime, model, inputs, outputs and golden cases.
        problem: at the sizes that the exporter was shown.
        seed: of its weights.
        opset: that was asked; None: the model is no ONNX file, so only its runs are looked at.
        max_len: the longest T that is promised.

    Raises:
        AttnbenchError: as `checks.check_model`, or the runtime does not load the file.
    """
    example = Problem.from_dict(problem)
    try:
        run = load(Path(folder), plan, {})
    except Fault as err:
        raise UnsupportedError(str(err)) from err
    subject = _subject(example, Path(folder) / plan["model"], plan, seed=seed, opset=opset, max_len=max_len)

    def inputs_at(sizes: Mapping[str, int]) -> dict[str, Array]:
        made = make_inputs(_at(example, sizes), seed=seed)
        return {name: plain(array) for name, array in made.items()}

    check = check_running if opset is None else check_model
    return {"checks": [found.model_dump(mode="json") for found in check(subject, run, inputs_at)]}


def _subject(
    example: Problem, path: Path, plan: Mapping[str, Any], *, seed: int, opset: int | None, max_len: int
) -> Subject:
    free, sums = free_sizes(example), {}
    if "past_len" in free and "kv_len" in free:
        sums = {"kv_len": ("past_len", "q_len")}
    free = {name: size for name, size in free.items() if name not in sums}
    weights = make_weights(example, seed=seed)
    own = {example.num_heads, example.num_kv_heads, example.head_dim, example.v_head_dim, example.masking.window or 0}
    longest = max_len - (1 if sums else 0)
    return Subject(
        path=path, opset=opset or 0, inputs=[Tensor(**t) for t in plan["inputs"]],
        outputs=[Tensor(**t) for t in plan["outputs"]], example=free,
        most={name: MOST_SAMPLES if name == "batch_size" else longest for name in free},
        known_sizes=sorted(own.union(*(array.shape for array in weights.values()))),
        source_bytes=sum(array.nbytes for array in weights.values()), sums=sums,
    )  # fmt: skip


def _at(example: Problem, sizes: Mapping[str, int]) -> Problem:
    """The problem at the sizes of the free dims."""
    q_len = sizes.get("q_len", sizes.get("seq_len"))
    assert q_len is not None
    kv_len = sizes.get("kv_len", q_len + sizes["past_len"] if "past_len" in sizes else q_len)
    return example.at(q_len=q_len, kv_len=kv_len, batch_size=sizes.get("batch_size", example.batch_size))
