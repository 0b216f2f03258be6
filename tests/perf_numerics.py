"""False alarms: right outputs over random problems, masks, heads and seeds, against the limits; run it as a script.

Each seed draws one problem, and torch eager and SDPA both answer for it: none may be called wrong. The table is what
tolerances.toml is made of: per part, dtype and input class eager's worst error, its worst ratio to the floor, and how
much of each limit the worst right output uses.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnbench.inputs import make_inputs, make_weights
from attnbench.interfaces import Array
from attnbench.measure import numerics
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.sweep.bench import limits_of
from attnbench.sweep.oracle import torch_eager_rows

DTYPES = ("fp32", "fp16", "bf16")
ARMS = ("eager", "sdpa")
LENGTHS = (1, 2, 5, 16, 33, 64, 128, 200)
# num_heads, num_kv_heads, head_dim, v_head_dim
HEADS = ((8, 8, 64, 64), (8, 2, 64, 64), (8, 1, 64, 64), (4, 4, 64, 32), (6, 2, 32, 80), (2, 1, 128, 16))
TENSORS = ("", "key_padding", "bool_b1qk", "bool_1hqk", "bool_qk", "bias_1hqk", "alibi")
RULES = {
    "self": ("",), "cross": ("",), "decode": ("causal_bottom_right",),
    "causal": ("causal_top_left", "sliding_window_7", "causal_bottom_right"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """One right output and what was made of it."""

    problem: Problem
    seed: int
    input_class: str
    arm: str
    eager_error: float
    floor: float
    agreement: numerics.Agreement
    limits: numerics.Limits
    ok: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """Which tolerance it was judged by."""
        added = numerics.ADDED if self.problem.masking.is_added else ""
        return self.problem.part, self.problem.dtype, self.input_class + added


def random_problem(seed: int, dtype: str) -> Problem:
    """Any problem of at most 200 tokens that a seed makes."""
    rng = random.Random(f"{seed} {dtype}")
    part = rng.choice(("block", "core"))
    variant = rng.choice(("self", "cross", "causal") if part == "core" else tuple(RULES))
    heads, kv_heads, head_dim, v_head_dim = rng.choice(HEADS)
    terms = [rng.choice(RULES[variant]), rng.choice(TENSORS)]
    length = rng.choice(LENGTHS)
    sizes: dict[str, Any] = {"seq_len": length}
    if variant == "decode":
        sizes = {"seq_len": length + 4, "q_len": rng.choice((1, 3))}
    elif variant == "cross" or (part, variant) == ("core", "causal"):
        sizes["kv_len"] = rng.choice(LENGTHS)
    return Problem.make(
        part=part, variant=variant, **sizes, batch_size=rng.choice((1, 1, 2)), num_heads=heads, num_kv_heads=kv_heads,
        head_dim=head_dim, v_head_dim=v_head_dim, mask="+".join(filter(None, terms)) or "none", dtype=dtype,
        scale=rng.choice((None, None, 0.2)), bias=part == "block" and rng.random() < 0.3,
    )  # fmt: skip


def right_runs(problem: Problem, seed: int, input_class: str) -> Iterator[Run]:
    """What torch eager and SDPA answer, judged as `bench` judges them."""
    import numpy as np

    inputs, weights = make_inputs(problem, seed=seed, input_class=input_class), make_weights(problem, seed=seed)
    expected = reference_output(problem, inputs, weights)
    rows = np.arange(problem.q_len)
    eager = numerics.compare(torch_eager_rows(problem, inputs, weights, rows), expected).worst_row_rel_err
    floor = numerics.floor_error(expected, problem.dtype)
    limits = limits_of(problem, {"floor": floor, "eager": {"worst_row_rel_err": eager}}, input_class)
    for arm in ARMS:
        agreement = numerics.compare(torch_output(problem, inputs, seed, arm), expected)
        ok, _ = numerics.judge_agreement(agreement, limits)
        yield Run(
            problem=problem, seed=seed, input_class=input_class, arm=arm, eager_error=eager, floor=floor,
            agreement=agreement, limits=limits, ok=ok,
        )  # fmt: skip


def torch_output(problem: Problem, inputs: dict[str, Array], seed: int, arm: Any) -> Array:
    """`y` of the torch block."""
    import torch

    from attnbench.torch_model import build_module, from_torch, to_torch

    with torch.inference_mode():
        found = build_module(problem, seed=seed, attention=arm)(*map(to_torch, inputs.values()))
        y: Array = from_torch(found[0] if isinstance(found, tuple) else found)
    return y


def judged(seeds: range, dtypes: tuple[str, ...] = DTYPES) -> Iterator[Run]:
    """The runs of these seeds in each dtype, input classes in turn."""
    for seed in seeds:
        for dtype in dtypes:
            problem = random_problem(seed, dtype)
            yield from right_runs(problem, seed, ("normal", "peaked")[seed % 2])


def table(runs: list[Run]) -> Iterator[str]:
    """One line per part, dtype and input class: what tolerances.toml says of it."""
    yield "part  dtype class         runs alarms  eager_worst eager/floor  of_row_limit  gain  of_gain_limit  floor"
    for key in sorted({r.key for r in runs}):
        mine = [r for r in runs if r.key == key]
        alarms = sum(not r.ok for r in mine)
        eager = max(r.eager_error / max(1.0, r.problem.spread) for r in mine)
        over_floor = max(r.eager_error / r.floor / max(1.0, r.problem.spread) for r in mine if r.floor)
        row = max(r.agreement.worst_row_rel_err / r.limits.worst_row for r in mine)
        gain = max(r.agreement.gain_err for r in mine)
        gain_part = max(r.agreement.gain_err / r.limits.gain_of(r.agreement.rows) for r in mine)
        yield (
            f"{key[0]:5} {key[1]:5} {key[2]:12} {len(mine):5} {alarms:5}  {eager:11.2g} {over_floor:11.3g} "
            f"{row:13.2f} {gain:9.2g} {gain_part:8.2f} {max(r.floor for r in mine):9.2g}"
        )


def main() -> int:
    """Judge the seeds and print the table, then every false alarm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    given = parser.parse_args()
    runs = list(judged(range(given.seeds), tuple(given.dtypes.split(","))))
    for line in table(runs):
        sys.stdout.write(line + "\n")
    for r in runs:
        if not r.ok:
            a, limits = r.agreement, r.limits
            sys.stdout.write(
                f"ALARM {r.arm} {r.problem.label()} {r.input_class} seed {r.seed}: row {a.worst_row_rel_err:.3g} of "
                f"{limits.worst_row:.3g} ({limits.reason}), gain {a.gain_err:.3g} of {limits.gain_of(a.rows):.3g}, "
                f"NaN {a.nan_count}, floor {r.floor:.3g}, eager {r.eager_error:.3g}\n"
            )
    return 1 if any(not r.ok for r in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
