"""Several runs in one report."""

import re
from pathlib import Path

import pandas as pd
import pytest

import attnbench
from attnbench import cli
from attnbench.errors import InputError, RecordsError
from attnbench.problem import Problem
from attnbench.report.merged import run_folder_names
from tests.report.conftest import make_record, mark_fastest, without_figures, write_run

ARMS = ("torch-sdpa", "torch-eager", "onnx-attention@ort-cpu")


def write(path, run_id, machine, noise=0.004, **manifest):
    """A run of three arms at three T, where the last arm's longest case ran out of budget."""
    problems = [Problem.make(seq_len=t) for t in (128, 512, 1024)]
    records = mark_fastest(
        make_record(p, arm, run_id=run_id, device_name=machine, noise_log_ratio=noise if arm == "torch-sdpa" else None)
        for p in problems
        for arm in ARMS
    )
    records[-1] = without_figures(records[-1], "skipped", "the time budget was spent; --resume this run")
    write_run(path, records, run_id=run_id, machine_peak={"fp32": {"gflops_per_s": 234.0}}, **manifest)
    return path


@pytest.fixture
def runs(tmp_path):
    return [
        write(tmp_path / "runs" / "amd", "run-1", "AMD EPYC", notices=["a busy start"]),
        write(tmp_path / "runs" / "intel", "run-2", "Intel Xeon", noise=0.06, command="attnbench bench on-intel"),
    ]


def contents(paths):
    return {p: p.read_bytes() for path in paths for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.fixture
def merged(runs, tmp_path):
    return attnbench.merge(runs, tmp_path / "out")


def test_the_folder_has_the_report_and_the_runs_are_as_before(runs, tmp_path):
    before = contents(runs)
    run = attnbench.merge(runs, tmp_path / "out")
    assert run.is_reported
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "plots", "records.csv", "records.parquet", "report.html"
    ]  # fmt: skip
    assert contents(runs) == before
    table = pd.read_csv(tmp_path / "out" / "records.csv")
    assert table["run_id"].tolist() == ["run-1"] * 9 + ["run-2"] * 9


def test_each_run_is_judged_by_its_own_noise(merged):
    # torch-eager takes 1.05 x the baseline's time at T = 128, +-0.7 %: beyond AMD's 1 %, within Intel's exp(0.06) - 1.
    verdicts = {r.run_id: r.verdict for r in merged.rows if (r.arm, r.q_len) == ("torch-eager", 128)}
    assert verdicts == {"run-1": "slower", "run-2": "same"}
    deltas = {run["name"]: run["manifest"]["delta"] for run in merged.manifest["merged"]}
    assert deltas == {"amd": 0.01, "intel": pytest.approx(0.0618, abs=1e-4)}
    assert merged.manifest["noise_floor"] == deltas["intel"]


def test_the_page_names_runs_machines_commands_and_what_was_noticed(merged):
    page = (merged.path / "report.html").read_text()
    for text in ("amd on AMD EPYC", "intel on Intel Xeon", "attnbench bench on-intel", "amd: a busy start",
                 "amd: Noise floor 0.40 %", "intel: Noise floor 6.2 %", "/runs/intel with a longer"):  # fmt: skip
        assert text in page, text
    ids = re.findall(r'<section id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_every_row_of_the_table_says_its_run(merged):
    page = (merged.path / "report.html").read_text()
    table = page[page.index('<section id="table"') :]
    assert re.findall(r"<td>(amd|intel)</td></tr>", table).count("intel") == 9


def test_each_runs_own_samples_are_found(merged, runs):
    case = merged.rows[0].case_id
    with pytest.raises(InputError, match="several runs have case"):
        merged.samples(case)
    assert len(merged.samples(case, run_id="run-2")) == len(attnbench.open_run(runs[1]).samples(case))
    drawn = {path.name for path in (merged.path / "plots").iterdir()}
    assert sum(name.startswith("rounds-") and name.endswith(".png") for name in drawn) == 2


def test_a_run_without_samples_costs_its_own_only(runs, tmp_path):
    for path in (runs[0] / "samples").iterdir():
        path.unlink()
    run = attnbench.merge(runs, tmp_path / "out")
    assert run.is_reported
    drawn = {path.name for path in (run.path / "plots").iterdir()}
    assert sum(name.startswith("rounds-") and name.endswith(".png") for name in drawn) == 1


def call(capsys, *argv):
    code = cli.main([str(a) for a in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_line_merges(capsys, runs, tmp_path):
    code, out, err = call(capsys, "report", *runs, "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "amd on AMD EPYC" in out
    assert f"report: {tmp_path / 'out' / 'report.html'}" in out
    assert "cases: 16 ok, 2 skipped" in out
    assert [line.split()[0] for line in out.splitlines() if "Noise floor" in line] == ["amd:", "intel:"]


def test_one_run_is_reported_in_place_as_ever(capsys, runs):
    code, _, _ = call(capsys, "report", runs[0])
    assert code == 0
    assert (runs[0] / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["{a}", "{b}"], ["2 runs", "-o DIR"]),
        (["{a}", "{a}", "-o", "{out}"], ["the same run (run-1)", "once"]),
        (["{a}", "-o", "{out}"], ["--out is for several runs"]),
        (["{a}", "{b}", "-o", "{a}/x"], ["lies in the run", "another folder"]),
        (["{a}", "{b}", "-o", "{b}"], ["holds a run already"]),
        (["{a}", "{b}", "-o", "{out}", "--junit", "x.xml"], ["--junit is for one run"]),
        (["{a}", "{out}", "-o", "{out}"], ["must be a run directory"]),
    ],
)
def test_what_cannot_be_merged_is_said_and_nothing_is_written(capsys, runs, tmp_path, arguments, parts):
    names = {"a": runs[0], "b": runs[1], "out": tmp_path / "out"}
    code, out, err = call(capsys, "report", *(a.format(**names) for a in arguments))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert all(part in err for part in parts), err
    assert not (tmp_path / "out").exists()
    assert not (runs[0] / "x").exists()


def test_a_run_of_another_schema_is_refused(runs, tmp_path):
    manifest = runs[1] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    with pytest.raises(RecordsError, match="schema_version 9"):
        attnbench.merge(runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_run_is_no_merge(runs, tmp_path):
    with pytest.raises(InputError, match="at least two runs, got 1"):
        attnbench.merge(runs[:1], tmp_path / "out")


def test_folders_of_one_name_are_told_apart_by_their_parents():
    paths = [Path("/x/monday/quick"), Path("/x/tuesday/quick"), Path("/y/full")]
    assert list(run_folder_names(paths).values()) == ["monday/quick", "tuesday/quick", "full"]
