"""An engine of the user: copied before anything opens it, opened in a worker, held to its profiles and to its file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.deploy.shop import Shop
from attnbench.engine_facts import EngineFacts
from attnbench.errors import AttnbenchError, InputError, UnavailableError, WorkerError
from attnbench.interfaces import Probe
from attnbench.model_problem import ModelProblem

ENGINE = "engine"  # the "exporter" of an engine of the user
RUNTIMES = ("tensorrt", "tensorrt-rtx")  # ours that open engines, the usual one first
_FOLDER, _COPY = "engine", "engine.plan"  # of the copy, whatever the user's file is called
_FIRST_GPU = "cuda:0"


@dataclass(frozen=True, kw_only=True)
class StagedEngine:
    """An engine in the model's folder, and what it says of itself."""

    name: str  # of the user's file
    file: str  # of the copy, in the folder
    size_bytes: int
    facts: EngineFacts | None  # None: it could not be opened here, and `why_unread` says why
    why_unread: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return {**vars(self), "facts": None if self.facts is None else self.facts.as_dict()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "StagedEngine":
        """The inverse of `as_dict`, also after JSON."""
        facts = fields["facts"]
        return cls(**{**fields, "facts": None if facts is None else EngineFacts.from_dict(facts)})

    def refuse_outside(self, problems: Iterable[ModelProblem]) -> None:
        """Every size must be in a profile.

        Raises:
            InputError: one is not; the message has the ranges that there are.
        """
        for problem in problems:
            shapes = problem.input_shapes()
            if self.facts is not None and self.facts.profile_for(shapes) is None:
                raise InputError(f"--engine {self.name!r}: {self.facts.why_outside(shapes)}")


def stage_engine(
    path: Path, shop: Shop, folder: Path, *, runtimes: Sequence[str], device: str, is_alone: bool
) -> StagedEngine:
    """Copy an engine into the model's folder and open it in a worker, where a GPU for it is here.

    Args:
        path: of the user's file.
        shop: of workers with a memory limit: an engine is code, and only they open it.
        folder: of the model.
        runtimes: that were asked for; the first that opens engines does.
        device: as asked for the run.
        is_alone: nothing else says what the model takes and gives.

    Raises:
        InputError: no runtime of this environment was asked for.
        UnavailableError: it is alone, and cannot be opened here.
        AttnbenchError: as `engine_tasks.take`, with the name that the user gave.
        WorkerError: the worker that opened it ended, or failed in another way.
    """
    here = [name for name in runtimes if "@" not in name]
    if not here:
        raise InputError(
            f"--engine is opened in this environment first, and {', '.join(runtimes)} is of another; add tensorrt or "
            "tensorrt-rtx"
        )
    (folder / _FOLDER).mkdir(mode=0o700)
    copy = folder / _FOLDER / _COPY
    facts, why = None, ""
    try:
        answer = shop.ask(
            "attnbench.model_bench.engine_tasks:take", preload=(), path=str(path), to=str(copy),
            runtimes=here, device=device if device.startswith("cuda") else _FIRST_GPU,
        )  # fmt: skip
        facts = EngineFacts.from_dict(answer["facts"])
    except UnavailableError as err:
        why = _named(err, copy, path)
        if is_alone:
            raise UnavailableError(why) from err
    except WorkerError as err:
        raise type(err)(f"--engine {str(path)!r} cannot be opened: {_named(err, copy, path)}") from err
    except AttnbenchError as err:
        raise type(err)(_named(err, copy, path)) from err
    return StagedEngine(
        name=path.name, file=f"{_FOLDER}/{_COPY}", size_bytes=copy.stat().st_size, facts=facts, why_unread=why
    )


def _named(err: AttnbenchError, copy: Path, path: Path) -> str:
    """The message with the user's name for the copy, which is gone by the time that this is read."""
    return str(err).replace(repr(str(copy)), f"--engine {str(path)!r}")


def opens(exporter: str, probe: Probe) -> bool:
    """Where a file is given beside an engine: runtimes that open engines run the engine, all others the file."""
    return (exporter == ENGINE) == bool(probe.traits.get("opens_engines"))
