"""The table at the end of a bench fits any terminal."""

import io

import pytest
from rich.console import Console

from attnbench.report.terminal import summary
from tests.report.test_compiled_text import ROWS as COMPILED


def shown(lab, records, *, width=80, encoding="utf-8", **manifest):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width).print(summary(records, lab.make_manifest(records, **manifest), width))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(lab, width):
    assert max(map(len, shown(lab, lab.troubled_records(), width=width).splitlines())) <= width


def test_who_is_right_fast_and_small_stands_in_one_row(lab):
    text = shown(lab, lab.default_records(variants=("self",), seq_lens=(128,)))
    (row,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["128"]]
    assert row == ["128", "7/7", "contrib@ort-cpu", "2.62", "1.28x", "torch-sdpa", "1.02", "MiB"]


def test_a_toss_up_names_all_of_its_arms(lab):
    text = shown(lab, lab.default_records(variants=("self",), seq_lens=(4096,)), width=110)
    for words in ("toss-up: ", "decomposed@openvino,", "attention@openvino"):
        assert words in text


def test_plain_ascii_where_the_terminal_has_nothing_else(lab):
    records = lab.troubled_records()
    for r in records:
        if r.status == "crashed":
            r.reason = "killed – 注意"
    text = shown(lab, records, encoding="ascii")
    assert "killed \\u2013 \\u6ce8\\u610f" in text
    assert "+---" in text


def test_wrong_and_failed_cases_come_with_reason_and_way_out(lab):
    text = " ".join(shown(lab, lab.troubled_records()).split())
    assert "mismatch: onnx-contrib@ort-cpu, causal, T = 512: worst row 3.1e-02, allowed 1.6e-06" in text
    assert "crashed: torch-compile (3 cases;" in text
    assert "the worker was killed by signal 11 (SIGSEGV)" in text
    assert "way out: install the NVIDIA driver" in text
    assert "Noise floor 0.80 %" in text


def test_markup_in_a_reason_is_text(lab):
    records = lab.troubled_records()
    for r in records:
        if r.status == "crashed":
            r.reason = "[bold]x[/nonsense]\x1b[31m"
    assert "[bold]x[/nonsense]\\x1b[31m" in shown(lab, records)


def test_many_facets_are_cut_and_the_rest_is_pointed_to(lab):
    records = [
        r for batch in (1, 2, 4) for r in lab.default_records(seq_lens=(128,), batch_size=batch, arms=["torch-sdpa"])
    ]
    assert "3 more tables are in the report" in shown(lab, records)


def test_a_wrapped_sentence_keeps_its_indent(lab):
    lines = shown(lab, COMPILED, width=60).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Compiled, not run"))
    assert len(lines[start + 1 : -2]) > 2
    wrapped = [line for line in lines[start + 1 :] if "planned memory" in line or "grows" in line]
    assert all(line.startswith("  ") for line in wrapped)


def test_an_empty_run_is_no_error(lab):
    assert "noise floor was not measured" in shown(lab, [], noise_floor=None)


def test_a_runtime_is_named_where_the_environment_makes_the_name_long(lab):
    records = lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa", "onnx-attention@ort-cpu"])
    records[1].arm += "[new=1.32.0]"
    assert "attention@ort-cpu [new=1.32.0]" in shown(lab, records, width=110)
    narrow = [line.split() for line in shown(lab, records, width=66).splitlines()]
    assert [row[2] for row in narrow if row[:2] == ["128", "2/2"]] == ["attention@ort-cpu"]
    assert ["[new=1.32.0]"] in narrow
