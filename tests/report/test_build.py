"""The whole report, from a run directory to files that open offline."""

import csv
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attnbench.report.build import build_report

VOID = {"meta", "link", "input", "br", "hr", "img", "path", "use", "rect", "line", "circle"}


class Page(HTMLParser):
    """Collects what the checks need and complains about tags that do not match."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.ids, self.headings, self.text = [], [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def build(lab, folder, records, *, samples=True, **manifest):
    content = lab.write_run(folder, records, samples=samples, **manifest)
    files = build_report(folder, records, content, content["notices"])
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    return files, page, " ".join(" ".join(page.text).split())


@pytest.fixture(scope="module")
def whole(tmp_path_factory, lab):
    return build(lab, tmp_path_factory.mktemp("whole") / "run", lab.default_records(seq_lens=(128, 512)))


def test_every_promised_file_is_written(whole):
    files, _, _ = whole
    assert files.problems == []
    for path in (files.csv, files.parquet, files.samples, files.html):
        assert path.stat().st_size > 0
    assert len(files.plots) == 2 * 5 * 3  # SVG and PNG of latency, memory, error, roofline and rounds, 3 variants
    assert all(path.is_file() for path in files.plots)


def test_a_run_reported_from_its_own_folder_has_the_name_of_the_folder(tmp_path, lab, monkeypatch):
    folder = tmp_path / "mine"
    build(lab, folder, lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa"]))
    named = (folder / "report.html").read_text(encoding="utf-8")
    monkeypatch.chdir(folder)
    build(lab, Path(), lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa"]))
    assert "<title>attnbench: mine</title>" in named
    assert Path("report.html").read_text(encoding="utf-8") == named


def test_the_first_screen_keeps_its_order(whole):
    _, page, _ = whole
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert sections == [
        "fastest", "trust", "explorer", "advice", "crossovers", "bounds", "machine", "wrong", "not-run", "latency",
        "memory", "heat", "cold", "ship", "error", "roofline", "table", "ran", "rounds", "environment",
    ]  # fmt: skip


def test_the_page_fetches_nothing(whole):
    _, page, _ = whole
    for tag, attrs in page.tags:
        assert not {"src", "srcset", "background"} & set(attrs)
        for name in ("href", "xlink:href"):
            assert tag in ("a", "use") or name not in attrs
            assert not (attrs.get(name) or "").startswith(("http", "//"))
    source = whole[0].html.read_text(encoding="utf-8")
    assert "@import" not in source
    assert not re.search(r"url\((?!#)", source)


def test_headings_nest_pictures_have_words_and_ids_are_unique(whole):
    _, page, _ = whole
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    pictures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(pictures) == 15
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 20 for attrs in pictures)
    assert len(page.ids) == len(set(page.ids))


def test_colours_of_inlined_pictures_follow_the_page(whole):
    source = whole[0].html.read_text(encoding="utf-8")
    body = source[source.index("<svg") : source.rindex("</svg>")]
    assert "var(--hue-1)" in body
    assert "var(--ink)" in body
    assert not re.search(r"#[0-9a-f]{6}\b", body)
    assert "prefers-color-scheme: dark" in source


def test_the_same_records_give_the_same_bytes(tmp_path, lab):
    made = []
    for name in ("a", "b"):
        folder = tmp_path / name / "run"
        files, _, _ = build(lab, folder, lab.default_records(variants=("self",), seq_lens=(128, 512)))
        made.append([p.read_bytes() for p in (files.csv, files.html, *files.plots)])
    assert made[0] == made[1]


def test_building_twice_replaces_and_removes_stale_pictures(tmp_path, lab):
    folder = tmp_path / "run"
    build(lab, folder, lab.default_records(seq_lens=(128,)), samples=False)
    (folder / "plots" / "mine.svg").write_text("kept")
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    files = build_report(folder, records, lab.make_manifest(records), [])
    left = {p.name for p in (folder / "plots").iterdir()}
    assert left == {p.name for p in files.plots} | {"mine.svg"}
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("arms", [1, 12])
@pytest.mark.parametrize("seq_lens", [(512,), (128, 256, 1024)])
def test_one_arm_and_twelve_one_length_and_three(tmp_path, lab, arms, seq_lens):
    records = lab.default_records(arms=list(lab.ARMS)[:arms], variants=("self",), seq_lens=seq_lens)
    files, page, _ = build(lab, tmp_path / "run", records)
    assert files.problems == []
    rows = [attrs for tag, attrs in page.tags if tag == "tr" and "data-arm" in attrs]
    assert len(rows) == 2 * arms  # heat table and cold start


def test_a_troubled_run_says_everything_that_went_wrong(tmp_path, lab):
    _, _, words = build(lab, tmp_path / "run", lab.troubled_records(), samples=False)
    assert "worst row 3.1e-02, allowed" in words
    assert "killed by signal 11" in words
    assert "install the NVIDIA driver" in words
    assert "✕ mismatch" in words
    assert "✕ oom" in words


def test_a_run_where_nothing_worked_has_a_report(tmp_path, lab):
    records = [lab.without_figures(r, "unavailable", "no torch here") for r in lab.default_records(seq_lens=(128,))]
    files, _, words = build(lab, tmp_path / "run", records)
    assert files.problems == []
    assert "nothing ran (7 unavailable)" in words
    assert "no torch here" in words
    assert "no statement about speed or memory is proved" in words


def test_samples_are_shown_for_a_length_that_was_timed(tmp_path, lab):
    records = lab.default_records(variants=("self",), seq_lens=(128, 512, 1024))
    records = [r if r.q_len == 128 else lab.without_figures(r, "skipped", "the budget was spent") for r in records]
    _, _, words = build(lab, tmp_path / "run", records)
    assert "self, T = 128: samples by round" in words


def test_a_run_without_records_and_with_an_empty_manifest_has_a_report(tmp_path):
    files = build_report(tmp_path, [], {}, [])
    assert files.csv.read_text().count("\n") == 1
    assert "There are no records." in files.html.read_text()


def test_an_interrupted_run_says_so_first(tmp_path, lab):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    _, _, words = build(lab, tmp_path / "run", records, interrupted=True, cases_planned=126, notices=["a torn line"])
    assert "was interrupted: 7 records of 126 planned cases" in words
    assert "a torn line" in words
    assert words.index("was interrupted") < words.index("Who is fastest")


def test_mixed_parts_dtypes_and_batches_have_their_own_charts(tmp_path, lab):
    records = [
        r
        for fixed in ({}, {"part": "core"}, {"dtype": "bf16"}, {"batch_size": 8})
        for r in lab.default_records(variants=("self",), seq_lens=(128,), **fixed)
    ]
    files, _, words = build(lab, tmp_path / "run", records)
    assert len([p for p in files.plots if p.name.startswith("latency-") and p.suffix == ".svg"]) == 4
    assert "core, fp32, batch 1" in words
    assert "block, bf16, batch 1" in words


def test_many_facets_fold_away(tmp_path, lab, monkeypatch):
    monkeypatch.setattr("attnbench.report.pictures.MAX_FIGURES", 1)
    records = [
        r
        for batch in range(1, 9)
        for r in lab.default_records(variants=("self",), seq_lens=(128,), batch_size=batch, arms=["torch-sdpa"])
    ]
    _, _, words = build(lab, tmp_path / "run", records, samples=False)
    assert words.count("5 more sizes, dtypes and conditions") == 3  # fastest, heat table, what to ship


def test_pictures_over_the_limit_are_named_with_a_filter(tmp_path, lab, monkeypatch):
    monkeypatch.setattr("attnbench.report.pictures.MAX_FIGURES", 3)
    records = [
        r for batch in (1, 8) for r in lab.default_records(variants=("self",), seq_lens=(128,), batch_size=batch)
    ]
    files, _, words = build(lab, tmp_path / "run", records)
    assert len(files.plots) == 6
    assert "batch_size == 8" in words
    assert "latency, memory, error, roofline, rounds of block, fp32, batch 8" in words


def test_hostile_names_are_text(tmp_path, lab):
    folder = tmp_path / "<script>alert(1)<"
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    for r in records:
        r.reason = r.device_name = "</script><script>alert(2)</script>"
    _, page, _ = build(lab, folder, records, command="bench '<img src=x>'", notices=["<b>note</b>"])
    scripts = [attrs.get("type") for tag, attrs in page.tags if tag == "script"]
    assert scripts == ["application/json", "text/plain", "text/plain", "text/plain", None]  # the last is our own
    assert "img" not in {tag for tag, _ in page.tags}
    assert any("<script>alert(1)<" in piece for piece in page.text)


@pytest.mark.parametrize("name", ["a b", "Grüße 注意", "%20#", "a,b;c", "quo'te\"s", "line\nbreak", "-dash", "x" * 240])
def test_odd_folder_names_work(tmp_path, lab, name):
    files, _, _ = build(
        lab, tmp_path / name, lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa"])
    )
    assert files.problems == []
    assert files.html.is_file()


def test_the_csv_is_complete_when_plots_cannot_be_written(tmp_path, lab):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "plots").write_text("a file where a folder is wanted")
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    files, _, words = build(lab, folder, records)
    with files.csv.open(newline="") as f:
        assert len(list(csv.DictReader(f))) == 7
    assert files.plots == []
    assert any("cannot write plots to" in p and "File exists" in p for p in files.problems)
    assert "cannot write plots to" in words


def test_the_csv_is_complete_when_drawing_fails(tmp_path, lab, monkeypatch):
    def refuse(*_):
        raise ValueError("singular transform")

    monkeypatch.setattr("attnbench.report.plots.draw", refuse)
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    files, _, words = build(lab, tmp_path / "run", records, samples=False)
    assert files.csv.is_file()
    assert any("could not be drawn: singular transform" in p for p in files.problems)
    assert "No pictures were drawn." in words


@pytest.mark.parametrize("module", ["matplotlib", "pyarrow"])
def test_a_missing_library_is_named_and_the_csv_is_complete(tmp_path, lab, monkeypatch, module):
    for name in [n for n in sys.modules if n.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    folder = tmp_path / "run"
    content = lab.write_run(folder, records, samples=False)
    files = build_report(folder, records, content, [])
    assert files.csv.read_text().count("\n") == 8
    assert files.html.is_file()
    assert any(f"{module} is not installed" in p for p in files.problems)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, lab):
    records = lab.default_records(variants=("self",), seq_lens=(128,))
    files = build_report(tmp_path / "absent", records, lab.make_manifest(records), [])
    assert files.csv is None
    assert any("cannot write" in p and "records.csv" in p for p in files.problems)


BUILD = """
import json, sys
from pathlib import Path
from attnbench.records import read_records
from attnbench.report.build import build_report
run = Path(sys.argv[1])
files = build_report(run, read_records(run / "records.jsonl")[0], json.loads((run / "manifest.json").read_text()), [])
print(json.dumps([len(files.plots), files.problems]))
"""


@pytest.mark.parametrize(
    "variables",
    [{"MPLBACKEND": "TkAgg"}, {"MPLBACKEND": "nonsense"}, {"MPLBACKEND": ""}, {"LANG": "C", "LC_ALL": "C"},
     {"HOME": "/proc/nowhere", "MPLCONFIGDIR": "/proc/nowhere/config"}],
    ids=["tk", "nonsense", "empty", "ascii", "readonly"],
)  # fmt: skip
def test_no_display_backend_or_home_is_needed(tmp_path, lab, variables):
    lab.write_run(tmp_path, lab.default_records(variants=("self",), seq_lens=(128,)), samples=False)
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MPLBACKEND")} | variables
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [8, []]


def test_importing_the_report_imports_no_heavy_library():
    names = "build, terminal, tables, plots, figures, html, pictures, rounds"
    code = (
        f"import sys; from attnbench.report import {names}; "
        "print({'matplotlib', 'pandas', 'pyarrow', 'torch', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
