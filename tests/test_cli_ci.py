"""The files and the sentence that `bench` and `report` leave for CI."""

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench import api
from attnbench.records import Record
from attnbench.report import ci
from attnbench.sweep.grid import Sweep
from attnbench.terminal import exit_sentence
from tests.conftest import Call

SAMPLE = Path(__file__).parents[1] / "results" / "sample"
ALL = {"--junit": "j.xml", "--markdown": "s.md", "--metrics": "m.json"}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of the sample run."""
    path = tmp_path / "run"
    path.mkdir()
    for name in ("manifest.json", "records.jsonl"):
        shutil.copy(SAMPLE / name, path / name)
    return path


@pytest.fixture
def benched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand in for `api.bench`, with the rows of the sample run, interrupted."""
    seen: list[dict[str, Any]] = []

    def bench(**arguments: Any) -> api.Run:
        seen.append(arguments)
        whole = api.open_run(SAMPLE)
        out = arguments.get("out") or Path("results/x")
        out.mkdir(parents=True, exist_ok=True)
        return api.Run(path=out, rows=whole.rows[:9], manifest={**whole.manifest, "interrupted": True})

    monkeypatch.setattr(api, "bench", bench)
    return seen


def flags_in(folder: Path) -> list[str]:
    return [word for flag, name in ALL.items() for word in (flag, str(folder / name))]


def test_an_interrupted_bench_leaves_all_three_files(
    run: Callable[..., Call], benched: list[dict[str, Any]], tmp_path: Path
) -> None:
    code, _, err = run("bench", "-q", "-o", str(tmp_path / "new"), *flags_in(tmp_path))
    assert (code, err) == (130, "attnbench: interrupted\n")
    root = ET.parse(tmp_path / "j.xml").getroot()
    assert (root.get("tests"), root.get("errors")) == ("10", "1")
    assert "was interrupted: 9 records of 126 planned cases" in (tmp_path / "s.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "m.json").read_bytes())["run/cases_ok"] == 9


def test_the_files_may_lie_in_the_run_that_is_to_be_made(
    run: Callable[..., Call], benched: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "run"
    assert run("bench", "-q", "-o", str(out), "--junit", str(out / "j.xml"))[0] == 130
    assert (out / "j.xml").is_file()


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (
            "--junit no/such/x.xml",
            "--junit must lie in a folder that exists, got 'no/such/x.xml'; make the folder first",
        ),
        ("--markdown .", "name a file such as summary.md in it"),
        ("--metrics /dev/null", "name a file such as metrics.json"),
        ("--junit a.xml --metrics a.xml", "--junit and --metrics are both 'a.xml'; give each a file of its own"),
        ("--metrics manifest.json", "--metrics must not be called 'manifest.json', as a file of a run is"),
        ("--junit=", "--junit must be a path"),
    ],
)
def test_a_bad_path_is_refused_before_anything_runs(
    run: Callable[..., Call], benched: list[dict[str, Any]], sample: Path, argv: str, part: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for command in (["bench", "-q"], ["report", str(sample)]):
        code, out, err = run(*command, *argv.split())
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert part in err
    assert benched == []


def test_resume_takes_the_files_too(run: Callable[..., Call], benched: list[dict[str, Any]], sample: Path) -> None:
    assert run("bench", "-q", "--resume", str(sample), *flags_in(sample))[0] == 130
    assert all((sample / name).is_file() for name in ALL.values())


@pytest.mark.slow
def test_report_makes_the_files_of_a_finished_run(run: Callable[..., Call], sample: Path, tmp_path: Path) -> None:
    code, _, err = run("report", str(sample), *flags_in(tmp_path))
    assert (code, err) == (0, "")
    assert ET.parse(tmp_path / "j.xml").getroot().get("tests") == "126"
    (causal,) = [r for r in api.open_run(SAMPLE).rows if (r.variant, r.q_len, r.arm) == ("causal", 4096, "torch-sdpa")]
    assert causal.fastest
    row = f"| 4096 | 7/7 | `torch-sdpa` | {causal.latency_ms_median:.0f} ("
    assert row in (tmp_path / "s.md").read_text(encoding="utf-8")


def test_a_file_that_cannot_be_written_is_one_sentence_and_exit_code_1(
    run: Callable[..., Call], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ci, "write", full)
    monkeypatch.setattr(api, "bench", lambda **arguments: api.open_run(SAMPLE))
    code, _, err = run("bench", "-q", "--metrics", str(tmp_path / "m.json"))
    assert code == 1
    assert err == (
        f"attnbench: cannot write --metrics '{tmp_path / 'm.json'}': No space left on device; "
        "write it again with report\n"
    )


def outcome(*rows: tuple[str, str, str], is_reported: bool = True, **sweep: Any) -> SimpleNamespace:
    """A run with rows of (arm, status, reason)."""
    whole = api.open_run(SAMPLE)
    records: list[Record] = []
    for arm, status, reason in rows:
        changed = {"arm": arm, "runtime": arm.rpartition("@")[2], "status": status, "reason": reason}
        records.append(whole.rows[0].model_copy(update=changed))
    manifest = {"interrupted": False, "sweep": Sweep(**sweep).model_dump()}
    return api.Run(  # type: ignore[return-value]
        path=Path("results/x"), rows=records, manifest=manifest, notices=["cannot write r.csv: full"],
        is_reported=is_reported,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("run_", "code", "sentence"),
    [
        (outcome(("torch-sdpa", "ok", "")), 0, ""),
        (
            outcome(("torch-sdpa", "skipped", "too late"), ("torch-eager", "skipped", "too late")),
            3,
            "nothing was measured: 2 cases skipped: too late",
        ),
        (
            outcome(("a@x", "oom", "2 GiB"), ("a@y", "skipped", "b"), ("a@z", "oom", "2 GiB"), ("a@w", "oom", "3 GiB")),
            3,
            "nothing was measured: 2 cases oom: 2 GiB (and 2 other reasons)",
        ),
        (
            outcome(("torch-sdpa", "ok", ""), ("a@openvino", "unavailable", "not installed"), runtimes=("openvino",)),
            3,
            "openvino was asked for and is unavailable: 1 case unavailable: not installed",
        ),
        (outcome(), 3, "nothing was measured: no case has ended"),
        (
            outcome(("torch-sdpa", "ok", ""), ("a@x", "crashed", "s"), ("a@y", "mismatch", "m")),
            1,
            "2 cases failed: 1 crashed, 1 mismatch; see results/x/report.html",
        ),
        (
            outcome(("torch-sdpa", "ok", ""), ("a@x", "unsupported", "no fp16"), require=("x",)),
            1,
            "a@x is required and not ok: 1 case unsupported: no fp16",
        ),
        (outcome(("torch-sdpa", "ok", ""), is_reported=False), 1, "no report in results/x: cannot write r.csv: full"),
    ],
)
def test_an_exit_code_that_is_not_0_is_explained_in_one_sentence(run_: api.Run, code: int, sentence: str) -> None:
    assert run_.exit_code == code
    assert exit_sentence(run_) == sentence


def test_help_shows_no_type_of_a_switch_and_says_defaults_within_80_columns(run: Callable[..., Call]) -> None:
    sweep = Sweep()
    for command in ("bench", "export", "report", "doctor", "list"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert "<bool>" not in out
        assert max(map(len, out.splitlines())) <= 80
    words = " ".join(run("bench", "--help")[1].replace("│", " ").split())
    for told in (
        f"Batch sizes. [default: {sweep.batch_sizes[0]}]", f"Numbers of heads. [default: {sweep.num_heads[0]}]",
        f"Sizes of a head. [default: {sweep.head_dims[0]}]", f"fp32, fp16, bf16. [default: {sweep.dtypes[0]}]",
        f"Lengths T. [default: {', '.join(map(str, sweep.seq_lens))}]", f"block, core. [default: {sweep.part[0]}]",
        f"Arm to compare with; NAME:fp32 for dtypes. [default: {sweep.baseline}]",
            f"For one case. [default: {sweep.timeout_s:.0f}s]",
        f"For the whole run. [default: {sweep.time_budget_s or 0:.0f}s]",
        f"Of inputs and weights. [default: {sweep.seed}]",
        "See attnbench list; also NAME@PYTHON. [default: torch-eager, torch-sdpa, ort-cpu, openvino]",
    ):  # fmt: skip
        assert told in words


@pytest.mark.slow
def test_output_without_a_terminal_is_plain_and_quiet_says_only_why_nothing_was_measured(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("attnbench")
    argv = [command, "bench", "-s", "16,32", "--variants", "self", "--runtimes", "torch-sdpa", "--time-budget", "0.1s"]

    def bench(*more: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "FORCE_COLOR": "1"}
        return subprocess.run(
            [*argv, *more], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env=environment
        )

    quiet = bench("-q", "-o", "quiet", "--junit", "quiet/j.xml")
    why = "2 cases skipped: the time budget was spent; --resume this run with a longer --time-budget"
    assert (quiet.returncode, quiet.stderr) == (3, f"attnbench: nothing was measured: {why}\n")
    assert "way out: attnbench bench --resume quiet with a longer --time-budget" in " ".join(quiet.stdout.split())
    assert ET.parse(tmp_path / "quiet" / "j.xml").getroot().find("testsuite").get("skipped") == "2"  # type: ignore[union-attr]
    loud = bench("-o", "loud")
    assert "2 problems skipped: the time budget was spent\n" in loud.stderr
    assert " done, about" not in loud.stderr
    for text in (quiet.stdout, loud.stdout, loud.stderr):
        assert not set(text) & {"\x1b", "\r", "\b"}
    assert max(map(len, quiet.stdout.splitlines())) <= 80
