"""From a request to a run that is ready: the model staged, its sizes known, the arms formed."""

import contextlib
import functools
import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnbench import plugins
from attnbench.deploy.module_inputs import ModuleInputs
from attnbench.deploy.shop import open_shop
from attnbench.errors import InputError, RecordsError
from attnbench.interfaces import Probe
from attnbench.model_bench import engines
from attnbench.model_bench.bench import FILE, INPUTS_FILE, ModelBench
from attnbench.model_bench.engines import ENGINE
from attnbench.model_bench.request import ModelRequest
from attnbench.model_bench.runtimes import require_one
from attnbench.model_bench.source import FOLDER, Source, restore, stage
from attnbench.model_problem import AnyProblem, ModelProblem
from attnbench.sweep import grid, runner, runtime_options
from attnbench.sweep.grid import Sweep
from attnbench.sweep.model_arrays import array_shapes, load_arrays
from attnbench.sweep.model_sizes import problems_of
from attnbench.sweep.rundir import RunDirectory

RUNTIMES = {
    "onnx": ("ort-cpu", "openvino"), "module": ("torch-eager", "ort-cpu", "openvino"), "engine": engines.RUNTIMES[:1]
}  # fmt: skip
EXPORTERS = {"onnx": (FILE,), "module": ("onnx-decomposed", "onnx-attention"), "engine": (ENGINE,)}
# Of the built-in attention alone: a model says itself what it computes and at which sizes.
NOT_OF_MODELS = (
    "preset", "part", "variants", "kv_lens", "q_lens", "batch_sizes", "num_heads", "head_dims", "dtypes", "masks",
    "num_kv_heads", "v_head_dims", "scale", "bias", "value_map", "refine", "stress", "measure_frontier",
    "memory_budget_bytes",
)  # fmt: skip


@contextlib.contextmanager
def prepare(request: ModelRequest, sweep: str | Path | None, given: Mapping[str, Any]) -> Iterator[runner.Prepared]:
    """A run of a model; nothing is written but to a folder that is gone when this ends.

    Args:
        request: which model, at which sizes.
        sweep: must be None.
        given: of `grid.Sweep`, what was given.

    Raises:
        InputError: a wrong value, or one that only the built-in attention has.
        AttnbenchError: as `source.stage`.
    """
    started_s = time.monotonic()
    settings = _sweep_of(request, sweep, given)
    with tempfile.TemporaryDirectory(prefix="attnbench-model-") as folder:
        with open_shop(settings.memory_limit_bytes) as shop:
            source = stage(
                request, shop, Path(folder) / FOLDER, settings.seed, runtimes=_filled(settings, request).runtimes,
                device=settings.device,
            )  # fmt: skip
        problems = _problems(request, source)
        if request.load_inputs is not None:
            problems = _with_inputs(request.load_inputs, problems, source.folder / INPUTS_FILE)
        yield _prepared(request, settings, source, problems, started_s)


def resume(path: Path, *, time_budget_s: float | None = None) -> tuple[RunDirectory, runner.Prepared]:
    """An interrupted run of a model, ready to go on with the files that it began with.

    Raises:
        RecordsError: as `runner.resume`, or the model's files were changed or never arrived.
    """
    started_s = time.monotonic()
    run_dir, manifest, sweep = runner.reopen(path, time_budget_s=time_budget_s)
    model = manifest["model"]
    folder = path / "artifacts" / FOLDER
    if not folder.is_dir():
        raise RecordsError(f"{str(path)!r} was interrupted before its model was in it: start a new run")
    source = restore(folder, model["facts"])
    request = ModelRequest.model_validate(model["request"])
    problems = [ModelProblem.from_dict(fields) for fields in model["problems"]]
    _require_inputs(problems, folder / INPUTS_FILE)
    return run_dir, _prepared(request, sweep, source, problems, started_s)


def _sweep_of(request: ModelRequest, sweep: str | Path | None, given: Mapping[str, Any]) -> Sweep:
    wrong = [name for name in NOT_OF_MODELS if given.get(name)] + (["sweep"] if sweep is not None else [])
    if wrong:
        raise InputError(
            f"{', '.join(wrong)} is of the built-in attention, not of a model of yours; its sizes are set by bind, "
            "sizes and shapes"
        )
    if request.kind != "module" and (given.get("exporters") or given.get("opset")):
        raise InputError(
            "exporters and opset are for what is exported, and the model is a file already; leave them out"
        )
    kind = request.kind
    fields = {
        "name": "model", **{name: value for name, value in given.items() if name != "seq_lens"}
    }  # fmt: skip
    if "baseline" not in fields:
        named = given.get("runtimes") or RUNTIMES[kind]
        first = min(named, key=lambda name: kind == "onnx" and request.engine is not None and name in engines.RUNTIMES)
        exporter = (given.get("exporters") or EXPORTERS[kind])[0]
        # What is only compiled is compared with nothing: a baseline without its options would be one more row.
        asked = runtime_options.combinations(given.get("options") or (), first)[0]
        options = asked if first == grid.DEFAULT_COMPILER else ()
        exporter = grid.TORCH if first.startswith("torch-") else exporter
        fields["baseline"] = grid.Arm(exporter=exporter, runtime=first, options=options).asked
    return grid.validate(fields, where="bench of a model")


def _filled(sweep: Sweep, request: ModelRequest) -> Sweep:
    """With the runtimes and exporters of a model where none are named: only what is named has to be there.

    The compiler is added only where it is asked for an architecture: what a model costs to compile nobody knows.
    """
    compilers = (
        (grid.DEFAULT_COMPILER,) if any(o.startswith(f"{grid.DEFAULT_COMPILER}:") for o in sweep.options) else ()
    )
    runtimes, exporters = RUNTIMES[request.kind], EXPORTERS[request.kind]
    if request.kind == "onnx" and request.engine is not None:
        runtimes, exporters = (*runtimes, *RUNTIMES["engine"]), (*exporters, ENGINE)
    usual = {"runtimes": sweep.runtimes or (*runtimes, *compilers), "exporters": sweep.exporters or exporters}
    return sweep.model_copy(update=usual)


def _problems(request: ModelRequest, source: Source) -> list[ModelProblem]:
    shapes = dict(request.shapes)
    if request.load_inputs is not None:
        shapes = {**array_shapes(request.load_inputs), **shapes}
        known = {tensor.name for tensor in source.inputs}
        shapes = {name: shape for name, shape in shapes.items() if name in known or name in request.shapes}
    try:
        found = problems_of(
            source.name, source.inputs, source.outputs, bind=request.bind, sizes=request.sizes, shapes=shapes,
            seq_lens=request.seq_lens,
        )  # fmt: skip
    except InputError as err:
        if source.engine is None or source.engine.facts is None:
            raise
        raise InputError(f"{err}; the engine takes {source.engine.facts.ranges()}") from err
    if source.engine is not None:
        source.engine.refuse_outside(found)
    if source.module is not None:
        _refuse_outside(ModuleInputs.model_validate_json(source.module["inputs"]), found)
    if request.save_outputs is not None and len(found) > 1:
        raise InputError(f"--save-outputs needs one size, got {len(found)}; give one T and one size of each free dim")
    return [replace(problem, precision=source.precision) for problem in found]


def _refuse_outside(inputs: ModuleInputs, problems: list[ModelProblem]) -> None:
    """A trace holds for the sizes that it was made for.

    Raises:
        InputError: a size is outside its range.
    """
    for problem in problems:
        for dim, size in problem.sizes.items():
            least, most = inputs.ranges[dim].least, inputs.ranges[dim].most
            if not least <= size <= most:
                raise InputError(
                    f"{dim} = {size} is outside its range of {least} to {most} in the file of --inputs; write "
                    f"[ranges.{dim}] with {'max' if size > most else 'min'} = {size} there"
                )


def _with_inputs(path: Path, problems: list[ModelProblem], copy: Path) -> list[ModelProblem]:
    """The problem with the arrays of a file, of which a copy is taken.

    Raises:
        InputError: there are several sizes, or the file does not fit the model.
    """
    if len(problems) > 1:
        raise InputError(f"--load-inputs gives arrays of one size, the sweep has {len(problems)}; leave --bind out")
    try:
        shutil.copyfile(path, copy)
    except OSError as err:
        raise InputError(f"--load-inputs {str(path)!r} cannot be read: {err.strerror}") from err
    load_arrays(copy, problems[0].inputs, problems[0].input_shapes(), shown=path)
    return [replace(problems[0], inputs_sha256=_sha256(copy))]


def _require_inputs(problems: list[ModelProblem], path: Path) -> None:
    for due in {problem.inputs_sha256 for problem in problems} - {""}:
        if not path.is_file() or _sha256(path) != due:
            raise RecordsError(f"{str(path)!r} is not what the run began with; start a new run")


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _prepared(
    request: ModelRequest, sweep: Sweep, source: Source, problems: list[ModelProblem], started_s: float
) -> runner.Prepared:
    found: list[AnyProblem] = list(problems)
    filled = _filled(sweep, request)
    runs = engines.opens if request.kind == "onnx" and request.engine is not None else None
    prepared = runner.prepare_arms(filled, found, _exporter_probes(request, filled), started_s, runs=runs)
    require_one(prepared.runtime_probes, request.kind)
    as_labels = {"baseline": prepared.sweep.baseline, "require": prepared.sweep.require}
    prepared.sweep = sweep = sweep.model_copy(update=as_labels)
    prepared.make_bench = functools.partial(
        ModelBench, source=source, bind=request.bind, has_inputs=request.load_inputs is not None,
        keeps_outputs=request.save_outputs is not None,
    )  # fmt: skip
    prepared.model = {
        "request": request.model_dump(mode="json"), "facts": source.facts(),
        "problems": [problem.as_dict() for problem in problems], "bound": problems[0].bound,
    }  # fmt: skip
    prepared.plan = replace(
        prepared.plan, sweep=sweep, notices=(*prepared.plan.notices, *_notices(source, problems[0]))
    )
    return prepared


def _exporter_probes(request: ModelRequest, sweep: Sweep) -> dict[str, Probe]:
    if request.kind != "module":
        return {name: Probe(available=True, version="") for name in sweep.exporters}
    for name in sweep.exporters:
        plugins.find("exporter", name)
    return dict(plugins.probe_all("exporter", sweep.exporters))


def _notices(source: Source, problem: ModelProblem) -> Iterator[str]:
    """What a reader has to know of the inputs and of the judge."""
    integers = [tensor for tensor in problem.inputs if tensor.dtype.startswith("int")]
    if integers and source.kind != "module" and not problem.inputs_sha256:
        ranges = ", ".join(f"{tensor.name} from {tensor.least} to {tensor.most}" for tensor in integers)
        yield f"integer inputs are drawn evenly: {ranges}; --load-inputs FILE.npz gives others"
    if source.engine is not None and source.engine.why_unread:
        yield f"the engine was not opened, so its sizes were not compared: {source.engine.why_unread}"
    if source.kind == "engine":
        yield (
            "an engine alone has nothing that it is compared with; with --onnx FILE, from which it was compiled, other "
            "runtimes judge it"
        )
    elif source.kind == "onnx":
        yield (
            "a file has no float64 reference: arms are compared with the first that runs it, which says that they "
            "agree and not that they are right"
        )
