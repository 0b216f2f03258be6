"""What a person types, in a real process, on tiny problems."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attnbench
import attnbench.errors
from attnbench.records import COLUMNS

# The budget is below what brings a compiler in.
TINY = ("-s", "8,12", "--heads", "2", "--head-dim", "8", "--time-budget", "110s", "-q")
ATTNBENCH = (str(Path(sys.executable).with_name("attnbench")),)
# The same command with seven rounds of every group: timing would take all that its budget leaves, on any machine.
QUICKLY = (
    sys.executable, "-P", "-c",
    "import sys; from attnbench import cli; from attnbench.sweep import plan\n"
    "plan.Budget.timing_s = lambda *_: 0.0; sys.exit(cli.main())",
)  # fmt: skip


def run(
    *arguments: str, cwd: Path, command: tuple[str, ...] = ATTNBENCH, **variables: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(
        [*command, *arguments], cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", timeout=600,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd 日本 'quo\"te\n%20#")


@pytest.fixture(scope="module")
def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    """The default arms in an odd folder, without a display, in the C locale, with a nonsense plot backend."""
    return run(
        "bench", *TINY, "-o", "./-run ü,;", cwd=folder, command=QUICKLY,
        LANG="C", LC_ALL="C", MPLBACKEND="nonsense", OPENBLAS_CORETYPE="Prescott",
    )  # fmt: skip


@pytest.fixture(scope="module")
def path(ran: subprocess.CompletedProcess[str], folder: Path) -> Path:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder / "-run ü,;"


def test_every_case_is_ok_with_all_promised_figures(path: Path) -> None:
    with (path / "records.csv").open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 2 * 3 * 7  # a compiler that is installed takes part in longer sweeps only
    assert {r["status"] for r in rows} == {"ok"}
    assert list(rows[0])[: len(COLUMNS)] == list(COLUMNS)
    for row in rows:
        assert float(row["latency_ms_ci_low"]) <= float(row["latency_ms_median"]) <= float(row["latency_ms_ci_high"])
        assert float(row["worst_row_rel_err"]) <= float(row["worst_row_limit"]) < 1e-4
        assert row["threads"] == rows[0]["threads"]
        assert row["compute_precision"] == "fp32"
        assert row["peak_device_bytes"] == ""
        assert json.loads(row["empty_reasons"])["peak_device_bytes"]


def test_the_run_directory_has_what_is_promised_and_nothing_else_was_written(path: Path, folder: Path) -> None:
    assert {p.name for p in path.iterdir()} == {
        "manifest.json", "records.jsonl", "records.csv", "records.parquet", "samples.parquet", "report.html",
        "samples", "plots", "artifacts", "logs",
    }  # fmt: skip
    assert [p.name for p in folder.iterdir()] == [path.name]
    assert len(list((path / "plots").glob("*.png"))) >= 3


def test_the_report_fetches_nothing(path: Path) -> None:
    html = (path / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""src\s*=\s*["']https?:""", html)
    assert "torch-sdpa" in html


def test_the_environment_of_workers_was_cleaned_and_that_is_recorded(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    assert "OPENBLAS_CORETYPE" in manifest["environment"]["removed_from_workers"]
    assert manifest["noise_pairs"] == 6
    assert manifest["harness_ns"] > 0


def test_the_table_is_readable_ascii_in_the_c_locale(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stderr
    assert "report:" in ran.stdout
    assert all(len(line) <= 120 for line in ran.stdout.splitlines())


def test_the_python_api_reads_the_run(path: Path) -> None:
    opened = attnbench.open_run(path)
    frame = opened.records
    assert len(frame) == 42
    timed = frame[frame["status"] == "ok"].iloc[0]
    samples = opened.samples(timed["case_id"])
    assert list(samples.columns) == ["replica", "round", "sample", "latency_ns"]
    assert len(samples[samples["replica"] == 0]) == timed["sample_count"]
    first = samples[samples["replica"] == 0].groupby("round")["latency_ns"].median().median() / 1e6
    assert first == pytest.approx(timed["latency_ms_median"])


def test_a_run_can_be_plotted_from_python(path: Path) -> None:
    figure = attnbench.open_run(path).plot("memory", variant="causal")
    assert figure.axes
    with pytest.raises(attnbench.errors.InputError, match="nosuch"):
        attnbench.open_run(path).plot("nosuch")


def test_an_exported_file_is_verified_and_runs_at_lengths_that_it_was_not_traced_at(tmp_path: Path) -> None:
    import numpy as np
    import onnxruntime

    found = run(
        "export", "--exporter", "onnx-attention", "--variant", "causal", "--heads", "2", "--head-dim", "8",
        "-o", "block ü.onnx", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["verified"].endswith(" at T = 1, 5, 33")
    assert [p.name for p in tmp_path.iterdir()] == ["block ü.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "block ü.onnx", providers=["CPUExecutionProvider"])
    for shape in ((1, 3, 16), (2, 70, 16)):
        assert session.run(None, {"x": np.ones(shape, np.float32)})[0].shape == shape


def test_the_report_is_rebuilt_from_the_records_alone(path: Path, folder: Path) -> None:
    before = (path / "records.csv").read_bytes()
    for name in ("records.csv", "records.parquet", "report.html"):
        (path / name).unlink()
    assert run("report", "./-run ü,;", cwd=folder).returncode == 0
    assert (path / "records.csv").read_bytes() == before
    assert (path / "report.html").exists()


def test_a_runtime_that_cannot_run_here_has_rows_and_exit_code_three(tmp_path: Path) -> None:
    found = run(
        "bench", "-s", "8", "--heads", "1", "--head-dim", "8", "--variants", "self", "--time-budget", "30s", "-q",
        "--runtimes", "torch-sdpa,torch-compile", "-o", "run", cwd=tmp_path, CXX="/no/such/compiler",
    )  # fmt: skip
    assert found.returncode == 3, found.stdout + found.stderr
    with (tmp_path / "run" / "records.csv").open(newline="", encoding="utf-8") as f:
        rows = {r["arm"]: r for r in csv.DictReader(f)}
    assert rows["torch-sdpa"]["status"] == "ok"
    assert rows["torch-compile"]["status"] == "unavailable"
    assert "compiler" in rows["torch-compile"]["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--runtimes", "tensorflow"), "no runtime 'tensorflow'"),
        (("--runtimes", "ort-cpy"), "did you mean 'ort-cpu'"),
        (("-s", "0"), "at least 1"),
        (("-s", "1000000000"), "bytes"),
        (("-b", "1000000", "-s", "100000"), "bytes"),
        (("--heads", "0"), "at least 1"),
        (("--head-dim", "0"), "at least 1"),
        (("--kv-lens", "4", "--variants", "self"), "needs variant cross"),
        (("--require", "ort-cuda"), "ort-cuda"),
        (("--baseline", "torch-spda"), "torch-sdpa"),
        (("--memory-limit", "lots"), "lots"),
        (("--time-budget", "0"), "above 0"),
        (("--resume", "nowhere"), "nowhere"),
        (("nosuch",), "no sweep 'nosuch'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two_before_anything_is_written(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    found = run("bench", *arguments, cwd=tmp_path)
    assert found.returncode == 2
    assert words in found.stderr
    assert "Traceback" not in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    found = run("bench", "quick", "--dry-run", cwd=tmp_path)
    assert found.returncode == 0
    assert "42 cases" in found.stdout
    assert list(tmp_path.iterdir()) == []
