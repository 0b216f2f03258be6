"""Charts, their points and the close-up of an arm, in a real browser; `visit` fails when one complains or fetches."""

import re

import pytest

from tests.report.browser.steps import drawn, shown, until

QUANTITIES = ("latency", "speed", "memory", "matrices", "error", "fraction")


def plot(page, expression):
    """A figure of the first chart as Plotly laid it out."""
    return page.evaluate(f"document.querySelector('#charts figure:not([hidden]) .plot').{expression}")


def hover(page, index=0, trace=0):
    """Put the pointer on a mark of the first chart; gives what the page says there."""
    page.locator("#charts .plot").first.scroll_into_view_if_needed()
    mark = (
        page.locator("#charts figure")
        .first.locator(".scatterlayer .trace")
        .nth(trace)
        .locator(".points path")
        .nth(index)
    )
    page.wait_for_timeout(100)  # the scroll's own event hides what was said before
    box = mark.bounding_box()
    for step in (3, 0):  # Plotly looks again only some time after a move
        page.mouse.move(box["x"] + box["width"] / 2 - step, box["y"] + box["height"] / 2)
        page.wait_for_timeout(100)
    page.wait_for_selector("#tip:visible")
    return page.inner_text("#tip").replace("\n", " ")


def open_arm(page, name):
    page.get_by_role("button", name=name, exact=True).first.click()
    page.wait_for_selector("#detail[data-shown]")


def test_the_same_arm_looks_the_same_in_charts_and_pictures(visit, wide):
    page = visit(wide)
    drawn_color = page.evaluate("document.querySelector('#charts .plot').data[0].line.color")
    assert drawn_color == page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--hue-0').trim()")
    assert plot(page, "data.length") == 4  # three arms and the crosses of one


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_quantity_is_drawn_on_both_kinds_of_axis(visit, wide, quantity):
    page = visit(wide, f"#y={quantity}")
    usual = plot(page, "_fullLayout.yaxis.type")
    assert usual == ("linear" if quantity == "fraction" else "log")
    other = {"log": "linear", "linear": "log"}[usual]
    drawn(page, lambda: page.check(f"input[name=y-scale][value={other}]", force=True))
    assert plot(page, "_fullLayout.yaxis.type") == other
    assert shown(page, "#charts .plot .trace") >= 2 * 4


@pytest.mark.parametrize(
    ("quantity", "low", "high", "ticks"),
    [
        ("latency", 2.5, 9.2, ["4", "6", "8"]),
        ("latency", 0.91, 0.99, ["0.92", "0.94", "0.96", "0.98"]),
        ("latency", 5.1, 9.9, ["6", "7", "8", "9"]),
        ("error", 1.02e-6, 1.9e-6, ["1.2e-6", "1.4e-6", "1.6e-6", "1.8e-6"]),
        ("latency", 0.5, 50, ["0.5", "1", "2", "5", "10", "20", "50"]),
    ],
)
def test_a_logarithmic_axis_has_round_figures_however_narrow(visit, wide, quantity, low, high, ticks):
    page = visit(wide)
    assert page.evaluate(f"page.chart.yTicks(page.chart.quantities.{quantity}, true, {low}, {high}).ticktext") == ticks


def test_figures_are_the_records_figures(visit, wide, lab):
    page = visit(wide)
    (record,) = lab.default_records(variants=("self",), seq_lens=(1024,), arms=["torch-sdpa"])
    assert plot(page, "data[0].x") == [128, 256, 512, 1024, 2048]
    assert plot(page, "data[0].y[3]") == pytest.approx(record.latency_ms_median, rel=1e-4)
    assert plot(page, "data[0].error_y.array[3]") == pytest.approx(record.latency_ms_median * 0.006, rel=1e-2)
    drawn(page, lambda: page.select_option("#quantity", "memory"))
    assert plot(page, "data[0].y[3]") == record.peak_host_bytes
    drawn(page, lambda: page.select_option("#quantity", "matrices"))
    assert plot(page, "data[0].y[3]") == pytest.approx(record.peak_host_bytes / (8 * 1024 * 1024 * 4), rel=1e-4)


def test_a_point_says_its_interval_verdict_kernel_and_arm(visit, wide):
    page = visit(wide)
    words = hover(page, index=1)
    for word in ("torch-sdpa", "T 256", "ms (", "is the baseline", "flash (profile)", "worst row", "score matrices"):
        assert word in words
    words = hover(page, index=1, trace=1)
    assert "torch-eager" in words
    assert "slower" in words
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_a_case_without_a_figure_is_a_cross_with_its_status_and_reason(visit, wide):
    page = visit(wide)
    assert plot(page, "data[3].yaxis") == "y2"
    assert plot(page, "data[3].text") == [" oom"]
    assert plot(page, "data[1].y[4]") is None  # no line is drawn over it
    words = hover(page, trace=3)
    assert "status oom" in words
    assert "2.1 GiB were not there" in words


def test_a_wrong_answer_is_a_cross_among_the_errors_and_has_no_latency(visit, make_report, lab):
    wrong, *rest = lab.default_records(["torch-eager", "torch-sdpa"], variants=("self",), seq_lens=(128, 256))
    wrong = wrong.model_copy(update={"status": "mismatch", "worst_row_rel_err": 0.31, "reason": "above the limit"})
    page = visit(make_report([wrong, *rest], figures=0), "#y=error")
    at = page.evaluate("document.querySelector('#charts .plot').data.find((t) => t.marker.symbol === 'x-thin')")
    assert (at["y"], at["text"], at["yaxis"]) == ([0.31], [" mismatch"], "y")
    drawn(page, lambda: page.select_option("#quantity", "latency"))
    at = page.evaluate("document.querySelector('#charts .plot').data.find((t) => t.marker.symbol === 'x-thin')")
    assert at["yaxis"] == "y2"


def test_the_figures_of_a_chart_are_a_table_too(visit, wide):
    page = visit(wide)
    page.locator("#charts summary").first.click()
    table = page.locator("#charts table").first
    table.wait_for()
    assert table.locator("tbody tr").count() == 3
    assert "✕ oom" in table.inner_text()
    assert "T = 2048" in table.inner_text()


def test_a_click_on_a_point_opens_its_arm_with_samples_by_round_and_law(visit, wide):
    page = visit(wide)
    hover(page, index=2, trace=2)
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector("#detail[data-shown]")
    assert page.inner_text("#detail-title") == "onnx-attention@ort-cpu"
    assert page.input_value("#detail-x") == "512"
    assert "20 rounds" in page.inner_text("#detail-words")
    assert page.locator("#detail-visits tbody tr").count() == 20
    assert page.locator("#detail-samples .points path").count() == 20
    law = page.inner_text("#detail-law-words")
    assert "Latency:" in law
    assert "per 1,000 tokens" in law
    assert "Measured against the law: 128: " in law
    assert page.locator("#detail-law .trace").count() == 2
    page.select_option("#detail-x", "1024")
    page.wait_for_selector("#detail[data-shown$=' 1024']")
    assert "at=1024" in page.url
    again = visit(wide, "#" + page.url.split("#")[1])
    again.wait_for_selector("#detail[data-shown$=' 1024']")
    again.go_back() if again.evaluate("history.length") > 2 else again.click("#detail-close")
    again.wait_for_selector("#detail", state="hidden")


def test_the_baseline_shows_both_of_its_workers(visit, wide):
    page = visit(wide)
    open_arm(page, "torch-sdpa")
    assert "two workers" in page.inner_text("#detail-words")
    assert page.locator("#detail-visits tbody tr").count() == 40
    assert page.locator("#detail-samples .legendtext").all_text_contents() == ["first worker", "replica"]


def test_a_case_that_did_not_run_says_why_it_has_no_samples(visit, wide):
    page = visit(wide)
    open_arm(page, "torch-eager")
    page.select_option("#detail-x", "2048")
    page.wait_for_selector("#detail[data-shown$=' 2048']")
    assert page.inner_text("#detail-words") == "No raw samples: 2.1 GiB were not there."
    assert not page.locator("#detail-samples").is_visible()
    assert not page.locator("#detail details").is_visible()


def test_a_run_without_samples_says_so_and_too_few_lengths_have_no_law(visit, make_report, lab):
    records = lab.default_records(["torch-sdpa"], variants=("self",), seq_lens=(128,))
    page = visit(make_report(records, samples=False, figures=0))
    assert shown(page, "#charts figure") == 1
    open_arm(page, "torch-sdpa")
    assert page.inner_text("#detail-words") == "No raw samples: this run has no file of samples for this problem."
    assert "at 1 of the at least 4 T that a law needs" in page.inner_text("#detail-law-words")


def test_a_run_where_nothing_worked_still_has_a_page(visit, make_report, lab):
    records = [lab.without_figures(r, "unavailable", "no torch here") for r in lab.default_records(seq_lens=(128,))]
    page = visit(make_report(records, figures=1))
    assert "Without a figure: torch-sdpa (unavailable)" in page.inner_text("#charts")
    for quantity in QUANTITIES:
        drawn(page, lambda q=quantity: page.select_option("#quantity", q)) if quantity != "latency" else None
    open_arm(page, "torch-sdpa")
    assert page.inner_text("#detail-words") == "No raw samples: no torch here."


def test_a_run_without_records_complains_about_nothing(visit, make_report):
    page = visit(make_report([], figures=0))
    assert page.inner_text("#explorer-note") == "There are no records to draw."


def test_a_drag_enlarges_and_a_button_brings_the_whole_range_back(visit, wide):
    page = visit(wide)
    page.locator("#charts .plot").first.scroll_into_view_if_needed()
    box = page.locator("#charts figure").first.locator(".nsewdrag").first.bounding_box()
    whole = plot(page, "_fullLayout.xaxis.range")
    page.mouse.move(box["x"] + 60, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 160, steps=4)
    page.mouse.up()
    button = page.get_by_role("button", name="Whole range").first
    button.wait_for()
    assert plot(page, "_fullLayout.xaxis.range") != whole
    drawn(page, button.click)
    assert plot(page, "_fullLayout.xaxis.range") == pytest.approx(whole)


def test_a_chart_is_saved_as_a_picture_without_a_request(visit, wide):
    page = visit(wide)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save PNG of self").first.click()
    assert download.value.suggested_filename == "attnbench-1.png"


def test_print_shows_pictures_and_tables_in_light_colours_and_no_controls(visit, wide):
    page = visit(wide, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    for selector in ("#filters", "#explorer", "nav", "#charts"):
        assert not page.locator(selector).is_visible()
    assert page.locator(".gallery figure svg").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 32, 37)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("main details:not([open]):not(.screen)").count() == 0


def test_a_dark_page_has_light_ink_in_its_charts(visit, wide):
    page = visit(wide, color_scheme="dark")
    assert plot(page, "data[0].line.color") == "#f0f2f5"
    assert plot(page, "_fullLayout.font.color") == "#e8eaed"
    drawn(page, lambda: page.emulate_media(color_scheme="light"))
    assert plot(page, "data[0].line.color") == "#1b1f24"


def test_names_from_a_run_stay_text_wherever_they_are_shown(visit, make_report, lab):
    names = [
        "</script><script>window.hacked=1</script>",
        "<b>bold</b><img src=x onerror=window.hacked=1>",
        "a\u2028b\n\"c'$x^2$",
        "torch-sdpa",
        "&lt;i&gt; <a href='https://example.org'>y</a>",
    ]
    records = [
        lab.make_record(problem, name, reason="<img src=y onerror=window.hacked=1>", flags=["<i>contended</i>"])
        for problem in lab.make_problems(variants=("self",), seq_lens=(128, 256))
        for name in names
    ]
    page = visit(make_report(records, figures=2))
    assert set(page.locator("#legend-list .arm").all_inner_texts()) >= {names[0], names[1], "torch-sdpa"}
    words = hover(page)
    assert "<i>contended</i>" in words
    drawn(page, lambda: page.locator("#legend-list .only").nth(1).click(force=True))
    page.locator("#charts summary").first.click()
    page.locator("#legend-list .arm").nth(1).click()
    page.wait_for_selector("#detail[data-shown]")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, #charts a, #detail a, #legend b, #detail-title b").count() == 0
    assert page.locator("script:not([type])").count() == 2  # the page's own and Plotly


def test_without_javascript_pictures_and_tables_are_all_there(visit, wide):
    page = visit(wide, wait=False, java_script_enabled=False)
    assert shown(page, ".gallery figure svg") == 4
    assert shown(page, "#all tbody tr") == 60
    for selector in ("#filters", "#explorer", "#tip", "#detail"):
        assert not page.locator(selector).is_visible()


def test_a_browser_that_cannot_unpack_says_so_and_still_filters(visit, wide):
    page = visit(wide, wait=False, script="delete window.DecompressionStream")
    until(page, "document.getElementById('explorer-note').textContent.includes('DecompressionStream')")
    page.locator("#filters").get_by_label("causal").uncheck()
    assert shown(page, "#all tbody tr") == 30
    page.locator("#legend-list .arm").first.click()
    assert not page.locator("#detail").is_visible()


def test_a_report_written_without_plotly_says_so_and_keeps_the_rest(visit, make_report, lab, monkeypatch):
    monkeypatch.setattr("attnbench.report.page_data.plotly_source", refuse)
    page = visit(make_report(lab.default_records(["torch-sdpa"], variants=("self",), seq_lens=(128, 256)), figures=1))
    assert "pip install plotly" in page.inner_text("#explorer-note")
    page.locator("#filters .menu summary").click()
    page.locator("#filters").get_by_label("torch-sdpa").uncheck()
    assert shown(page, "#all tbody tr") == 0
    page.click("#reset")
    open_arm(page, "torch-sdpa")
    assert "20 rounds" in page.inner_text("#detail-words")
    assert not page.locator("#detail-samples").is_visible()


def refuse():
    raise ImportError("plotly is not installed", name="plotly")


def test_two_thousand_records_of_twenty_arms_fit_and_stay_usable(visit, make_report, lab):
    arms = [*lab.ARMS, *(f"my-runtime-{i}" for i in range(8))]
    records = [
        r
        for dtype in ("fp32", "bf16")
        for part in ("block", "core")
        for batch in (1, 8)
        for r in lab.default_records(
            arms, variants=("self", "causal"), part=part, dtype=dtype, batch_size=batch,
            seq_lens=(64, 128, 256, 512, 1024, 2048),
        )
    ]  # fmt: skip
    records += lab.default_records(arms, variants=("cross",), seq_lens=(64, 128, 256, 512))
    assert len(records) == 2000
    path = make_report(records, figures=24)
    assert path.stat().st_size < 8_000_000
    page = visit(path)
    assert shown(page, "#legend-list li") == 20
    looks = page.evaluate("[...document.querySelectorAll('#legend-list .swatch')].map((s) => s.innerHTML)")
    assert len(set(looks)) == 20
    assert shown(page, "#charts figure") == 6
    assert page.inner_text("#explorer-note") == "6 of 17 charts."
    drawn(page, lambda: page.click("#more"))
    assert shown(page, "#charts figure") == 12
    drawn(page, lambda: page.locator("#legend-list .only").nth(4).click(force=True))
    assert page.inner_text("#shown") == "100 of 2,000 cases"
    page.click("nav a[href='#table']")
    assert shown(page, "#all tbody tr") == 100
    assert plot(page, "data.length") == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_case_has_its_commands_to_copy(visit, wide):
    page = visit(wide)
    page.locator("#legend-list .arm").first.click()
    page.wait_for_selector("#detail[data-shown]")
    commands = page.locator("#detail-commands code").all_inner_texts()
    case = commands[0].split()[-1]
    assert [line.split()[:2] for line in commands] == [["attnbench", "repro"], ["attnbench", "explain"]]
    assert re.fullmatch("[0-9a-f]{12}", case)
    assert case in page.locator("#all tbody tr td:last-child, #all tbody tr td").all_inner_texts()
    page.locator("#detail-commands button").first.click()
    until(page, "['Copied', 'Marked'].includes(document.querySelector('#detail-commands button').textContent)")


def test_every_row_of_the_table_has_the_command_that_reproduces_it(visit, wide):
    page = visit(wide, permissions=["clipboard-read", "clipboard-write"])
    rows = page.locator("#all tbody tr").count()
    assert page.locator("#all tbody .copy").count() == rows
    for number in (0, rows - 1):
        button = page.locator("#all tbody .copy").nth(number)
        case = button.inner_text()
        button.click()
        until(page, f"document.querySelectorAll('#all tbody .copy')[{number}].textContent === 'Copied'")
        words = page.evaluate("navigator.clipboard.readText()").split()
        assert (words[:2], words[3]) == (["attnbench", "repro"], case)
        button.blur()
        assert button.inner_text() == case
