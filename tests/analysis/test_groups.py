"""Only what was measured alike shares a chart."""

import pytest

from attnbench.analysis.groups import attention_share, make_panels, peak_bytes
from attnbench.problem import Problem


def titles(panels):
    return [panel.title() for panel in panels]


def test_one_panel_a_variant_with_its_kv_rule(lab):
    assert titles(make_panels(lab.default_records())) == ["self", "cross (kv_len = T/2)", "causal"]


@pytest.mark.parametrize("field", ["latency_scope", "device", "threads"])
def test_rows_measured_differently_never_share_a_panel(lab, field):
    problem = Problem.make(seq_len=128)
    other = {"latency_scope": "device", "device": "cuda:0", "threads": 2}[field]
    records = [lab.make_record(problem, "torch-sdpa"), lab.make_record(problem, "torch-eager", **{field: other})]
    panels = make_panels(records)
    assert len(panels) == 2
    assert {len(panel.arms) for panel in panels} == {1}


def test_parts_dtypes_batches_and_heads_have_their_own_facets(lab):
    problems = [
        Problem.make(seq_len=128),
        Problem.make(seq_len=128, part="core"),
        Problem.make(seq_len=128, dtype="fp16"),
        Problem.make(seq_len=128, batch_size=8),
        Problem.make(seq_len=128, num_heads=4),
        Problem.make(seq_len=128, head_dim=32),
    ]
    panels = make_panels([lab.make_record(p, "torch-sdpa") for p in problems])
    assert len({panel.facet for panel in panels}) == 6


def test_a_case_that_did_not_run_stands_beside_its_arm(lab):
    small, large = Problem.make(seq_len=128), Problem.make(seq_len=256)
    records = [lab.make_record(p, "torch-sdpa", threads=4) for p in (small, large)]
    records += [lab.make_record(p, "torch-sdpa", threads=2, run_id="b") for p in (small, large)]
    records.append(lab.make_record(small, "torch-eager", threads=2))
    records.append(lab.without_figures(lab.make_record(large, "torch-eager"), "oom", "too large"))
    (panel,) = [p for p in make_panels(records) if ("torch-eager", 128) in p.cells]
    assert panel.facet.threads == 2
    assert panel.cells["torch-eager", 256].status == "oom"


def test_a_runtime_that_does_not_tell_its_threads_joins_the_others(lab):
    problem = Problem.make(seq_len=128)
    records = [lab.make_record(problem, "torch-sdpa"), lab.make_record(problem, "ort-cpu", threads=None)]
    assert len(make_panels(records)) == 1


def test_a_run_where_nothing_worked_still_has_its_panels(lab):
    records = [
        lab.without_figures(lab.make_record(Problem.make(seq_len=t), "torch-sdpa"), "unavailable", "no torch")
        for t in (128, 256)
    ]
    (panel,) = make_panels(records)
    assert panel.xs == [128, 256]


def test_lengths_that_both_vary_are_split_by_the_rarer_one(lab):
    problems = [Problem.make(variant="cross", seq_len=q, kv_len=kv) for q in (128, 256, 512) for kv in (64, 1024)]
    panels = make_panels([lab.make_record(p, "torch-sdpa") for p in problems])
    assert titles(panels) == ["cross (kv_len = 64)", "cross (kv_len = 1024)"]
    assert [panel.xs for panel in panels] == [[128, 256, 512]] * 2
    decode = [Problem.make(variant="cross", seq_len=1, kv_len=kv) for kv in (64, 1024, 4096)]
    (panel,) = make_panels([lab.make_record(p, "torch-sdpa") for p in decode])
    assert (panel.title(), panel.x_label, panel.xs) == ("cross (q_len = 1)", "kv_len", [64, 1024, 4096])


@pytest.mark.parametrize("seq_lens", [(64, 128), (64, 128, 256)])
def test_decode_is_shown_as_its_cache_grows_for_every_number_of_new_tokens(lab, seq_lens) -> None:
    steps = [Problem.make(variant="decode", seq_len=kv, q_len=q) for kv in seq_lens for q in (1, 2, 4)]
    panels = make_panels([lab.make_record(p, "torch-sdpa") for p in steps])
    assert [p.title() for p in panels] == ["decode (q_len = 1)", "decode (q_len = 2)", "decode (q_len = 4)"]
    assert [p.xs for p in panels] == [list(seq_lens)] * 3


def test_one_decode_step_stands_at_the_length_of_its_cache(lab) -> None:
    (panel,) = make_panels([lab.make_record(Problem.make(variant="decode", seq_len=64), "torch-sdpa")])
    assert (panel.title(), panel.x_label, panel.xs) == ("decode (q_len = 1)", "kv_len", [64])
    steps = [Problem.make(variant="decode", seq_len=64, q_len=q) for q in (1, 2, 4)]
    (panel,) = make_panels([lab.make_record(p, "torch-sdpa") for p in steps[1:]])
    assert (panel.title(), panel.x_label, panel.xs) == ("decode (kv_len = 64)", "T", [2, 4])


@pytest.mark.parametrize(
    ("variant", "mask", "title"),
    [
        ("self", "", "self"), ("self", "key_padding", "self, mask 'key_padding'"), ("causal", "", "causal"),
        ("causal", "sliding_window_8", "causal, mask 'sliding_window_8'"),
    ],
)  # fmt: skip
def test_the_only_mask_of_a_variant_is_named_where_it_is_not_the_usual_one(lab, variant, mask, title) -> None:
    problem = Problem.make(variant=variant, seq_len=128, mask=mask)
    assert titles(make_panels([lab.make_record(problem, "torch-sdpa")])) == [title]


def test_masks_of_one_variant_are_not_mixed(lab):
    problem = Problem.make(seq_len=128)
    panels = make_panels(
        [lab.make_record(problem, "torch-sdpa", mask=m) for m in ("none", "None", "NA", "nan", "null")]
    )
    assert len(panels) == 5


def test_two_opsets_of_one_arm_are_two_series(lab):
    problem = Problem.make(seq_len=128)
    records = [lab.make_record(problem, "onnx-attention@ort-cpu", opset=n, case_id=str(n)) for n in (23, 24)]
    (panel,) = make_panels(records)
    assert panel.arms == ["onnx-attention@ort-cpu opset 23", "onnx-attention@ort-cpu opset 24"]


def test_no_record_is_lost_even_when_everything_about_it_is_twice(lab):
    record = lab.make_record(Problem.make(seq_len=128), "torch-sdpa")
    (panel,) = make_panels([record, record.model_copy()])
    assert len(panel.cells) == 2


@pytest.mark.parametrize(
    ("variant", "seq_len", "share"),
    [("self", 128, 1 / 9), ("self", 1024, 0.5), ("self", 4096, 0.8), ("causal", 2048, 0.5)],
)
def test_attention_share_of_the_block_by_hand(lab, variant, seq_len, share):
    # self: 4 T^2 E of 4 T^2 E + 8 T E^2 = T / (T + 2E), E = 512; causal has half the attention: T / (T + 4E)
    record = lab.make_record(Problem.make(variant=variant, seq_len=seq_len), "torch-sdpa")
    assert attention_share(record) == pytest.approx(share)


def test_attention_is_all_of_the_core(lab):
    assert attention_share(lab.make_record(Problem.make(part="core", seq_len=128), "torch-sdpa")) == 1


def test_a_device_case_shows_device_memory(lab):
    problem = Problem.make(seq_len=128)
    assert peak_bytes(lab.make_record(problem, "x", peak_host_bytes=5, peak_device_bytes=7)) == 5
    assert peak_bytes(lab.make_record(problem, "x", peak_host_bytes=5, peak_device_bytes=7, device="cuda:0")) == 7


def two_machines(lab):
    """Two runs of one machine and one of another, one arm each at two T."""
    problems = [Problem.make(seq_len=t) for t in (128, 256)]
    places = (("a", "AMD"), ("b", "AMD"), ("c", "Intel"))
    return [lab.make_record(p, "torch-sdpa", run_id=run, device_name=name) for run, name in places for p in problems]


def test_runs_never_share_a_panel_and_say_run_and_machine(lab):
    panels = make_panels(two_machines(lab), {"a": "monday", "b": "tuesday"})
    assert [panel.facet.title().split(", ")[-1] for panel in panels] == [
        "monday on AMD", "tuesday on AMD", "c on Intel"
    ]  # fmt: skip
    assert [panel.xs for panel in panels] == [[128, 256]] * 3
    assert [{r.run_id for r in panel.records} for panel in panels] == [{"a"}, {"b"}, {"c"}]
    assert panels[0].facet.query().endswith("and run_id == 'a'")


def test_one_machine_is_not_named_and_one_run_neither(lab):
    records = two_machines(lab)
    assert [p.facet.title().split(", ")[-1] for p in make_panels(records[:4])] == ["a", "b"]
    (panel,) = make_panels(records[:2], {"a": "monday"})
    assert panel.facet.title().endswith("host time")
    assert (panel.facet.run, panel.facet.machine) == (None, None)


def test_a_case_that_did_not_run_stays_in_its_run(lab):
    records = two_machines(lab)
    records.append(lab.without_figures(lab.make_record(Problem.make(seq_len=512), "torch-sdpa", run_id="c"), "oom", ""))
    (panel,) = [p for p in make_panels(records) if p.facet.run == "c"]
    assert panel.facet.machine == "Intel"
    assert panel.xs == [128, 256, 512]


def test_other_value_sizes_scales_and_biases_never_share_a_chart(lab) -> None:
    usual = [lab.make_record(Problem.make(seq_len=t), "torch-sdpa") for t in (128, 256)]
    old = [r.model_copy(update={"v_head_dim": None, "scale": None, "bias": None}) for r in usual]
    others = [
        r.model_copy(update=update)
        for update in ({"v_head_dim": 32}, {"scale": 0.3}, {"bias": True}, {"value_map": "low_rank"})
        for r in usual
    ]
    panels = make_panels([*usual, *others])
    assert [panel.facet.form for panel in panels] == ["", "values of 32", "scale 0.3", "bias", "value map low_rank"]
    assert "scale 0.3" in panels[2].facet.title()
    assert [panel.facet.form for panel in make_panels(old)] == [""]


def test_attention_share_of_a_decode_step_by_hand(lab) -> None:
    record = lab.make_record(Problem.make(variant="decode", seq_len=512), "torch-sdpa")
    # one token, 512 keys: 4 x 512 x 512 for attention, 8 x 512^2 for the projections of that token
    assert attention_share(record) == pytest.approx(4 * 512 * 512 / (4 * 512 * 512 + 8 * 512 * 512))
