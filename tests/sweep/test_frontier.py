"""The longest T under a memory budget is found by trying, whatever the first guess was."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from attnbench import api, cli
from attnbench.errors import InputError, WorkerOutOfMemory, WorkerTimeout
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.sweep import frontier, grid
from attnbench.sweep.frontier import Outcome, Search
from tests.report.conftest import make_record

pytestmark = pytest.mark.usefixtures("little_timing")

FIELDS = [field.name for field in fields(Problem)]


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


def test_probes_that_are_used_up_are_a_reason() -> None:
    search = Search(fits=8, fails=None)
    search.run(machine(1 << 20), 16, always)
    assert search.fails is None
    assert search.reason == "14 lengths were tried"


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


def test_a_search_that_lacked_time_says_so_even_where_a_failure_is_known() -> None:
    search = Search(fits=512, fails=4096, reason="peak 2 GiB")
    search.run(machine(900), 900, lambda: False)
    assert search.out_of_time
    search = Search(fits=512, fails=None)
    search.run(lambda t: Outcome(None, frontier.OUT_OF_TIME), 900, always)
    assert search.out_of_time
    search = Search(fits=512, fails=None)
    search.run(machine(900), 900, always)
    assert not search.out_of_time


class FakeBench:
    """Workers whose peak is 1,000 bytes per token; one may never answer, one may work on a GPU."""

    def __init__(self, budget: int, *, hangs: bool = False, on_gpu: bool = False, dies: str = "") -> None:
        self.sweep = grid.validate({"memory_budget_bytes": budget, "measure_frontier": True}, where="test")
        self.arms = [grid.Arm(exporter="torch", runtime="torch-sdpa", on_gpu=on_gpu)]
        self.on_gpu, self.dies = on_gpu, dies
        self.waited: list[float] = []
        self.hangs = hangs

    def exported(self, arm: object, problem: object) -> None:
        return None

    def server(self, kind: str, name: str) -> None:
        return None

    def settings(self, arm: object) -> dict[str, object]:
        return {}

    @contextmanager
    def worker(self, *args: object, **how: object) -> Iterator["FakeBench"]:
        yield self

    def ask(self, what: str, *, timeout_s: float, problem: dict[str, Any], **more: object) -> dict[str, Any]:
        self.waited.append(timeout_s)
        if self.hangs:
            time.sleep(timeout_s)
            raise WorkerTimeout(f"no answer within {timeout_s} s")
        size_bytes = 1000 * problem["q_len"]
        if self.dies and size_bytes > 8 << 20:
            raise WorkerOutOfMemory(self.dies)
        if not self.on_gpu:
            return {"peak_bytes": size_bytes, "reason": ""}
        device = {"peak_bytes": size_bytes, "is_shared": True, "sharing": "on the device before: process 7"}
        return {"peak_bytes": 1 << 40, "reason": "", "device": device}


def measured(bench: FakeBench, records: list[Record], *, left_s: float | None = None, done: Any = ()) -> list[Any]:
    known = {r.problem_id: {f: v for f in FIELDS if (v := getattr(r, f, None)) is not None} for r in records}
    problems = {problem_id: Problem.from_dict(told) for problem_id, told in known.items()}
    end = None if left_s is None else time.monotonic() + left_s
    return list(
        frontier.measure_frontiers(
            bench, records, problems, floor=0.01, done=done, say=lambda text: None,  # type: ignore[arg-type]
            left_s=lambda: None if end is None else end - time.monotonic(),
        )
    )  # fmt: skip


def sized(lengths: tuple[int, ...], heads: int = 8, **fields: Any) -> list[Record]:
    return [
        make_record(Problem.make(seq_len=t, num_heads=heads), "torch-sdpa", **{"peak_host_bytes": 1000 * t} | fields)
        for t in lengths
    ]


def on_device(*lengths: int) -> list[Record]:
    return [row for t in lengths for row in sized((t,), device="cuda:0", peak_device_bytes=1000 * t)]


def test_the_budget_of_an_arm_on_a_gpu_is_of_the_gpus_memory() -> None:
    (row,) = measured(FakeBench(10 << 20, on_gpu=True), on_device(128, 256))
    assert row["memory"] == "device"
    assert row["fits"] <= 10_485 < row["fails"]
    assert row["fails"] / row["fits"] <= 1.03
    assert row["reason"].endswith("MiB on the device, which others were on too (on the device before: process 7)")


def test_a_gpu_that_has_no_more_memory_than_that_is_the_frontier() -> None:
    bench = FakeBench(1 << 30, on_gpu=True, dies="CUDA out of memory. Tried to allocate 2.00 GiB")
    (row,) = measured(bench, on_device(128, 256))
    assert row["fits"] <= (8 << 20) / 1000 < row["fails"]
    assert row["reason"].startswith("oom: CUDA out of memory")


def test_calls_that_take_nothing_more_of_the_gpu_fit() -> None:
    outcome = frontier._on_device({"peak_bytes": None, "is_shared": False, "sharing": ""}, 1 << 20)
    assert outcome == Outcome(True, "no growth on the device", None)


def test_the_hosts_memory_says_nothing_of_the_gpus() -> None:
    bench = FakeBench(1 << 30, on_gpu=True, dies="Unable to allocate 8.00 GiB for an array with shape (1, 4194304)")
    (row,) = measured(bench, on_device(128, 256))
    assert row["fails"] is None
    assert "oom, which says nothing of the GPU's memory: Unable to allocate" in row["reason"]


def test_two_clocks_of_an_arm_have_one_frontier() -> None:
    bench = FakeBench(10 << 20, on_gpu=True)
    bench.arms.append(replace(bench.arms[0], options=(("scope", "device"),)))
    twins = [
        row.model_copy(update={"arm": "torch-sdpa[scope=device]", "latency_scope": "device"})
        for row in on_device(128, 256)
    ]
    assert [row["arm"] for row in measured(bench, [*on_device(128, 256), *twins])] == ["torch-sdpa"]
    bench.arms.pop(0)
    assert [row["arm"] for row in measured(bench, twins)] == ["torch-sdpa[scope=device]"]


def test_an_arm_that_exceeds_the_budget_at_every_measured_length_is_searched_below() -> None:
    (row,) = measured(FakeBench(10 << 20), sized((20_000, 30_000)))
    assert row["fits"] <= 10_485 < row["fails"]
    assert row["reason"] == f"peak {row['fails'] * 1000 / 2**20:.4g} MiB" != "peak 10 MiB"
    assert row["fails"] / row["fits"] <= frontier.CLOSE


def test_a_probe_is_not_waited_for_beyond_the_time_budget() -> None:
    bench = FakeBench(10 << 20, hangs=True)
    (row,) = measured(bench, sized((128, 256)), left_s=0.3)
    assert max(bench.waited) <= 0.3
    assert row["out_of_time"]
    assert frontier.OUT_OF_TIME in row["reason"]
    assert (row["fits"], row["fails"]) == (256, None)


def test_a_slow_arm_leaves_the_others_their_part_of_the_time() -> None:
    bench = FakeBench(10 << 20, hangs=True)
    first, second = measured(bench, sized((128, 256), heads=4) + sized((128, 256)), left_s=0.8)
    assert bench.waited[0] <= 0.4
    assert 0.3 <= bench.waited[1] <= 0.4
    assert first["out_of_time"]
    assert second["probes"]


def test_rows_that_lacked_time_go_on_where_they_were_and_others_are_not_repeated() -> None:
    (first,) = measured(FakeBench(10 << 20), sized((128, 256)), left_s=0.0)
    assert first["out_of_time"]
    (second,) = measured(FakeBench(10 << 20), sized((128, 256)), done=[first | {"fits": 9000, "fails": 12_000}])
    assert all(9000 < probe["x"] < 12_000 for probe in second["probes"])
    assert measured(FakeBench(10 << 20), sized((128, 256)), done=[second]) == []


def test_problems_that_differ_in_heads_have_rows_of_their_own() -> None:
    records = sized((128, 256), heads=4) + sized((128, 256), heads=8)
    rows = measured(FakeBench(10 << 20), records)
    assert len({row["problem"] for row in rows}) == 2
    assert [row["problem"] for row in measured(FakeBench(10 << 20), records, done=rows[:1])] == [rows[1]["problem"]]


def test_a_length_that_no_tensor_may_have_ends_the_search_with_the_reason() -> None:
    records = [
        r.model_copy(update={"batch_size": 1024, "problem_id": r.problem_id}) for r in sized((128, 256, 512, 1024))
    ]  # 2 MiB per token
    (row,) = measured(FakeBench(1 << 31), records)
    assert "limit of" in row["reason"]
