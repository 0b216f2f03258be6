"""`attnbench advise` answers in text and JSON, and names what is wrong with its input."""

import json
from pathlib import Path

import pytest

from attnbench import cli
from tests.report.conftest import default_records, write_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advise") / "run"
    write_run(folder, default_records())
    return folder


def test_every_measured_size_is_answered_without_a_workload(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Which arm to take")
    assert "block, causal" in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_is_one_document(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = tmp_path / "lengths.csv"
    workload.write_text("seq_len,count\n300,7\n")
    assert cli.main(["advise", str(run_dir), "--workload", str(workload), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["advice"]
    assert [d["seq_len"] for d in found[0]["decisions"]] == [300]


def test_limits_that_nothing_keeps_are_exit_code_3(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", str(run_dir), "--max-latency-ms", "0.001"]) == 3
    assert "no arm is right there within the limits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-latency-ms", "fast"], "--max-latency-ms must be a number above 0, got 'fast'"),
        (["--max-latency-ms", "0"], "must be a number above 0"),
        (["--max-error", "nan"], "--max-error must be a number above 0"),
        (["--max-memory", "much"], "--max-memory"),
        (["--max-profiles", "0"], "--max-profiles"),
        (["--switch-ms", "1e308"], "switch_ms must be from 0 to 8.64e+07"),
        (["--switch-ms", "-1"], "--switch-ms must be a number of at least 0"),
        (["--workload", "none.csv"], "cannot read the workload 'none.csv'"),
    ],
)
def test_bad_input_is_named(
    run_dir: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["advise", str(run_dir), *arguments]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert cli.main(["advise", str(tmp_path)]) == 2
