"""Single rows and pairs of rows of a user's model: explained, compared between runs, refused where nothing fits."""

import json
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.choice import Limits, advise
from attnbench.analysis.diff import Side, diff
from attnbench.analysis.groups import make_panels
from attnbench.analysis.lookup import find_case, label_of, problem_of, short_name
from attnbench.errors import InputError
from attnbench.records import Record
from attnbench.report import pyperf
from attnbench.report.case_text import as_dict, case_text
from attnbench.report.diff_text import as_dict as diff_as_dict
from attnbench.report.diff_text import lines_of, markdown, run_facts, terminal_text
from tests.report.model_rows import JUDGE, MODULE_ARMS, model_records

ROW = next(r for r in model_records(seq_lens=(512,)) if r.arm != JUDGE)
OF_JUDGE = next(r for r in model_records(seq_lens=(512,)) if r.arm == JUDGE)


def told(r: Record) -> str:
    return " ".join(case_text(r, {}, "RUN", width=100).split())


def test_a_case_tells_its_model_and_sizes_and_who_it_was_compared_with() -> None:
    text = told(ROW)
    assert text.startswith(f"file@openvino, encoder.onnx batch=8 seq=512 kv=256 fp32: case {ROW.case_id}")
    assert "Agrees Compared with file@ort-cpu, whose own answer was not judged." in text
    assert "3.0e-07 of 2.0e-06 allowed" in text
    assert "above the loaded and bound model." in text
    for word in ("Right", "score matrices", "heads of", "Attention kernel", "attnbench repro"):
        assert word not in text, word


def test_the_judge_was_not_judged() -> None:
    assert "Not checked: this arm is the reference." in told(OF_JUDGE)


def test_a_module_is_right_and_ran_itself() -> None:
    first, _ = model_records(seq_lens=(64,), judge=None, arms=MODULE_ARMS)
    assert "torch-eager of torch 1.2 ran the module itself, without a file." in told(first)
    assert "Right Decided by the worst row" in told(first)


def test_a_case_for_scripts_has_the_sizes() -> None:
    problem = as_dict(ROW, {}, "RUN")["problem"]
    assert problem == {"model": "encoder.onnx", "sizes": {"batch": 8, "seq": 512, "kv": 256}, "bound": "seq",
                       "dtype": "fp32"}  # fmt: skip
    json.dumps(as_dict(ROW, {}, "RUN"), allow_nan=False)


def test_a_case_is_found_by_what_a_person_types() -> None:
    rows = model_records()
    assert find_case(rows, "file@openvino:model:512").q_len == 512
    alone = model_records(bound=None, batches=())
    assert short_name(alone[0]) == "file@ort-cpu:model:-"
    assert find_case(alone, "file@ort-cpu:model:-") is alone[0]
    with pytest.raises(InputError, match=r"means 2 cases: .*encoder.onnx batch=1 seq=512"):
        find_case(model_records(batches=(1, 8)), "file@openvino:model:512")
    assert label_of(ROW) == "encoder.onnx batch=8 seq=512 kv=256 fp32"


def test_what_needs_the_built_in_attention_refuses_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"is of the model 'encoder.onnx', and only cases of the built-in attention"):
        problem_of(ROW)
    with pytest.raises(InputError, match=r"the run is of the model 'encoder.onnx'; read its table"):
        advise(make_panels(model_records()), None, Limits(), 0.005)


def side(lab: Any, rows: list[Record]) -> Side:
    return Side(name="run", rows=rows, manifest=lab.make_manifest(rows))


def test_the_same_run_twice_has_no_difference(lab: Any) -> None:
    rows = model_records(batches=(1, 8))
    found = diff(side(lab, rows), side(lab, rows))
    assert len(found.compared) == len(rows)
    assert lines_of(found) == []
    assert diff(side(lab, model_records(bound=None)), side(lab, model_records(bound=None))).only_new == ()


def test_an_answer_that_differs_now_is_not_called_wrong(lab: Any) -> None:
    rows = model_records(batches=(1, 8))
    changed = [
        r.model_copy(update={"status": "mismatch", "worst_row_rel_err": 1e-2}) if r.arm != JUDGE else r for r in rows
    ]
    (line, *_) = [x for x in lines_of(diff(side(lab, rows), side(lab, changed))) if x.category == "mismatch"]
    assert line.label == "differs now"
    assert "encoder.onnx, batch=1, kv=64 T = 128" in line.where
    (line, *_) = [x for x in lines_of(diff(side(lab, changed), side(lab, rows))) if x.category == "mismatch"]
    assert line.label == "agrees again"


def judged_by(judge: str, **changes: Any) -> list[Record]:
    """Rows at T = 128, of which this arm judges the others."""
    rows = model_records(seq_lens=(128,), judge=judge)
    return [r if r.arm == judge else r.model_copy(update=changes) for r in rows]


def test_another_judge_is_told_and_errors_against_it_are_not_compared(lab: Any) -> None:
    by_ort = judged_by("file@ort-cpu", worst_row_rel_err=1e-7)
    by_openvino = judged_by("file@openvino", worst_row_rel_err=1e-2)
    third = [r.model_copy(update={"arm": "file@third", "runtime": "third", "case_id": "third0"}) for r in by_ort[1:]]
    third_off = [r.model_copy(update={"worst_row_rel_err": 1e-2, "flags": ["judged_by_file@openvino"]}) for r in third]
    found = diff(side(lab, [*by_ort, *third]), side(lab, [*by_openvino, *third_off]))
    assert found.judge_changes == {("file@ort-cpu", "file@openvino"): 1}
    assert lines_of(found) == []
    text = " ".join(terminal_text(found).split())
    assert "judged by file@ort-cpu -> file@openvino" in text
    assert "The judge is another one: file@ort-cpu in OLD, file@openvino in NEW (1 case)." in text
    assert "The judge is another one" in markdown(found)
    assert diff_as_dict(found, [])["judge_changes"] == [{"old": "file@ort-cpu", "new": "file@openvino", "cases": 1}]
    same_judge = [r.model_copy(update={"flags": ["judged_by_file@ort-cpu"]}) for r in third_off]
    (line,) = lines_of(diff(side(lab, [*by_ort, *third]), side(lab, [*by_ort, *same_judge])))
    assert line.label == "larger error"


def test_a_case_that_differs_from_another_judge_only_is_set_apart(lab: Any) -> None:
    (_, old), (_, new) = judged_by("file@ort-cpu"), judged_by("file@ort-cpu", status="mismatch")
    new = new.model_copy(update={"flags": ["judged_by_file@third"]})
    found = diff(side(lab, [old]), side(lab, [new]))
    assert [(a.condition, a.old_value, a.new_value) for a in found.apart] == [
        ("judge", "file@ort-cpu", "file@third"),
    ]
    assert found.adverse("mismatch") == 0
    assert "1 case: compared with another arm: file@ort-cpu -> file@third" in terminal_text(found)


def test_a_module_and_a_file_are_judged_by_float64_and_by_an_arm(lab: Any) -> None:
    module = model_records(seq_lens=(128,), judge=None, arms=MODULE_ARMS)
    found = diff(side(lab, module), side(lab, model_records(seq_lens=(128,))))
    assert ("judged by", "float64", "file@ort-cpu") in run_facts(found)
    assert found.exit_code(()) == 3
    attention = lab.default_records(variants=("self",), seq_lens=(128,))
    assert "judged by" not in [name for name, *_ in run_facts(diff(side(lab, attention), side(lab, attention)))]


def test_cases_convert_to_pyperf(lab: Any, tmp_path: Path) -> None:
    rows = model_records(seq_lens=(128,))
    lab.write_run(tmp_path / "run", rows)
    suite = pyperf.make_suite(tmp_path / "run", rows, lab.make_manifest(rows), "medians")
    assert [benchmark["metadata"]["name"] for benchmark in suite.document["benchmarks"]] == [
        f"model.encoder.onnx.fp32.batch8.kv64.T128/{r.arm}" for r in rows
    ]
