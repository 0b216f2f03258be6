"""The bar of filters and the URL that keeps it, in a real browser; `visit` fails when one complains or fetches."""

from urllib.parse import unquote

from tests.report.browser.steps import PHONE, drawn, shown, until

CASES, CHARTS, PICTURES, HEAT = "#all tbody tr", "#charts figure", ".gallery figure", "#heat tr[data-arm]"


def counts(page):
    return [shown(page, selector) for selector in (CASES, CHARTS, PICTURES, HEAT)]


def chip(page, name):
    return page.locator("#filters").get_by_label(name, exact=True)


def test_one_filter_rules_cases_charts_pictures_and_tables(visit, wide):
    page = visit(wide)
    page.evaluate("document.querySelectorAll('main details').forEach((d) => { d.open = true; })")
    assert counts(page) == [60, 4, 4, 12]  # 2 variants x 2 dtypes x 3 arms x 5 T; 4 pictures were drawn
    drawn(page, lambda: chip(page, "causal").uncheck())
    assert counts(page) == [30, 2, 2, 6]
    drawn(page, lambda: chip(page, "bf16").uncheck())
    assert counts(page) == [15, 1, 2, 3]
    assert page.inner_text("#shown") == "15 of 60 cases"
    page.click("#filters .menu summary")
    drawn(page, lambda: chip(page, "torch-eager").uncheck())
    assert counts(page) == [10, 1, 2, 2]
    assert page.inner_text("#filters .menu summary") == "arm 2 of 3"
    drawn(page, lambda: page.click("#reset"))
    assert counts(page) == [60, 4, 4, 12]
    assert page.url == wide.as_uri()


def test_rows_of_a_compiler_leave_the_charts_and_their_counts_alone(visit, make_report, lab):
    ran = lab.default_records(["torch-sdpa"], variants=("self",), seq_lens=(128, 256))
    compiled = [
        r.model_copy(update={"arm": "onnx-attention@tensorrt-rtx", "runtime": "tensorrt-rtx", "status": "compiled",
                             "flags": ["compiles_only"], "latency_ms_median": None, "case_id": f"c{r.case_id[1:]}"})
        for r in ran
    ]  # fmt: skip
    page = visit(make_report([compiled[0], ran[0], compiled[1], ran[1]]))
    assert page.inner_text("#shown") == "2 cases"
    assert [row.split("\t")[0] for row in page.locator(CASES).all_inner_texts()] == [
        *["torch-sdpa"] * 2, *["onnx-attention@tensorrt-rtx"] * 2,
    ]  # fmt: skip
    assert page.locator(f"{CASES} button.copy").all_inner_texts() == [r.case_id for r in ran]
    drawn(page, lambda: page.fill("#filter", "tensorrt"))
    assert shown(page, CASES) == 2
    drawn(page, lambda: page.fill("#filter", "sdpa"))
    assert page.locator(f"{CASES}:visible").all_inner_texts()[0].startswith("torch-sdpa")
    assert shown(page, CASES) == 2


def test_what_matches_nothing_is_said_everywhere(visit, wide):
    page = visit(wide)
    drawn(page, lambda: chip(page, "self").uncheck())
    drawn(page, lambda: chip(page, "causal").uncheck())
    assert page.inner_text("#shown") == "0 of 60 cases"
    assert page.inner_text("#explorer-note") == "Nothing matches the filter."
    assert "Nothing here matches the filter." in page.inner_text("#heat")
    page.reload()
    until(page, "page.isReady === true")
    assert page.inner_text("#shown") == "0 of 60 cases"


def test_search_finds_words_of_a_row_in_any_order(visit, wide):
    page = visit(wide)
    drawn(page, lambda: page.fill("#filter", "EAGER oom"))
    assert shown(page, CASES) == 4
    assert page.locator(f"{CASES}:visible").first.inner_text().startswith("torch-eager")
    assert shown(page, "#legend-list li") == 3
    assert "search=EAGER+oom" in page.url
    drawn(page, lambda: page.fill("#filter", "absent"))
    assert shown(page, CASES) == 0


def test_a_link_keeps_everything_that_was_chosen(visit, wide):
    page = visit(wide)
    drawn(page, lambda: chip(page, "self").uncheck())
    drawn(page, lambda: page.click("#legend-list li:nth-child(2) input"))
    drawn(page, lambda: page.select_option("#quantity", "matrices"))
    drawn(page, lambda: page.check("input[name=x-scale][value=linear]", force=True))
    drawn(page, lambda: page.check("input[name=y-scale][value=linear]", force=True))
    drawn(page, lambda: page.fill("#filter", "fp32"))
    before = counts(page)
    again = visit(wide, "#" + page.url.split("#")[1])
    assert counts(again) == before == [10, 1, 2, 2]
    assert again.input_value("#quantity") == "matrices"
    assert again.is_checked("input[name=x-scale][value=linear]")
    assert again.is_checked("input[name=y-scale][value=linear]")
    assert not again.is_checked("#legend-list li:nth-child(2) input")
    assert again.url == page.url


def test_the_back_button_undoes_one_choice(visit, wide):
    page = visit(wide)
    drawn(page, lambda: chip(page, "causal").uncheck())
    drawn(page, lambda: chip(page, "bf16").uncheck())
    drawn(page, page.go_back)
    assert chip(page, "bf16").is_checked()
    assert shown(page, CASES) == 30
    drawn(page, page.go_back)
    assert shown(page, CASES) == 60
    drawn(page, page.go_forward)
    assert shown(page, CASES) == 30


def test_links_inside_the_page_keep_the_filter(visit, wide):
    page = visit(wide)
    drawn(page, lambda: chip(page, "causal").uncheck())
    page.click("nav a[href='#table']")
    assert "section=table" in page.url
    assert "variant=self" in page.url
    assert page.evaluate("document.activeElement.textContent") == "All cases"
    top = page.evaluate("document.getElementById('table').getBoundingClientRect().top")
    assert 0 < top < 200
    again = visit(wide, "#" + page.url.split("#")[1])
    assert shown(again, CASES) == 30
    assert 0 < again.evaluate("document.getElementById('table').getBoundingClientRect().top") < 200


def test_a_plain_anchor_still_goes_to_its_section(visit, wide):
    page = visit(wide, "#heat")
    assert page.evaluate("document.activeElement.textContent") == "Speed-up, verdict and kernel"


def test_odd_links_are_read_as_far_as_they_make_sense(visit, wide):
    page = visit(wide, "#variant=nonsense&dtype=bf16&y=nothing&x=linear&show=nobody&chart=77&at=x&%E0%A4%A=1")
    assert shown(page, CASES) == 30
    assert page.input_value("#quantity") == "latency"
    assert page.is_checked("input[name=x-scale][value=linear]")


def test_the_table_sorts_by_size_not_by_text_and_keeps_empty_cells_last(visit, wide):
    page = visit(wide)
    memory = page.locator("#all thead th", has_text="peak memory")
    column = memory.evaluate("head => head.cellIndex")
    for direction in ("ascending", "descending"):
        memory.locator("button").click()
        assert memory.get_attribute("aria-sort") == direction
        cells = page.locator(f"{CASES} td:nth-child({column + 1})").all_inner_texts()
        assert cells[-4:] == [""] * 4  # out of memory
        sizes = [
            float(number) * {"KiB": 1, "MiB": 1024}[unit] for number, unit in (cell.split() for cell in cells[:-4])
        ]
        assert sizes == sorted(sizes, reverse=direction == "descending")


def test_the_keyboard_alone_filters_and_opens_an_arm(visit, wide):
    page = visit(wide)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    assert page.locator(".skip").bounding_box()["width"] > 50
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#filters .chips') !== null"):
            break
    outline = "getComputedStyle(document.activeElement.nextElementSibling).outlineStyle"
    assert page.evaluate(outline) == "solid"
    drawn(page, lambda: page.keyboard.press("Space"))
    assert page.inner_text("#shown") == "30 of 60 cases"
    page.focus("#filters .menu summary")
    page.keyboard.press("Enter")
    assert page.locator("#filters .menu fieldset").is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    assert not page.locator("#filters .menu fieldset").is_visible()
    page.focus("#legend-list li:nth-child(2) .arm")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail[data-shown]")
    assert page.inner_text("#detail-title") == "torch-eager"
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    assert not page.locator("#detail").is_visible()
    assert page.evaluate("document.activeElement.textContent") == "torch-eager"
    assert "show=" not in unquote(page.url)


def test_every_control_has_a_name(visit, wide):
    page = visit(wide)
    page.click("#legend-list li:nth-child(1) .arm")
    page.wait_for_selector("#detail[data-shown]")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a, summary")].filter((e) =>
            !(e.textContent.trim() || e.getAttribute("aria-label") || (e.labels && e.labels.length)))
            .map((e) => e.outerHTML)"""
    )
    assert nameless == []


def test_a_phone_has_no_sideways_scroll_and_its_filter_unfolds(visit, wide):
    page = visit(wide, viewport=PHONE, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert not page.locator("#controls").is_visible()
    page.tap("#fold")
    assert page.get_attribute("#fold", "aria-expanded") == "true"
    drawn(page, lambda: page.tap("#controls .chips label:has-text('causal')"))
    assert page.inner_text("#fold") == "Filter (1)"
    assert page.inner_text("#shown") == "30 of 60 cases"
    page.tap("#fold")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.tap("#legend summary")
    page.tap("#legend-list li:nth-child(1) .arm")
    page.wait_for_selector("#detail[data-shown]")
    assert page.evaluate("document.getElementById('detail').scrollWidth <= 390")
    assert page.locator("#detail").bounding_box()["width"] <= 390
