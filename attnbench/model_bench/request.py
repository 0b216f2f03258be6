"""What a user asks of a bench of their own model, as the manifest keeps it."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from attnbench.errors import InputError


class ModelRequest(BaseModel):
    """Which model, at which sizes, with which inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    onnx: Path | None = None
    engine: Path | None = None  # compiled from `onnx`, where both are given
    module: str | None = None  # package.module:Class
    inputs: Path | None = None  # of a module: inputs.toml
    bind: dict[str, str] = {}  # free dim -> T, T/2, ...
    sizes: dict[str, tuple[int, ...]] = {}  # free dim -> sizes to run at
    shapes: dict[str, tuple[int, ...]] = {}  # input -> its shape
    seq_lens: tuple[int, ...] = ()  # empty: the usual ones
    load_inputs: Path | None = None
    save_outputs: Path | None = None

    @model_validator(mode="after")
    def _names_one_model(self) -> "ModelRequest":
        if (self.onnx is None and self.engine is None) == (self.module is None):
            raise ValueError(
                "name one model: onnx=FILE, engine=FILE, both where the engine was compiled from the file, or "
                "module=PKG.MODULE:CLASS with inputs=FILE"
            )
        if (self.module is None) != (self.inputs is None):
            raise ValueError("module and inputs go together: inputs is the TOML file of what the module takes")
        return self

    @property
    def kind(self) -> Literal["onnx", "module", "engine"]:
        """What the model is; an engine beside a file is one more arm of the file."""
        return "module" if self.module is not None else "onnx" if self.onnx is not None else "engine"


def is_asked(given: dict[str, Any]) -> bool:
    """Is one of the arguments about a model of the user?"""
    return any(given.get(name) for name in ModelRequest.model_fields if name != "seq_lens")


def make_request(given: dict[str, Any]) -> ModelRequest:
    """The request of the arguments of `api.bench`, without those that are None.

    Raises:
        InputError: they contradict each other.
    """
    from pydantic import ValidationError

    fields = {name: given[name] for name in ModelRequest.model_fields if given.get(name) is not None}
    fields["sizes"] = {dim: (at,) if isinstance(at, int) else tuple(at) for dim, at in fields.get("sizes", {}).items()}
    try:
        return ModelRequest.model_validate(fields)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}") from err
