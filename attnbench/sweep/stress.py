"""`bench --stress`: every arm on inputs that are hard to compute with, each held to the band of `peaked` or `normal`.

What leaves the band is told, not failed: a format with few digits has to leave it somewhere, and where is the question.
"""

import math
from typing import Any

from attnbench.errors import AttnbenchError, WorkerError
from attnbench.inputs import stress_classes
from attnbench.measure.determinism import shortened
from attnbench.measure.numerics import Agreement
from attnbench.problem import Problem
from attnbench.sweep.bench import Bench, limits_of
from attnbench.sweep.cases import Case
from attnbench.sweep.workers import Worker

MOST_SCORES = 4_000_000  # scores of a problem that is tried as it is: 8 heads at T = 700, or one query and 500,000 keys
SHORT_LEN = 256  # others are tried at this T


class Stress:
    """The hard inputs of one problem, and the judge's outputs for them."""

    def __init__(self, bench: Bench, problem: Problem) -> None:
        self._bench = bench
        scores = problem.batch_size * problem.num_heads * problem.q_len * problem.kv_len
        self.problem = problem if scores <= MOST_SCORES else shortened(problem, SHORT_LEN)
        self.judges: dict[str, Any] = {}
        self.reason = ""
        try:
            self.judges = bench.reference(self.problem, stress_classes(self.problem))
        except AttnbenchError as err:
            self.reason = f"no reference for stress: {err}"

    def ask(self, case: Case, worker: Worker) -> None:
        """Run one arm on every class; the answers go to the case.

        Raises:
            WorkerError: the worker did not answer.
        """
        case.stress_reason = self.reason
        for name, judge in self.judges.items():
            try:
                case.stress[name] = self._part(worker, name, judge)
            except WorkerError:
                raise
            except AttnbenchError as err:
                case.stress_reason = f"inputs {name}: {err}"

    def _part(self, worker: Worker, name: str, judge: dict[str, Any]) -> float:
        """Worst row over what is allowed; infinite where the output is not a number."""
        found = worker.ask(
            "check", timeout_s=self._bench.sweep.timeout_s, problem=self.problem.as_dict(), input_class=name,
            reference=judge["path"], rows=judge["rows"],
        )  # fmt: skip
        error = Agreement(**found["agreement"]).worst_row_rel_err
        return math.inf if math.isnan(error) else error / limits_of(self.problem, judge, name).worst_row
