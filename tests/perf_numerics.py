"""False alarms: right outputs over random problems, masks, heads and seeds, against the limits; run it as a script.

Each seed draws one problem, and torch eager and SDPA both answer for it: none may be called wrong. The table is what
tolerances.toml is made of: per part, dtype and input class eager's worst error, its worst ratio to the floor, and how
much of each limit the worst right output uses.

`--runtimes ort-cpu,openvino` asks runtimes of files instead. A file serves all sizes and seeds of its form, so there
are as many forms as masks x heads (and those that onnx-contrib writes), each exported once by every exporter, loaded
once by every runtime and called at several sizes with `--inputs` seeds of each input class.
"""

import argparse
import contextlib
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench import plugins
from attnbench.errors import UnsupportedError
from attnbench.inputs import INPUT_CLASSES, make_inputs, make_weights
from attnbench.interfaces import Array, Session, Settings
from attnbench.measure import numerics
from attnbench.problem import Problem
from attnbench.reference import reference_output
from attnbench.sweep.bench import limits_of
from attnbench.sweep.grid import DEFAULT_EXPORTERS
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
SIZES_OF_A_FORM = 3  # openvino compiles for every new one


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
    judge = Judge(problem, seed=seed, weight_seed=seed, input_class=input_class)
    for arm in ARMS:
        yield judge.run(arm, torch_output(problem, judge.inputs, seed, arm))


class Judge:
    """The oracle's answer to one problem, and what another may differ by."""

    def __init__(self, problem: Problem, *, seed: int, weight_seed: int, input_class: str) -> None:
        import numpy as np

        self.problem, self.seed, self.input_class = problem, seed, input_class
        self.inputs = make_inputs(problem, seed=seed, input_class=input_class)
        weights = make_weights(problem, seed=weight_seed)
        self.expected = reference_output(problem, self.inputs, weights)
        rows = np.arange(problem.q_len)
        eager = numerics.compare(torch_eager_rows(problem, self.inputs, weights, rows), self.expected)
        self.eager, self.floor = eager.worst_row_rel_err, numerics.floor_error(self.expected, problem.dtype)
        answer = {"floor": self.floor, "eager": {"worst_row_rel_err": self.eager}}
        self.limits = limits_of(problem, answer, input_class)

    def run(self, arm: str, output: Array) -> Run:
        """The judgement of one output."""
        agreement = numerics.compare(output, self.expected)
        ok, _ = numerics.judge_agreement(agreement, self.limits)
        return Run(
            problem=self.problem, seed=self.seed, input_class=self.input_class, arm=arm, eager_error=self.eager,
            floor=self.floor, agreement=agreement, limits=self.limits, ok=ok,
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


def forms(dtype: str) -> list[Problem]:
    """A problem of every tensor of a mask x heads, and of every part x variant that onnx-contrib writes."""
    contrib = plugins.load_exporter("onnx-contrib")
    found: dict[tuple[Any, ...], Problem] = {}
    for seed in range(1000):
        p = random_problem(seed, dtype)
        is_plain = contrib.supports(p, contrib.opsets[0]).ok
        where = (p.part, p.variant) if is_plain else (p.masking.tensor, p.num_heads, p.num_kv_heads, p.v_head_dim)
        found.setdefault(where, p)
    return list(found.values())


def sizes_of(form: Problem, seed: int) -> Iterator[Problem]:
    """The form at random lengths and batch sizes; q_len and kv_len differ where they did."""
    rng = random.Random(f"sizes {seed} {form.problem_id}")
    for _ in range(SIZES_OF_A_FORM):
        q_len, kv_len = rng.choice(LENGTHS), rng.choice(LENGTHS)
        if form.variant == "decode":
            q_len = rng.choice((1, 3))
            kv_len += q_len
        yield form.at(q_len=q_len, kv_len=q_len if form.q_len == form.kv_len else kv_len, batch_size=rng.choice((1, 2)))


def judged_files(
    runtimes: list[str], dtypes: tuple[str, ...], inputs: int, refusals: dict[str, list[str]]
) -> Iterator[Run]:
    """The runs of every form, exporter and runtime; what an arm refuses, and why, is written to `refusals`."""
    for dtype in dtypes:
        for index, form in enumerate(forms(dtype)):
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
                sessions = dict(_sessions(form, index, runtimes, Path(folder), held, refusals))
                for number, sized in enumerate(sizes_of(form, index)):
                    for seed in range(number, 2 * inputs, SIZES_OF_A_FORM):
                        kind = INPUT_CLASSES[seed % 2]
                        judge = Judge(sized, seed=seed // 2, weight_seed=index, input_class=kind)
                        for arm, session in sessions.items():
                            session.bind(judge.inputs)()
                            yield judge.run(arm, session.outputs())


def _sessions(
    form: Problem, index: int, runtimes: list[str], folder: Path, held: contextlib.ExitStack,
    refusals: dict[str, list[str]],
) -> Iterator[tuple[str, Session]]:  # fmt: skip
    """The form exported by every exporter and loaded by every runtime, by arm."""
    for name in DEFAULT_EXPORTERS:
        exporter = plugins.load_exporter(name)
        support = exporter.supports(form, exporter.opsets[0])
        if not support.ok:
            refusals.setdefault(f"{name} {form.dtype}", []).append(support.reason)
            continue
        artifact = exporter.export(form, exporter.opsets[0], folder / f"{name}.onnx", seed=index)
        for runtime in runtimes:
            try:
                loaded = plugins.load_runtime(runtime).load(form, artifact, Settings(seed=index))
                yield f"{name}@{runtime}", held.enter_context(loaded)
            except UnsupportedError as err:
                refusals.setdefault(f"{name}@{runtime} {form.dtype}", []).append(str(err)[:150])


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
    parser.add_argument("--seeds", type=int, default=1000, help="of torch's arms")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--runtimes", default="", help="of files, such as ort-cpu,openvino; none: torch's arms")
    parser.add_argument("--inputs", type=int, default=40, help="seeds of each input class for a file")
    given = parser.parse_args()
    dtypes, names = tuple(given.dtypes.split(",")), list(filter(None, given.runtimes.split(",")))
    refusals: dict[str, list[str]] = {}
    runs = list(judged_files(names, dtypes, given.inputs, refusals) if names else judged(range(given.seeds), dtypes))
    for name in names or [""]:
        sys.stdout.write(f"{name}\n" if name else "")
        for line in table([r for r in runs if r.arm.endswith(name)]):
            sys.stdout.write(line + "\n")
    for arm, reasons in refusals.items():
        sys.stdout.write(f"{arm} refused {len(reasons)} forms, the first: {reasons[0]}\n")
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
