"""Records and rounds of arms with known laws and noise: what a run would hold."""

import math
from collections.abc import Mapping

import numpy as np

from attnbench.analysis.groups import Panel, make_panels
from attnbench.measure import statistics
from attnbench.problem import Problem
from attnbench.records import Record
from tests.report.conftest import BASELINE, make_record

Terms = tuple[float, float, float]
Medians = dict[tuple[str, str], dict[int, float]]
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096)


def value(terms: Terms, x: float) -> float:
    """fixed + linear x + quadratic x^2."""
    return terms[0] + terms[1] * x + terms[2] * x * x


def make_run(
    laws: Mapping[str, Terms],
    rng: np.random.Generator,
    *,
    noise: float = 0.01,
    worker: float = 0.003,
    rounds: int = 20,
    seq_lens: tuple[int, ...] = SEQ_LENS,
    memory: Mapping[str, Terms] | None = None,
) -> tuple[list[Record], Medians]:
    """Judged records and block medians (ns) of arms that take value(terms, T) ms.

    Args:
        laws: arm -> terms; the first is the baseline unless torch-sdpa is among them.
        rng: for noise of rounds (`noise`) and from worker to worker (`worker`), both relative.
        memory: arm -> terms of the peak in bytes.
    """
    records: list[Record] = []
    medians: Medians = {}
    baseline = BASELINE if BASELINE in laws else next(iter(laws))
    for seq_len in seq_lens:
        problem = Problem.make(part="block", variant="self", seq_len=seq_len)
        blocks = {arm: _block(value(terms, seq_len), rng, noise, worker, rounds) for arm, terms in laws.items()}
        standings = statistics.fastest_set(blocks)
        for arm, block in blocks.items():
            latency, ratio = statistics.latency(block), statistics.ratio(blocks[baseline], block)
            record = make_record(
                problem, arm, baseline_arm=baseline, round_count=rounds,
                latency_ms_median=latency.mid, latency_ms_ci_low=latency.low, latency_ms_ci_high=latency.high,
                speedup_vs_baseline=ratio.ratio, speedup_ci_low=ratio.low, speedup_ci_high=ratio.high,
                fastest_p=standings[arm].holm_p, ratio_to_fastest=standings[arm].ratio_to_fastest,
                noise_log_ratio=float(rng.normal(0.0, worker * math.sqrt(2.0))) if arm == baseline else None,
                fastest=(standings[arm].holm_p or 0.0) >= 0.05 or (standings[arm].ratio_to_fastest or 9.0) <= 1.01,
                peak_host_bytes=int(value(memory[arm], seq_len)) if memory else 1 << 20,
            )  # fmt: skip
            records.append(record)
            medians[record.run_id, record.case_id] = {i: ms * 1e6 for i, ms in block.items()}
    return records, medians


def _block(ms: float, rng: np.random.Generator, noise: float, worker: float, rounds: int) -> dict[int, float]:
    bias = rng.normal(0.0, worker)
    return {i: ms * math.exp(bias + rng.normal(0.0, noise)) for i in range(rounds)}


def only_panel(records: list[Record]) -> Panel:
    """The one chart of these records."""
    (panel,) = make_panels(records)
    return panel


def floor_of(worker: float) -> float:
    """The noise floor that a run measures where workers differ by this much: 90 % of |log ratio| of two."""
    return math.expm1(1.645 * worker * math.sqrt(2.0))
