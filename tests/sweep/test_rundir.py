import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnbench import api
from attnbench.errors import InputError, RecordsError
from attnbench.files import write_bytes
from attnbench.records import Record, append_records, read_records
from attnbench.sweep import grid, runner
from attnbench.sweep.progress import Silent
from attnbench.sweep.rundir import RunDirectory
from tests.conftest import make_installer
from tests.sweep import fakes

pytestmark = pytest.mark.usefixtures("little_timing")

SETTINGS = {
    "variants": ["self"], "seq_lens": [4, 6, 8, 10], "num_heads": [1], "head_dims": [4], "baseline": "good",
    "runtimes": ["good", "raiser"], "time_budget_s": 2.0, "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        install = make_installer(tmp_path_factory.mktemp("plugins"), patch)
        install(runtimes=fakes.entry_points(), modules={"fake_runtimes": fakes.FAKES})
        yield


def make_run(path: Path, **overrides: object) -> Path:
    prepared = runner.prepare(grid.validate({**SETTINGS, **overrides}, where="test"))
    runner.run(prepared, RunDirectory.create(path), command="test", progress=Silent())
    return path


def finish(path: Path) -> list[Record]:
    run_dir, prepared = runner.resume(path, time_budget_s=300.0)
    runner.run(prepared, run_dir, command="test", progress=Silent(), resumed=True)
    return api.open_run(path).rows


@pytest.fixture(scope="module")
def whole_run(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("whole") / "run", time_budget_s=300.0)


@pytest.fixture
def copied(whole_run: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", str(whole_run), str(tmp_path / "copy")], check=True)
    return tmp_path / "copy"


def test_a_finished_run_resumes_to_itself(copied: Path) -> None:
    before = (copied / "records.jsonl").read_text()
    assert len(finish(copied)) == 8
    assert (copied / "records.jsonl").read_text() == before


@pytest.mark.parametrize("cut", ["middle of the last line", "a whole line", "one byte", "two lines and a half"])
def test_a_torn_group_is_run_again_whole_and_the_others_are_not(copied: Path, cut: str) -> None:
    lines = (copied / "records.jsonl").read_text().splitlines(keepends=True)
    torn = {
        "middle of the last line": "".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2],
        "a whole line": "".join(lines[:-1]),
        "one byte": "".join(lines)[:-2],
        "two lines and a half": "".join(lines[:-3]) + lines[-3][:100],
    }[cut]
    (copied / "records.jsonl").write_text(torn)
    found = finish(copied)
    assert len({r.case_id for r in found}) == len(found) == 8
    kept = [line for line in lines[:4] if line in (copied / "records.jsonl").read_text()]
    assert kept == lines[:4]


def test_a_line_torn_at_any_byte_is_dropped_with_a_notice(whole_run: Path, tmp_path: Path) -> None:
    lines = (whole_run / "records.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "records.jsonl"
    for cut in range(1, len(lines[-1]) - 1):
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
        records, notices = read_records(path)
        assert len(records) == 7
        assert len(notices) == 1
        assert "torn" in notices[0]


def test_two_processes_never_run_in_one_directory(copied: Path) -> None:
    before = (copied / "records.jsonl").read_text()
    with RunDirectory.open(copied).exclusive(), pytest.raises(InputError, match="by another attnbench process"):
        api.bench(resume=copied)
    assert (copied / "records.jsonl").read_text() == before
    assert len(api.bench(resume=copied).rows) == 8


def test_a_damaged_line_before_the_last_is_refused(copied: Path) -> None:
    lines = (copied / "records.jsonl").read_text().splitlines(keepends=True)
    (copied / "records.jsonl").write_text("".join([lines[0], "{half\n", *lines[2:]]))
    with pytest.raises(RecordsError, match="line 2 is not JSON"):
        api.open_run(copied)


def test_records_of_another_version_are_refused_with_both_versions(copied: Path) -> None:
    text = (copied / "records.jsonl").read_text().replace('"schema_version":1', '"schema_version":99')
    (copied / "records.jsonl").write_text(text)
    with pytest.raises(RecordsError, match="schema_version 99, this attnbench reads 1"):
        api.open_run(copied)


def test_a_manifest_of_another_version_is_refused(copied: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 2}))
    with pytest.raises(RecordsError, match="schema_version 2"):
        api.open_run(copied)


@pytest.mark.parametrize("key", ["numpy", "torch"])
def test_resuming_with_other_library_versions_is_refused(copied: Path, key: str) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["versions"][key] = "0.0.1"
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordsError, match=f"ran with {key} 0.0.1"):
        runner.resume(copied)


def test_other_settings_with_resume_are_refused(copied: Path) -> None:
    with pytest.raises(InputError, match="leave out seed"):
        api.bench(resume=copied, seed=3)


def test_cases_that_the_sweep_does_not_have_are_refused(copied: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["sweep"]["seq_lens"] = [4, 6]
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordsError, match="cases that its sweep does not"):
        finish(copied)


def test_a_run_killed_at_any_group_is_finished_by_resume(installed: None, tmp_path: Path) -> None:
    path = tmp_path / "run"
    code = textwrap.dedent(
        f"""
        from attnbench.sweep import grid, runner
        from attnbench.sweep.progress import Silent
        from attnbench.sweep.rundir import RunDirectory
        from pathlib import Path
        prepared = runner.prepare(grid.validate({SETTINGS!r} | {{"time_budget_s": 100.0}}, where="test"))
        runner.run(prepared, RunDirectory.create(Path({str(path)!r})), command="test", progress=Silent())
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        _wait_until(lambda: len(_lines(path)) >= 2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = _lines(path)
    assert 2 <= len(done) < 8
    found = finish(path)
    assert len({r.case_id for r in found}) == len(found) == 8
    assert _lines(path)[: len(done) // 2 * 2] == done[: len(done) // 2 * 2]
    _wait_until(lambda: not _zygotes(process.pid))


def _lines(path: Path) -> list[str]:
    records = path / "records.jsonl"
    return records.read_text().splitlines() if records.exists() else []


def _zygotes(parent: int) -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if "attnbench.sweep.zygote" in line and f" {parent} " in f"{line} "]


def _wait_until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def test_groups_that_only_lacked_time_are_run_by_resume_with_a_longer_budget(installed: None, tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", time_budget_s=0.001)
    assert {r.status for r in api.open_run(path).rows} == {"skipped"}
    assert {r.status for r in finish(path)} == {"ok", "error"}


def test_a_full_disk_leaves_the_records_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("kept\n")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    record = Record.model_construct(run_id="x")
    with pytest.raises(OSError, match="No space left"):
        append_records(path, [record])
    assert path.read_text() == "kept\n"
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"other")
    assert path.read_text() == "kept\n"
    assert [p.name for p in tmp_path.iterdir()] == ["records.jsonl"]


@pytest.mark.parametrize(
    "name",
    ["with space", "Ümlaut-日本", "a%20#b", "a,b;c", "quo'te\"s", "line\nbreak", "-dash", "~x", "x" * 200, "dot."],
)
def test_odd_folder_names_work(installed: None, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    run_dir = RunDirectory.create(path)
    run_dir.write_manifest({"schema_version": 1})
    run_dir.append("p", [Record.model_construct(run_id="x")], {"c": {0: {0: [1, 2]}}})
    assert run_dir.read_manifest() == {"schema_version": 1}
    assert {p.name for p in path.iterdir()} == {
        "samples",
        "plots",
        "artifacts",
        "logs",
        "work",
        "manifest.json",
        "records.jsonl",
    }
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="not empty"):
        RunDirectory.create(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(InputError, match="cannot write the run"):
        RunDirectory.create(path)


def test_resuming_a_finished_run_measures_nothing_again(copied: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["machine_peak"] = {"fp32": {"gflops_per_s": 12345.0, "by": "test", "threads": 1}}
    (copied / "manifest.json").write_text(json.dumps(manifest))
    finish(copied)
    assert json.loads((copied / "manifest.json").read_text())["machine_peak"]["fp32"]["gflops_per_s"] == 12345.0
