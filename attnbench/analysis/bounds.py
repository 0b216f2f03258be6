"""What bounds an arm at each T: the machine's arithmetic, its memory, or the fixed cost of a call.

Roofline of Williams, Waterman and Patterson 2009, with the fixed cost beside it. Arithmetic: FLOPs of the problem over
time, against the best matrix product measured. Memory: the bytes that the arm must move at least (inputs, outputs, and
each score matrix that it is shown to hold, written once and read once) over time, against copying. Fixed: the share of
the law, where it shows a fixed cost.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.arm_laws import ArmLaws
from attnbench.analysis.groups import Panel, latency_ms, score_bytes
from attnbench.records import Record

DOMINATES = 0.5  # of the machine, or of the latency
CACHED = 1.1  # more bytes per second than copying reaches were served by caches


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One arm at one x; a part that is None was not measured."""

    arm: str
    x: int
    flops_per_byte: float | None  # arithmetic intensity of the problem: FLOPs over least bytes
    arithmetic: float | None  # fraction of the machine's peak
    memory: float | None  # fraction of its bandwidth, by the least traffic of this arm
    overhead: float | None  # share of the fixed cost in the latency; None: none is shown
    by: str  # arithmetic, memory, overhead; none: no part reaches a half


def bounds(panel: Panel, laws: Mapping[str, ArmLaws], bandwidth_gbytes_per_s: float | None) -> list[Bound]:
    """Every right case of the panel, arm by arm."""
    return [
        _bound(arm, x, record, laws[arm], bandwidth_gbytes_per_s)
        for arm in panel.arms
        for x, record in zip(panel.xs, panel.row(arm), strict=True)
        if record is not None and latency_ms(record) is not None
    ]


def _bound(arm: str, x: int, record: Record, laws: ArmLaws, bandwidth: float | None) -> Bound:
    seconds = (latency_ms(record) or 0.0) / 1e3
    matrices = laws.matrices.low if laws.matrices is not None else 0.0  # that are shown to be there
    memory = None
    if bandwidth and record.bytes_min is not None:
        memory = (record.bytes_min + 2.0 * matrices * score_bytes(record)) / seconds / (bandwidth * 1e9)
    law = laws.latency
    overhead = law.shares(x)[0] if law is not None and law.holds and law.fixed.low > 0.0 else None
    arithmetic = record.peak_fraction if math.isfinite(record.peak_fraction or 0.0) else None
    parts: dict[str, Any] = {
        "arithmetic": arithmetic, "memory": memory if memory is None or memory <= CACHED else None,
        "overhead": overhead,
    }  # fmt: skip
    known = {name: part for name, part in parts.items() if part is not None}
    by = max(known, key=lambda name: known[name], default="none")
    intensity = record.flops / record.bytes_min if record.flops and record.bytes_min else None
    return Bound(
        arm=arm, x=x, flops_per_byte=intensity, arithmetic=arithmetic, memory=memory, overhead=overhead,
        by=by if known.get(by, 0.0) >= DOMINATES else "none",
    )  # fmt: skip
