"""The longest T under a memory budget is found by trying, whatever the first guess was."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench import api, cli
from attnbench.errors import InputError
from attnbench.sweep import frontier, grid
from attnbench.sweep.frontier import Outcome, Search


def machine(longest: int) -> Callable[[int], Outcome]:
    """T up to `longest` fit."""
    return lambda t: Outcome(t <= longest, "ok" if t <= longest else "peak 2 GiB", t)


def always() -> bool:
    return True


@pytest.mark.parametrize("longest", [4096, 5000, 11_345, 100_000, 3_000_000])
@pytest.mark.parametrize("guess", [0.5, 0.97, 1.0, 1.02, 3.0])
def test_the_longest_that_fits_is_found_within_2_percent(longest: int, guess: float) -> None:
    search = Search(fits=4096, fails=None)
    search.run(machine(longest), guess * longest, always)
    assert search.fits is not None
    assert search.fits <= longest
    if search.fails is not None:
        assert longest < search.fails
        assert search.fails / search.fits <= frontier.CLOSE or len(search.probes) == frontier.MAX_PROBES
    assert search.fits >= longest / 1.2


def test_a_good_guess_needs_few_probes() -> None:
    search = Search(fits=4096, fails=None)
    search.run(machine(11_345), 11_300, always)
    assert len(search.probes) <= 3
    assert search.reason == "peak 2 GiB"


def test_a_timeout_ends_the_search_with_what_is_known() -> None:
    search = Search(fits=512, fails=None)
    search.run(lambda t: Outcome(None, "timeout: 300 s"), 9000, always)
    assert (search.fits, search.fails) == (512, None)
    assert search.reason == "at T = 9,000: timeout: 300 s"


def test_without_time_nothing_is_tried() -> None:
    search = Search(fits=512, fails=None)
    search.run(machine(9000), 9000, lambda: False)
    assert search.probes == []
    assert search.reason == "the time budget was spent"


def test_what_fits_at_any_length_ends_at_the_largest_tried() -> None:
    search = Search(fits=512, fails=None)
    search.run(machine(1 << 40), 1 << 30, always)
    assert search.fails is None
    assert search.fits is not None
    assert search.fits >= frontier.MAX_SEQ_LEN - 1
    assert "is not tried" in search.reason


def test_a_bracket_that_is_close_needs_no_probe() -> None:
    search = Search(fits=1000, fails=1010)
    search.run(machine(1005), 1005, always)
    assert search.probes == []


def test_a_frontier_without_a_budget_of_memory_is_refused() -> None:
    with pytest.raises(InputError, match="--memory-budget"):
        grid.resolve(None, {"measure_frontier": True})
    assert grid.resolve(None, {"memory_budget": "1GiB"}).memory_budget_bytes == 1 << 30


def test_the_flags_reach_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "quick", "--memory-budget", "1GiB", "--measure-frontier", "--refine", "--dry-run", "--json"]
    assert cli.main(arguments) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["sweep"]["memory_budget_bytes"] == 1 << 30
    assert plan["predicted_s"]["refine"] == plan["predicted_s"]["longest T"] == pytest.approx(15.0)


@pytest.mark.slow
def test_eager_attention_ends_where_two_score_matrices_fill_the_budget(tmp_path: Path) -> None:
    """8 heads of fp32: two matrices are 64 T^2 bytes, 64 MiB at T = 1024, less what else it holds."""
    run = api.bench(
        variants=["self"], seq_lens=[64, 128, 256, 512], runtimes=["torch-eager"], baseline="torch-eager",
        memory_budget_bytes=64 << 20, measure_frontier=True, time_budget_s=90.0, out=tmp_path / "run",
    )  # fmt: skip
    (row,) = run.manifest["frontier"]
    assert row["arm"] == "torch-eager"
    assert 800 < row["fits"] < row["fails"] < 1100
    assert row["fails"] / row["fits"] <= 1.03
    assert all(probe["peak_bytes"] for probe in row["probes"])
    assert "longest" in (run.path / "report.html").read_text()
