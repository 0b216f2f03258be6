"""A run that is stopped: what is finished is kept and reported, nothing is left running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

ATTNBENCH = str(Path(sys.executable).with_name("attnbench"))
TINY = ("--heads", "1", "--head-dim", "8", "--variants", "self", "--runtimes", "torch-sdpa", "-q", "-o", "run")


def start(folder: Path, lengths: str, *more: str) -> "subprocess.Popen[str]":
    command = [ATTNBENCH, "bench", "-s", lengths, "--time-budget", "300s", *TINY, *more]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_and_reports_what_is_finished(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, ",".join(str(t) for t in range(8, 108)), "--junit", "run/junit.xml")
    records = tmp_path / "run" / "records.jsonl"
    deadline = time.monotonic() + 90
    while not (records.exists() and records.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline, "no group ended"
        time.sleep(0.05)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    done = records.read_text().count("\n")
    assert 2 <= done < 100
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["interrupted"] is True
    assert (tmp_path / "run" / "records.csv").read_text().count("\n") >= done
    assert (tmp_path / "run" / "report.html").exists()
    assert errors == "attnbench: interrupted\n"
    suite = ElementTree.parse(tmp_path / "run" / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == (str(done + 1), "1")  # one for all that have no record
    assert _left_running(process.pid) == []


def test_a_stop_before_anything_runs_is_130_without_a_traceback(tmp_path: Path) -> None:
    process = start(tmp_path, "8")
    _wait_until_it_catches(signal.SIGTERM, process.pid)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert _left_running(process.pid) == []


def _wait_until_it_catches(number: signal.Signals, pid: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert caught
        if int(caught[1], 16) >> (number - 1) & 1:
            return
        assert time.monotonic() < deadline, f"no handler for {number.name}"
        time.sleep(0.01)


def _left_running(parent: int) -> list[str]:
    deadline = time.monotonic() + 5
    while True:
        found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
        left = [line for line in found if "attnbench.sweep.zygote" in line and f" {parent} " in line]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounting a small disk needs root on Linux")
def test_a_full_disk_ends_with_a_message_and_a_code_and_whole_records(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        command = [ATTNBENCH, "bench", "-s", "8,16", "--time-budget", "60s", *TINY[:-1], "disk/run"]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        assert found.returncode == 1, found.stdout + found.stderr
        assert "No space left" in found.stdout + found.stderr
        assert "Traceback" not in found.stderr
        for line in (disk / "run" / "records.jsonl").read_text().splitlines():
            json.loads(line)
    finally:
        subprocess.run(["umount", disk], check=True)
