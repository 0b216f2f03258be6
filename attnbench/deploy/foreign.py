"""Loading a model from elsewhere: copied, looked at, and only then shown to a runtime, in a worker with limits."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnbench.deploy.shop import Shop
from attnbench.deploy.verify_runtimes import failures
from attnbench.errors import InputError, UnsupportedError, UntrustedModelError
from attnbench.sweep.log import looks_like_oom
from attnbench.untrusted import ModelFacts, StoredTensor, Value, snapshot_model
from attnbench.untrusted.onnx_file import MAX_BYTES

Names = tuple[list[str], list[str]]  # of inputs and outputs


def load_foreign(
    shop: Shop, path: Path, into: Path, *, module: str | None = None, max_bytes: int = MAX_BYTES
) -> tuple[Path, ModelFacts]:
    """Copy a model into a private folder, inspect the copy and load it once, all in a worker.

    What may go wrong ends there: the worker has the memory limit and the deadline of the shop. Use the copy from here
    on, in workers too: loading says nothing of what a call will ask for.

    Args:
        shop: of workers.
        path: the .onnx.
        into: a folder that does not exist yet.
        module: `onnxruntime` or `openvino`, that has to load it; None: it is only inspected.
        max_bytes: of the model and its data together.

    Returns:
        The .onnx in the copy, and what is known of it.

    Raises:
        UntrustedModelError: it is refused before a runtime sees it, or a runtime reads it differently.
        UnsupportedError: the runtime does not load it; its words.
        WorkerError: the worker ran out of memory or time, or crashed.
    """
    answer = shop.ask(
        "attnbench.deploy.foreign:inspect_and_load", preload=() if module is None else (module,), path=str(path),
        into=str(into), module=module, max_bytes=max_bytes,
    )  # fmt: skip
    return Path(answer["path"]), _facts(answer["facts"])


def inspect_and_load(*, path: str, into: str, module: str | None, max_bytes: int) -> dict[str, Any]:
    """In a worker: {"path": of the copy, "facts": of it}.

    Raises:
        UntrustedModelError: as `load_foreign`.
        UnsupportedError: as `load_foreign`.
        InputError: the copy cannot be written.
    """
    try:
        copy, facts = snapshot_model(Path(path), Path(into), max_bytes=max_bytes)
    except OSError as err:
        raise InputError(f"{path!r} cannot be copied to {into!r}: {err.strerror}; name a folder with room") from err
    if module is not None:
        _require_same(facts, _names(copy, module), module)
    return {"path": str(copy), "facts": asdict(facts)}


def _names(path: Path, module: str) -> Names:
    """The inputs and outputs that a runtime finds in a file.

    Raises:
        UnsupportedError: it does not load it.
        MemoryError: it asks for more than the worker may have.
    """
    try:
        return _LOADERS[module](path)
    except failures() as err:
        words = " ".join(str(err).split())[:400] or type(err).__name__
        if isinstance(err, MemoryError) or looks_like_oom(words):
            raise MemoryError(f"{module} loads {path.name!r} only with more memory: {words}") from err
        raise UnsupportedError(f"{module} does not load {path.name!r}: {words}") from err


def _by_onnxruntime(path: Path) -> Names:
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]


def _by_openvino(path: Path) -> Names:
    ov: Any = importlib.import_module("openvino")
    model = ov.Core().read_model(str(path))
    ov.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})
    return [port.any_name for port in model.inputs], [port.any_name for port in model.outputs]


_LOADERS: Mapping[str, Callable[[Path], Names]] = {"onnxruntime": _by_onnxruntime, "openvino": _by_openvino}


def _require_same(facts: ModelFacts, found: Names, module: str) -> None:
    """A runtime that reads other inputs or outputs than were inspected reads another model."""
    inspected = ([value.name for value in facts.inputs], [value.name for value in facts.outputs])
    if tuple(map(sorted, found)) != tuple(map(sorted, inspected)):
        raise UntrustedModelError(
            f"{module} finds inputs and outputs {found}, the file says {inspected}: it is read in two ways; "
            "export it again"
        )


def _facts(told: Mapping[str, Any]) -> ModelFacts:
    """What came from the worker as JSON, as facts again."""

    def value(fields: Mapping[str, Any]) -> Value:
        dims = fields["dims"]
        return Value(name=fields["name"], dtype=fields["dtype"], dims=None if dims is None else tuple(dims))

    def tensor(fields: Mapping[str, Any]) -> StoredTensor:
        values = None if fields["values"] is None else tuple(fields["values"])
        return StoredTensor(**{**fields, "dims": tuple(fields["dims"]), "values": values})

    made = {
        "inputs": tuple(map(value, told["inputs"])), "outputs": tuple(map(value, told["outputs"])),
        "tensors": tuple(map(tensor, told["tensors"])), "functions": tuple(told["functions"]),
        "custom_domains": tuple(told["custom_domains"]),
    }  # fmt: skip
    return ModelFacts(**{**told, **made})
