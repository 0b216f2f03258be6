"""Where a sweep would learn most next: the T at which a crossing of two arms is least well known."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attnbench.analysis.crossovers import Crossing, Rounds, pairs
from attnbench.analysis.groups import Panel, make_panels
from attnbench.analysis.rounds import block_medians
from attnbench.measure import verdicts
from attnbench.problem import Problem
from attnbench.records import Record, known_size

NARROW = 1.1  # a crossing known to within 10 % from end to end needs no more
NEAR = 1.03  # a T this near to a measured one would tell nothing new
STEP = 8  # T above 64 are taken as multiples of it, as people do


def next_problem(records: list[Record], samples: Path, problems: Mapping[str, Problem]) -> Problem | None:
    """The problem at the T that narrows the widest interval of a crossing; None where all are narrow.

    Args:
        records: of the run so far.
        samples: the folder of its raw samples.
        problems: problem_id -> problem, of the records.
    """
    judged, noise = verdicts.judge(records)
    rounds = _rounds(judged, samples)
    found: list[tuple[float, Panel, int]] = []
    for panel in make_panels(judged):
        for pair in pairs(panel, noise.floor, rounds):
            for crossing in pair.crossings:
                seq_len = place(crossing, panel.xs)
                if seq_len is not None and kv_len_at(panel) is not None:
                    found.append((crossing.at.high / crossing.at.low, panel, seq_len))
    if not found:
        return None
    _, panel, seq_len = max(found, key=lambda item: item[0])
    rule = kv_len_at(panel)
    example = problems[panel.records[0].problem_id]
    return example.at(q_len=seq_len, kv_len=rule(seq_len) if rule is not None else None)


def _rounds(records: Sequence[Record], samples: Path) -> Rounds:
    found: Rounds = {}
    for run_id in dict.fromkeys(r.run_id for r in records):
        medians, _ = block_medians(samples, run_id, [r.problem_id for r in records if r.run_id == run_id])
        found = {**found, **medians}
    return found


def place(crossing: Crossing, xs: Sequence[int]) -> int | None:
    """The T to measure next for a crossing; None where it is known well enough, or no new T is left."""
    if crossing.at.high / crossing.at.low <= NARROW:
        return None
    low, high = crossing.between
    middle = (low * high) ** 0.5
    for wanted in (crossing.at.mid, (crossing.at.low * crossing.at.high) ** 0.5, middle, *_halves(crossing, xs)):
        seq_len = _rounded(wanted)
        if low < seq_len < high and all(max(x / seq_len, seq_len / x) > NEAR for x in xs):
            return seq_len
    return None


def _halves(crossing: Crossing, xs: Sequence[int]) -> list[float]:
    """Between the crossing's ends and the measured T around it."""
    inside = [crossing.between[0], *(x for x in xs if crossing.between[0] < x < crossing.between[1])]
    return [(a * crossing.between[1]) ** 0.5 for a in inside]


def _rounded(seq_len: float) -> int:
    return max(1, round(seq_len / STEP) * STEP) if seq_len >= 64 else max(1, round(seq_len))


def kv_len_at(panel: Panel) -> Callable[[int], int] | None:
    """How kv_len follows T in a chart; None where no rule fits, or where T is not what changes."""
    lengths = [(known_size(r.q_len), known_size(r.kv_len)) for r in panel.records]
    if panel.x_name != "q_len" or not lengths:
        return None
    if all(q == kv for q, kv in lengths):
        return lambda seq_len: seq_len
    if all(kv == max(1, q // 2) for q, kv in lengths):
        return lambda seq_len: max(1, seq_len // 2)
    fixed = {kv for _, kv in lengths}
    return (lambda seq_len: next(iter(fixed))) if len(fixed) == 1 else None
