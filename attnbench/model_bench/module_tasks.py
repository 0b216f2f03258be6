"""What a worker is asked about a module in a bench: its outputs in float64 at some sizes, and files of it."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from attnbench import plugins
from attnbench.deploy import module_tasks
from attnbench.deploy.models import save_program
from attnbench.deploy.module_code import build
from attnbench.deploy.module_inputs import ModuleInputs, cases_of, make_arrays
from attnbench.deploy.module_reference import Reference, is_float, output_specs, to_numpy
from attnbench.deploy.module_trace import trace
from attnbench.errors import UnsupportedError
from attnbench.files import write_bytes
from attnbench.inputs import make_inputs
from attnbench.measure import numerics
from attnbench.model_problem import ModelProblem
from attnbench.sweep.artifacts import artifact_as_dict
from attnbench.sweep.model_runs import GivenInputs, save_reference
from attnbench.sweep.repro import as_npz

_TRIED = 4  # cases: the example, odd sizes, 2, twice the example; no length that only a bench has to bear


def take(*, module: str, inputs: str, start: str, seed: int, program: str) -> dict[str, Any]:
    """Run a module at a few small sizes and trace it; {"problem": its inputs and outputs}.

    Args:
        module: package.module:Class.
        inputs: a `ModuleInputs` as JSON.
        start: the folder where attnbench was started.
        seed: of weights that no file gives, and of the inputs.
        program: the path of the traced module, a .pt2.

    Raises:
        AttnbenchError: as `deploy.module_tasks.take`.
    """
    found = ModuleInputs.model_validate_json(inputs)
    made = build(module, found, folder=Path(start), seed=seed)
    judge = Reference(module, made, found)
    cases = cases_of(found)[:_TRIED]
    arrays = [make_arrays(found, case, seed=seed) for case in cases]
    specs = output_specs(found, [judge.outputs(given) for given in arrays], [case.sizes for case in cases])
    judge.expected(arrays[0], times=2)
    save_program(trace(module, made, found), Path(program))
    return {"problem": ModelProblem(name=module, inputs=found.specs, outputs=specs).as_dict()}


def write(*, program: str, problem: dict[str, Any], exporter: str, opset: int | None, path: str) -> dict[str, Any]:
    """Write a traced module as an ONNX file; {"artifact": ..., "export_ms": ...}.

    Raises:
        UnsupportedError: the exporter writes no modules of users, or not this one.
        ExportError: what came out is not what was asked.
    """
    import torch

    plugin: Any = plugins.load_exporter(exporter)
    opsets = getattr(plugin, "program_opsets", None)
    if opsets is None:
        raise UnsupportedError(f"{exporter} writes the built-in block only, no module of yours; use onnx-attention")
    loaded = torch.export.load(program)
    target = ModelProblem.from_dict({**problem, "sizes": {}, "bound": None})
    start = time.perf_counter_ns()
    artifact = plugin.export_program(loaded, target, opset or opsets[0], Path(path))
    return {"artifact": artifact_as_dict(artifact), "export_ms": (time.perf_counter_ns() - start) / 1e6}


def reference(
    *, problem: dict[str, Any], module: Mapping[str, Any], given: str | None, path: str, kept: str | None
) -> dict[str, Any]:
    """The module in float64 at the sizes of a problem, as a file, and what its outputs may differ by.

    Args:
        problem: a `ModelProblem` with sizes.
        module: module, inputs (a `ModuleInputs` as JSON), start (a folder) and seed.
        given: a .npz whose arrays are the inputs; None: they are drawn.
        path: of the file.
        kept: a .npz that gets the outputs by name; None: no such.

    Returns:
        path, and by output: limits, floors (the worst row of the reference rounded once) and eager (the worst row of
        the module in its own dtype).

    Raises:
        InputError: the module does not run at these sizes, with the line.
        MeasurementError: it gives NaN.
    """
    target = ModelProblem.from_dict(problem)
    found = ModuleInputs.model_validate_json(module["inputs"])
    judge = Reference(
        module["module"], build(module["module"], found, folder=Path(module["start"]), seed=module["seed"]), found
    )
    if given is None:
        inputs = make_inputs(target, seed=module["seed"])
    else:
        inputs = GivenInputs(Path(given), module["seed"]).arrays(target, module["seed"])
    own = dict(zip(target.output_dims(), map(to_numpy, judge.outputs(inputs)), strict=True))
    expected = dict(zip(target.output_dims(), judge.expected(inputs), strict=True))
    save_reference(target, expected, Path(path))
    if kept is not None:
        write_bytes(Path(kept), as_npz(expected))
    limits = {
        spec.name: asdict(module_tasks.limits_of(spec, own[spec.name], expected[spec.name])) for spec in target.outputs
    }
    due = {s.name: np.atleast_1d(expected[s.name]) for s in target.outputs if is_float(s) and expected[s.name].size}
    kinds = {spec.name: spec.dtype for spec in target.outputs}
    return {
        "path": path,
        "limits": limits,
        "floors": {name: numerics.floor_error(array, kinds[name]) for name, array in due.items()},
        "eager": {
            name: numerics.compare(np.atleast_1d(own[name]), array).worst_row_rel_err for name, array in due.items()
        },
    }
