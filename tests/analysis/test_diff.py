"""Two runs, case by case."""

import random

import pytest

from attnbench.analysis.diff import CATEGORIES, Side, diff
from attnbench.problem import Problem

PROBLEMS = [Problem.make(variant=v, seq_len=t) for v in ("self", "causal") for t in (128, 512, 1024)]
ARMS = ("torch-sdpa", "torch-eager", "onnx-attention@ort-cpu", "onnx-decomposed@openvino")


@pytest.fixture
def rows(lab):
    return [
        lab.make_record(p, arm, noise_log_ratio=0.002 if arm == "torch-sdpa" else None)
        for p in PROBLEMS
        for arm in ARMS
    ]


@pytest.fixture
def side(lab):
    def make(rows, name="run", **manifest):
        return Side(name=name, rows=rows, manifest=lab.make_manifest(rows, **manifest))

    return make


def changed(rows, index=0, **changes):
    """The rows with one of them changed."""
    return [r.model_copy(update=changes) if i == index else r for i, r in enumerate(rows)]


def findings(found):
    return [(f.category, f.direction, f.column) for case in found.compared for f in case.findings]


def adverse(found):
    return {category: n for category in CATEGORIES if (n := found.adverse(category))}


def test_a_run_with_itself_has_no_difference(rows, side):
    found = diff(side(rows), side(rows))
    assert (len(found.compared), findings(found), adverse(found)) == (24, [], {})
    assert (found.apart, found.only_old, found.only_new, found.artifact_changes) == ((), (), (), 0)
    assert found.exit_code(CATEGORIES) == 0


def test_the_order_of_rows_does_not_matter(rows, side):
    new = changed(rows, 3, status="crashed", reason="signal 11")
    shuffled = random.Random(0).sample(new, len(new))
    first, second = diff(side(rows), side(new)), diff(side(rows[::-1]), side(shuffled))
    assert (first.compared, first.noise, first.common) == (second.compared, second.noise, second.common)


def test_an_arm_that_is_ten_percent_slower_is_named_at_every_length(rows, side):
    times = ("latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high")
    new = [r.model_copy(update={c: getattr(r, c) * 1.1 for c in times}) if r.arm == "torch-eager" else r for r in rows]
    found = diff(side(rows), side(new))
    assert adverse(found) == {"slower": 6}
    assert {case.new.arm for case in found.compared if case.findings} == {"torch-eager"}
    assert [found.exit_code([c]) for c in ("slower", "mismatch")] == [1, 0]
    assert findings(diff(side(new), side(rows))) == [("slower", "better", "latency_ms_median")] * 6


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("ok", "mismatch", ("mismatch", "worse", "status")),
        ("crashed", "mismatch", ("mismatch", "worse", "status")),
        ("mismatch", "ok", ("mismatch", "better", "status")),
        ("ok", "crashed", ("status", "worse", "status")),
        ("ok", "oom", ("status", "worse", "status")),
        ("ok", "unsupported", ("status", "worse", "status")),
        ("timeout", "ok", ("status", "better", "status")),
        ("timeout", "crashed", ("status", "changed", "status")),
        ("mismatch", "crashed", ("status", "changed", "status")),
    ],
)
def test_a_new_wrong_answer_is_mismatch_and_ok_lost_is_status(rows, side, old, new, finding):
    found = diff(side(changed(rows, status=old)), side(changed(rows, status=new)))
    assert findings(found) == [finding]
    assert adverse(found) == ({finding[0]: 1} if finding[1] == "worse" else {})


@pytest.mark.parametrize(
    ("old", "new", "direction"),
    [
        (10 << 20, 12 << 20, None),  # 20 %, but 2 MiB: not more than that
        (10 << 20, (12 << 20) + 1, "worse"),
        (100 << 20, 103 << 20, None),  # 3 MiB, but 3 %: not more than that
        (100 << 20, (103 << 20) + 1, "worse"),
        (100 << 20, 96 << 20, "better"),
        (None, 96 << 20, None),
    ],
)
@pytest.mark.parametrize("column", ["peak_host_bytes", "peak_device_bytes"])
def test_memory_needs_three_percent_and_two_mebibytes(rows, side, old, new, direction, column):
    found = diff(side(changed(rows, **{column: old})), side(changed(rows, **{column: new})))
    assert findings(found) == ([("memory", direction, column)] if direction else [])


@pytest.mark.parametrize(
    ("old", "new", "direction"),
    [
        ("fused", "unfused", "changed"),
        ("fused", "unknown", "changed"),
        ("unknown", "fused", "better"),
        ("a", "a", None),
    ],
)
def test_another_kernel_fails_and_one_that_is_now_known_does_not(rows, side, old, new, direction):
    found = diff(side(changed(rows, attention_kernel=old)), side(changed(rows, attention_kernel=new)))
    assert findings(found) == ([("kernel", direction, "attention_kernel")] if direction else [])
    assert found.exit_code(["kernel"]) == int(direction == "changed")


@pytest.mark.parametrize("is_newer_open", [True, False])
def test_a_kernel_that_the_law_of_memory_leaves_open_in_one_run_is_no_change(rows, side, is_newer_open):
    told = side(changed(rows, attention_kernel="fused", kernel_evidence="memory-law"))
    left_open = side(changed(rows, attention_kernel="unknown", kernel_evidence=None))
    assert findings(diff(*((told, left_open) if is_newer_open else (left_open, told)))) == []
    written_out = side(changed(rows, attention_kernel="unfused", kernel_evidence="memory-law"))
    assert findings(diff(told, written_out)) == [("kernel", "changed", "attention_kernel")]


def test_another_placement_is_another_kernel_and_a_reading_is_not(rows, side):
    old = {"placement": {"CPU": {"MatMul": 6}}, "took_ms": 1.5, "spinning": "never"}
    new = {"placement": {"CPU": {"MatMul": 5}}, "took_ms": 1.7, "spinning": "never"}
    found = diff(side(changed(rows, facts=old)), side(changed(rows, facts=new)))
    assert findings(found) == [("kernel", "changed", "facts.placement")]
    assert adverse(found) == {"kernel": 1}


@pytest.mark.parametrize(
    ("old", "new", "direction"),
    [
        (1e-6, 2e-6, None),
        (1e-6, 2.1e-6, "worse"),
        (2.1e-6, 1e-6, "better"),
        (3e-8, 1.1e-7, None),  # rounding alone is 4e-8: still as good as three roundings
    ],
)
def test_an_error_counts_when_it_more_than_doubled_and_is_more_than_rounding(rows, side, old, new, direction):
    sides = (side(changed(rows, worst_row_rel_err=e, err_vs_floor=e / 4e-8)) for e in (old, new))
    assert findings(diff(*sides)) == ([("numeric", direction, "worst_row_rel_err")] if direction else [])


def test_errors_of_other_inputs_are_not_compared(rows, side):
    found = diff(side(rows), side(changed(rows, worst_row_rel_err=1.0, seed=1)))
    assert findings(found) == []


@pytest.mark.parametrize(
    ("condition", "value"),
    [("device_name", "Intel"), ("device", "cuda:0"), ("threads", 2), ("latency_scope", "device"),
     ("compute_precision", "bf16")],
)  # fmt: skip
def test_a_row_measured_otherwise_is_set_apart_with_both_values(rows, side, condition, value):
    found = diff(side(rows), side(changed(rows, **{condition: value, "latency_ms_median": 99.0, "status": "ok"})))
    (apart,) = found.apart
    assert (apart.condition, apart.old_value, apart.new_value) == (condition, getattr(rows[0], condition), value)
    assert (len(found.compared), adverse(found)) == (23, {})


def test_workers_that_shared_a_gpu_otherwise_are_set_apart(rows, side):
    ways = ("parked", "one-at-a-time")
    old, new = (changed(rows, facts={"gpu_workers": way}) for way in ways)
    (apart,) = diff(side(old), side(new)).apart
    assert (apart.condition, apart.old_value, apart.new_value) == ("gpu_workers", *ways)
    assert diff(side(new), side(new)).apart == diff(side(rows), side(new)).apart == ()


def test_another_processor_sets_every_case_apart_also_those_that_did_not_run(lab, rows, side):
    environment = lab.make_manifest(rows)["environment"]
    other = {**environment, "machine": {**environment["machine"], "cpu_flags": ["avx2"]}}
    same_name = {**environment, "machine": {**environment["machine"], "cpu_flags": ["avx2", "amx"]}}
    new = [lab.without_figures(rows[0], "crashed", "signal 4"), *rows[1:]]
    found = diff(side(rows, environment=other), side(new, environment=same_name))
    assert {apart.condition for apart in found.apart} == {"machine"}
    assert (found.compared, found.exit_code([])) == ((), 3)
    renamed = [r.model_copy(update={"device_name": "Intel"}) for r in rows[1:]]
    found = diff(side(rows), side([new[0], *renamed]))
    assert {apart.condition for apart in found.apart} == {"device_name"}
    assert len(found.apart) == 24


def test_a_case_that_the_budget_cut_off_is_missing_and_no_regression(lab, rows, side):
    new = [lab.without_figures(rows[0], "skipped", "the time budget was spent"), *rows[2:]]
    found = diff(side(rows), side(new))
    assert [a.condition for a in found.apart] == ["skipped"]
    assert [r.case_id for r in found.only_old] == [rows[1].case_id]
    assert adverse(found) == {"missing": 2}
    assert adverse(diff(side(new), side(rows))) == {}


def test_an_oom_under_another_limit_is_set_apart(lab, rows, side):
    new = [lab.without_figures(rows[0], "oom", "2 GiB").model_copy(update={"memory_limit_bytes": 1 << 30}), *rows[1:]]
    assert [a.condition for a in diff(side(rows), side(new)).apart] == ["memory_limit_bytes"]


def test_a_shift_of_all_runtimes_is_drift(rows, side):
    times = ("latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high")
    new = [r.model_copy(update={c: getattr(r, c) * 1.2 for c in times}) for r in rows]
    found = diff(side(rows), side(new))
    assert adverse(found) == {"drift": 1}
    assert [found.exit_code([c]) for c in ("slower", "drift")] == [0, 1]
    assert adverse(diff(side(new), side(rows))) == {}


def test_contended_rows_are_never_judged_and_slower_is_then_blind(rows, side):
    new = [r.model_copy(update={"flags": ["contended"], "latency_ms_median": 1e3}) for r in rows]
    found = diff(side(rows), side(new))
    assert {case.unjudged for case in found.compared} == {"contended"}
    assert [found.exit_code(c) for c in ([], ["mismatch"], ["slower"])] == [0, 0, 3]


def test_without_a_noise_floor_it_says_so(rows, side):
    found = diff(side(rows, noise_floor=None), side(rows))
    assert {case.unjudged for case in found.compared} == {"noise_unknown"}


def test_another_file_is_counted_and_is_no_finding(rows, side):
    found = diff(side(rows), side(changed(rows, 2, artifact_sha256="0" * 64)))
    assert (found.artifact_changes, findings(found)) == (1, [])
