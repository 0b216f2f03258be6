"""The sections say what the laws, crossings and frontiers say."""

import math
import re

import numpy as np

from attnbench.analysis.arm_laws import ArmLaws, arm_laws
from attnbench.analysis.crossovers import pairs
from attnbench.analysis.frontier import Frontier
from attnbench.analysis.groups import make_panels
from attnbench.analysis.laws import Estimate, Point, fit_law
from attnbench.report.decisions import crossing_sentences, decisions, frontier_cell, latency_words, law_words
from attnbench.report.page_laws import laws_of
from tests.analysis.synthetic import Terms, make_run, only_panel

LAWS: dict[str, Terms] = {"torch-sdpa": (0.05, 0.02, 2e-5), "torch-eager": (7.05, 0.01, 2e-5)}
MEMORY: dict[str, Terms] = {"torch-sdpa": (5e5, 1e4, 0.0), "torch-eager": (4e5, 8e3, 64.0)}


def sections(laws: dict[str, Terms] = LAWS, manifest: dict | None = None, **how: object) -> dict:
    records, medians = make_run(laws, np.random.default_rng(0), memory=MEMORY, **how)
    given = {"noise_floor": 0.005, "machine_peak": {"fp32": {"gflops_per_s": 100.0, "by": "onednn"}}}
    return {s.id: s for s in decisions(make_panels(records), given | (manifest or {}), medians)}


def test_a_crossing_is_a_sentence_with_its_interval() -> None:
    (line,) = sections()["crossovers"].lines
    found = re.fullmatch(r"self: torch-eager overtakes torch-sdpa at T = (\d+) \(95 % CI (\d+) to (\d+)\)\.", line)
    assert found
    mid, low, high = map(int, found.groups())
    assert low < 700 < high  # 7 ms more per call, 10 us less per token
    assert low < mid < high


def test_the_table_of_pairs_names_the_faster_and_where_none_is_shown() -> None:
    (table,) = sections()["crossovers"].tables
    assert list(table.head[:3]) == ["A", "B", "T = 128"]
    assert table.rows[0][2].startswith("A ")  # 2.94 ms against 8.66
    assert table.rows[0][-1].startswith("B ")
    (table,) = sections({"torch-sdpa": (0.05, 0.02, 2e-5), "torch-eager": (0.05, 0.02, 2e-5)})["crossovers"].tables
    assert set(table.rows[0][2:]) == {"?"}


def test_without_a_crossing_that_is_said() -> None:
    same = {"torch-sdpa": LAWS["torch-sdpa"], "torch-eager": LAWS["torch-sdpa"]}
    assert list(sections(same)["crossovers"].lines) == ["self: no crossing is shown."]


def test_laws_are_put_in_words() -> None:
    records, _ = make_run(LAWS, np.random.default_rng(0), memory=MEMORY)
    laws = arm_laws(only_panel(records), 0.005)
    assert "linear memory: scores are not materialised" in law_words(laws["torch-sdpa"], "T")
    assert "2.0 score matrices live at once" in law_words(laws["torch-eager"], "T")
    # 7.05 > 0.01 T + 2e-5 T^2 up to T = (-0.01 + sqrt(0.01^2 + 4 x 2e-5 x 7.05)) / 4e-5 = 394
    words = law_words(laws["torch-eager"], "T").split("; ")
    fixed = next(w for w in words if "fixed cost dominates" in w)
    assert 370 <= int(fixed.split(" = ")[1].split(" ")[0]) <= 420


def test_a_fixed_cost_that_is_not_shown_dominates_nothing() -> None:
    """Four noisy lengths: the fitted fixed cost is the larger part at T = 128, with an interval that begins at 0."""
    claimed = fixed = 0
    for seed in range(40):
        records, _ = make_run(
            {"torch-sdpa": (2.6, 0.02, 2e-5)}, np.random.default_rng(seed), noise=0.1, worker=0.05,
            seq_lens=(128, 256, 512, 1024), memory=MEMORY,
        )  # fmt: skip
        laws = arm_laws(only_panel(records), 0.12)["torch-sdpa"]
        if laws.latency.fixed.low == 0.0:
            fixed += laws.latency.shares(128)[0] > 0.5
            claimed += "fixed cost dominates" in law_words(laws, "T")
    assert fixed > 0
    assert claimed == 0


def test_of_a_latency_of_another_form_no_part_dominates() -> None:
    law = fit_law([Point(t, 10.0 - 2e-3 * t, 1e-3) for t in (128, 256, 512, 1024, 2048, 4096)])
    arm = ArmLaws(latency=law, latency_reason="", memory=None, memory_reason="none", matrices=None)
    assert latency_words(arm, "T") == ["latency has another form"]


def frontier(at: tuple[float, float, float], fits: int | None, fails: int | None) -> Frontier:
    return Frontier(
        arm="a", budget_bytes=1 << 30, at=Estimate(*at), is_extrapolated=True, fits=fits, fails=fails, reason=""
    )


def test_a_measured_length_that_contradicts_the_law_is_said() -> None:
    assert frontier_cell(frontier((4500, 5000, 5500), 2048, 4096)) == (
        "5,000* (4,500 to 5,500); but T = 4,096 does not fit"
    )
    assert frontier_cell(frontier((100, 200, 300), 4096, None)) == "200* (100 to 300); but T = 4,096 fits"
    assert frontier_cell(frontier((4500, 5000, 5500), 4096, 8192)) == "5,000* (4,500 to 5,500)"
    assert frontier_cell(frontier((math.inf,) * 3, 4096, None)) == "over 10\u2079* (over 10\u2079)"


def test_a_short_sweep_has_reasons_instead_of_laws() -> None:
    found = sections(seq_lens=(128, 256))
    assert "laws" not in found
    assert "longest" not in found
    assert "bounds" in found


def test_longest_t_marks_extrapolations() -> None:
    (table,) = sections()["longest"].tables
    assert list(table.head) == ["arm", "1.00 GiB", "8.00 GiB", "64.0 GiB"]
    eager = next(row for row in table.rows if row[0] == "torch-eager")
    assert "*" not in eager[1]
    assert eager[2].startswith("11,5")
    assert "*" in eager[2]


def test_a_measured_frontier_is_a_sentence() -> None:
    row = {"arm": "torch-eager", "problem": "self", "budget_bytes": 1 << 30, "fits": 4000, "fails": 4200,
           "reason": "peak 1.1 GiB"}  # fmt: skip
    lines = sections(manifest={"frontier": [row]})["longest"].lines
    assert list(lines) == [
        "torch-eager, self: measured, 1.00 GiB suffice for T = 4,000; 4,200 does not (peak 1.1 GiB)."
    ]


def test_bounds_say_when_bandwidth_is_unknown() -> None:
    assert "bandwidth was not measured" in sections()["bounds"].intro
    assert "copying 20.0 GB/s" in sections(manifest={"machine_bandwidth": {"gbytes_per_s": 20.0}})["bounds"].intro


def test_lengths_that_refining_added_are_named() -> None:
    refined = {"refined": [{"variant": "self", "q_len": 704}], "refine_stopped_by": "12 groups were added"}
    assert sections(manifest=refined)["crossovers"].lines[-1] == (
        "Lengths that --refine added: self T = 704; it ended because 12 groups were added."
    )


def test_the_budget_of_the_sweep_is_the_one_that_is_answered() -> None:
    (table,) = sections(manifest={"sweep": {"memory_budget_bytes": 2 << 30}})["longest"].tables
    assert list(table.head) == ["arm", "2.00 GiB"]


def test_tables_of_a_chart_name_it_so_that_the_filter_hides_them_with_it() -> None:
    found = sections()
    assert {table.panel for name in ("crossovers", "laws", "longest", "bounds") for table in found[name].tables} == {0}


def test_a_crossing_says_where_no_difference_can_be_shown() -> None:
    records, medians = make_run(LAWS, np.random.default_rng(0), memory=MEMORY)
    late = [r.q_len == 512 and r.arm == "torch-eager" for r in records]
    contended = [r.model_copy(update={"flags": ["contended"] * x}) for r, x in zip(records, late, strict=True)]
    (pair,) = pairs(only_panel(contended), 0.005, medians)
    (sentence,) = crossing_sentences(pair, "T")
    assert sentence.endswith("); no difference can be shown at T = 512.")
    assert sentence.startswith("torch-eager overtakes torch-sdpa at T = ")


def test_the_page_gets_the_residuals_of_every_law() -> None:
    records, _ = make_run(LAWS, np.random.default_rng(0), memory=MEMORY)
    panel = only_panel(records)
    law = laws_of(panel, 0.005)["torch-sdpa"]["latency"]
    for x, record in zip(panel.xs, panel.row("torch-sdpa"), strict=True):
        fitted = law["fixed"][1] + law["linear"][1] * x + law["quadratic"][1] * x * x
        assert abs(law["residuals"][str(x)] - (record.latency_ms_median / fitted - 1)) < 2e-3
