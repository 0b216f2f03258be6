"""A comparison in words: terminal, Markdown, JSON."""

import json
import re

import pytest

from attnbench.analysis.diff import Side, diff
from attnbench.problem import Problem
from attnbench.report import diff_text

NASTY = "a|b`c\n<img src=x>*_[x](y)@sdpa"
TIMES = ("latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high")


def slower(record, factor):
    return record.model_copy(update={c: getattr(record, c) * factor for c in TIMES})


@pytest.fixture
def rows(lab):
    problems = [Problem.make(variant=v, seq_len=t) for v in ("self", "causal") for t in (128, 512, 1024)]
    arms = ("torch-sdpa", "torch-eager", "onnx-attention@ort-cpu", "onnx-decomposed@openvino", NASTY)
    return [
        lab.make_record(p, arm, noise_log_ratio=0.002 if arm == "torch-sdpa" else None)
        for p in problems
        for arm in arms
    ]


@pytest.fixture
def compared(lab, rows):
    """What a bad upgrade does: one arm 12 % slower, one with another placement, one crash, one wrong, one larger."""
    new = []
    for r in rows:
        if r.arm == "torch-eager":
            r = slower(r, 1.12)
        elif r.arm == "onnx-attention@ort-cpu":
            r = r.model_copy(update={"facts": {"nodes": 33, "providers": ["CPUExecutionProvider"]}})
        elif r.arm == NASTY and r.q_len == 128:
            r = lab.without_figures(r, "crashed", f"signal 11 in {NASTY}")
        elif r.arm == NASTY and r.q_len == 512:
            r = r.model_copy(update={"status": "mismatch", "reason": "worst row 3e-2, allowed 2e-6"})
        elif r.arm == NASTY:
            r = r.model_copy(update={"peak_host_bytes": r.peak_host_bytes * 2, "threads": 1})
        new.append(r)
    new[-2] = new[-2].model_copy(update={"threads": 4})
    versions = {"torch": "2.13.0", "onnxruntime": "1.33.0", "openvino": "2026.4.1", "numpy": "2.4.6"}
    old_side = Side(name="results/old", rows=rows, manifest=lab.make_manifest(rows))
    return diff(old_side, Side(name=f"results/{NASTY}", rows=new, manifest=lab.make_manifest(new, versions=versions)))


@pytest.mark.parametrize("width", [80, 40, 200])
def test_every_line_fits_the_terminal(compared, width):
    text = diff_text.terminal_text(compared, width=width)
    assert max(map(len, text.split("\n"))) <= width


def test_the_terminal_says_what_where_and_how_much(compared):
    text = " ".join(diff_text.terminal_text(compared, width=80).split())
    assert "Regressions: mismatch 2, status 2, slower 6, memory 2, kernel 6." in text
    assert "slower: torch-eager, self T = 128" in text
    assert "(+12 %, needs" in text
    assert "other nodes: onnx-attention@ort-cpu, self T = 128, 512 and 1024; causal T = 128, 512 and 1024" in text
    assert "31 -> 33" in text
    assert "runs no more" in text
    assert "ok -> crashed (signal 11 in" in text
    assert "1 case: another number of threads: 1 -> 4" in text
    assert "onnxruntime 1.32.0 -> 1.33.0" in text
    assert "29 cases compared, latency judged in 25 (4 not timed in both); 1 set apart" in text


def test_a_run_with_itself_says_so_in_every_form(rows, lab):
    side = Side(name="a", rows=rows, manifest=lab.make_manifest(rows))
    found = diff(side, side)
    assert "No regression was found." in diff_text.terminal_text(found)
    assert "**No regression was found.**" in diff_text.markdown(found)
    assert "Worse" not in diff_text.markdown(found)
    assert not any(case["findings"] for case in diff_text.as_dict(found, [])["cases"])


def test_it_says_when_no_latency_could_be_judged(rows, lab):
    contended = [r.model_copy(update={"flags": ["contended"]}) for r in rows]
    sides = (Side(name="a", rows=x, manifest=lab.make_manifest(x)) for x in (rows, contended))
    assert diff_text.headline(diff(*sides)) == "No regression was found, but no latency could be judged."


def test_it_says_when_nothing_could_be_compared(rows, lab):
    other = [r.model_copy(update={"device_name": "Intel"}) for r in rows]
    found = diff(*(Side(name="a", rows=x, manifest=lab.make_manifest(x)) for x in (rows, other)))
    text = " ".join(diff_text.terminal_text(found).split())
    assert "Nothing could be compared." in text
    assert "30 cases: another processor or device: AMD EPYC 9R45 -> Intel" in text


def test_a_common_shift_is_a_warning_with_the_machines_own_peak(rows, lab):
    new = [slower(r, 1.2) for r in rows]
    peak = {"fp32": {"gflops_per_s": 117.0}}
    found = diff(
        Side(name="a", rows=rows, manifest=lab.make_manifest(rows)),
        Side(name="b", rows=new, manifest=lab.make_manifest(new, machine_peak=peak)),
    )
    text = diff_text.common_shift(found)
    assert text.startswith("Together: 5 of 5 runtimes are at least 20 % slower in NEW (")
    assert "The machine's own peak went from 234 to 117 GFLOP/s." in text


def test_names_cannot_break_markdown(compared):
    text = diff_text.markdown(compared)
    tables = [line for line in text.split("\n") if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} <= {4, 7}  # three or six columns
    unescaped = re.sub(r"\\.", "", text)
    assert "`" not in unescaped
    assert "<img" not in unescaped
    assert text.count("<details>") == text.count("</details>") == 1


def test_markdown_has_regressions_first_and_folds_the_rest(compared):
    text = diff_text.markdown(compared)
    assert text.index("#### Worse") < text.index("<details>")
    assert text.index("another number of threads") > text.index("<details>")
    assert text == diff_text.markdown(compared)


def test_markdown_of_thousands_of_findings_fits_a_comment(lab):
    problems = [Problem.make(seq_len=t) for t in range(16, 2016)]
    rows = [lab.make_record(p, "torch-sdpa") for p in problems]
    new = [r.model_copy(update={"status": "crashed", "reason": f"{NASTY * 40} {r.q_len}"}) for r in rows]
    found = diff(*(Side(name="a", rows=x, manifest=lab.make_manifest(x)) for x in (rows, new)))
    assert len(diff_text.markdown(found)) < 65_536
    assert len(diff_text.terminal_text(found).split("\n")) < 2_000


def test_json_holds_every_number(compared):
    found = json.loads(json.dumps(diff_text.as_dict(compared, ["slower"])))
    assert found["exit_code"] == 1
    assert found["adverse"] == {
        "mismatch": 2, "status": 2, "slower": 6, "memory": 2, "kernel": 6, "numeric": 0, "missing": 0, "drift": 0
    }  # fmt: skip
    slow = [case for case in found["cases"] if case["arm"] == "torch-eager"]
    assert [case["latency"]["verdict"] for case in slow] == ["slower"] * 6
    assert found["apart"][0]["condition"] == "threads"


def test_only_what_varies_is_named(lab):
    problems = [Problem.make(seq_len=128, dtype=d) for d in ("fp32", "bf16")]
    rows = [lab.make_record(p, "torch-sdpa") for p in problems]
    new = [r.model_copy(update={"attention_kernel": "math"}) for r in rows]
    found = diff(*(Side(name="a", rows=x, manifest=lab.make_manifest(x)) for x in (rows, new)))
    (line,) = diff_text.lines_of(found)
    assert (line.where, line.old, line.new) == ("bf16, self T = 128; fp32, self T = 128", "flash", "math")


def test_cases_that_differ_in_mask_and_form_are_told_apart(lab):
    usual = lab.make_record(Problem.make(seq_len=128), "torch-eager", noise_log_ratio=0.002)
    others = [
        usual.model_copy(update={"case_id": case_id, **changes})
        for case_id, changes in (("b", {"mask": "key_padding"}), ("c", {"bias": True}), ("d", {"scale": 0.3}))
    ]
    rows = [usual, *others]
    wrong = [r.model_copy(update={"status": "mismatch", "reason": "worst row"}) for r in rows]
    found = diff(Side(name="a", rows=rows, manifest={}), Side(name="b", rows=wrong, manifest={}))
    text = diff_text.markdown(found)
    for words in ("key_padding", "bias True", "scale 0.3"):
        assert words in text.replace("\\_", "_")
