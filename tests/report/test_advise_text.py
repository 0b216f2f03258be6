"""Advice reads as it was decided, within 80 columns, and as JSON."""

import json

import numpy as np
import pytest

from attnbench.analysis.choice import Limits, advise, profiles_of
from attnbench.analysis.groups import make_panels
from attnbench.analysis.workload import Requests
from attnbench.report.advise_text import advice_as_dict, advice_section
from attnbench.report.section_text import sections_text
from attnbench.report.sections import Section, Table
from tests.analysis.synthetic import Terms, make_run

LAWS: dict[str, Terms] = {"torch-sdpa": (0.05, 0.02, 2e-5), "onnx-attention@ort-cpu": (7.05, 0.01, 2e-5)}
MEMORY: dict[str, Terms] = {"torch-sdpa": (5e5, 2e4, 0.0), "onnx-attention@ort-cpu": (4e5, 8e3, 64.0)}


def section(workload: list[Requests] | None = None, limits: Limits | None = None, **how: object) -> Section:
    records, medians = make_run(LAWS, np.random.default_rng(0), memory=MEMORY, **how)
    limits = limits or Limits()
    found = advise(make_panels(records), workload, limits, 0.005, medians)
    cut = {a.name: profiles_of(a, most=3, switch_ms=0.0) for a in found} if workload else {}
    return advice_section(found, limits, cut, has_workload=workload is not None)


def test_the_answer_comes_first_in_a_sentence() -> None:
    (line,) = section([Requests(1, 128, 9.0), Requests(1, 4096, 1.0)]).lines
    assert line.startswith("block, self: one arm for all: torch-sdpa, 44.")  # 0.9 x 2.94 + 0.1 x 417.5
    assert "each request by its fastest arm: " in line


def test_figures_of_the_law_are_marked_and_measured_ones_are_not() -> None:
    table = section([Requests(1, 512, 1.0), Requests(1, 3000, 1.0), Requests(1, 9000, 1.0)]).tables[0]
    assert list(table.head) == ["T", "count", "arm", "ms", "memory", "toss-up with"]
    marks = [row[3].split(")")[1].strip() for row in table.rows]
    assert marks == ["", "~", "*"]
    assert table.rows[0][:3] == ["512", "1", "torch-sdpa"]


def test_what_cannot_be_served_is_said_with_the_reason() -> None:
    found = section(None, Limits(memory_bytes=8_000_000))
    assert "cannot be served" in found.lines[0]
    assert "memory at most 7.63 MiB" in found.intro
    assert found.lines[0].endswith("no arm is right there within the limits.")
    assert any(row[2] == "none" for row in found.tables[0].rows)


def test_a_wide_table_is_wrapped_and_no_figure_is_cut() -> None:
    row = ["128", "10", "contrib@ort-cpu", "0.0180 (0.0180-0.0352)", "4.00 KiB", "torch-sdpa and 5 more"]
    head = ("T", "count", "arm", "ms", "memory", "toss-up with")
    for width in (80, 110):
        text = sections_text(
            [Section(id="a", title="t", tables=[Table(caption="c", head=head, rows=[row])])], width=width
        )
        words = text.split()
        assert max(map(len, text.splitlines())) <= width
        assert all(word in words for cell in row for word in cell.split()), text


def test_at_80_columns_figures_are_wrapped_before_names_are_broken() -> None:
    head = ("T", "count", "arm", "ms", "memory", "toss-up with")
    row = ["4,096", "100", "decomposed@openvino", "24.7 (24.1-25.3) ~", "35.6 MiB", "decomposed@ort-cpu and 1 more"]
    text = sections_text([Section(id="a", title="t", tables=[Table(caption="c", head=head, rows=[row])])], width=80)
    assert {"decomposed@openvino", "decomposed@ort-cpu", "(24.1-25.3)", "35.6"} <= set(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_profiles_are_listed_with_their_padding_and_a_recommendation() -> None:
    table = section([Requests(1, 128, 9.0), Requests(1, 256, 5.0), Requests(1, 4096, 1.0)]).tables[-1]
    assert [row[0] for row in table.rows] == ["1", "2", "3"]
    assert table.rows[2][1] == "[128, 128, 128], [256, 256, 256], [4096, 4096, 4096]"
    assert table.rows[2][2] == "0 %"
    assert [row[4] for row in table.rows].count("recommended") == 1


def test_without_a_workload_there_are_no_profiles() -> None:
    assert not any("profiles" in table.caption for table in section().tables)


def test_text_keeps_to_80_columns_and_to_ascii_where_it_must() -> None:
    for encoding in ("utf-8", "ascii"):
        text = sections_text([section([Requests(1, 700, 1.0)])], width=80, encoding=encoding)
        assert max(map(len, text.splitlines())) <= 80
        text.encode(encoding)
    assert "[128, 128, 128]" in sections_text([section([Requests(1, 128, 1.0)])], width=80)


def test_hostile_names_stay_text_in_a_terminal() -> None:
    table = Table(caption="[red]x[/red]", head=("[b]h", "y"), rows=[["[link=http://x]a\x1b[31m", "\u202eb"]])
    text = sections_text([Section(id="a", title="t", tables=[table])], width=80)
    assert "\x1b" not in text
    assert "[red]x[/red]" in text
    assert "[link=http://x]a" in text


def test_json_has_every_option_and_no_infinities() -> None:
    records, medians = make_run(LAWS, np.random.default_rng(0), memory=MEMORY)
    found = advise(make_panels(records), [Requests(1, 700, 2.0)], Limits(), 0.005, medians)
    cut = {found[0].name: profiles_of(found[0], most=2, switch_ms=0.1)}
    text = json.dumps(advice_as_dict(found, cut), allow_nan=False)
    (advice,) = json.loads(text)["advice"]
    (decision,) = advice["decisions"]
    assert decision["count"] == 2.0
    assert len(decision["options"]) == 2
    assert decision["options"][0]["by"] == "law"
    assert len(decision["options"][0]["latency_ms"]) == 3
    assert advice["profiles"][0]["profiles"] == [{"minimum": 700, "opt": 700, "maximum": 700}]


def test_several_batch_sizes_are_told_apart() -> None:
    records, medians = make_run(LAWS, np.random.default_rng(0), memory=MEMORY)
    eight = [
        r.model_copy(update={"batch_size": 8, "problem_id": r.problem_id + "8", "case_id": r.case_id + "8"})
        for r in records
    ]
    found = advise(make_panels(records + eight), None, Limits(), 0.005, medians)
    table = advice_section(found, Limits(), {}, has_workload=False).tables[0]
    assert table.head[0] == "batch x T"
    assert [row[0] for row in table.rows][:2] == ["1 x 128", "1 x 256"]
    assert len(table.rows) == 12


@pytest.mark.parametrize("width", [40, 60, 120])
def test_narrow_and_wide_terminals(width: int) -> None:
    text = sections_text([section()], width=width)
    assert max(map(len, text.splitlines())) <= width
