"""The sentences say what the records say."""

import pytest

from attnbench.analysis.groups import make_panels
from attnbench.problem import Problem
from attnbench.report import advice, findings, text


def panel_of(records):
    (panel,) = make_panels(records)
    return panel


def two_arms(lab, **changes):
    problem = Problem.make(seq_len=128)
    base = lab.make_record(
        problem, "torch-sdpa", latency_ms_median=2.0, latency_ms_ci_low=1.99, latency_ms_ci_high=2.02, fastest=False
    )
    other = {
        "latency_ms_median": 1.0, "latency_ms_ci_low": 0.99, "latency_ms_ci_high": 1.01, "speedup_vs_baseline": 2.0,
        "speedup_ci_low": 1.98, "speedup_ci_high": 2.02, "fastest": True, "verdict": "faster", **changes,
    }  # fmt: skip
    return [base, lab.make_record(problem, "onnx-contrib@ort-cpu", **other)]


def test_the_winner_is_named_with_both_intervals(lab):
    pick = findings.pick_at(panel_of(two_arms(lab)), 128)
    assert pick.kind == "winner"
    assert pick.text == "onnx-contrib@ort-cpu (1.00 ms, 0.990 to 1.01; 2.00x torch-sdpa, 1.98 to 2.02)"


def test_two_fastest_arms_are_a_toss_up(lab):
    records = two_arms(lab)
    records[0].fastest = True
    pick = findings.pick_at(panel_of(records), 128)
    assert pick.kind == "toss-up"
    assert pick.arms == ("onnx-contrib@ort-cpu", "torch-sdpa")
    assert pick.text.startswith("toss-up between onnx-contrib@ort-cpu (1.00 ms, 0.990 to 1.01) and torch-sdpa")


def test_without_a_judgement_no_winner_is_named(lab):
    records = two_arms(lab, fastest=None)
    records[0].fastest = None
    pick = findings.pick_at(panel_of(records), 128)
    assert pick.kind == "unranked"
    assert "no ranking" in pick.text


def test_a_wrong_arm_never_wins(lab):
    records = two_arms(lab, status="mismatch", fastest=True)
    records[0].fastest = True
    pick = findings.pick_at(panel_of(records), 128)
    assert pick.text.startswith("torch-sdpa (2.00 ms, 1.99 to 2.02), the only one that ran right")
    assert pick.arms == ("torch-sdpa",)


def test_where_nothing_ran_right_the_statuses_are_counted(lab):
    problem = Problem.make(seq_len=128)
    records = [
        lab.without_figures(lab.make_record(problem, "torch-sdpa"), "oom", "x"),
        lab.make_record(problem, "torch-eager", status="mismatch"),
    ]
    assert findings.pick_at(panel_of(records), 128).text == "nothing ran right (1 oom, 1 mismatch)"


@pytest.mark.parametrize(
    ("lengths", "picked"), [((128,), [128]), ((128, 256), [128, 256]), ((128, 256, 512, 1024), [128, 512, 1024])]
)
def test_short_middle_and_long_are_named_once_each(lab, lengths, picked):
    panel = panel_of(lab.default_records(variants=("self",), seq_lens=lengths))
    assert [pick.x for pick in findings.headline(panel)] == picked


@pytest.mark.parametrize(
    ("way", "told"), [(None, False), ({"mode": "parked"}, False), ({"mode": "one-at-a-time"}, True)]
)
def test_the_trust_line_says_that_pairs_of_fresh_workers_are_coarser(lab, way, told):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    line = " ".join(findings.trust_line(records, lab.make_manifest(records, gpu_workers=way)))
    assert ("Workers had the GPU one at a time: a round is a pass over fresh ones" in line) is told


def test_the_trust_line_has_floor_rounds_and_contended_visits(lab):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    records[0].stopped_by, records[0].round_count, records[0].flags = "budget", 20, ["contended"]
    line = " ".join(findings.trust_line(records, lab.make_manifest(records)))
    assert "Noise floor 0.80 %" in line
    assert "after 20 to 35 rounds: 6 cases at the wanted precision, 1 case by the time budget." in line
    assert "Contended visits: 23 of 5,012 (0.46 %)." in line
    assert "Flagged: 1 case contended." in line


def test_an_empty_manifest_says_what_is_not_known(lab):
    line = " ".join(findings.trust_line([], {}))
    assert "The noise floor was not measured" in line
    assert ("threads", "unknown") in findings.machine_facts({})


def test_a_mismatch_shows_each_broken_gate_with_measured_and_allowed(lab):
    record = lab.make_record(
        Problem.make(seq_len=128), "torch-eager", status="mismatch", worst_row_rel_err=0.03, worst_row_limit=2e-6,
        gain_err=0.01, gain_limit=1e-5, peaked_worst_row_rel_err=1e-7, peaked_worst_row_limit=2e-6, nan_count=3,
    )  # fmt: skip
    (row,) = findings.wrong_answers([panel_of([record])])
    assert row["gates"] == "worst row 3.0e-02, allowed 2.0e-06; gain 1.0e-02, allowed 1.0e-05; 3 NaN"
    assert (row["arm"], row["x"]) == ("torch-eager", "T = 128")


def test_an_error_that_is_nan_breaks_its_gate(lab):
    record = lab.make_record(Problem.make(seq_len=128), "x", status="mismatch", worst_row_rel_err=float("nan"))
    assert findings.broken_gates(record)[0].startswith("worst row nan, allowed")


def test_what_did_not_run_is_grouped_with_reason_and_way_out(lab):
    panels = make_panels(lab.troubled_records())
    troubles = findings.did_not_run(panels, lab.make_manifest([]))
    assert [t.status for t in troubles] == ["crashed", "oom", "unsupported", "skipped", "unavailable", "unavailable"]
    crashed, cuda = troubles[0], troubles[4]
    assert crashed.arm == "torch-compile"
    assert "signal 11" in crashed.reason
    assert "T = 1024" in crashed.where
    assert cuda.arm == "onnx-decomposed@ort-cuda and onnx-attention@ort-cuda"
    assert cuda.way_out == "install the NVIDIA driver"
    assert cuda.count == 36
    assert all(t.way_out for t in troubles)


def test_what_failed_for_every_case_is_said_in_one_word(lab):
    records = [lab.without_figures(r, "unavailable", "no torch") for r in lab.default_records(seq_lens=(128, 256))]
    (trouble,) = findings.did_not_run(make_panels(records), {})
    assert trouble.where == "everywhere"


def test_a_way_out_that_the_reason_ends_with_is_told_once(lab):
    rows = [r for r in lab.troubled_records() if r.status == "unavailable"]
    rows = [r.model_copy(update={"reason": "there is no driver; install the NVIDIA driver"}) for r in rows]
    (trouble, *_) = findings.did_not_run(make_panels(rows), lab.make_manifest([]))
    assert (trouble.reason, trouble.way_out) == ("there is no driver", "install the NVIDIA driver")


def test_the_way_out_of_a_spent_budget_names_the_real_folder(lab):
    late = "the time budget was spent; --resume this run with a longer --time-budget"
    records = [lab.without_figures(r, "skipped", late) for r in lab.default_records(seq_lens=(128,))]
    (trouble,) = findings.did_not_run(make_panels(records), {}, "'my run'")
    assert trouble.way_out == "attnbench bench --resume 'my run' with a longer --time-budget"
    assert trouble.reason == "the time budget was spent"  # the way out says the rest, once


def test_what_cannot_run_a_model_of_yours_is_no_matter_of_its_variant(lab):
    (case,) = lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa"])
    case = lab.without_figures(case, "unsupported", "torch-sdpa runs the built-in attention only, no models of yours")
    model = case.model_copy(update={"model": "m:Net", "bound": "T", "sizes": {"T": 128}})
    ways = [findings.did_not_run(make_panels([r]), {})[0].way_out for r in (case, model)]
    assert ways == [
        "choose another exporter, dtype or variant for this runtime",
        "choose another runtime (--runtimes), exporter or dtype for this model",
    ]


@pytest.mark.parametrize(
    ("pairs", "words"), [(1, "(one pair)"), (9, "(largest of 9 pairs)"), (10, "(90th percentile of 10 pairs)")]
)
def test_a_floor_of_few_pairs_is_called_the_largest_of_them(lab, pairs, words):
    assert words in findings.trust_line([], {"noise_floor": 0.01, "noise_pairs": pairs})[0]


def test_an_interrupted_run_says_what_is_missing_and_how_to_go_on(lab):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    note = findings.progress_note(records, {"interrupted": True, "cases_planned": 20}, "results/x")
    assert note == (
        "This run was interrupted: 7 records of 20 planned cases. "
        "The rest follows with attnbench bench --resume results/x"
    )
    assert findings.progress_note(records, {"interrupted": False, "cases_planned": 7}, "x") == ""


@pytest.mark.parametrize(
    ("load", "first", "verdict", "words"),
    [
        (30.0, 5.0, "faster", "from the first call"),  # 35 ms against 10 + 30 = 40
        (100.0, 5.0, "faster", "66 calls"),  # 65 ms more, 1 ms less per call: ahead after 65
        (100.0, 5.0, "slower", "never: slower per call"),
        (1.0, 2.0, "slower", "ahead only at first: slower per call"),
        (30.0, 5.0, "same", "no difference per call"),
        (30.0, 5.0, "ambiguous", "not decided: ambiguous per call"),
        (None, 5.0, "faster", "not measured"),
    ],
)
def test_break_even_counts_calls_from_cold(lab, load, first, verdict, words):
    base, other = two_arms(lab, load_ms=load, first_call_ms=first, verdict=verdict)
    base.load_ms, base.first_call_ms = 10.0, 30.0
    assert advice.break_even(other, base) == words


def test_what_to_ship_is_right_most_often_then_fastest_most_often(lab):
    records = lab.default_records(variants=("causal",))
    for r in records:
        if r.arm == "onnx-decomposed@openvino" and r.q_len == 4096:
            r.status = "mismatch"
    sentence = advice.what_to_ship(panel_of(records))
    assert sentence.startswith("onnx-attention@openvino: right at 6 of 6 T values, among the fastest at")
    assert "sha256" in sentence
    assert "verified by ort-cpu at T = 17, 64, 200" in sentence


def test_with_nothing_right_nothing_is_shipped_or_proved(lab):
    record = lab.without_figures(lab.make_record(Problem.make(seq_len=128), "torch-sdpa"), "oom", "x")
    assert advice.what_to_ship(panel_of([record])) == "nothing: no arm ran right."
    assert advice.not_proved([record], {}) == [
        "Nothing: no case ran right, so no statement about speed or memory is proved."
    ]


def test_limits_of_the_run_are_named(lab):
    records = lab.default_records(variants=("self",), seq_lens=(128, 1024))
    records[0].verdict = "ambiguous"
    records[1].artifact_verified = "unverified: no runtime"
    limits = " ".join(advice.not_proved(records, lab.make_manifest(records)))
    for words in (
        "T below 128 or above 1024",
        "Nothing ran on a GPU",
        "only sampled rows",
        "1 case of 14 may be faster",
    ):
        assert words in limits
    assert "the files of torch-eager were not verified" in limits
    assert "unknown for onnx-decomposed@openvino and onnx-attention@openvino" in limits


def test_the_report_says_where_the_block_compares_gemm_libraries(lab):
    note = advice.share_note(make_panels(lab.default_records()))
    assert "11 % at T = 128" in note
    assert "50 % at T = 1024" in note
    assert "half at T = 1,024" in note
    assert "--part core" in note
    assert advice.share_note(make_panels(lab.default_records(part="core"))) == ""


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, ""), (0.0123456, "0.0123"), (1.5, "1.50"), (1234.5, "1,234"), (0.0, "0"), (float("inf"), "inf"),
     (2e-9, "2.00e-09")],
)  # fmt: skip
def test_figures_have_three_digits(value, written):
    assert text.fmt_number(value) == written


@pytest.mark.parametrize(
    ("value", "written"), [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1.00 MiB"), (5 << 50, "5,120 TiB")]
)
def test_bytes_have_binary_units(value, written):
    assert text.fmt_bytes(value) == written
