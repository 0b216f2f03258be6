"""What the lesson is about: the shape of one model, or any other."""

from dataclasses import dataclass
from typing import Any

from attnbench import presets
from attnbench.problem import Problem

DEFAULT_PRESET = "gpt3"
DEFAULT_LENGTHS = (1_000, 10_000, 100_000)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A shape, the lengths to count at and the seed of what is drawn."""

    name: str
    problem: Problem
    layers: int
    lengths: tuple[int, ...] = DEFAULT_LENGTHS
    seed: int = 0


def make_subject(
    preset: str | None, *, lengths: tuple[int, ...] | None = None, seed: int | None = None, **sizes: int | None
) -> Subject:
    """The shape of a preset (GPT-3's unless told), or of one layer with the sizes that are given.

    Args:
        preset: a name of `presets`.
        lengths: for the grid of scores.
        seed: of what is drawn.
        sizes: num_heads, head_dim, num_kv_heads.

    Raises:
        InputError: an unknown preset, or sizes that cannot be.
    """
    given: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    model = None if preset is None and given else presets.find(preset or DEFAULT_PRESET)
    keys: dict[str, Any] = {} if model is None else model.problem_keys()
    if {"num_heads"} <= set(given) and "num_kv_heads" not in given:
        keys.pop("num_kv_heads", None)
    problem = Problem.make(seq_len=model.length if model else 64, **{**keys, **given})
    name = f"{problem.num_heads} heads of {problem.head_dim}" if model is None or given else model.model
    return Subject(
        name=name, problem=problem, layers=model.layers if model else 1, lengths=lengths or DEFAULT_LENGTHS,
        seed=seed or 0,
    )  # fmt: skip
