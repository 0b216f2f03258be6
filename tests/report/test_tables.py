"""records.csv and friends keep everything as it was."""

import csv
import json

import pyarrow.parquet as pq
import pytest

from attnbench.errors import RecordsError
from attnbench.problem import Problem
from attnbench.records import COLUMNS
from attnbench.report import tables

LABELS = ("none", "None", "NA", "nan", "null", "causal")
ODD_LABELS = (*LABELS, "", "1e5", "007", "TRUE", "a,b;c", 'say "x"', "two\nlines", "Grüße 注意", " pad ")


def test_labels_that_look_missing_survive_the_csv_and_every_group_by(tmp_path, lab):
    problem = Problem.make(seq_len=128)
    records = [
        lab.make_record(problem, "torch-sdpa", mask=mask, case_id=str(i), latency_ms_median=float(i + 1))
        for i, mask in enumerate(LABELS)
    ]
    tables.write_csv(tmp_path / "records.csv", records)
    frame = tables.read_csv(tmp_path / "records.csv")
    assert list(frame["mask"]) == list(LABELS)
    assert frame.groupby("mask").ngroups == 6
    assert frame.groupby("mask")["latency_ms_median"].sum().sum() == 21


@pytest.mark.parametrize("column", ["variant", "run_id", "reason", "arm"])
def test_text_columns_come_back_byte_for_byte(tmp_path, lab, column):
    problem = Problem.make(seq_len=128)
    records = [lab.make_record(problem, "torch-sdpa", **{column: label}) for label in ODD_LABELS]
    tables.write_csv(tmp_path / "records.csv", records)
    assert list(tables.read_csv(tmp_path / "records.csv")[column]) == list(ODD_LABELS)


def test_not_measured_is_an_empty_cell_and_figures_keep_every_digit(tmp_path, lab):
    record = lab.make_record(
        Problem.make(seq_len=128), "torch-sdpa", latency_ms_median=0.1 + 0.2, build_ms=None,
        flags=["contended", "throttled"], empty_reasons={"build_ms": "nothing is built"}, fastest=True,
    )  # fmt: skip
    tables.write_csv(tmp_path / "records.csv", [record])
    with (tmp_path / "records.csv").open(newline="", encoding="utf-8") as f:
        row = next(csv.DictReader(f))
    assert list(row) == list(COLUMNS)
    assert row["build_ms"] == ""
    assert row["latency_ms_median"] == "0.30000000000000004"
    assert row["flags"] == "contended;throttled"
    assert json.loads(row["empty_reasons"]) == {"build_ms": "nothing is built"}
    frame = tables.read_csv(tmp_path / "records.csv")
    assert frame["build_ms"].isna().all()
    assert frame["latency_ms_median"][0] == 0.1 + 0.2
    assert frame["q_len"][0] == 128
    assert frame["fastest"][0]


def test_parquet_holds_the_same_columns_with_types(tmp_path, lab):
    records = lab.default_records(seq_lens=(128,))
    tables.write_parquet(tmp_path / "records.parquet", records)
    table = pq.read_table(tmp_path / "records.parquet")
    assert table.column_names == list(COLUMNS)
    assert table.num_rows == len(records)
    assert str(table.schema.field("q_len").type) == "int64"
    assert str(table.schema.field("build_ms").type) == "double"
    assert str(table.schema.field("opset").type) == "int64"


def test_a_csv_that_is_not_of_records_is_refused_with_a_way_out(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RecordsError, match=r"no header with case_id; name the records\.csv"):
        tables.read_csv(tmp_path / "x.csv")
    with pytest.raises(RecordsError, match="cannot read"):
        tables.read_csv(tmp_path / "absent.csv")


def test_samples_are_merged_for_the_records_of_the_run_only(tmp_path, lab):
    records = lab.default_records(variants=("self",), seq_lens=(128, 256))
    lab.write_samples(tmp_path / "samples", records, rounds=3, calls=4)
    (tmp_path / "samples" / "feedfeedfeed.parquet").write_bytes((next((tmp_path / "samples").glob("*"))).read_bytes())
    problems = tables.merge_samples(tmp_path / "samples", tmp_path / "samples.parquet", {r.problem_id for r in records})
    table = pq.read_table(tmp_path / "samples.parquet")
    assert problems == []
    assert table.column_names == list(tables.SAMPLE_COLUMNS)
    assert table.num_rows == 2 * 8 * 3 * 4  # T x (7 arms + replica) x rounds x calls
    assert set(table.column("case_id").to_pylist()) == {r.case_id for r in records}


def test_a_torn_samples_file_costs_its_own_samples_and_is_named(tmp_path, lab):
    records = lab.default_records(variants=("self",), seq_lens=(128, 256))
    lab.write_samples(tmp_path / "samples", records, rounds=3, calls=4)
    torn = tmp_path / "samples" / f"{records[0].problem_id}.parquet"
    torn.write_bytes(torn.read_bytes()[:-30])
    problems = tables.merge_samples(tmp_path / "samples", tmp_path / "samples.parquet", {r.problem_id for r in records})
    assert [p for p in problems if torn.name in p]
    assert pq.read_table(tmp_path / "samples.parquet").num_rows == 8 * 3 * 4


def test_a_full_disk_is_no_fault_of_the_samples_read_and_leaves_nothing(tmp_path, lab, monkeypatch):
    def full(writer, batch):
        raise OSError(28, "No space left on device")

    records = lab.default_records(variants=("self",), seq_lens=(128,))
    lab.write_samples(tmp_path / "samples", records, rounds=3, calls=4)
    monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
    with pytest.raises(OSError, match="No space left"):
        tables.merge_samples(tmp_path / "samples", tmp_path / "samples.parquet", {r.problem_id for r in records})
    assert [path.name for path in tmp_path.iterdir()] == ["samples"]


def test_without_samples_nothing_is_written(tmp_path):
    assert tables.merge_samples(tmp_path / "samples", tmp_path / "samples.parquet", {"a"}) == []
    assert not (tmp_path / "samples.parquet").exists()


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    (tmp_path / "records.csv").write_text("old")

    def fail(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        tables.write_atomically(tmp_path / "records.csv", fail)
    assert [p.name for p in tmp_path.iterdir()] == ["records.csv"]
    assert (tmp_path / "records.csv").read_text() == "old"
