"""Charts show what was measured and nothing else; no two arms look alike."""

import itertools
import math

import numpy as np
import pytest

from attnbench.analysis.groups import make_panels
from attnbench.errors import InputError
from attnbench.problem import Problem
from attnbench.report import figures, plots, style
from attnbench.report.pictures import plot, styles_for
from attnbench.report.rounds import draw_rounds, read_visits
from tests.report.model_rows import model_records

# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB
SIGHT = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color):
    c = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def cielab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a, b):
    y = sorted(float(TO_XYZ[1] @ linear(c)) + 0.05 for c in (a, b))
    return y[1] / y[0]


PALETTES = [(style.LIGHT_HUES, style.LIGHT_PAGE), (style.DARK_HUES, style.DARK_PAGE)]


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(("hues", "page"), PALETTES, ids=["light", "dark"])
def test_hues_stay_apart_in_every_kind_of_sight(hues, page, sight):
    seen = [cielab(SIGHT[sight] @ linear(hue)) for hue in hues]
    assert len(hues) <= 8
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15


@pytest.mark.parametrize(("hues", "page"), PALETTES, ids=["light", "dark"])
def test_every_hue_has_a_contrast_of_three_to_the_page(hues, page):
    assert min(contrast(hue, page) for hue in hues) >= 2.95


def test_no_two_of_forty_arms_have_the_same_style():
    arms = [(f"arm{i}", f"runtime{i % 11}", f"exporter{i % 3}") for i in range(40)]
    assert len(set(style.arm_styles(arms).values())) == 40


def test_arms_of_one_runtime_share_a_hue_and_differ_in_dash_or_marker(lab):
    styles = style.arm_styles([(arm, lab.ARMS[arm][1], lab.ARMS[arm][0]) for arm in lab.ARMS])
    ort = [styles[arm] for arm in lab.ARMS if arm.endswith("@ort-cpu")]
    assert len({s.hue for s in ort}) == 1
    assert len({(s.dash, s.marker) for s in ort}) == 3
    assert styles["torch-sdpa"].hue == 0
    default = [styles[arm] for arm in list(lab.ARMS)[:7]]
    assert len({(s.hue, s.marker) for s in default}) == 7
    torch = [styles[arm] for arm in ("torch-sdpa", "torch-eager", "torch-compile")]
    assert len({s.marker for s in torch}) == 3


def draw(records, kind="latency"):
    (panel,) = make_panels(records)
    with figures.plotting():
        figure = plots.draw(plots.KINDS[kind], panel, styles_for([panel]))
        svg = figures.svg_text(figure, "x")
    return panel, figure, svg


def curve(axes, color):
    """The (x, y) of the arm's own line: the first line in its colour."""
    line = next(line for line in axes.lines if line.get_color() == color)
    return dict(zip(line.get_xdata(), line.get_ydata(), strict=True))


@pytest.fixture
def awkward(lab):
    """Points that log axes choke on: an interval below zero, 0, missing, a wide one, infinite."""
    points = {
        64: (0.02, -0.03, 0.07), 128: (0.0, 0.0, 0.0), 256: None, 512: (3.0, 2.0, 4.0), 1024: (math.inf, 1.0, math.inf),
    }  # fmt: skip
    records = []
    for t, point in points.items():
        record = lab.make_record(Problem.make(seq_len=t), "torch-sdpa")
        if point is None:
            records.append(lab.without_figures(record, "oom", "too large"))
        else:
            names = ("latency_ms_median", "latency_ms_ci_low", "latency_ms_ci_high")
            records.append(record.model_copy(update=dict(zip(names, point, strict=True))))
        gone = lab.make_record(Problem.make(seq_len=t), "onnx-attention@tensorrt")
        records.append(lab.without_figures(gone, "unavailable", "no driver"))
    records.append(lab.make_record(Problem.make(seq_len=256), "torch-eager"))
    return records


def test_zero_missing_and_infinite_are_crosses_and_never_joined(awkward):
    panel, figure, svg = draw(awkward)
    axes, lanes = figure.axes
    seen = curve(axes, style.LIGHT_HUES[0])
    assert seen[64] == 0.02
    assert seen[512] == 3.0
    assert all(math.isnan(seen[x]) for x in (128, 256, 1024))
    crosses = next(line for line in lanes.lines if line.get_color() == style.LIGHT_HUES[0])
    assert list(crosses.get_xdata()) == [128, 256, 1024]
    assert crosses.get_marker() == "x"
    for word in ("torch-sdpa: below resolution, oom, not finite", "attention@tensorrt: unavailable", "torch-eager"):
        assert word in svg
    assert panel.xs == [64, 128, 256, 512, 1024]


def test_an_interval_that_reaches_zero_has_a_sign_at_the_axis_and_does_not_stretch_it(awkward):
    _, figure, _ = draw(awkward)
    axes = figure.axes[0]
    sign = [line for line in axes.lines if line.get_marker() == "v" and list(line.get_xdata()) == [64]]
    assert len(sign) == 1
    assert axes.get_ylim()[0] > 0.005


def test_a_single_point_has_a_marker(awkward):
    _, figure, _ = draw(awkward)
    eager = next(line for line in figure.axes[0].lines if line.get_color() == style.LIGHT_HUES[2])
    assert eager.get_marker() == "v"
    assert [y for y in eager.get_ydata() if not math.isnan(y)]


def test_a_wrong_answer_has_no_latency_but_its_error_is_shown(lab):
    problem = Problem.make(seq_len=128)
    records = [
        lab.make_record(problem, "torch-sdpa"),
        lab.make_record(problem, "torch-eager", status="mismatch", worst_row_rel_err=0.3),
    ]
    _, figure, svg = draw(records)
    assert all(math.isnan(y) for y in curve(figure.axes[0], style.LIGHT_HUES[2]).values())
    assert "torch-eager: mismatch" in svg
    _, figure, svg = draw(records, "error")
    wrong = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [list(line.get_ydata()) for line in wrong] == [[0.3]]


def test_memory_is_in_score_matrices_with_the_one_matrix_line(lab):
    problem = Problem.make(seq_len=1024)  # 8 heads x 1024 x 1024 x 4 bytes = 32 MiB
    _, figure, svg = draw([lab.make_record(problem, "torch-sdpa", peak_host_bytes=64 << 20)], "memory")
    assert curve(figure.axes[0], style.LIGHT_HUES[0]) == {1024: 2.0}
    assert "one score matrix" in svg


def test_the_floor_of_the_dtype_is_error_over_err_vs_floor(lab):
    record = lab.make_record(Problem.make(seq_len=128), "torch-sdpa", worst_row_rel_err=9e-7, err_vs_floor=3.0)
    _, figure, svg = draw([record], "error")
    assert "floor of fp32" in svg
    floors = [float(y) for line in figure.axes[0].lines if line.get_color() == style.MUTED for y in line.get_ydata()]
    assert pytest.approx(3e-7) in floors


@pytest.mark.parametrize("kind", plots.KINDS)
def test_every_kind_draws_when_nothing_worked(lab, kind):
    record = lab.without_figures(lab.make_record(Problem.make(seq_len=128), "torch-sdpa"), "unavailable", "no torch")
    _, _, svg = draw([record], kind)
    assert "torch-sdpa: unavailable" in svg


def test_labels_are_pushed_apart_and_stay_near():
    placed = plots.spread([0.5, 0.5, 0.5, 0.9], 0.1)
    assert placed == pytest.approx([0.4, 0.5, 0.6, 0.9])
    crowded = plots.spread([0.99] * 30, 0.05)
    assert np.diff(crowded).min() >= 0.05 - 1e-9
    assert min(plots.spread([0.0, 0.0], 0.1)) == 0
    assert max(plots.spread([1.0, 1.0], 0.1)) == pytest.approx(1.0)


def test_odd_names_are_text_in_the_picture_not_markup(lab):
    arm = "--><script>$x^2$ 注意"
    _, _, svg = draw([lab.make_record(Problem.make(seq_len=128), arm)])
    assert "<script>" not in svg
    assert "$x^2$" in svg


def test_the_same_records_give_the_same_svg(lab):
    records = lab.default_records(variants=("self",), seq_lens=(128, 256))
    assert draw(records)[2] == draw(records)[2]


def test_rounds_show_each_worker_with_the_median_of_every_visit(tmp_path, lab):
    records = lab.default_records(variants=("self",), seq_lens=(512,), arms=("torch-sdpa", "torch-eager"))
    lab.write_samples(tmp_path, records, rounds=5, calls=3)
    path = tmp_path / f"{records[0].problem_id}.parquet"
    visits = read_visits(path, {r.case_id: r.arm for r in records})
    assert [(v.arm, v.replica) for v in visits] == [("torch-sdpa", 0), ("torch-sdpa", 1), ("torch-eager", 0)]
    assert [list(v.rounds) for v in visits] == [[0, 1, 2, 3, 4]] * 3
    assert all((v.lows <= v.medians).all() and (v.medians <= v.highs).all() for v in visits)
    with figures.plotting():
        svg = figures.svg_text(draw_rounds(visits, "self", styles_for(make_panels(records))), "r")
    assert "torch-sdpa (replica)" in svg


def test_a_wide_interval_widens_the_axis_but_not_beyond_three_times_the_points(lab):
    record = lab.make_record(
        Problem.make(seq_len=128), "torch-sdpa", latency_ms_median=2.0, latency_ms_ci_low=1.5, latency_ms_ci_high=3.6
    )
    _, figure, _ = draw([record])
    assert figure.axes[0].get_ylim() == pytest.approx((1.5 / 1.5, 3.6 * 1.5))
    record.latency_ms_ci_high = 2000.0
    _, figure, _ = draw([record])
    assert figure.axes[0].get_ylim()[1] == pytest.approx(2.0 * 3 * 1.5)


def test_a_picture_alone_tells_what_was_run(lab):
    one, many = (
        draw([lab.make_record(Problem.make(seq_len=128, batch_size=batch), "torch-sdpa")])[1] for batch in (1, 8)
    )
    assert [f.texts[1].get_text() for f in (one, many)] == [
        f"block, fp32, batch {batch}, 8 heads of 64, cpu, 1 thread, host time" for batch in (1, 8)
    ]


def test_many_sizes_of_a_model_are_wrapped_above_the_axes():
    (panel,) = make_panels(model_records(batches=(), sizes={f"length_of_input_{i}": 1024 for i in range(9)}))
    with figures.plotting():
        figure = plots.draw(plots.KINDS["latency"], panel, styles_for([panel]))
        figure.canvas.draw()
    box = figure.texts[1].get_window_extent()
    assert figure.texts[1].get_text().count("\n") == 1
    assert figure.axes[0].get_window_extent().y1 < box.y0
    assert box.y1 < figure.texts[0].get_window_extent().y0
    assert box.x1 < figure.bbox.x1


def test_one_chart_can_be_had_without_a_report(lab):
    records = lab.default_records(seq_lens=(128, 256))
    figure = plot(records, "memory", "causal")
    assert figure.texts[0].get_text() == "causal: peak memory in score matrices"
    with pytest.raises(InputError, match="no chart 'speed'; there are: latency, memory, error, roofline"):
        plot(records, "speed")
    with pytest.raises(InputError, match="no records of variant 'banded'; there are: self, cross and causal"):
        plot(records, variant="banded")
