import json
from pathlib import Path

import pytest

from attnbench import cli, terminal
from attnbench.problem import Problem
from attnbench.sweep import grid
from attnbench.sweep.plan import make_plan


def test_a_plan_says_what_will_be_run_and_what_it_takes() -> None:
    sweep = grid.resolve("quick", {"seq_lens": (128, 512), "variants": ("self",), "time_budget_s": 100.0})
    arms = [grid.Arm(exporter="torch", runtime="torch-sdpa"), grid.Arm(exporter="onnx-attention", runtime="ort-cpu")]
    plan = make_plan(sweep, grid.problems(sweep), arms, threads=1, available_bytes=8 << 30)
    text = terminal.plan_text(plan, width=80)
    assert "4 cases: 2 problems (T = 128, 512) x 2 arms, 1 thread each" in text
    assert "onnx-attention@ort-cpu" in text
    assert "of a budget of 1m 40s" in text
    assert "of 8.0 GiB free" in text
    told = json.loads(json.dumps(terminal.plan_as_dict(plan)))
    assert told["cases"] == 4
    assert [Problem.from_dict(fields).q_len for fields in told["problems"]] == [128, 512]
    assert told["predicted_total_s"] == pytest.approx(sum(told["predicted_s"].values()))


def test_a_plan_of_decode_names_the_lengths_of_the_cache() -> None:
    sweep = grid.resolve(None, {"seq_lens": (64, 128), "variants": ("decode", "self"), "q_lens": (1, 3)})
    arms = [grid.Arm(exporter="torch", runtime="torch-sdpa")]
    plan = make_plan(sweep, grid.problems(sweep), arms, threads=1, available_bytes=8 << 30)
    assert "6 problems (T = 64, 128) x 1 arm" in terminal.plan_text(plan, width=80)


def test_a_plan_keeps_to_the_width_and_shows_its_notices() -> None:
    sweep = grid.resolve("quick", {"time_budget_s": 1.0})
    arms = [grid.Arm(exporter="torch", runtime="torch-eager")]
    plan = make_plan(sweep, grid.problems(sweep), arms, threads=2, available_bytes=1 << 20)
    text = terminal.plan_text(plan, width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert len(plan.notices) == 2
    assert text.count("note: ") == 2
    assert "2 threads" in text


@pytest.mark.slow
def test_a_dry_run_prints_the_plan_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["bench", "-s", "16", "--variants", "self", "--runtimes", "torch-sdpa", "--dry-run", "-o", "new"]
    assert cli.main(argv) == 0
    assert "1 case: 1 problem (T = 16) x 1 arm" in capsys.readouterr().out
    assert cli.main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["arms"] == ["torch-sdpa"]
    assert list(tmp_path.iterdir()) == []
