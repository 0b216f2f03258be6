import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from attnbench import api
from attnbench.records import Record
from attnbench.sweep import grid, runner
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from tests.conftest import make_installer
from tests.sweep import fakes

pytestmark = pytest.mark.usefixtures("little_timing")

Found = dict[str, Record]
ORPHAN = f"{fakes.ORPHAN}_OF_{os.getpid()}"  # other processes run other tests with the same fakes

BAD = (
    "sleeper", "stubborn", "grandchild", "leaver", "segfault", "killed", "printer", "exiter", "half-json", "raiser",
    "nan", "dtype", "cached", "ahead", "memo", "view", "refuser", "late", "threads", "downgrade", "first-slow",
    "odd-facts", "odd-words", "odd-detail",
)  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        install = make_installer(tmp_path_factory.mktemp("plugins"), patch)
        install(runtimes=fakes.entry_points(), modules={"fake_runtimes": fakes.FAKES.replace(fakes.ORPHAN, ORPHAN)})
        yield


def run(path: Path, *names: str, **overrides: object) -> Found:
    settings: dict[str, object] = {
        "variants": ("self",), "seq_lens": (16,), "num_heads": (2,), "head_dims": (8,), "baseline": "good",
        "runtimes": ("good", *names), "time_budget_s": 300.0, "timeout_s": 2.0, "threads": 1,
    }  # fmt: skip
    prepared = runner.prepare(grid.validate({**settings, **overrides}, where="test"))
    runner.run(prepared, RunDirectory.create(path), command="test", progress=Silent())
    return {f"{r.arm} {r.q_len}": r for r in api.open_run(path).rows}


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad") / "run"


@pytest.fixture(scope="module")
def found(installed: None, run_path: Path) -> Found:
    """One run of a good runtime beside every bad one."""
    return run(run_path, *BAD)


def orphans() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if ORPHAN in " ".join(p.info["cmdline"] or [])]


def test_odd_facts_and_words_of_a_runtime_cost_one_record(found: Found) -> None:
    assert found["odd-facts 16"].status == "error"
    assert "runtime_version must be str, got 3" in found["odd-facts 16"].reason
    assert (found["odd-words 16"].status, found["odd-words 16"].reason) == ("error", "RuntimeError: ? [31m bad")
    assert found["odd-detail 16"].status == "ok"
    assert (found["odd-detail 16"].runtime_version, found["odd-detail 16"].facts) == ("?", {"thing": "{1, 2}"})


def test_every_case_yields_one_record(found: Found) -> None:
    assert sorted(found) == sorted(f"{name} 16" for name in ("good", *BAD))


def test_a_good_runtime_beside_bad_ones_is_ok_with_all_figures(found: Found) -> None:
    good = found["good 16"]
    assert good.status == "ok"
    assert good.latency_ms_ci_low is not None
    assert good.latency_ms_median is not None
    assert good.latency_ms_ci_high is not None
    assert good.latency_ms_ci_low <= good.latency_ms_median <= good.latency_ms_ci_high
    assert good.peak_host_bytes is not None
    assert good.worst_row_rel_err is not None
    assert good.noise_log_ratio is not None


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("sleeper", "timeout", "within 2 s"),
        ("stubborn", "timeout", "within 2 s"),
        ("grandchild", "timeout", "within 2 s"),
        ("leaver", "error", "no result"),
        ("segfault", "crashed", "signal 11 (SIGSEGV)"),
        ("killed", "crashed", "signal 9 (SIGKILL)"),
        ("exiter", "error", "no result: the worker exited with code 0"),
        ("half-json", "error", "no result"),
        ("raiser", "error", "kaputt in two lines"),
        ("refuser", "unsupported", "it does not like this problem"),
        ("threads", "error", "threads asked: 1, in force: 7"),
        ("downgrade", "error", "precision asked: fp32, in force: bf16"),
        ("printer", "ok", ""),
    ],
)
def test_what_a_worker_does_is_told_by_status_and_reason(found: Found, name: str, status: str, words: str) -> None:
    record = found[f"{name} 16"]
    assert (record.status, words in record.reason) == (status, True), record.reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nan", "NaN"),
        ("dtype", "float64"),
        ("cached", "off by"),
        ("ahead", "before the timed call"),
        ("memo", "remembered"),
        ("view", "off by"),
        ("late", "after timing"),
    ],
)
def test_a_runtime_that_is_wrong_or_lies_is_a_mismatch(found: Found, name: str, words: str) -> None:
    record = found[f"{name} 16"]
    assert (record.status, words in record.reason) == ("mismatch", True), record.reason
    assert record.verdict is None
    assert not record.fastest


def test_a_slow_first_call_at_a_shape_is_its_own_figure_and_no_sample(found: Found) -> None:
    slow, good = found["first-slow 16"], found["good 16"]
    assert slow.status == "ok"
    assert slow.first_call_ms is not None
    assert slow.first_call_ms >= 100.0
    assert slow.latency_ms_ci_high is not None
    assert slow.latency_ms_ci_high < 50.0
    assert good.first_call_ms is not None
    assert good.first_call_ms < 100.0


def test_no_process_outlives_its_worker_or_the_run(found: Found) -> None:
    children = psutil.Process(os.getpid()).children(recursive=True)
    assert [c for c in children if c.status() != psutil.STATUS_ZOMBIE] == []
    assert orphans() == []


def test_fifty_megabytes_of_output_do_not_fill_the_log(found: Found, run_path: Path) -> None:
    log = run_path / "logs" / "printer.log"
    assert 0 < log.stat().st_size < 1 << 20
    assert "bytes cut" in log.read_text()


def test_empty_cells_say_why(found: Found) -> None:
    for record in found.values():
        empty = [name for name, value in record if value is None and name in record.empty_reasons]
        assert all(record.empty_reasons[name] for name in empty)
    assert found["killed 16"].empty_reasons["latency_ms_median"] == "status crashed"


def test_a_baseline_whose_probe_dies_is_one_row_and_the_others_run(installed: None, tmp_path: Path) -> None:
    found = run(tmp_path / "run", baseline="probe-dies", runtimes=("probe-dies", "good"))
    assert {name: row.status for name, row in found.items()} == {"probe-dies 16": "unavailable", "good 16": "ok"}
    assert "its probe was killed by signal 9" in (found["probe-dies 16"].reason or "")


def test_out_of_memory_skips_larger_lengths_of_that_arm_only(installed: None, tmp_path: Path) -> None:
    found = run(tmp_path / "run", "oom-at-32", seq_lens=(64, 16, 32))
    assert [found[f"oom-at-32 {t}"].status for t in (16, 32, 64)] == ["ok", "oom", "skipped"]
    assert "out of memory at" in found["oom-at-32 64"].reason
    assert found["good 64"].status == "ok"


def test_skipping_after_out_of_memory_can_be_turned_off(installed: None, tmp_path: Path) -> None:
    found = run(tmp_path / "run", "oom-at-32", seq_lens=(32, 64), oom_skip=False)
    assert [found[f"oom-at-32 {t}"].status for t in (32, 64)] == ["oom", "oom"]


def test_the_memory_limit_stops_a_hog_and_is_recorded(installed: None, tmp_path: Path) -> None:
    found = run(tmp_path / "run", "hog", seq_lens=(16, 32, 48), memory_limit_bytes=2 << 30, timeout_s=20.0)
    assert [found[f"hog {t}"].status for t in (16, 32, 48)] == ["ok", "oom", "skipped"]
    assert found["hog 32"].memory_limit_bytes == 2 << 30
    assert found["good 48"].status == "ok"
