"""What the page carries inside: packing, samples by visit, columns of figures, laws."""

import base64
import gzip
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnbench.analysis.groups import make_panels
from attnbench.problem import Problem
from attnbench.report import html, page_samples
from attnbench.report.page_data import make_explorer
from attnbench.report.page_laws import laws_of
from attnbench.report.page_pack import compact_json, packed, plotly_source, script_json
from attnbench.report.page_samples import NO_FILE, OVER_LIMIT, read_samples


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def samples_file(path, rows):
    """Rows are case_id, replica, round, latency_ns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    case, replica, number, latency = zip(*rows, strict=True)
    pq.write_table(
        pa.table({
            "case_id": pa.array(case), "replica": pa.array(replica, pa.int8()), "round": pa.array(number, pa.int16()),
            "sample": pa.array(range(len(rows)), pa.int32()), "latency_ns": pa.array(latency, pa.int64()),
        }),
        path,
    )  # fmt: skip


def explore(lab, folder, records, **manifest):
    return make_explorer(folder, records, make_panels(records), lab.make_manifest(records, **manifest))


def test_packing_loses_nothing_and_is_the_same_every_time():
    text = '{"a":"Grüße\u2028"}'
    assert gzip.decompress(base64.b64decode(packed(text))).decode() == text
    assert packed(text) == packed(text)


def test_json_in_a_script_element_cannot_end_it():
    value = {"name": "</script><!-- \u2028 \udc80 'x' \"y\" & >"}
    text = script_json(value)
    assert "<" not in text
    assert text.isascii()
    assert json.loads(text) == value


def test_json_refuses_what_javascript_cannot_read():
    with pytest.raises(ValueError, match="not JSON compliant"):
        compact_json(float("nan"))


def test_the_plotly_that_is_installed_is_carried_with_its_licence():
    head = plotly_source()[:400].decode()
    assert "plotly.js" in head
    assert "MIT" in head


def test_a_visit_is_its_median_fastest_and_slowest_call(tmp_path, lab):
    (record,) = lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa"])
    rows = [(record.case_id, 0, 0, ns) for ns in (3_000_000, 1_000_000, 2_000_000)]  # median 2 ms
    rows += [(record.case_id, 0, 3, ns) for ns in (5_000_000, 3_000_000)]  # an even visit: the mean of the middle two
    rows += [(record.case_id, 1, 0, 4_000_000), ("another case", 0, 0, 1)]
    samples_file(tmp_path / f"{record.problem_id}.parquet", rows)
    found = read_samples(tmp_path, [record])
    assert (found.case, found.replica, found.count) == ([0, 0], [0, 1], [2, 1])
    assert found.median_us == [3000.0, 4000.0]  # of the visits' medians 2 and 4 ms
    assert found.rounds == [0, 3, 0]  # less the round of the visit before
    assert found.medians == [667, 1333, 1000]  # thousandths of the worker's median
    assert found.below == [334, 333, 0]
    assert found.above == [333, 334, 0]
    assert found.absent == {}


def test_a_torn_or_missing_file_costs_only_its_own_samples(tmp_path, lab):
    records = lab.default_records(variants=("self",), seq_lens=(128, 256, 512), arms=["torch-sdpa"])
    lab.write_samples(tmp_path, records)
    torn = tmp_path / f"{records[0].problem_id}.parquet"
    torn.write_bytes(torn.read_bytes()[:100])
    (tmp_path / f"{records[1].problem_id}.parquet").unlink()
    found = read_samples(tmp_path, records)
    assert set(found.case) == {2}
    assert found.absent.pop(NO_FILE) == [1]
    ((reason, cases),) = found.absent.items()
    assert cases == [0]
    assert reason.startswith(f"{torn.name} cannot be read")
    assert found.problems == [f"{torn.name}: {reason[len(torn.name) + 1 :]}; its samples are left out"]


def test_samples_over_the_limit_are_named(tmp_path, lab, monkeypatch):
    monkeypatch.setattr(page_samples, "MAX_VISITS", 10)
    records = lab.default_records(variants=("self",), seq_lens=(128, 256), arms=["torch-eager"])
    lab.write_samples(tmp_path, records, rounds=12)
    found = read_samples(tmp_path, records)
    assert found.case == [0]
    assert found.absent == {OVER_LIMIT: [1]}
    assert found.problems == [f"raw samples of 1 case are {OVER_LIMIT}"]


def test_filters_know_only_what_tells_charts_apart(tmp_path, lab):
    records = [
        r
        for fixed in ({}, {"dtype": "bf16"}, {"batch_size": 8})
        for r in lab.default_records(variants=("self", "causal"), seq_lens=(128,), arms=["torch-sdpa"], **fixed)
    ]
    meta = json.loads(explore(lab, tmp_path, records).meta)
    found = {d["key"]: d["values"] for d in meta["dimensions"]}
    assert found == {"variant": ["self", "causal"], "dtype": ["fp32", "bf16"], "batch": ["1", "8"]}
    assert all(len(d["panels"]) == 6 for d in meta["dimensions"])
    assert sorted(meta["rows"]["panel"]) == [0, 1, 2, 3, 4, 5]


def test_a_case_without_a_figure_has_its_reason(tmp_path, lab):
    ok, other, odd = lab.default_records(variants=("self",), seq_lens=(128, 256, 512), arms=["torch-sdpa"])
    ok.peak_fraction, ok.empty_reasons = None, {"peak_fraction": "the peak was not measured"}
    other = lab.without_figures(other, "oom", "2.1 GiB were not there")
    odd.latency_ms_median = float("nan")
    data = unpacked(explore(lab, tmp_path, [ok, other, odd]).data)
    assert [data["texts"][t] for t in data["status"]] == ["ok", "oom", "ok"]
    assert data["latency"][1:] == [None, None]
    assert [[i, data["texts"][t]] for i, t in data["empty"]["latency"]] == [
        [1, "2.1 GiB were not there"], [2, "not measured"]
    ]  # fmt: skip
    assert [0, "the peak was not measured"] in [[i, data["texts"][t]] for i, t in data["empty"]["fraction"]]
    assert data["x"] == [128, 256, 512]


def test_arms_with_hostile_names_stay_apart(tmp_path, lab):
    names = ["</script><script>alert(1)</script>", "line\u2028break\n\"quote'", "<b>bold</b>", "torch-sdpa"]
    problem = Problem.make(variant="self", seq_len=128)
    made = explore(lab, tmp_path, [lab.make_record(problem, name) for name in names])
    assert "<" not in made.meta
    arms = [arm["name"] for arm in json.loads(made.meta)["arms"]]
    assert sorted(arms) == sorted(
        ["</script><script>alert(1)</script>", "line\\u2028break\\n\"quote'", "<b>bold</b>", "torch-sdpa"]
    )
    assert len(set(made.arm_numbers.values())) == 4


def test_a_law_has_its_terms_and_words_or_a_reason(lab):
    long, short = (
        make_panels(lab.default_records(variants=("self",), seq_lens=lens, arms=["torch-sdpa"]))[0]
        for lens in ((128, 256, 512, 1024, 2048), (128, 256, 512))
    )
    law = laws_of(long, 0.01)["torch-sdpa"]
    assert len(law["latency"]["linear"]) == 3
    assert (law["latency"]["x_min"], law["latency"]["x_max"]) == (128, 2048)
    none = laws_of(short, 0.01)["torch-sdpa"]
    assert none["latency"] is None
    assert "at 3 of the at least 4 T" in none["latency_words"]


@pytest.mark.parametrize(("module", "words"), [("pyarrow", "pyarrow is not installed"), ("plotly", None)])
def test_a_missing_library_costs_only_its_part(tmp_path, lab, monkeypatch, module, words):
    records = lab.default_records(variants=("self",), seq_lens=(128,), arms=["torch-sdpa"])
    lab.write_samples(tmp_path / "samples", records)
    for name in [n for n in sys.modules if n.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    made = explore(lab, tmp_path, records)
    if words:
        assert unpacked(made.samples)["absent"] == {words: [0]}
    else:
        assert made.plotly == ""
        assert any("pip install plotly" in problem for problem in made.problems)


def test_every_script_is_carried_and_short():
    folder = Path(html.__file__).parent / "scripts"
    assert {path.stem for path in folder.iterdir()} == set(html.SCRIPTS)
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 400 for path in folder.iterdir())
