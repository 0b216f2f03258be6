"""--refine measures where crossings are least known, keeps to the budget, and survives an interruption."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from attnbench import api
from attnbench.analysis.crossovers import Crossing
from attnbench.analysis.groups import make_panels
from attnbench.analysis.laws import Estimate
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.sweep import campaign as campaigns
from attnbench.sweep import grid, refine
from attnbench.sweep.campaign import Campaign
from attnbench.sweep.plan import make_plan
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from tests.analysis.synthetic import Terms, make_run, value

LAWS: dict[str, Terms] = {"torch-sdpa": (0.05, 0.02, 2e-5), "torch-eager": (7.05, 0.01, 2e-5)}  # cross at T = 700
ARMS = [grid.Arm(exporter="torch", runtime=name) for name in LAWS]


class FakeGroup:
    """A group whose arms follow LAWS exactly but for noise; nothing is run."""

    made: ClassVar[list[tuple[Problem, float]]] = []

    def __init__(self, *, bench: Any, problem: Problem, progress: Any, known_oom: Any) -> None:
        self.problem = problem
        self.phases = {"timing": 0.1}
        self.lanes: list[Any] = []

    def run(self, budget_s: float) -> tuple[list[Record], dict[str, Any]]:
        FakeGroup.made.append((self.problem, budget_s))
        rng = np.random.default_rng(self.problem.q_len)
        records, medians = make_run(LAWS, rng, noise=0.03, rounds=12, seq_lens=(self.problem.q_len,))
        samples = {r.case_id: {0: {i: [int(ns)] for i, ns in medians[r.run_id, r.case_id].items()}} for r in records}
        return records, samples


@pytest.fixture
def fake_group(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Problem, float]]:
    monkeypatch.setattr(campaigns, "Group", FakeGroup)
    FakeGroup.made = []
    return FakeGroup.made


def make_campaign(path: Path, *, started_s: float | None = None, **fields: Any) -> Campaign:
    settings = {"variants": ["self"], "seq_lens": [128, 256, 512, 1024, 2048], "refine": True, "time_budget_s": None}
    sweep = grid.validate(settings | fields, where="test")
    run_dir = RunDirectory.create(path)
    problems = grid.problems(sweep)
    manifest: dict[str, Any] = {
        "schema_version": 1, "spent": {}, "visits": 0, "contended_visits": 0, "refined": [], "frontier": [],
    }  # fmt: skip
    bench = SimpleNamespace(
        sweep=sweep, arms=ARMS, run_dir=run_dir, export_all=lambda problems, go_on: list(problems)
    )  # fmt: skip
    return Campaign(
        bench=bench,  # type: ignore[arg-type]
        plan=make_plan(sweep, problems, ARMS, 1, None), problems=problems, refined=[], manifest=manifest,
        progress=Silent(), started_s=campaigns.time.monotonic() if started_s is None else started_s,
    )  # fmt: skip


def test_new_lengths_lie_around_the_crossing_and_narrow_it(tmp_path: Path, fake_group: list) -> None:
    run = make_campaign(tmp_path / "run")
    run.run([])
    added = [p.q_len for p in run.refined]
    assert added
    assert all(512 < t < 1024 for t in added)
    assert [p.q_len for p, _ in fake_group] == [128, 256, 512, 1024, 2048, *added]
    assert run.manifest["refined"] == [p.as_dict() for p in run.refined]
    assert run.manifest["cases_planned"] == 2 * len(fake_group)
    assert "10 %" in run.manifest["refine_stopped_by"] or "groups were added" in run.manifest["refine_stopped_by"]


def test_without_a_crossing_nothing_is_added(tmp_path: Path, fake_group: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAWS, "torch-eager", (0.06, 0.03, 3e-5))
    run = make_campaign(tmp_path / "run")
    run.run([])
    assert run.refined == []
    assert len(fake_group) == 5


def test_a_spent_budget_adds_nothing_and_says_so(tmp_path: Path, fake_group: list) -> None:
    run = make_campaign(tmp_path / "run", time_budget_s=100.0, started_s=campaigns.time.monotonic() - 93.9)
    run.run([])
    assert run.refined == []
    assert run.manifest["refine_stopped_by"] == "the next group did not fit into the time budget"


def test_part_of_the_budget_is_kept_for_refining() -> None:
    sweep = grid.validate({"refine": True, "time_budget_s": 100.0}, where="test")
    plan = make_plan(sweep, grid.problems(sweep), ARMS, 1, None)
    assert plan.split()["refine"] == 30.0
    assert plan.grid_budget_s == 70.0
    assert make_plan(grid.validate({"time_budget_s": 100.0}, where="t"), [], ARMS, 1, None).grid_budget_s == 100.0


def test_an_interrupted_refinement_is_finished_with_its_own_lengths(tmp_path: Path, fake_group: list) -> None:
    run = make_campaign(tmp_path / "run")
    run.run([])
    records = run.bench.run_dir.read()[0]
    added = run.refined
    again = make_campaign(tmp_path / "again")
    again.refined = [*added]
    grid_records = [r for r in records if r.q_len in (128, 256, 512, 1024, 2048)]
    again.bench.run_dir.append("x", grid_records, {})
    fake_group.clear()
    again.run(grid_records)
    assert [p.q_len for p, _ in fake_group][: len(added)] == [p.q_len for p in added]


def test_an_interrupted_refinement_that_does_not_fit_leaves_no_plan_without_rows(
    tmp_path: Path, fake_group: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LAWS, "torch-eager", (0.06, 0.03, 3e-5))  # nothing crosses
    run = make_campaign(tmp_path / "run", time_budget_s=100.0, started_s=campaigns.time.monotonic() - 93.9)
    run.refined = [Problem.make(variant="self", seq_len=704)]
    run.manifest["refined"] = [p.as_dict() for p in run.refined]
    run.run([])
    assert run.refined == run.manifest["refined"] == []
    assert run.manifest["cases_planned"] == 2 * 5


def crossing(low: float, mid: float, high: float, between: tuple[int, int]) -> Crossing:
    return Crossing(before="a", after="b", at=Estimate(low, mid, high), between=between, by="law")


@pytest.mark.parametrize(
    ("found", "xs", "expected"),
    [
        (crossing(600, 700, 900, (512, 1024)), [512, 1024], 704),
        (crossing(690, 700, 710, (512, 1024)), [512, 1024], None),  # known well enough
        (crossing(515, 520, 900, (512, 1024)), [512, 1024], 680),  # 520 is too near to 512
        (crossing(9, 10, 14, (8, 16)), [8, 16], 10),
        (crossing(1, 1.5, 2, (1, 2)), [1, 2], None),  # no length is between
        (crossing(600, 700, 900, (512, 1024)), [512, 704, 736, 720, 1024], 848),
    ],
)
def test_the_next_length_is_new_and_inside(found: Crossing, xs: list[int], expected: int | None) -> None:
    assert refine.place(found, xs) == expected


@pytest.mark.parametrize(
    ("lengths", "kv_at_100"),
    [([(8, 8), (16, 16)], 100), ([(8, 4), (16, 8)], 50), ([(8, 77), (16, 77)], 77), ([(8, 3), (16, 9)], None)],
)
def test_kv_len_follows_the_rule_of_the_chart(lengths: list[tuple[int, int]], kv_at_100: int | None, lab: Any) -> None:
    problems = [Problem.make(variant="cross", seq_len=q, kv_len=kv) for q, kv in lengths]
    (panel,) = make_panels([lab.make_record(p, "torch-sdpa") for p in problems])
    rule = refine.kv_len_at(panel)
    assert (None if rule is None else rule(100)) == kv_at_100


def test_the_synthetic_arms_cross_where_the_tests_say() -> None:
    assert value(LAWS["torch-sdpa"], 700) == pytest.approx(value(LAWS["torch-eager"], 700))


def test_refining_a_real_run_resumes_to_itself(tmp_path: Path) -> None:
    run = api.bench(
        variants=["self"], seq_lens=[16, 32, 64, 128], runtimes=["torch-sdpa", "torch-eager"], num_heads=[1],
        head_dims=[8], refine=True, time_budget_s=20.0, out=tmp_path / "run",
    )  # fmt: skip
    assert run.manifest["refine_stopped_by"]
    assert run.manifest["cases_planned"] == len(run.rows)
    again = api.bench(resume=tmp_path / "run", time_budget_s=1.0)
    assert {r.case_id for r in run.rows} <= {r.case_id for r in again.rows}
