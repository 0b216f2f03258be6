"""JUnit, Markdown and metrics of runs that went well, badly or not to their end."""

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from attnbench.problem import Problem
from attnbench.report import ci
from attnbench.report.junit import junit_xml
from attnbench.report.markdown import MAX_CHARACTERS, code, markdown_summary, plain
from attnbench.report.metrics import flat_metrics
from attnbench.report.names import case_names, geometry_name

# The schema that Jenkins' xUnit plug-in validates with (junit-10.xsd): element -> children, required, other attributes.
SCHEMA = {
    "testsuites": ({"testsuite"}, set(), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
    ),
    "properties": ({"property"}, set(), set()),
    "property": (set(), {"name", "value"}, set()),
    "testcase": ({"skipped", "error", "failure", "system-out", "system-err"}, {"name"}, {"time", "classname", "group"}),
    "skipped": (set(), set(), {"type", "message"}),
    "error": (set(), set(), {"type", "message"}),
    "failure": (set(), set(), {"type", "message"}),
}
HOSTILE = "a<b>&\"'\x00\x1b[31m\x07\u2028\ud800\ufffe]]>|`*_[x](y) @all #1\nnext\ttab"


def assert_valid(element: ET.Element) -> None:
    """The element and all below it are what the schema allows."""
    children, required, optional = SCHEMA[element.tag]
    assert required <= set(element.attrib) <= required | optional, element.attrib
    for name in ("time", "tests", "failures", "errors", "skipped"):
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)?", element.get(name, "0")), (name, element.get(name))
    for child in element:
        assert child.tag in children
        assert_valid(child)


def parsed(records, manifest, run_dir="results/x"):
    root = ET.fromstring(junit_xml(records, manifest, run_dir))
    assert_valid(root)
    return root


def outcome(root, arm, length, variant="self"):
    """Tag, type and message of one testcase; `pass` where there is none."""
    cases = [
        c
        for c in root.iter("testcase")
        if c.get("name") == f"{arm} T={length}" and c.get("classname").endswith(f".{variant}")
    ]
    (case,) = cases
    return [(child.tag, child.get("type"), child.get("message")) for child in case] or "pass"


def test_every_case_is_one_testcase_and_the_totals_add_up(lab):
    records = lab.troubled_records()
    root = parsed(records, lab.make_manifest(records))
    cases = list(root.iter("testcase"))
    suite = root.find("testsuite")
    assert len(cases) == len(records) == int(suite.get("tests")) == int(root.get("tests"))
    assert len({(c.get("classname"), c.get("name")) for c in cases}) == len(cases)
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(attribute)) == sum(c.find(tag) is not None for c in cases) > 0
    assert suite.get("timestamp") == "2026-11-29T12:00:00"


def test_status_decides_between_pass_failure_error_and_skipped(lab):
    records = lab.troubled_records()
    root = parsed(records, lab.make_manifest(records))
    assert outcome(root, "torch-sdpa", "128") == "pass"
    assert outcome(root, "onnx-contrib@ort-cpu", "512", "causal") == [
        ("failure", "mismatch", "worst row 3.1e-02, allowed 1.6e-06")
    ]
    crash = "the worker was killed by signal 11 (SIGSEGV) in its first call"
    assert outcome(root, "torch-compile", "1024") == [("error", "crashed", crash)]
    missing = "unavailable: libcuda.so.1 is missing: no NVIDIA driver on this machine"
    assert outcome(root, "onnx-attention@ort-cuda", "128") == [("skipped", "unavailable", missing)]
    ((tag, kind, _),) = outcome(root, "torch-eager", "2048")
    assert (tag, kind) == ("skipped", "oom")


@pytest.mark.parametrize("name", ["onnx-attention@ort-cuda", "ort-cuda"])
def test_a_required_arm_that_is_not_ok_is_a_failure(lab, name):
    records = lab.troubled_records()
    root = parsed(records, lab.make_manifest(records, sweep={"require": [name]}))
    ((tag, kind, message),) = outcome(root, "onnx-attention@ort-cuda", "128")
    assert (tag, kind) == ("failure", "unavailable")
    assert message.startswith("named by --require, and not ok: unavailable: libcuda")


def test_time_is_the_median_in_seconds_and_left_out_where_nothing_was_timed(lab):
    (problem,) = lab.make_problems(variants=("self",), seq_lens=(128,))
    timed = lab.make_record(problem, "torch-sdpa", latency_ms_median=0.0125)
    bad = lab.without_figures(lab.make_record(problem, "torch-eager"), "timeout", "60 s")
    first, second = parsed([timed, bad], {}).iter("testcase")
    assert first.get("time") == "0.000013"  # 12.5 us, in plain digits as the schema wants
    assert second.get("time") is None


def test_an_interrupted_run_is_an_error_that_says_how_to_go_on(lab):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    root = parsed(records, lab.make_manifest(records, interrupted=True, cases_planned=100), "'my run'")
    last = list(root.iter("testcase"))[-1]
    assert last.get("name") == "every planned case has a record"
    assert last.find("error").get("message") == (
        "This run was interrupted: 7 records of 100 planned cases. "
        "The rest follows with attnbench bench --resume 'my run'"
    )


def test_hostile_names_give_valid_xml_that_reads_back(lab):
    (problem,) = lab.make_problems(variants=("self",), seq_lens=(128,))
    record = lab.without_figures(lab.make_record(problem, "torch-sdpa"), "error", HOSTILE)
    record.arm = HOSTILE
    root = parsed([record], lab.make_manifest([record], command=HOSTILE, versions={HOSTILE: HOSTILE}), HOSTILE)
    seen = "a<b>&\"'\\x00\\x1b[31m\\x07\\u2028\\ud800\\ufffe]]>|`*_[x](y) @all #1\\nnext\\ttab"
    (case,) = root.iter("testcase")
    assert case.get("name") == f"{seen} T=128"
    assert case.find("error").get("message") == seen
    assert seen in {p.get("value") for p in root.iter("property")}


def test_rows_of_two_runs_stay_apart(lab):
    (problem,) = lab.make_problems(variants=("self",), seq_lens=(128,))
    records = [lab.make_record(problem, "torch-sdpa", run_id=run) for run in ("r1", "r2")]
    assert [c.get("name") for c in parsed(records, {}).iter("testcase")] == [
        "torch-sdpa T=128~r1",
        "torch-sdpa T=128~r2",
    ]
    again = [records[0], records[0]]
    assert len(set(case_names(again))) == 2


@pytest.mark.parametrize("records", ["none", "some"])
def test_an_empty_manifest_is_no_error(lab, records):
    rows = lab.troubled_records() if records == "some" else []
    parsed(rows, {})
    assert markdown_summary(rows, {}, "x").startswith("### attnbench: ")
    assert flat_metrics(rows, {})["run/cases_ok"] == sum(r.status == "ok" for r in rows)


def test_metrics_are_flat_finite_numbers_with_stable_names(lab):
    records = lab.default_records(variants=("self", "cross"), seq_lens=(128,), arms=["onnx-attention@ort-cpu"])
    records[0].latency_ms_p90 = None
    records[0].err_vs_eager = math.inf
    metrics = flat_metrics(records, lab.make_manifest(records))
    name = "block.fp32.b1.h8x64.self.T128/onnx-attention@ort-cpu"
    assert metrics[f"{name}/latency_ms_median"] == records[0].latency_ms_median
    assert metrics["block.fp32.b1.h8x64.cross.T128x64/onnx-attention@ort-cpu/peak_host_bytes"] > 0
    assert not {f"{name}/latency_ms_p90", f"{name}/err_vs_eager"} & set(metrics)
    assert (metrics["run/noise_floor"], metrics["run/harness_ns"], metrics["run/cases_ok"]) == (0.008, 84.0, 2)
    assert metrics["run/machine_peak_fp32_gflops_per_s"] == 234.0
    assert all(type(value) in (int, float) and math.isfinite(value) for value in metrics.values())
    assert metrics == flat_metrics(records, lab.make_manifest(records))


def test_a_wrong_case_has_its_error_and_no_time(lab):
    records = lab.troubled_records()
    metrics = flat_metrics(records, {})
    name = "block.fp32.b1.h8x64.causal.T512/onnx-contrib@ort-cpu"
    assert {n.removeprefix(f"{name}/") for n in metrics if n.startswith(f"{name}/")} == {
        "worst_row_rel_err", "worst_row_limit", "rel_fro_err", "max_abs_err", "gain_err", "nan_count", "err_vs_floor",
        "err_vs_eager",
    }  # fmt: skip
    assert not any("ort-cuda" in n for n in metrics)
    assert metrics["run/cases_mismatch"] == 1


def test_the_summary_has_a_row_per_length_with_intervals_and_ratio(lab):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    best = min(records, key=lambda r: r.latency_ms_median)
    text = markdown_summary(records, lab.make_manifest(records), "results/x")
    low, high = best.latency_ms_ci_low, best.latency_ms_ci_high
    row = f"| 128 | 7/7 | `onnx-contrib@ort-cpu` | {best.latency_ms_median:.2f} ({low:.2f} to {high:.2f}) | 1.28x ("
    assert row in text
    assert text.startswith("### attnbench: 7 cases, all ok\n")
    assert "Noise floor 0.80 %" in text
    assert "Report: `results/x/report.html`" in text


def test_the_summary_names_failures_with_reason_and_way_out(lab):
    records = lab.troubled_records()
    text = markdown_summary(records, lab.make_manifest(records, interrupted=True), "results/x")
    assert "- **mismatch** `onnx-contrib@ort-cpu`, causal, T = 512: worst row 3.1e-02, allowed 1.6e-06" in text
    assert "- **crashed** `torch-compile` (3 cases;" in text
    assert "Way out: install the NVIDIA driver." in text
    assert "**This run was interrupted: 216 records of 216 planned cases.**" in text
    places = [
        text.index(words) for words in ("**mismatch**", "**crashed**", "| T | right", "- unavailable", "Noise floor")
    ]
    assert places == sorted(places)


def test_every_table_row_has_the_columns_of_its_head(lab):
    records = lab.troubled_records()
    for r in records:
        if r.status == "unavailable":
            r.reason, r.arm = "a|b\nc", "x|y`z"
    rows = [line for line in markdown_summary(records, {}, "x").splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_markdown_of_the_run_is_text():
    assert plain("<b>&amp;</b> *x* _y_ [a](b) `c` |d| @all #1\nnext") == (
        r"\<b\>\&amp;\</b\> \*x\* \_y\_ \[a\](b) \`c\` \|d\| @<!-- -->all \#<!-- -->1 next"
    )
    assert plain("onnx-attention@ort-cpu") == "onnx-attention@ort-cpu"
    assert code("a`|b") == "`` a`\\|b ``"
    assert code("a\nb") == "`a\\nb`"


def test_a_huge_run_still_fits_a_comment(lab):
    records = [r for batch in range(1, 60) for r in lab.default_records(batch_size=batch)]
    text = markdown_summary(records, lab.make_manifest(records), "results/x")
    assert MAX_CHARACTERS / 2 < len(text) <= MAX_CHARACTERS
    assert re.search(r"\d+ more tables in the report", text)


@pytest.mark.parametrize("kind", ["junit", "markdown", "metrics"])
def test_a_file_is_written_whole_or_not_at_all(lab, tmp_path, kind):
    records = lab.troubled_records()
    records[-1].reason = HOSTILE
    path = tmp_path / "out"
    ci.write(kind, path, records, lab.make_manifest(records), "x")
    whole = path.read_bytes()
    if kind == "metrics":
        assert json.loads(whole)["run/cases_crashed"] == 3
    assert whole.decode("utf-8").endswith("\n")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    with pytest.raises(OSError, match="missing"):
        ci.write(kind, tmp_path / "missing" / "out", records, {}, "x")


def test_names_tell_problems_of_every_form_apart(lab) -> None:
    usual = Problem.make(variant="decode", seq_len=64, num_kv_heads=2)
    record = lab.make_record(usual, "torch-sdpa")
    assert geometry_name(record) == "block.fp32.b1.h8kv2x64.decode"
    form = {"v_head_dim": 32, "scale": 0.3, "bias": True, "mask": "causal_bottom_right+alibi"}
    name = geometry_name(record.model_copy(update=form))
    assert name == "block.fp32.b1.h8kv2x64-values_of_32-scale_0.3-bias.decode-causal_bottom_right+alibi"
