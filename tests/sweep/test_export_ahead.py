"""Writing files ahead ends with its share of the time budget, so that a wide grid still measures something."""

from typing import Any

import pytest

from attnbench.interfaces import Probe
from attnbench.sweep import campaign
from attnbench.sweep.bench import Bench
from attnbench.sweep.grid import Arm, problems, validate


def make_bench(time_budget_s: float | None) -> Bench:
    sweep = validate({"variants": ["self"], "seq_lens": [8], "num_heads": [1, 2, 3, 4, 5, 6],
                      "time_budget_s": time_budget_s}, where="test")  # fmt: skip
    nothing: Any = None
    return Bench(
        sweep=sweep, threads=1, arms=[Arm(exporter="slow", runtime="ort-cpu")], runtime_probes={},
        exporter_probes={"slow": Probe(available=True, traits={"opsets": (20,)})},
        run_dir=nothing, servers=nothing, run_id="test",
    )  # fmt: skip


def export_ahead(time_budget_s: float | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of six files are written ahead, each of which takes 30 s."""
    bench = make_bench(time_budget_s)
    clock = [0.0]
    nothing: Any = None
    run = campaign.Campaign(
        bench=bench, plan=nothing, problems=problems(bench.sweep), refined=[], manifest={}, progress=nothing,
        started_s=0.0,
    )  # fmt: skip
    written = []

    def export(self: Bench, exporter: str, opset: int, problem: Any) -> Any:
        written.append(problem)
        clock[0] += 30.0

    monkeypatch.setattr(Bench, "_export", export)
    monkeypatch.setattr(Bench, "at_once", 1)
    monkeypatch.setattr(campaign.time, "monotonic", lambda: clock[0])
    run.export_ahead(set())
    return len(written)


@pytest.mark.parametrize(("time_budget_s", "files"), [(100.0, 2), (10.0, 1), (None, 6), (3600.0, 6)])
def test_files_are_written_ahead_within_two_fifths_of_the_budget(
    time_budget_s: float | None, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export_ahead(time_budget_s, monkeypatch) == files
