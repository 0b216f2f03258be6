"""The report of a run of a user's model: its own words for T and sizes, and no claim that nobody can make."""

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnbench.analysis.groups import make_panels
from attnbench.errors import InputError
from attnbench.records import Record
from attnbench.report.build import build_report
from attnbench.report.decisions import decisions
from attnbench.report.findings import trust_line
from attnbench.report.judged import count_at, how_judged, words_for, words_of
from attnbench.report.junit import junit_xml
from attnbench.report.markdown import markdown_summary
from attnbench.report.metrics import flat_metrics
from attnbench.report.names import case_names
from attnbench.report.pictures import plot
from attnbench.report.tables import read_csv
from attnbench.report.terminal import summary
from tests.report.model_rows import ARMS, JUDGE, MODULE_ARMS, model_records


def texts(lab: Any, folder: Path, rows: list[Record]) -> dict[str, str]:
    """Everything that people read of a run, by where."""
    manifest = lab.make_manifest(rows, baseline_arm=rows[0].baseline_arm, command="attnbench bench --onnx encoder.onnx")
    folder = folder / "run"
    folder.mkdir()
    files = build_report(folder, rows, manifest)
    assert files.problems == []
    terminal = io.StringIO()
    Console(width=80, file=terminal).print(summary(rows, manifest, 80))
    page = (folder / "report.html").read_text(encoding="utf-8")
    body = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return {
        "page": " ".join(re.sub(r"<[^>]+>", " ", body).split()),
        "terminal": terminal.getvalue(),
        "markdown": markdown_summary(rows, manifest, "results/x"),
        "junit": junit_xml(rows, manifest, "results/x"),
    }


def differing(r: Record) -> Record:
    return r.model_copy(update={"status": "mismatch", "worst_row_rel_err": 1e-2, "fastest": None})


def test_where_an_arm_judges_no_word_says_that_an_answer_is_right(lab: Any, tmp_path: Path) -> None:
    rows = [differing(r) if r.arm != JUDGE and r.q_len == 512 else r for r in model_records()]
    for where, text in texts(lab, tmp_path, rows).items():
        claims = re.findall(r"[^.]*\b(?:right|correct|wrong|oracle)\b[^.]*", text, re.IGNORECASE)
        assert claims == [], where
        if where != "junit":
            assert "every other arm is compared with file@ort-cpu" in " ".join(text.split()), where
            assert "Agreement is no proof" in " ".join(text.split())


def test_names_are_called_shortened_where_some_are(lab: Any, tmp_path: Path) -> None:
    file, module = ({"file": ARMS, "module": MODULE_ARMS}[kind] for kind in ("file", "module"))
    for name, arms, is_said in (("file", file, False), ("module", module, True)):
        (tmp_path / name).mkdir()
        found = texts(lab, tmp_path / name, model_records(arms=arms, judge=JUDGE if name == "file" else None))
        assert [("leave out onnx-" in found[where]) for where in ("page", "terminal")] == [is_said, is_said], name


@pytest.mark.parametrize("status", ["ok", "skipped"])
def test_of_a_file_that_one_arm_ran_or_none_nothing_is_right(lab: Any, tmp_path: Path, status: str) -> None:
    rows = model_records(arms={JUDGE: ARMS[JUDGE]})
    rows += [lab.without_figures(r, "skipped", "the time budget was spent") for r in model_records(judge=None)[1::2]]
    rows = [r.model_copy(update={"model": "encoder.onnx", "bound": "seq", "sizes": {"seq": r.q_len}}) for r in rows]
    rows = [r.model_copy(update={"status": status, "latency_ms_median": None}) if status != "ok" else r for r in rows]
    found = texts(lab, tmp_path, rows)
    for where in ("page", "terminal", "markdown"):
        flat = " ".join(found[where].split())
        assert not re.search(r"\bright\b|module itself|oracle", flat), where
        assert f"compared with {JUDGE if status == 'ok' else 'the first arm that runs'}, whose" in flat


def test_a_module_is_right_against_itself_in_float64(lab: Any, tmp_path: Path) -> None:
    found = texts(lab, tmp_path, model_records(judge=None, arms=MODULE_ARMS, name="blocks:Mine"))
    for where in ("page", "terminal", "markdown"):
        assert "against the module itself in float64" in " ".join(found[where].split())
        assert "oracle" not in found[where]
    assert re.search(r"seq\s+right", found["terminal"])
    assert "right at 4 of 4 seq values" in found["page"]


def test_the_bound_dim_is_what_charts_and_tables_run_over(lab: Any, tmp_path: Path) -> None:
    found = texts(lab, tmp_path, model_records())
    assert "seq = 1024" in found["page"]
    assert "T = 1024" not in found["page"]
    assert re.search(r"^ +seq +agree", found["terminal"], re.MULTILINE)
    assert "| seq | agree | fastest" in found["markdown"]
    names = {path.name.split("-")[0] for path in (tmp_path / "run" / "plots").glob("*.svg")}
    assert names == {"latency", "memory", "error"}
    svg = next((tmp_path / "run" / "plots").glob("memory-*.svg")).read_text()
    assert "peak memory, MiB" in svg
    assert ">seq<" in svg
    assert "score matri" not in found["page"].replace("peak memory in score matrices", "")


@pytest.mark.parametrize(("batches", "place"), [((), "fixed"), ((8,), "batch=8")])
def test_without_a_bound_dim_there_is_a_table_and_no_chart(
    lab: Any, tmp_path: Path, batches: tuple[int, ...], place: str
) -> None:
    rows = model_records(bound=None, batches=batches)
    found = texts(lab, tmp_path, rows)
    assert list((tmp_path / "run" / "plots").glob("latency*")) == []
    assert "Latency against T" not in found["page"]
    assert not re.search(r"\bT = |= 0\b|\bNone\b", found["page"].replace("None:", ""))
    assert re.search(rf"{place} +1/1 +file@openvino", found["terminal"])
    assert f"| {place} | 1/1 | `file@openvino` |" in found["markdown"]
    assert decisions(make_panels(rows), {}, {}) == []
    with pytest.raises(InputError, match="without a free dim that follows T"):
        plot(rows)


def test_an_answer_that_differs_is_named_with_its_sizes(lab: Any, tmp_path: Path) -> None:
    rows = [differing(r) if r.arm != JUDGE and r.q_len == 512 else r for r in model_records(batches=(1, 8))]
    found = texts(lab, tmp_path, rows)
    assert "Answers that differ from those of file@ort-cpu" in found["page"]
    flat = " ".join(found["terminal"].split())
    place = "model, fp32, batch=1, cpu, 1 thread, host time: encoder.onnx (kv follows seq), seq = 512:"
    assert f"mismatch: file@openvino, {place}" in flat
    assert re.search(r"512 +0/1 +file@ort-cpu", found["terminal"])
    tree = ET.fromstring(found["junit"])
    failed = [case.get("classname") for case in tree.iter("testcase") if case.find("failure") is not None]
    assert failed == ["model.encoder.onnx.fp32.batch1.kv256", "model.encoder.onnx.fp32.batch8.kv256"]


def test_where_the_judge_has_no_answer_another_one_judges() -> None:
    arms = {**ARMS, "file@third": ("file", "third", 2.0)}
    rows = model_records(seq_lens=(128,), arms=arms)
    other = model_records(seq_lens=(256,), arms=arms, judge="file@openvino")
    other[0] = other[0].model_copy(update={"status": "oom", "latency_ms_median": None, "flags": []})
    rows += model_records(seq_lens=(512,), arms=arms) + other
    assert "with file@ort-cpu (where that gave none, with file@openvino), whose" in how_judged(rows)
    (panel,) = make_panels(rows)
    assert [count_at(panel, x) for x in panel.xs] == ["2/2", "1/1", "2/2"]


def test_in_a_merged_report_every_kind_of_run_has_its_own_judge(lab: Any) -> None:
    file, module = model_records(), model_records(judge=None, arms=MODULE_ARMS, name="blocks:Mine", run_id="second")
    attention = [r.model_copy(update={"run_id": "third"}) for r in lab.default_records(seq_lens=(128,))]
    assert how_judged([*file, *module, *attention]).count("compared with") == 1
    assert "The error of a module is against the module itself" in how_judged([*file, *module])
    assert "That of the built-in attention is against a float64 oracle" in how_judged([*file, *attention])
    assert words_for([*file, *module]).wrong_title == "Answers beyond their limit"
    assert words_for([*module, *attention]).wrong_title == "Wrong answers"
    assert [words_of(panel.judge).column for panel in make_panels([*file, *module])] == ["agree", "right"]
    assert how_judged(attention) == "Error is against a float64 oracle on the same rounded inputs."


def test_an_arm_of_torch_that_cannot_take_a_file_makes_no_module_of_it() -> None:
    rows = model_records()
    rows.append(rows[0].model_copy(update={"exporter": "torch", "arm": "torch-eager", "status": "unsupported"}))
    assert "module" not in how_judged(rows)


def test_names_for_programs_tell_sizes_apart() -> None:
    rows = model_records(seq_lens=(128,), batches=(1, 8), arms={JUDGE: ARMS[JUDGE]})
    assert case_names(rows) == [
        "model.encoder.onnx.fp32.batch1.kv64.T128/file@ort-cpu",
        "model.encoder.onnx.fp32.batch8.kv64.T128/file@ort-cpu",
    ]
    assert case_names(model_records(bound=None, batches=(), arms={JUDGE: ARMS[JUDGE]})) == [
        "model.encoder.onnx.fp32/file@ort-cpu"
    ]
    tree = ET.fromstring(junit_xml(model_records(bound=None, batches=(8,)), {}, "results/x"))
    assert [(case.get("classname"), case.get("name")) for case in tree.iter("testcase")] == [
        ("model.encoder.onnx.fp32.batch8", "file@ort-cpu"),
        ("model.encoder.onnx.fp32.batch8", "file@openvino"),
    ]


def test_the_csv_has_model_sizes_and_bound(lab: Any, tmp_path: Path) -> None:
    texts(lab, tmp_path, model_records(seq_lens=(128,)))
    table = read_csv(tmp_path / "run" / "records.csv")
    assert set(table["model"]) == {"encoder.onnx"}
    assert set(table["sizes"]) == {'{"batch": 8, "kv": 64, "seq": 128}'}
    assert set(table["bound"]) == {"seq"}
    assert table["num_heads"].isna().all()


def test_who_judged_is_no_flag_of_trouble(lab: Any) -> None:
    rows = model_records()
    assert "judged_by" not in " ".join(trust_line(rows, lab.make_manifest(rows)))


def test_a_model_has_no_chart_of_the_peak() -> None:
    with pytest.raises(InputError, match="has no known FLOPs"):
        plot(model_records(), "roofline")
    assert plot(model_records(), "memory").axes


def test_all_versions_of_a_model_name_stay_text(lab: Any, tmp_path: Path) -> None:
    rows = model_records(name="<b>x & y</b> \u202e.onnx")
    texts(lab, tmp_path, rows)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<b>x & y</b>" not in page


def test_programs_read_who_judged(lab: Any) -> None:
    of_file, of_module = model_records(seq_lens=(64, 128)), model_records(seq_lens=(64,), judge=None, arms=MODULE_ARMS)
    assert flat_metrics(of_file, {})["run/cases_judged_by_file@ort-cpu"] == 2
    assert flat_metrics(of_module, {})["run/cases_judged_by_float64"] == 2
    assert not [name for name in flat_metrics(lab.troubled_records(), {}) if "judged" in name]

    def properties(rows: Any) -> dict[str, str]:
        root = ET.fromstring(junit_xml(rows, {}, "RUN"))
        return {p.attrib["name"]: p.attrib["value"] for p in root.iter("property")}

    assert properties(of_file)["judged_by"] == "file@ort-cpu"
    assert "There is no float64 truth for a file" in properties(of_file)["judging"]
    assert properties(of_module)["judged_by"] == "float64"
    assert "against the module itself in float64" in properties(of_module)["judging"]
    assert properties(lab.troubled_records())["judged_by"] == "float64"


def test_junit_calls_an_answer_that_differs_from_an_arm_no_proven_fault() -> None:
    differs = [
        r.model_copy(update={"status": "mismatch", "worst_row_rel_err": 0.5, "reason": "row 3 is off"})
        for r in model_records(seq_lens=(64,)) if r.arm != JUDGE
    ]  # fmt: skip
    (failure,) = ET.fromstring(junit_xml(differs, {}, "RUN")).iter("failure")
    assert failure.attrib["message"].startswith("differs from file@ort-cpu, which is no proof: worst row 5.0e-01")
