"""One case while it is being run: what is known of it so far, and what ended it."""

from dataclasses import dataclass, field
from typing import Any

from attnbench.errors import (
    AttnbenchError,
    UnavailableError,
    UnsupportedError,
    WorkerCrashed,
    WorkerOutOfMemory,
    WorkerTimeout,
)
from attnbench.measure.numerics import Agreement, Limits
from attnbench.measure.timing import Visit
from attnbench.model_problem import AnyProblem
from attnbench.records import Status
from attnbench.sweep.grid import Arm
from attnbench.sweep.rounds import Lane
from attnbench.sweep.workers import Worker

# The worker names the exception; these mean that it ran and was wrong.
WRONG = ("WrongOutputError", "DishonestError", "ShapeMismatch")


@dataclass(kw_only=True)
class Exported:
    """A verified artifact, as JSON, and what making it took."""

    artifact: dict[str, Any]
    export_ms: float | None  # None: the file was there
    verified: str  # "ort-cpu at T = 1, 5, 33", or "unverified: reason"


@dataclass(kw_only=True)
class Case:
    """One problem x one arm. `status` stays None until something decides it."""

    problem: AnyProblem
    arm: Arm
    status: Status | None = None
    reason: str = ""
    exported: Exported | None = None
    agreements: dict[str, Agreement] = field(default_factory=dict)  # input class -> agreement
    limits: dict[str, Limits] = field(default_factory=dict)
    floor: float | None = None  # of the normal class
    eager_error: float | None = None  # of the normal class
    determinism: dict[str, bool | None] = field(default_factory=dict)  # property -> answer
    determinism_reasons: dict[str, str] = field(default_factory=dict)  # why an answer is None
    stress: dict[str, float] = field(default_factory=dict)  # class of inputs -> measured / allowed
    stress_reason: str = "--stress was not asked"  # why there is none
    output: str | None = None  # of a model: the one that the agreement is about
    flags: list[str] = field(default_factory=list)  # that are known before it is timed
    numerics_reason: str = ""  # why the columns of numerics are empty, where they are on purpose
    facts: dict[str, Any] = field(default_factory=dict)
    lane: Lane | None = None
    load_ms: float | None = None
    first_call_ms: float | None = None
    build_ms: float | None = None
    planned_activation_bytes: int | None = None  # of a case that is only compiled
    engine_bytes: int | None = None  # of the same
    check_ns: int = 0  # of the check's last call, on inputs that the worker had not seen
    peak_host_bytes: int | None = None
    kept_host_bytes: int | None = None
    memory_reason: str = ""  # why the memory cells are empty
    device_peak: dict[str, Any] = field(default_factory=dict)  # on a GPU (`device_memory.DevicePeak`)
    started_at_utc: str = ""

    @property
    def case_id(self) -> str:
        """Of the record that this becomes."""
        return self.arm.case_id(self.problem)

    @property
    def is_open(self) -> bool:
        """Whether nothing has decided it yet."""
        return self.status is None

    def decide(self, status: Status, reason: str) -> None:
        """Set the status; the first decision stands."""
        if self.status is None:
            plain = "".join(char if char.isprintable() else " " for char in reason)
            self.status, self.reason = status, " ".join(plain.split())[:1000]

    def fail(self, err: AttnbenchError, during: str = "") -> None:
        """Decide by an error: its class says the status, its message the reason."""
        self.decide(status_of(err), f"{during}: {err}" if during else str(err))


def status_of(err: AttnbenchError) -> Status:
    """The status that an error means."""
    for kind, status in _STATUS_OF.items():
        if isinstance(err, kind):
            return status
    return "mismatch" if str(err).startswith(WRONG) else "error"


_STATUS_OF: dict[type[AttnbenchError], Status] = {
    UnsupportedError: "unsupported",
    UnavailableError: "unavailable",
    WorkerOutOfMemory: "oom",
    WorkerTimeout: "timeout",
    WorkerCrashed: "crashed",
}


@dataclass(kw_only=True)
class ParkedArm:
    """A loaded, checked arm in its worker: what the rounds visit."""

    worker: Worker
    timeout_s: float

    def visit(self, *, drop: int, keep: int) -> Visit:
        """One visit."""
        return Visit(**self.worker.ask("visit", timeout_s=self.timeout_s, drop=drop, keep=keep))
