"""What a worker is asked about a module of the user: run and trace it, write and check its file. Answers are JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnbench import plugins
from attnbench.deploy.checks import Subject, check_model, check_running
from attnbench.deploy.golden import MAX_BYTES
from attnbench.deploy.manifest import GOLDEN, Golden, Tensor
from attnbench.deploy.models import save_program
from attnbench.deploy.module_code import build
from attnbench.deploy.module_inputs import Case, ModuleInputs, cases_of, has_rows, make_arrays
from attnbench.deploy.module_reference import REFERENCE, Reference, is_float, output_specs, to_numpy
from attnbench.deploy.module_trace import trace
from attnbench.deploy.place import writing
from attnbench.deploy.prove import plain
from attnbench.deploy.verify_runtimes import Fault, load
from attnbench.errors import InputError, UnsupportedError
from attnbench.interfaces import Array
from attnbench.measure import numerics
from attnbench.model_problem import ModelProblem, TensorSpec
from attnbench.sweep.repro import as_npz

_NARROW = 16  # an output with fewer numbers in a row


def take(*, module: str, inputs: str, start: str, seed: int, folder: str, program: str) -> dict[str, Any]:
    """Run the module on all cases and trace it; the keys are problem, golden, left_out, weights, refuses_strides.

    The only question that imports code of the user: golden/*.npz and the program are what everything else is made of.

    Args:
        module: package.module:Class.
        inputs: a `ModuleInputs` as JSON.
        start: the folder where attnbench was started.
        seed: of weights that no file gives, and of the inputs.
        folder: that gets golden/.
        program: the path of the traced module, a .pt2.

    Raises:
        InputError: whatever is wrong with the module, with the line.
        FrozenDimError: its code makes a free dim a number, with the line.
        ExportError: it decides by data, or torch.export does not take it, with the line.
    """
    found = ModuleInputs.model_validate_json(inputs)
    made = build(module, found, folder=Path(start), seed=seed)
    reference = Reference(module, made, found)
    cases = cases_of(found)
    arrays = [make_arrays(found, case, seed=seed) for case in cases]
    own = [reference.outputs(case) for case in arrays]
    specs = output_specs(found, own, [case.sizes for case in cases])
    _refuse_large(arrays, own)
    (Path(folder) / GOLDEN).mkdir(exist_ok=True)
    names = [spec.name for spec in specs]
    written, left_out, refuses_strides = list[_Written](), [], False
    for case, given, outputs in zip(cases, arrays, own, strict=True):
        answers = reference.expected(given, times=1 if written else 2)
        if not written:
            refuses_strides = reference.refuses_strides(given, answers)
        expected = dict(zip(names, answers, strict=True))
        if not any(np.isnan(array).any() for array in expected.values() if array.dtype.kind == "f"):
            rounded = dict(zip(names, map(to_numpy, outputs), strict=True))
            written.append(_write_case(case, given, expected, rounded, specs, Path(folder)))
        elif case.first_row is None:
            raise InputError(f"{module} gives NaN in float64 at {case.sizes}; there is nothing to judge its file by")
        else:
            left_out.append(case.name)
    save_program(trace(module, made, found), Path(program))
    problem = ModelProblem(name=module, inputs=found.specs, outputs=specs)
    golden = [entry.model_dump(mode="json") for entry in _entries(written, specs)]
    return {"problem": problem.as_dict(), "golden": golden, "left_out": left_out, "weights": _weights(made),
            "refuses_strides": refuses_strides}  # fmt: skip


def _refuse_large(arrays: Sequence[Mapping[str, Array]], outputs: Sequence[Sequence[Any]]) -> None:
    """Inputs and float64 outputs of all cases must fit into a bundle.

    Raises:
        InputError: they do not.
    """
    size_bytes = sum(array.nbytes for given in arrays for array in given.values())
    size_bytes += sum(8 * tensor.numel() for given in outputs for tensor in given)
    if size_bytes > MAX_BYTES:
        raise InputError(
            f"golden cases would take {size_bytes} bytes, at most {MAX_BYTES} are kept in a bundle; lower the max in "
            "[ranges]"
        )


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A case on disk, with what an output of it may differ by, how many rows it has and how many numbers a row."""

    case: Case
    file: str
    limits: Mapping[str, numerics.Limits]
    rows: Mapping[str, int]
    widths: Mapping[str, int]


def _write_case(
    case: Case, given: Mapping[str, Array], expected: Mapping[str, Array], own: Mapping[str, Array],
    specs: Sequence[TensorSpec], folder: Path,
) -> _Written:  # fmt: skip
    """One case as a file."""
    file = f"{GOLDEN}/{case.name}.npz"
    arrays = {f"in_{n}": a for n, a in given.items()} | {f"out_{n}": a for n, a in expected.items()}
    with writing(folder / file):
        (folder / file).write_bytes(as_npz(arrays))
    limits = {spec.name: limits_of(spec, own[spec.name], expected[spec.name]) for spec in specs}
    widths = {name: array.shape[-1] if array.ndim else 1 for name, array in expected.items()}
    rows = {name: max(1, array.size // widths[name]) for name, array in expected.items()}
    return _Written(case=case, file=file, limits=limits, rows=rows, widths=widths)


def _entries(written: Sequence[_Written], specs: Sequence[TensorSpec]) -> Iterator[Golden]:
    """The entries of bundle.json; where the rows of an output have few numbers, its largest limit of all cases holds.

    Of few numbers torch may be exact by luck, and a sum of them close to zero.
    """
    floats = [spec.name for spec in specs if is_float(spec)]
    largest = {n: max((made.limits[n] for made in written), key=lambda found: found.worst_row) for n in floats}
    largest = {n: replace(found, reason=f"{found.reason}, of all cases") for n, found in largest.items()}
    for made in written:
        limits = {**made.limits, **{n: largest[n] for n in floats if made.widths[n] < _NARROW}}
        yield Golden(
            file=made.file, sizes=made.case.sizes, limits={name: limit.worst_row for name, limit in limits.items()},
            gain_limits={name: limits[name].gain_of(made.rows[name]) for name in floats},
            reason="; ".join(f"{name}: {limit.reason}" for name, limit in limits.items()), reference=REFERENCE,
        )  # fmt: skip


def limits_of(spec: TensorSpec, own: Array, expected: Array) -> numerics.Limits:
    """What an output may differ by: from what torch is off by in the module's own dtype, and what the dtype can hold.

    A module of the user may be deeper than the block that was measured, so that there is no ceiling; where rows have
    very different sizes, an error that is usual in a large one is allowed in a small one.
    """
    if not is_float(spec):
        return numerics.Limits(worst_row=0.0, gain=0.0, reason="integers and booleans must be equal")
    due = np.atleast_1d(expected)
    eager = numerics.compare(np.atleast_1d(own), due)
    floor = numerics.floor_error(due, spec.dtype)
    data = numerics.tolerances()["block", spec.dtype, "normal"]
    sizes = np.sqrt((due.reshape(-1, due.shape[-1]) ** 2).sum(axis=-1))  # (rows,)
    smallest = float(sizes[sizes > 0].min()) if (sizes > 0).any() else 1.0
    typical = math.sqrt(float((sizes**2).mean())) or 1.0
    wanted = {
        f"{data.eager_factor:g} x torch eager": data.eager_factor * eager.worst_row_rel_err,
        "3 x floor": 3.0 * floor,
        "what eager may have": data.eager_factor / 2.0 * data.worst,
        f"{data.eager_factor:g} x torch eager of a typical row, in the smallest": (
            data.eager_factor * eager.rel_fro_err * typical / smallest
        ),
    }
    reason = max(wanted, key=lambda name: wanted[name])
    gain = max(data.gain_limit, data.eager_factor * eager.gain_err)
    return numerics.Limits(worst_row=wanted[reason], gain=gain, reason=reason)


def _weights(made: Any) -> dict[str, Any]:
    """How many tensors the module holds, how many names share one with another, their bytes and sizes."""
    named = list(made.named_parameters(remove_duplicate=False)) + list(made.named_buffers(remove_duplicate=False))
    distinct = {tensor.data_ptr(): tensor for _, tensor in named if tensor.numel()}
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())
    sizes = sorted({size for tensor in distinct.values() for size in tensor.shape})
    return {"names": len(named), "shared": len(named) - len(distinct), "size_bytes": size_bytes, "sizes": sizes}


def write(*, program: str, problem: dict[str, Any], exporter: str, opset: int | None, path: str) -> dict[str, Any]:
    """Write a traced module as an ONNX file by an exporter; {"opset": ...}.

    Raises:
        UnsupportedError: the exporter writes no modules of users, or not this one.
        ExportError: what came out is not what was asked.
    """
    import torch

    plugin = plugins.load_exporter(exporter)
    opsets = getattr(plugin, "program_opsets", None)
    if opsets is None:
        raise UnsupportedError(f"{exporter} writes the built-in block only, no module of yours; use onnx-attention")
    opset = opsets[0] if opset is None else opset
    plugin.export_program(torch.export.load(program), ModelProblem.from_dict(problem), opset, Path(path))  # type: ignore[attr-defined]
    return {"opset": opset}


def check(
    *, folder: str, plan: dict[str, Any], inputs: str, taken: dict[str, Any], seed: int, opset: int | None
) -> dict[str, Any]:
    """In a worker with the runtime: {"checks": entries of bundle.json}.

    Args:
        folder: that is to become the bundle.
        plan: what bundle.json will say of runtime, model, inputs and outputs.
        inputs: a `ModuleInputs` as JSON.
        taken: the answer of `take`.
        seed: of the inputs.
        opset: that was asked; None: the model is no ONNX file, so only its runs are looked at.

    Raises:
        AttnbenchError: as `checks.check_model`, or the runtime does not load the file.
    """
    found = ModuleInputs.model_validate_json(inputs)
    try:
        run = load(Path(folder), plan, {})
    except Fault as err:
        raise UnsupportedError(str(err)) from err
    masks = [
        name for name, tensor in found.inputs.items() if has_rows(tensor) and "rows-false" not in taken["left_out"]
    ]
    subject = Subject(
        path=Path(folder) / plan["model"], opset=opset or 0, inputs=[Tensor(**t) for t in plan["inputs"]],
        outputs=[Tensor(**t) for t in plan["outputs"]], example=found.examples,
        most={name: r.most for name, r in found.ranges.items()}, known_sizes=taken["weights"]["sizes"],
        least={name: r.least for name, r in found.ranges.items()}, source_bytes=taken["weights"]["size_bytes"],
        masks=masks,
    )  # fmt: skip

    def inputs_at(sizes: Mapping[str, int]) -> dict[str, Array]:
        made = make_arrays(found, Case(name="check", sizes=dict(sizes)), seed=seed)
        return {name: plain(array) for name, array in made.items()}

    look = check_running if opset is None else check_model
    return {"checks": [entry.model_dump(mode="json") for entry in look(subject, run, inputs_at)]}
