"""Sections that other modules hand to the page as data."""

from attnbench.analysis.groups import make_panels
from attnbench.report.html import render
from attnbench.report.pictures import Pictures
from attnbench.report.sections import Section, Table


def page(lab, decisions):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    return render("run", records, lab.make_manifest(records), make_panels(records), Pictures(), [], decisions)


def test_no_decisions_leave_no_trace(lab):
    assert 'class="decision"' not in page(lab, ())


def test_a_section_shows_its_words_and_tables_after_trust(lab):
    table = Table(caption="longest T", head=("arm", "T"), rows=(("torch-sdpa", "4096"), ("<b>odd</b>", "8")))
    source = page(
        lab, [Section(id="frontier", title="How long?", intro="In 8 GiB.", lines=("one", "two"), tables=(table,))]
    )
    assert source.index('id="trust"') < source.index('id="frontier"') < source.index('id="machine"')
    assert "<h2>How long?</h2>" in source
    assert "<li>one</li><li>two</li>" in source
    assert "<caption>longest T</caption>" in source
    assert '<th scope="row">torch-sdpa</th><td>4096</td>' in source
    assert "&lt;b&gt;odd&lt;/b&gt;" in source


def test_a_table_of_one_chart_is_filtered_with_it(lab):
    tables = [
        Table(caption=name, head=("a",), rows=(("b",),), panel=panel) for name, panel in (("all", None), ("one", 0))
    ]
    source = page(lab, [Section(id="x", title="X", tables=tables)])
    assert '<div class="scroll"><table><caption>all</caption>' in source
    assert '<div class="scroll" data-panel="0"><table><caption>one</caption>' in source


def test_how_workers_shared_a_gpu_is_among_the_facts_of_the_run_and_nothing_of_it_on_the_cpu(lab):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    way = {"asked": "auto", "mode": "one-at-a-time", "reason": "cuda:0 is in compute mode exclusive-process"}

    def shown(**manifest):
        return render("run", records, lab.make_manifest(records, **manifest), make_panels(records), Pictures(), [])

    assert "cuda:0 is in compute mode exclusive-process" in shown(gpu_workers=way)
    assert "gpu_workers" not in shown(gpu_workers=None)
