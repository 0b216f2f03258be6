"""One row in sentences."""

import json

import pytest

from attnbench.cli import main
from attnbench.problem import Problem
from attnbench.report import case_text


@pytest.fixture
def told(lab):
    """The paragraphs of a case, by heading."""

    def tell(arm="onnx-attention@ort-cpu", **changes):
        record = lab.make_record(Problem.make(seq_len=512), arm, **changes)
        return dict(case_text.case_paragraphs(record, lab.make_manifest([record]), "results/a b"))

    return tell


def test_it_says_what_ran_and_how_that_is_known(told):
    words = told()["What ran"]
    assert "ort-cpu 2.13.0 took the file of onnx-attention, opset 23" in words
    assert "1 thread, products in fp32" in words
    assert "Attention kernel: unfused, known by graph" in words
    assert "ran the block itself" in told("torch-sdpa")["What ran"]
    assert "is unknown" in told(attention_kernel="unknown")["What ran"]
    assert "the cache is written in place." in told(facts={"cache": "written in place"})["What ran"]
    assert "cache" not in words


def test_what_was_only_compiled_ran_nowhere_and_was_compared_with_nothing(told):
    words = told(
        "file@tensorrt-rtx", exporter="file", status="compiled", device="sm89", device_name=None, threads=None,
        planned_activation_bytes=3 << 20, attention_kernel="fused", facts={"attention": "2 of 2 attentions"},
        model="m.onnx", part="model", variant="model", artifact_sha256="a" * 64, latency_ms_median=None,
        worst_row_rel_err=None, gain_err=None,
    )  # fmt: skip
    assert "took the file as it was given" in words["What ran"]
    assert "Compiled for sm89 and not run: 3.00 MiB of device memory beside weights" in words["What ran"]
    assert words["What ran"].endswith("Attention kernel: fused. 2 of 2 attentions")
    assert "None" not in words["What ran"]
    assert not any("ompared with" in text for text in words.values())


def test_an_engine_is_taken_as_it_was_given(told):
    given = {"model": "m.plan", "part": "model", "variant": "model", "artifact_sha256": "a" * 64, "opset": None}
    words = told("engine@tensorrt", exporter="engine", **given)
    assert "took the engine as it was given" in words["What ran"]


def test_the_gate_nearest_to_its_limit_decided(told):
    words = told(
        worst_row_rel_err=1e-6, worst_row_limit=4e-6, err_vs_eager=2.0, peaked_worst_row_rel_err=3e-6,
        peaked_worst_row_limit=4e-6, gain_err=1e-8, gain_limit=2e-6,
    )["Right"]  # fmt: skip
    assert words.startswith("Decided by the worst row, peaked inputs, which is within its limit")
    assert "3.0e-06 of 4.0e-06 allowed (75 %)" in words
    assert "is 8.0 times what torch eager is off in fp32 (5.0e-07)" in words  # 4e-6 over 1e-6 / 2


def test_a_row_tells_where_it_left_its_band_under_stress(told):
    words = told(stress={"near_ties": 0.2, "logits_x8": 0.9, "logits_x64": 3.0})["Right"]
    assert words.endswith(
        "Under stress (logits x 8, logits x 64, near ties) it leaves its band with logits x 64 "
        "(3.0 times what is allowed)."
    )
    assert told(stress={"near_ties": 1.0})["Right"].endswith("Under stress (near ties) it stays inside its band.")
    assert "stress" not in told()["Right"]


@pytest.mark.parametrize(("error", "share"), [(8e-6, "200 %"), (float("nan"), "not a number")])
def test_a_gate_that_failed_decided(told, error, share):
    words = told(worst_row_rel_err=error, worst_row_limit=4e-6, status="mismatch", reason="row 3 is off")["Right"]
    assert words.startswith("Decided by the worst row, normal inputs, which is beyond its limit.")
    assert share in words


def test_the_verdict_rests_on_the_interval_and_the_noise_floor(told):
    words = told(speedup_vs_baseline=1.13, speedup_ci_low=1.11, speedup_ci_high=1.14, verdict="faster")["Verdict"]
    assert "1.13x as fast as torch-sdpa, interval 1.11 to 1.14: the interval lies above 1.010: faster." in words
    assert "0.80 % (of 18 pairs of equal workers)" in words
    assert "disturbed" in told(verdict="ambiguous", flags=["contended"])["Verdict"]
    assert "0.50 % apart" in told("torch-sdpa", noise_log_ratio=-0.005013)["Verdict"]
    reason = {"verdict": "the baseline is oom"}
    assert "None: the baseline is oom." in told(verdict=None, empty_reasons=reason)["Verdict"]


def test_memory_is_told_in_score_matrices(told):
    words = told(peak_host_bytes=2 * 8 * 512 * 512 * 4)["Memory"]  # 8 heads, fp32
    assert "Peak 16.0 MiB above the loaded and bound model, 2.00 score matrices." in words


def test_json_holds_no_nan(lab):
    record = lab.make_record(Problem.make(seq_len=512), "torch-sdpa", worst_row_rel_err=float("nan"))
    gate = json.loads(json.dumps(case_text.as_dict(record, {}, "run"), allow_nan=False))["gates"][0]
    assert (gate["name"], gate["measured"], gate["used"]) == ("worst row, normal inputs", "nan", "inf")


def test_every_empty_cell_has_its_reason(told):
    reasons = {"build_ms": "nothing is compiled", "latency_ms_p99": "needs 662 samples", "export_ms": "no file"}
    words = told(empty_reasons=reasons | {"opset": "no file"})["Empty cells"]
    assert words == "build_ms: nothing is compiled; latency_ms_p99: needs 662 samples; export_ms, opset: no file"


@pytest.mark.parametrize("status", ["unsupported", "oom", "crashed", "skipped", "unavailable", "timeout", "error"])
def test_a_case_that_did_not_run_says_why_everywhere(lab, status):
    record = lab.without_figures(
        lab.make_record(Problem.make(seq_len=512), "onnx-attention@ort-cpu"), status, "no room"
    )
    told = dict(case_text.case_paragraphs(record, {}, "run"))
    assert told["Status"] == f"{status}: no room."
    assert all("no room" in told[heading] for heading in ("What ran", "Right", "Latency", "Verdict", "Memory"))
    assert "The noise of the run is unknown." in told["Verdict"]


def test_the_text_keeps_to_the_width_and_shows_no_control_characters(lab):
    record = lab.make_record(Problem.make(seq_len=512), "torch-sdpa", status="error", reason="bad \x1b[31m word " * 9)
    text = case_text.case_text(record, lab.make_manifest([record]), "run", width=80)
    assert "\x1b" not in text
    assert max(map(len, text.split("\n"))) <= 80


def test_the_command_tells_a_row_of_a_run(lab, tmp_path, capsys):
    records = lab.default_records()
    lab.write_run(tmp_path / "run", records, samples=False)
    run, case = str(tmp_path / "run"), "onnx-attention@ort-cpu:causal:512"
    assert main(["explain", run, case]) == 0
    text = capsys.readouterr().out
    assert "block causal T=512 fp32" in text
    assert f"attnbench repro {run}" in " ".join(text.split())
    assert main(["explain", run, case, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "ok"
    assert main(["explain", run, "nope"]) == 2
    assert "CASE must be a case_id" in capsys.readouterr().err


def test_a_run_without_a_case_says_where_cases_are(lab, tmp_path, capsys):
    records = lab.default_records()
    lab.write_run(tmp_path / "run", records, samples=False)
    assert main(["explain", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "needs a CASE too: a case_id, from records.csv or the table of all cases in report.html" in error
    assert records[0].case_id in error
    assert f"{records[0].arm}:{records[0].variant}:{records[0].q_len}" in error


def test_a_matrix_of_conform_is_sent_to_repro(tmp_path, capsys):
    (tmp_path / "conform.json").write_text("{}")
    for words in ([str(tmp_path)], [str(tmp_path), "torch-sdpa:normal 5x9"]):
        assert main(["explain", *words]) == 2
        assert "attnbench repro" in capsys.readouterr().err
