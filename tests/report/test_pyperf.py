"""The samples of a run, as the real pyperf reads them."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from attnbench import cli
from attnbench.errors import InputError
from attnbench.report.pyperf import make_suite

pyperf = pytest.importorskip("pyperf", reason="pyperf is in the dev extra: make setup")

NAME = "block.fp32.b1.h8x64.self.T128"


def write_calls(folder, record, replicas):
    """samples/ of one problem: {replica: {round: calls in ns}}."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        (record.case_id, replica, number, i, ns)
        for replica, rounds in replicas.items()
        for number, calls in rounds.items()
        for i, ns in enumerate(calls)
    ]
    columns = list(zip(*rows, strict=True))
    names = ["case_id", "replica", "round", "sample", "latency_ns"]
    table = pa.table(dict(zip(names, map(pa.array, columns), strict=True)))
    (folder / "samples").mkdir(exist_ok=True)
    pq.write_table(table, folder / "samples" / f"{record.problem_id}.parquet")


@pytest.fixture
def one_case(lab, tmp_path):
    """A run of one case with three rounds of known calls; the second worker of the baseline has other ones."""
    records = lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa"])
    run = tmp_path / "run"
    lab.write_run(run, records, samples=False)
    write_calls(run, records[0], {1: {0: [9]}, 0: {1: [7_000_000], 0: [5, 1_000_000, 9_000_000], 2: [1, 2]}})
    return run, records


def pyperf_says(*argv):
    """Output of a pyperf command, warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pyperf", *map(str, argv)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def converted(run, *more):
    """The file that the command writes beside the run."""
    target = run.with_name(f"{run.name}{len(more)}.json")
    assert cli.main(["convert", str(run), "--to", "pyperf", "-o", str(target), *more]) == 0
    return target


def test_a_visit_is_a_run_and_its_value_the_median_call_in_seconds(one_case):
    (bench,) = pyperf.BenchmarkSuite.load(str(converted(one_case[0]))).get_benchmarks()
    assert bench.get_name() == f"{NAME}/torch-sdpa"
    assert bench.get_values() == (1e-3, 7e-3, 1.5e-9)
    assert [run.get_loops() for run in bench.get_runs()] == [3, 1, 2]
    assert bench.get_unit() == "second"


def test_all_calls_can_be_had_too(one_case):
    (bench,) = pyperf.BenchmarkSuite.load(str(converted(one_case[0], "--values", "calls"))).get_benchmarks()
    assert bench.get_values() == (5e-9, 1e-3, 9e-3, 7e-3, 1e-9, 2e-9)
    assert [len(run.values) for run in bench.get_runs()] == [3, 1, 2]


def test_metadata_has_the_machine_under_the_names_of_pyperf(one_case):
    run, records = one_case
    manifest = {
        "attnbench_version": "0.1.0", "run_id": "r\n1", "noise_floor": float("nan"),
        "environment": {"machine": {"cpu_model": "AMD EPYC", "logical_cpus": 2}, "load_average": [0.5, 1, 2],
                        "python": {"version": "3.11.7", "implementation": "CPython"}, "timing_cpus": [1, 3]},
    }  # fmt: skip
    records[0].device_name = "  odd \x1b name\r\n"
    suite = make_suite(run, records, manifest, "visits")
    suite.write(run / "x.json")
    (bench,) = pyperf.BenchmarkSuite.load(str(run / "x.json")).get_benchmarks()
    found = bench.get_metadata()
    wanted = {
        "cpu_model_name": "AMD EPYC", "cpu_count": 2, "load_avg_1min": 0.5, "python_version": "3.11.7",
        "python_implementation": "cpython", "cpu_affinity": "1,3", "attnbench_run_id": "r\\n1", "runtime": "torch-sdpa",
        "threads": 1, "device_name": "odd \\x1b name\\r\\n", "date": "2026-11-29 12:00:00",
    }  # fmt: skip
    assert {key: found.get(key) for key in wanted} == wanted
    assert "attnbench_noise_floor" not in found
    assert str(bench.get_dates()[0]) == "2026-11-29 12:00:00"


def test_pyperf_compares_two_runs_and_finds_the_slower_one(lab, tmp_path):
    records = lab.default_records(variants=("self",), seq_lens=(128, 512))
    files = []
    for number, factor in enumerate((1.0, 1.0, 1.25)):
        scaled = [r.model_copy(update={"latency_ms_median": r.latency_ms_median * factor}) for r in records]
        run = tmp_path / f"run{number}"
        lab.write_run(run, scaled)
        files.append(converted(run))
    same, slower = (pyperf_says("compare_to", files[0], other) for other in files[1:])
    assert "slower" not in same
    assert "faster" not in same
    assert "Benchmark hidden because not significant (14): " in same
    assert f"{NAME}/torch-sdpa" in slower
    assert slower.count("1.25x slower") == 15  # 14 cases and their geometric mean
    tables = pyperf_says("compare_to", "--table", files[0], files[2])
    assert "| Geometric mean" in tables


def test_stats_check_hist_and_show_work(lab, tmp_path):
    run = tmp_path / "run"
    lab.write_run(run, lab.default_records(variants=("self",), seq_lens=(128,)))
    for target in (converted(run), converted(run, "--values", "calls")):
        stats = pyperf_says("stats", target)
        assert "Number of benchmarks: 7" in stats
        assert "Number of run with values: 20" in stats
        assert "stable" in pyperf_says("check", "-b", f"{NAME}/torch-sdpa", target)
        assert pyperf_says("hist", "-b", f"{NAME}/torch-sdpa", target).count("#") > 20
        assert "Mean +- std dev" in pyperf_says("show", target)
        pyperf_says("metadata", target)
        pyperf_says("dump", target)


def test_only_right_cases_with_samples_are_there_and_the_rest_is_told(lab, tmp_path, capsys):
    records = lab.troubled_records()
    run = tmp_path / "run"
    lab.write_run(run, records)
    gone = next((run / "samples").iterdir())
    torn = sorted((run / "samples").iterdir())[-1]
    gone.unlink()
    torn.write_bytes(b"PAR1 torn")
    lost = {gone.stem, torn.stem}
    target = converted(run)
    names = {b["metadata"]["name"] for b in json.loads(target.read_text(encoding="utf-8"))["benchmarks"]}
    assert len(names) == sum(r.status == "ok" and r.problem_id not in lost for r in records)
    assert not any("ort-cuda" in name for name in names)
    err = capsys.readouterr().err
    assert f"{gone} is missing" in err
    assert f"{torn} cannot be read (" in err
    assert err.count("no samples; left out") == sum(r.status == "ok" and r.problem_id in lost for r in records)


def test_names_are_those_of_the_metrics_and_unique(lab, tmp_path):
    from attnbench.report.metrics import flat_metrics

    records = lab.default_records(variants=("self", "cross"), seq_lens=(128,))
    run = tmp_path / "run"
    lab.write_run(run, records)
    names = pyperf.BenchmarkSuite.load(str(converted(run))).get_benchmark_names()
    assert len(set(names)) == 14
    assert all(f"{name}/latency_ms_median" in flat_metrics(records, {}) for name in names)


def test_a_name_that_ends_in_gz_is_compressed_as_pyperf_expects(one_case, tmp_path):
    target = tmp_path / "x.json.gz"
    assert cli.main(["convert", str(one_case[0]), "--to", "pyperf", "-o", str(target)]) == 0
    assert json.loads(gzip.decompress(target.read_bytes()))["version"] == "1.0"
    assert len(pyperf.BenchmarkSuite.load(str(target))) == 1


def test_the_values_are_the_block_medians_that_the_record_is_made_of(lab, tmp_path):
    records = lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa"])
    run = tmp_path / "run"
    rng = np.random.default_rng(1)
    rounds = {number: rng.integers(1_000_000, 2_000_000, 5).tolist() for number in range(20)}
    lab.write_run(run, records, samples=False)
    write_calls(run, records[0], {0: rounds})
    (bench,) = pyperf.BenchmarkSuite.load(str(converted(run))).get_benchmarks()
    assert bench.median() == pytest.approx(np.median([np.median(calls) for calls in rounds.values()]) / 1e9)


def test_what_pyperf_cannot_hold_is_left_out_or_refused(lab, tmp_path, one_case, capsys):
    run, records = one_case
    write_calls(run, records[0], {0: {0: [0, 0]}})
    with pytest.raises(InputError, match="has a value of 0 s, which pyperf does not take; left out; name a run with"):
        make_suite(run, records, {}, "visits")
    failed = [lab.without_figures(records[0], "error", "x")]
    with pytest.raises(InputError, match="has nothing to convert: no case was timed and right; name a run with its"):
        make_suite(run, failed, {}, "visits")
    assert cli.main(["convert", str(run), "--to", "pyperf", "-o", str(tmp_path / "y.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "y.json").exists()


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ("--to asv -o x.json", "--to: no value 'asv'; known: pyperf"),
        ("--to pyperf -o x.json --values call", "known: visits, calls; did you mean 'calls'?"),
        ("--to pyperf -o no/such/x.json", "--out must lie in a folder that exists"),
        ("--to pyperf -o .", "name a file such as run.json in it"),
        ("--to pyperf -o manifest.json", "--out must not be called 'manifest.json'"),
        ("--to pyperf", "Missing option"),
    ],
)
def test_bad_input_of_convert_is_one_sentence(one_case, capsys, monkeypatch, tmp_path, argv, part):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["convert", str(one_case[0]), *argv.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_convert_as_json_says_what_was_written(one_case, capsys, tmp_path):
    target = tmp_path / "x.json"
    assert cli.main(["convert", str(one_case[0]), "--to", "pyperf", "-o", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(target), "benchmarks": 1, "problems": []}
