"""The model itself: copied, read or traced into a folder of its own before anything runs it, and found there again."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.deploy.foreign import load_foreign
from attnbench.deploy.module_inputs import cases_of, read_inputs
from attnbench.deploy.shop import WITH_EXPORTERS, Shop
from attnbench.errors import InputError, RecordsError, UntrustedModelError
from attnbench.files import write_bytes
from attnbench.model_bench.engines import StagedEngine, stage_engine
from attnbench.model_bench.request import ModelRequest
from attnbench.model_problem import ANY_RANK, DTYPES, FLOATS, ModelProblem, TensorSpec
from attnbench.untrusted import ModelFacts, Value

FOLDER = "model"  # in artifacts/ of a run
_FACTS, _PROGRAM, _COPY = "facts.json", "program.pt2", "file"
MEMORY_LIMIT_BYTES = 16 << 30  # of a worker that loads a file from elsewhere, unless the user gives another


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model whose files lie in `folder`: an ONNX file with its data, a traced module, an engine."""

    folder: Path
    kind: str  # onnx, module, engine
    name: str
    file: str  # in the folder: the .onnx, the program, or the engine
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str  # the coarsest dtype of weights; of a module: of its tensors
    opset: int  # 0: no ONNX file
    size_bytes: int  # data beside the file included
    sha256: Mapping[str, str]  # of every file in the folder
    module: Mapping[str, Any] | None = None  # what a worker needs to run the module again
    engine: StagedEngine | None = None  # compiled from the file, or alone

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / self.file

    def facts(self) -> dict[str, Any]:
        """What the manifest keeps."""
        problem = ModelProblem(name=self.name, inputs=self.inputs, outputs=self.outputs).as_dict()
        same = ("kind", "name", "file", "precision", "opset", "size_bytes", "sha256", "module")
        engine = None if self.engine is None else self.engine.as_dict()
        tensors = {key: problem[key] for key in ("inputs", "outputs")}
        return {name: getattr(self, name) for name in same} | tensors | {"engine": engine}

    def moved_to(self, folder: Path) -> "Source":
        """The same with its files in another folder, which must not exist yet.

        Raises:
            InputError: they cannot be moved.
        """
        try:
            shutil.move(self.folder, folder)
        except OSError as err:
            # To another disk it goes file by file: then the error is a list of (from, to, why).
            why = err.args[0][0][2] if isinstance(err, shutil.Error) else err.strerror
            raise InputError(f"the model cannot be written to {str(folder)!r}: {why}; make room there") from err
        return replace(self, folder=folder)


def stage(
    request: ModelRequest, shop: Shop, folder: Path, seed: int, *, runtimes: Sequence[str] = (), device: str = "auto"
) -> Source:
    """Bring the model into a folder: a file is copied and inspected, an engine copied and opened, a module traced.

    Args:
        request: names the model.
        shop: of workers with a memory limit; in them all of it is done.
        folder: that does not exist yet.
        seed: of a module's weights that no file gives, and of its inputs.
        runtimes: of the run; the first that opens engines opens one.
        device: of the run.

    Raises:
        UntrustedModelError: the file is refused before a runtime sees it.
        AttnbenchError: what is wrong with the module, with the line.
        InputError: a tensor that cannot be bound, or an engine of another model than the file.
    """
    if request.kind == "engine":
        folder.mkdir(mode=0o700)
        source = _alone(_stage_engine(request, shop, folder, runtimes, device), folder)
    elif request.kind == "module":
        source = _stage_module(request, shop, folder, seed)
    else:
        source = _stage_file(request, shop, folder)
        if request.engine is not None:
            source = _beside(source, _stage_engine(request, shop, folder, runtimes, device))
    write_bytes(folder / _FACTS, json.dumps(source.facts(), indent=1).encode())
    return source


def restore(folder: Path, facts: Mapping[str, Any]) -> Source:
    """The model of an interrupted run; its files must be those that the run began with.

    Raises:
        RecordsError: one is missing or was changed.
    """
    for name, due in facts["sha256"].items():
        path = folder / name
        found = _sha256(path) if path.is_file() else "missing"
        if found != due:
            raise RecordsError(
                f"{str(path)!r} is {found[:12]}, the run began with {due[:12]}: the model was changed; start a new run"
            )
    model = ModelProblem.from_dict(
        {"name": facts["name"], "inputs": facts["inputs"], "outputs": facts["outputs"], "sizes": {}}
    )
    same = ("kind", "name", "file", "precision", "opset", "size_bytes", "sha256", "module")
    engine = None if facts.get("engine") is None else StagedEngine.from_dict(facts["engine"])
    return Source(
        folder=folder, inputs=model.inputs, outputs=model.outputs, engine=engine, **{name: facts[name] for name in same}
    )


def _stage_engine(
    request: ModelRequest, shop: Shop, folder: Path, runtimes: Sequence[str], device: str
) -> StagedEngine:
    assert request.engine is not None
    is_alone = request.kind == "engine"
    return stage_engine(request.engine, shop, folder, runtimes=runtimes, device=device, is_alone=is_alone)


def _alone(engine: StagedEngine, folder: Path) -> Source:
    """An engine that says itself what it takes and gives."""
    assert engine.facts is not None
    return Source(
        folder=folder, kind="engine", name=engine.name, file=engine.file, inputs=engine.facts.inputs,
        outputs=engine.facts.outputs, precision="", opset=0, size_bytes=engine.size_bytes, sha256=_digests(folder),
        engine=engine,
    )  # fmt: skip


def _beside(source: Source, engine: StagedEngine) -> Source:
    """A file with the engine that was compiled from it.

    Raises:
        InputError: the engine has other inputs or outputs.
    """
    if engine.facts is not None:
        engine.facts.require_same(source.inputs, source.outputs)
    return replace(source, engine=engine, sha256=_digests(source.folder))


def _stage_file(request: ModelRequest, shop: Shop, folder: Path) -> Source:
    assert request.onnx is not None
    folder.mkdir(mode=0o700)
    try:
        copy, facts = load_foreign(shop, request.onnx, folder / _COPY)
    except UntrustedModelError as err:  # it names the copy, which is gone by the time that this is read
        told = str(err).replace(str(folder / _COPY / request.onnx.name), str(request.onnx))
        raise UntrustedModelError(told) from err
    return Source(
        folder=folder, kind="onnx", name=request.onnx.name, file=f"{_COPY}/{copy.name}",
        inputs=_with_tables(shop, copy, [_spec(value, "input") for value in _with_ranks(facts, request.shapes)]),
        outputs=tuple(_spec(value, "output") for value in facts.outputs),
        precision=_precision(facts), opset=facts.opsets.get("", facts.opsets.get("ai.onnx", 0)),
        size_bytes=facts.size_bytes + sum(facts.files.values()), sha256=_digests(folder),
    )  # fmt: skip


def _with_tables(shop: Shop, path: Path, inputs: list[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Integers that choose rows of a table of the file may choose any, others are 0 or 1."""
    if not any(tensor.dtype.startswith("int") for tensor in inputs):
        return tuple(inputs)
    sizes = shop.ask("attnbench.model_bench.tables:table_sizes", preload=("onnx",), path=str(path))["sizes"]
    return tuple(
        replace(tensor, most=sizes[tensor.name] - 1)
        if tensor.name in sizes and tensor.dtype.startswith("int")
        else tensor
        for tensor in inputs
    )


def _with_ranks(facts: ModelFacts, shapes: Mapping[str, tuple[int, ...]]) -> list[Value]:
    """The inputs; where the file does not say how many dims one has, a given shape does.

    Raises:
        InputError: neither does.
    """
    made = []
    for value in facts.inputs:
        _require_tensor(value, "input")
        dims = value.dims
        if dims is None and value.name in shapes:
            dims = shapes[value.name]
        if dims is None:
            raise InputError(
                f"the file does not say how many dims input {value.name!r} has; give its shape, such as "
                f"--shapes {value.name}:1x8"
            )
        made.append(Value(name=value.name, dtype=value.dtype, dims=dims))
    return made


def _spec(value: Value, what: str) -> TensorSpec:
    """An input or output; free dims without a name are called after it.

    Raises:
        InputError: a dtype that no runtime here is given.
    """
    _require_tensor(value, what)
    if value.dims is None:
        return TensorSpec(name=value.name, dtype=value.dtype, dims=ANY_RANK)
    known = [None if isinstance(dim, int) and dim < 0 else dim for dim in value.dims]  # some writers mean any by -1
    dims = tuple(f"{value.name}_dim{axis}" if dim is None else dim for axis, dim in enumerate(known))
    return TensorSpec(name=value.name, dtype=value.dtype, dims=dims)


def _require_tensor(value: Value, what: str) -> None:
    known = ", ".join(DTYPES)
    if value.dtype == "unknown":
        raise InputError(
            f"{what} {value.name!r} is no tensor of a known dtype, but perhaps a sequence or an optional; models whose "
            f"inputs and outputs are tensors of {known} can be benched"
        )
    if value.dtype not in DTYPES:
        raise InputError(f"{what} {value.name!r} is of {value.dtype}; models with {known} can be benched")


def _precision(facts: ModelFacts) -> str:
    """The coarsest floating-point dtype among the weights."""
    there = {tensor.dtype for tensor in facts.tensors}
    return next((dtype for dtype in reversed(FLOATS) if dtype in there), "")


def _stage_module(request: ModelRequest, shop: Shop, folder: Path, seed: int) -> Source:
    assert request.module is not None
    assert request.inputs is not None
    inputs = read_inputs(request.inputs)
    cases_of(inputs)  # refuses what is wrong with them before anything runs
    folder.mkdir(mode=0o700)
    module = {
        "module": request.module,
        "inputs": inputs.model_dump_json(by_alias=True),
        "start": str(Path.cwd()),
        "seed": seed,
    }
    taken = shop.ask(
        "attnbench.model_bench.module_tasks:take", preload=WITH_EXPORTERS, program=str(folder / _PROGRAM), **module
    )  # fmt: skip
    problem = ModelProblem.from_dict(taken["problem"])
    return Source(
        folder=folder, kind="module", name=request.module, file=_PROGRAM, inputs=problem.inputs,
        outputs=problem.outputs, precision=inputs.cast_to or "", opset=0,
        size_bytes=(folder / _PROGRAM).stat().st_size, sha256=_digests(folder), module=module,
    )  # fmt: skip


def _digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file in a folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
