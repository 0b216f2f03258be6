"""`attnbench diff`: exit codes, files, errors."""

import json

import pytest

import attnbench
from attnbench import cli
from attnbench.problem import Problem
from tests.report.conftest import make_record, write_run

TIMES = ("latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high")


@pytest.fixture
def runs(tmp_path):
    """OLD, and NEW where torch-eager is 15 % slower."""
    problems = [Problem.make(seq_len=t) for t in (128, 512, 1024)]
    rows = [
        make_record(p, arm, noise_log_ratio=0.002 if arm == "torch-sdpa" else None)
        for p in problems
        for arm in ("torch-sdpa", "torch-eager", "onnx-attention@ort-cpu", "onnx-attention@openvino")
    ]
    slow = [
        r.model_copy(update={c: getattr(r, c) * 1.15 for c in TIMES}) if r.arm == "torch-eager" else r for r in rows
    ]
    for name, records in (("old", rows), ("new", slow)):
        write_run(tmp_path / name, records, samples=False)
    return str(tmp_path / "old"), str(tmp_path / "new")


@pytest.fixture
def run(capsys):
    def call(*argv):
        code = cli.main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize("command", ["diff", "compare"])
def test_a_regression_fails_only_when_asked(run, runs, command):
    code, out, err = run(command, *runs)
    assert (code, err) == (0, "")
    assert "Regressions: slower 3." in out
    assert run(command, *runs, "--fail-on", "mismatch,memory")[0] == 0
    assert run(command, *runs, "--fail-on", "mismatch,slower")[0] == 1
    assert run(command, *runs, "--fail-on", "mismatch", "--fail-on", "slower")[0] == 1


def test_a_run_with_itself_passes_every_gate(run, runs):
    everything = "mismatch,status,slower,memory,kernel,numeric,missing,drift"
    code, out, _ = run("diff", runs[0], runs[0], "--fail-on", everything)
    assert code == 0
    assert "No regression was found." in out


def test_json_and_markdown_are_written(run, runs, tmp_path):
    code, out, _ = run("diff", *runs, "--json", "--markdown", str(tmp_path / "diff.md"), "--fail-on", "slower")
    assert code == 1
    assert json.loads(out)["adverse"]["slower"] == 3
    assert "| slower | torch-eager |" in (tmp_path / "diff.md").read_text()


def test_an_unknown_category_names_the_known_and_the_nearest(run, runs):
    code, out, err = run("diff", *runs, "--fail-on", "slowr")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for part in ("--fail-on", "'slowr'", "slower", "mismatch", "drift"):
        assert part in err


@pytest.mark.parametrize("broken", [0, 1])
def test_what_is_no_run_is_named(run, runs, tmp_path, broken):
    paths = list(runs)
    paths[broken] = str(tmp_path / "nowhere")
    code, out, err = run("diff", *paths)
    assert (code, out) == (2, "")
    assert ("OLD", "NEW")[broken] in err
    assert "nowhere" in err


def test_a_folder_for_markdown_is_refused_before_anything_is_said(run, runs, tmp_path):
    code, out, err = run("diff", *runs, "--markdown", str(tmp_path))
    assert (code, out) == (2, "")
    assert "diff.md" in err


def test_nothing_comparable_is_exit_code_3(run, tmp_path):
    for name, device in (("old", "AMD"), ("new", "Intel")):
        record = make_record(Problem.make(seq_len=128), "torch-sdpa", device_name=device)
        write_run(tmp_path / name, [record], samples=False)
    code, out, _ = run("diff", str(tmp_path / "old"), str(tmp_path / "new"))
    assert code == 3
    assert "AMD -> Intel" in out


def test_it_reads_from_python_too(runs):
    found = attnbench.diff(*runs)
    assert found.adverse("slower") == 3
    opened = [attnbench.open_run(path) for path in runs]
    assert attnbench.diff(*opened).compared == found.compared
