"""Which recipe is the fastest for a module of the user: its files are judged by it, then timed beside each other."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from attnbench import plugins
from attnbench.deploy.manifest import Recipe
from attnbench.deploy.module_inputs import ModuleInputs, read_inputs
from attnbench.deploy.recipes import TIMING_S, Timed, choose, run_groups
from attnbench.deploy.shop import open_shop
from attnbench.deploy.targets import Target
from attnbench.measure import environment
from attnbench.model_bench.bench import ModelBench
from attnbench.model_bench.request import ModelRequest
from attnbench.model_bench.source import FOLDER, Source, stage
from attnbench.model_problem import ModelProblem
from attnbench.sweep.grid import Arm, Sweep
from attnbench.sweep.rundir import RunDirectory
from attnbench.sweep.workers import ForkServers

ENDS = ("least", "example", "most")  # of [ranges] in inputs.toml


def choose_recipe(
    module: str,
    inputs: Path,
    target: Target,
    *,
    seed: int = 0,
    opset: int | None = None,
    timing_s: float = TIMING_S,
    say: Callable[[str], object] = lambda text: None,
) -> list[Recipe]:
    """The recipes of a target for a module, the one to take first; as `deploy.recipes.choose_recipe`.

    Args:
        module: package.module:Class.
        inputs: the TOML file of what it takes.
        target: where it is to run.
        seed: of weights that no file gives, and of inputs.
        opset: None: each exporter's first.
        timing_s: of each size.
        say: told the sizes, then the table.

    Raises:
        AttnbenchError: what is wrong with the module, with the line.
    """
    sizes = sizes_of(read_inputs(inputs))
    labels = dict(enumerate(sizes))

    def time(names: Sequence[str], runtime: str) -> tuple[list[Timed], float]:
        at = "; ".join(", ".join(f"{dim}={size}" for dim, size in ends.items()) for ends in sizes.values())
        say(
            f"timing {len(names)} recipes at {at or 'fixed sizes'}: large sizes take minutes, a smaller max in "
            "[ranges] takes less"
        )
        arms = [Arm(exporter=name, runtime=runtime, opset=opset) for name in names]
        found = {arm.label: Timed(name=arm.exporter, opset=opset) for arm in arms}
        env, _ = environment.scrubbed_environment(1)
        with tempfile.TemporaryDirectory(prefix="attnbench-recipes-") as folder, ForkServers(env) as servers:
            run_dir = RunDirectory.create(Path(folder))
            with open_shop() as shop:
                source = stage(ModelRequest(module=module, inputs=inputs), shop, run_dir.path / FOLDER, seed)
            bench = ModelBench(
                sweep=Sweep(baseline=arms[0].label, seed=seed, time_budget_s=None), threads=1, arms=arms,
                run_dir=run_dir, servers=servers, run_id="recipes", source=source,
                runtime_probes=plugins.probe_all("runtime", [runtime]),
                exporter_probes=plugins.probe_all("exporter", names),
            )  # fmt: skip
            noise = run_groups(bench, found, _problems(source, sizes.values()), timing_s, [max(labels)])
        return list(found.values()), noise

    return choose(target, None, time, labels, say)


def sizes_of(found: ModuleInputs) -> dict[str, dict[str, int]]:
    """The least, the example's and the largest sizes of the free dims, equal ones once."""
    sizes: dict[str, dict[str, int]] = {}
    for end in ENDS:
        at = {name: getattr(ends, end) for name, ends in found.ranges.items()}
        if at not in sizes.values():
            sizes[end] = at
    return sizes


def _problems(source: Source, sizes: Iterable[dict[str, int]]) -> dict[int, ModelProblem]:
    model = ModelProblem(name=source.name, inputs=source.inputs, outputs=source.outputs, precision=source.precision)
    return {number: replace(model, sizes=at) for number, at in enumerate(sizes)}
