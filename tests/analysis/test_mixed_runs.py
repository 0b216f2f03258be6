"""A run of many masks, head forms and caches: panels, advice and comparisons never mix two problems."""

import pytest

from attnbench.analysis.choice import Limits, advise
from attnbench.analysis.diff import Side, diff
from attnbench.analysis.groups import make_panels
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.report import diff_text

ARMS = ("torch-sdpa", "torch-eager", "onnx-attention@ort-cpu")
SEQ_LENS = (64, 128, 256)
FORMS = [
    {}, {"num_kv_heads": 2}, {"num_kv_heads": 1}, {"v_head_dim": 32}, {"scale": 0.3}, {"bias": True},
    {"value_map": "low_rank"}, {"num_heads": 4}, {"head_dim": 32}, {"batch_size": 2}, {"dtype": "fp16"},
    {"part": "core"}, {"mask": "key_padding"}, {"mask": "alibi"}, {"mask": "bool_qk"}, {"variant": "cross"},
    {"variant": "cross", "mask": "key_padding"}, {"variant": "causal"}, {"variant": "causal", "num_kv_heads": 2},
    {"variant": "causal", "mask": "sliding_window_8"}, {"variant": "causal", "mask": "causal_bottom_right"},
    {"variant": "decode"}, {"variant": "decode", "q_len": 3}, {"variant": "decode", "num_kv_heads": 2},
    {"variant": "decode", "mask": "causal_bottom_right+alibi"},
]  # fmt: skip
LENGTHS = frozenset({"q_len", "kv_len"})


def family(r: Record) -> tuple[object, ...]:
    """All of the problem that a row is about but its lengths; the new tokens of a decode step belong to it."""
    names = sorted(set(Problem.make(seq_len=8).as_dict()) - LENGTHS - {"given_scale"})
    return (*(getattr(r, name) for name in names), r.scale, r.q_len if r.variant == "decode" else None)


def question(r: Record) -> tuple[object, ...]:
    """Batch sizes and dtypes are answers to one question."""
    return family(r.model_copy(update={"batch_size": 1, "dtype": "fp32"}))


@pytest.fixture
def rows(lab) -> list[Record]:
    """Every latency is one of its own, so that a figure tells its row."""
    problems = [
        Problem.make(**{"num_heads": 8, "head_dim": 64, "seq_len": t, **form}) for form in FORMS for t in SEQ_LENS
    ]
    assert len({p.problem_id for p in problems}) == len(FORMS) * len(SEQ_LENS)
    found = []
    for problem in problems:
        for arm in ARMS:
            ms = 1.0 + len(found) / 1024
            times = {"latency_ms_median": ms, "latency_ms_ci_low": ms, "latency_ms_ci_high": ms}
            noise = 0.002 if arm == "torch-sdpa" else None
            found.append(lab.make_record(problem, arm, scale=problem.scale, noise_log_ratio=noise, **times))
    return found


def of_two_runs(rows: list[Record]) -> list[Record]:
    return [r.model_copy(update={"run_id": run}) for run in ("a", "b") for r in rows]


@pytest.mark.parametrize("runs", [1, 2])
def test_a_chart_holds_one_problem_of_one_run_at_several_lengths(rows, runs) -> None:
    panels = make_panels(rows if runs == 1 else of_two_runs(rows))
    assert len(panels) == len(FORMS) * runs
    for panel in panels:
        assert len({(r.run_id, family(r)) for r in panel.records}) == 1
        assert len(panel.cells) == len(panel.records) == len(ARMS) * len(SEQ_LENS)
        assert sorted(panel.arms) == sorted(ARMS)
    assert len({(p.facet.title(), p.title()) for p in panels}) == len(panels)


def test_advice_is_about_one_problem_each_and_named_apart(rows) -> None:
    by_latency = {r.latency_ms_median: r for r in rows}
    found = advise(make_panels(rows), None, Limits(), 0.005, None)
    seen = []
    for advice in found:
        options = [option for decision in advice.decisions for option in decision.options]
        members = [by_latency[option.latency_ms.mid] for option in options]
        assert len({question(r) for r in members}) == 1
        seen += members
    assert len(seen) == len(rows)
    assert len({advice.name for advice in found}) == len(found)


def test_cases_are_compared_with_themselves_only_and_named_apart(lab, rows) -> None:
    slower = [r.model_copy(update={"latency_ms_median": r.latency_ms_median * 2}) for r in rows]
    sides = [Side(name=n, rows=side, manifest=lab.make_manifest(side)) for n, side in (("old", rows), ("new", slower))]
    found = diff(*sides)
    assert len(found.compared) == len(rows)
    assert all(case.old.problem_id == case.new.problem_id and case.old.arm == case.new.arm for case in found.compared)
    assert all(case.new.latency_ms_median == 2 * case.old.latency_ms_median for case in found.compared)
    varying = diff_text._varying(rows)
    assert len({(r.arm, *diff_text._where(r, varying)) for r in rows}) == len(rows)
    without = [r for r in rows if r.mask != "alibi"]
    found = diff(sides[0], Side(name="new", rows=without, manifest=lab.make_manifest(without)))
    assert {r.mask for r in found.only_old} == {"alibi"}
    assert len(found.compared) == len(without)
