"""An arm that has its GPU alone: its worker lives for the visits of one round."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from attnbench.errors import MeasurementError
from attnbench.measure.timing import Visit
from attnbench.sweep.cases import ParkedArm
from attnbench.sweep.workers import Worker


@dataclass(kw_only=True)
class AloneArm:
    """What a lane visits, in a worker that is there within `turn` only.

    Every worker is checked before its visits and proved after them, as a parked one is once.
    """

    start: Callable[[], Worker]
    prepare: Callable[[Worker], None]  # load, check, warm up
    prove: Callable[[Worker, int], None]  # with the median of the turn in ns
    timeout_s: float
    _parked: ParkedArm | None = None
    _samples: list[int] = field(default_factory=list)  # of this turn, ns

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have a worker until its end.

        Raises:
            AttnbenchError: it does not start, answer, or compute what it should.
        """
        with self.start() as worker:
            self.prepare(worker)
            self._parked, self._samples = ParkedArm(worker=worker, timeout_s=self.timeout_s), []
            try:
                yield
            finally:
                self._parked = None
            self.prove(worker, int(statistics.median(self._samples)))

    def visit(self, *, drop: int, keep: int) -> Visit:
        """One visit.

        Raises:
            MeasurementError: it is nobody's turn.
            WorkerError: the worker does not answer.
        """
        if self._parked is None:
            raise MeasurementError("an arm that has its GPU alone is visited within its turn only")
        found = self._parked.visit(drop=drop, keep=keep)
        self._samples += found.samples_ns
        return found
