"""Rows of a user's model in charts: by the sizes that do not follow T."""

import pytest

from attnbench.analysis.arm_laws import arm_laws
from attnbench.analysis.crossovers import pairs
from attnbench.analysis.groups import judge_of, make_panels
from attnbench.analysis.kernels import with_kernels
from tests.report.model_rows import JUDGE, MODULE_ARMS, model_records


def test_a_dim_that_follows_t_does_not_split_the_chart() -> None:
    (panel,) = make_panels(model_records())
    assert panel.xs == [128, 256, 512, 1024]
    assert (panel.title(), panel.x_label, panel.has_x) == ("encoder.onnx (kv follows seq)", "seq", True)
    assert panel.facet.title() == "model, fp32, batch=8, cpu, 1 thread, host time"
    assert panel.facet.query() == "model == 'encoder.onnx'"
    assert (panel.at(128), panel.x_text(128)) == ("seq = 128", "128")


def test_every_size_that_was_set_has_a_chart() -> None:
    panels = make_panels(model_records(batches=(1, 8)))
    assert [panel.facet.sizes for panel in panels] == ["batch=1", "batch=8"]


def test_a_model_without_t_has_one_place() -> None:
    (panel,) = make_panels(model_records(bound=None, batches=()))
    assert (panel.xs, panel.has_x, panel.at(0), panel.x_text(0)) == ([0], False, "fixed sizes", "fixed")
    one, eight = make_panels(model_records(bound=None, batches=(1, 8)))
    assert (one.at(0), eight.at(0)) == ("batch=1", "batch=8")


def test_a_model_without_t_has_no_law_and_no_crossing() -> None:
    (panel,) = make_panels(model_records(bound=None))
    assert pairs(panel, 0.005) == []
    assert {law.latency_reason for law in arm_laws(panel, 0.005).values()} == {
        "the model was run without a free dim that follows T"
    }


def test_latency_and_memory_of_a_model_have_laws_but_no_score_matrices() -> None:
    (panel,) = make_panels(model_records())
    laws = arm_laws(panel, 0.005)
    law = laws[JUDGE].latency
    assert law is not None
    assert law.linear.mid == pytest.approx(0.08, rel=0.05)  # 8 x 1e-2 ms a step
    assert laws[JUDGE].memory is not None
    assert laws[JUDGE].matrices is None


def test_memory_says_nothing_of_the_kernel_of_a_model() -> None:
    rows = model_records()
    assert [r.attention_kernel for r in with_kernels(rows)] == [None] * len(rows)


def test_the_judge_is_read_from_the_flags() -> None:
    assert judge_of(model_records()) == JUDGE
    assert judge_of(model_records(judge=None, arms=MODULE_ARMS)) is None


def test_of_a_file_that_one_arm_ran_that_arm_is_what_others_would_be_compared_with() -> None:
    rows = model_records(judge=None)
    assert judge_of(rows[1:]) == "file@openvino"
    skipped = [r.model_copy(update={"status": "skipped"}) for r in rows]
    assert judge_of(skipped) == "the first arm that runs"
