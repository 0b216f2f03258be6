"""Hard inputs are what they are called, and what leaves the band is told without failing."""

import math

import numpy as np
import pytest

from attnbench.errors import InputError
from attnbench.inputs import LOGIT_SCALES, STRESS_CLASSES, make_inputs, make_weights, stress_classes
from attnbench.measure import numerics
from attnbench.problem import Problem
from attnbench.records import Record
from attnbench.report.stress_text import stress_lines, stress_section
from attnbench.report.tables import column_kind, flat_row
from attnbench.sweep import rows
from attnbench.sweep.bench import limits_of
from attnbench.sweep.cases import Case
from attnbench.sweep.grid import Arm
from tests.analysis.synthetic import only_panel
from tests.report.conftest import make_problems, make_record

pytestmark = pytest.mark.usefixtures("little_timing")

CORE = Problem.make(part="core", variant="cross", seq_len=64, kv_len=64, num_heads=4)
MASKED = Problem.make(part="core", variant="cross", seq_len=8, kv_len=6, batch_size=2, mask="bool_b1qk", num_heads=2)
PADDED = Problem.make(part="core", variant="cross", seq_len=8, kv_len=6, batch_size=2, mask="key_padding", num_heads=2)


def _logits(problem: Problem, input_class: str) -> np.ndarray:
    inputs = {n: a.astype(np.float64) for n, a in make_inputs(problem, input_class=input_class).items()}
    if problem.part == "core":
        q, k = inputs["q"], inputs["k"]
    else:
        weights = make_weights(problem)
        query = inputs.get("query", inputs.get("x"))
        context = inputs.get("context", inputs.get("x"))
        q, k = (
            (x @ weights[w].astype(np.float64)).reshape(1, -1, problem.num_heads, problem.head_dim).swapaxes(1, 2)
            for x, w in ((query, "w_q"), (context, "w_k"))
        )
    return q @ k.swapaxes(-1, -2) * problem.scale


@pytest.mark.parametrize("problem", [CORE, Problem.make(seq_len=64), Problem.make(variant="cross", seq_len=64)])
@pytest.mark.parametrize("input_class", LOGIT_SCALES)
def test_logits_have_the_spread_of_their_class(problem: Problem, input_class: str) -> None:
    assert _logits(problem, input_class).std() == pytest.approx(LOGIT_SCALES[input_class], rel=0.1)


def test_near_ties_are_as_close_as_their_keys() -> None:
    scores = _logits(CORE, "near_ties")  # of one query: spread 2^-6
    assert (scores - scores.mean(-1, keepdims=True)).std() == pytest.approx(2.0**-6, rel=0.1)


def test_rows_that_are_one_hot_have_one_weight() -> None:
    scores = _logits(CORE, "logits_x1024")
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    assert np.median((weights / weights.sum(-1, keepdims=True)).max(-1)) > 0.999


def test_long_tails_reach_farther_than_normal_numbers() -> None:
    q = make_inputs(CORE, input_class="long_tail")["q"]
    assert np.abs(q).max() / np.abs(q).std() > 10  # 16,384 normal numbers reach 4.2


def test_masked_rows_leave_the_first_query_or_the_first_item_without_a_key() -> None:
    mask = make_inputs(MASKED, input_class="masked_rows")["mask"]  # (2, 1, 8, 6)
    assert not mask[:, :, 0].any()
    assert mask[:, :, 1:, 0].all()
    padding = make_inputs(PADDED, input_class="masked_rows")["mask"]  # (2, 1, 1, 6)
    assert not padding[0].any()
    assert padding[1, ..., 0].all()


def test_rows_are_masked_only_where_the_mask_is_a_boolean_tensor() -> None:
    assert stress_classes(MASKED) == STRESS_CLASSES
    assert "masked_rows" not in stress_classes(CORE)
    with pytest.raises(InputError, match="for this problem; got 'masked_rows'"):
        make_inputs(CORE, input_class="masked_rows")


@pytest.mark.parametrize(
    ("input_class", "band"), [("logits_x1024", "peaked"), ("long_tail", "peaked"), ("near_ties", "normal")]
)
def test_stress_is_held_to_the_band_of_peaked_inputs_and_ties_to_that_of_normal_ones(
    input_class: str, band: str
) -> None:
    bf16 = Problem.make(part="core", variant="cross", seq_len=8, dtype="bf16")
    judge = {"floor": 0.0, "eager": {"worst_row_rel_err": 9.0}}
    assert limits_of(bf16, judge, input_class).worst_row == numerics.tolerances()["core", "bf16", band].ceiling


@pytest.mark.parametrize(
    ("parts", "first"),
    [
        ({"logits_x8": 0.3, "logits_x64": 0.9, "logits_x1024": 0.99}, None),
        ({"logits_x8": 0.3, "logits_x64": 1.01, "logits_x1024": 7.0}, 64),
        ({"logits_x8": math.inf, "logits_x64": 0.5, "logits_x1024": 7.0}, 8),
    ],
)
def test_the_first_scale_outside_the_band_is_told_and_an_empty_cell_has_its_reason(parts, first) -> None:
    case = Case(problem=CORE, arm=Arm(exporter="torch", runtime="torch-sdpa"), status="ok", stress=parts)
    fields = rows._stress(case)
    assert fields["first_logit_scale_outside"] == first
    reason = rows.empty_reasons(case, fields).get("first_logit_scale_outside")
    assert reason == (None if first else "inside the band at every scale tried")
    case.stress = {}
    assert rows.empty_reasons(case, rows._stress(case))["first_logit_scale_outside"] == "--stress was not asked"


def test_the_section_tells_the_worst_part_and_the_first_scale_and_length_outside() -> None:
    def row(problem: Problem, arm: str, part: float) -> Record:
        first = 8 if part > 1.0 else None
        return make_record(problem, arm, stress={"logits_x8": part, "near_ties": 0.1}, first_logit_scale_outside=first)

    problems = make_problems(("self",), (128, 256, 512))
    records = [row(p, "torch-sdpa", p.q_len / 200) for p in problems]
    records += [row(p, "torch-eager", 0.5) for p in problems]
    section = stress_section([only_panel(records)], lambda p: "fp32")
    (table,) = section.tables
    assert list(table.head) == ["arm", "logits x 8", "near ties", "first scale outside"]
    assert [list(row) for row in table.rows] == [
        ["torch-sdpa", "2.6 at T = 512", "0.10 at T = 128", "x 8 at T = 256"],
        ["torch-eager", "0.50 at T = 128", "0.10 at T = 128", "none that was tried"],
    ]
    assert list(section.lines) == [
        "fp32: torch-sdpa first leaves its band with logits x 8 at T = 256 (1.3 times what is allowed)."
    ]
    assert stress_lines([only_panel(records)]) == [
        "under stress, logits x 8: 1 of 2 arms outside the band; most torch-sdpa, 2.6 times what is allowed "
        "(self, T = 512)"
    ]


def test_the_terminal_tells_stress_that_nothing_leaves_and_is_silent_without_stress() -> None:
    (problem,) = make_problems(("self",), (128,))
    calm = make_record(problem, "torch-sdpa", stress={"logits_x8": 1.0, "near_ties": 0.1})
    assert stress_lines([only_panel([calm])]) == [
        "under stress (logits x 8, near ties) every arm stays inside its band"
    ]
    assert stress_lines([only_panel([make_record(problem, "torch-sdpa")])]) == []


def test_no_number_under_stress_is_the_worst() -> None:
    (problem,) = make_problems(("self",), (128,))
    records = [make_record(problem, arm, stress={"near_ties": part}) for arm, part in (("a", 9.0), ("b", math.inf))]
    assert stress_lines([only_panel(records)]) == [
        "under stress, near ties: 2 of 2 arms outside the band; most b, no number (self, T = 128)"
    ]


def test_the_parts_are_json_in_tables() -> None:
    record = make_record(CORE, "torch-sdpa", stress={"near_ties": 0.5})
    assert column_kind("stress") is str
    assert '{"near_ties": 0.5}' in flat_row(record)


@pytest.mark.slow
def test_a_run_tells_the_parts_of_every_class_and_fails_nothing_for_them(tmp_path) -> None:
    from attnbench import api

    run = api.bench(
        part=["core"], variants=["cross"], seq_lens=[1], kv_lens=[64], masks=["key_padding"], num_heads=[2],
        runtimes=["torch-eager"], baseline="torch-eager", dtypes=["bf16"], stress=True, threads=1,
        time_budget_s=300.0, out=tmp_path / "run",
    )  # fmt: skip
    (row,) = run.rows
    assert row.status == "ok"
    assert set(row.stress) == set(STRESS_CLASSES)
    assert row.stress["near_ties"] <= 1.0
    assert row.bitwise_repeatable is True
    assert row.empty_reasons["prefix_invariant"].startswith("tokens see later ones")
