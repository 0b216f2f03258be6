"""SARIF 2.1.0 by its schema and by what GitHub makes of it, on a report made by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from attnbench.fusion.lint_report import Culprit, LintReport, RegionVerdict, WholeVerdict
from attnbench.fusion.sarif import as_sarif

REPORT = LintReport(
    path="models/my model.onnx", sha256="ab" * 32, compiler="tensorrt-rtx 1.7.1.116", archs=("sm89",),
    sizes="batch=1, seq=T", seq_lens=(2048, 4096),
    regions=(
        RegionVerdict(layer=0, node="a/Softmax", operator="Softmax", arch="sm89", verdict="fused",
                      planned_activation_bytes=(10, 20)),
        RegionVerdict(layer=1, node="b/Softmax", operator="Softmax", arch="sm89", verdict="unfused",
                      planned_activation_bytes=(70_300_000, 274_700_000),
                      culprits=(Culprit(words="without `Tanh` (softcap)", node="b/Tanh"),)),
        RegionVerdict(layer=2, node="c", operator="Attention", arch="sm89", verdict="refused",
                      planned_activation_bytes=(None, None), words="no\nkernel"),
    ),
    whole=(WholeVerdict(arch="sm89", verdict="refused", planned_activation_bytes=(None, None), words="no kernel"),),
)  # fmt: skip


SCHEMA = json.loads((Path(__file__).parent / "data" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
EMPTY = replace(REPORT, regions=(), whole=(), notes=())
FUSED = replace(REPORT, regions=REPORT.regions[:1])
UNKNOWN = replace(REPORT.regions[0], verdict="unknown", planned_activation_bytes=(), words="its sizes do not follow")
ODD_NAMES = ("a node/with space", "\u5c42/\u6ce8\u610f", "two\nlines\ttab", "\x1b[31mred", '"quoted\\"', "a" * 5000)


def assert_valid(log: dict[str, Any]) -> None:
    """By the schema of OASIS, after a way through a file."""
    jsonschema.Draft7Validator(SCHEMA).validate(json.loads(json.dumps(log)))


def test_the_schema_refuses_what_is_wrong() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for broken in ({"level": "fatal"}, {"message": {}}, {"locations": [{"logicalLocations": {"name": "n"}}]}):
        log = as_sarif(REPORT)
        log["runs"][0]["results"][0] |= broken
        with pytest.raises(jsonschema.ValidationError):
            assert_valid(log)


@pytest.mark.parametrize(
    "report",
    [REPORT, EMPTY, FUSED, replace(REPORT, regions=(UNKNOWN,)), replace(REPORT, archs=("sm89", "sm120"), seq_lens=())],
    ids=["all", "nothing found", "all fused", "unknown", "fixed sizes"],
)
def test_every_outcome_is_sarif(report: LintReport) -> None:
    log = as_sarif(report)
    assert_valid(log)
    (run,) = log["runs"]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(ids)) == len(ids)
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        (location,) = result["locations"]  # GitHub refuses a file that has a result without
        assert location["physicalLocation"]["artifactLocation"] == {"uri": "models/my%20model.onnx", "index": 0}
        assert location["physicalLocation"]["region"]["startLine"] == 1
        assert all(node["name"] for node in location["logicalLocations"])


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: ascii(name)[:20])
def test_any_name_of_a_node_is_sarif(name: str) -> None:
    region = replace(REPORT.regions[1], node=name, culprits=(Culprit(words="without `Tanh` (softcap)", node=name),))
    log = as_sarif(replace(REPORT, regions=(region,)))
    assert_valid(log)
    (result,) = log["runs"][0]["results"]
    assert [node["name"] for node in result["locations"][0]["logicalLocations"]] == [name]


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("model.onnx", "model.onnx"),
        ("./models/model.onnx", "models/model.onnx"),
        ("../other/m.onnx", "../other/m.onnx"),
        ("my models/\u5c42 50%.onnx", "my%20models/%E5%B1%82%2050%25.onnx"),
        ("c:m#1?.onnx", "c%3Am%231%3F.onnx"),
        ("not-utf8-\udcff.onnx", "not-utf8-%FF.onnx"),
        ("/tmp/a b.onnx", "file:///tmp/a%20b.onnx"),
    ],
    ids=ascii,
)
def test_any_name_of_a_file_is_a_uri(path: str, uri: str) -> None:
    log = as_sarif(replace(REPORT, path=path))
    assert_valid(log)
    (run,) = log["runs"]
    assert run["artifacts"][0]["location"]["uri"] == uri
    found = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]}
    assert found == {uri}
    assert json.dumps(log).isascii()


def test_what_is_fused_is_no_alert() -> None:
    """GitHub makes one of every result, of those of kind `pass` too."""
    (run,) = as_sarif(REPORT)["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["attention-not-fused", "attention-refused"]
    assert [result["level"] for result in run["results"]] == ["warning", "warning"]
    assert run["properties"]["fused"] == [{"layer": 0, "node": "a/Softmax", "arch": "sm89"}]
    assert run["properties"]["whole"] == {"sm89": "refused"}


def test_results_of_one_model_are_told_apart_and_stay_the_same() -> None:
    """GitHub takes results of one rule with one `primaryLocationLineHash` for one, and one that changed for new."""
    regions = [replace(REPORT.regions[1], layer=n, arch=arch) for n in range(3) for arch in ("sm89", "sm120")]
    first, again = (as_sarif(replace(REPORT, regions=tuple(regions)))["runs"][0]["results"] for _ in range(2))
    hashes = [result["partialFingerprints"]["primaryLocationLineHash"] for result in first]
    assert len(set(hashes)) == 6
    assert hashes == [result["partialFingerprints"]["primaryLocationLineHash"] for result in again]


def test_where_nothing_was_found_the_log_says_so() -> None:
    (run,) = as_sarif(EMPTY)["runs"]
    assert run["results"] == []
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [(note["level"], note["message"]["text"]) for note in notes] == [
        ("warning", "no attention was found, so nothing was judged")
    ]


def test_notes_are_told_as_notifications() -> None:
    (run,) = as_sarif(replace(REPORT, notes=("assumed: batch=1",)))["runs"]
    assert run["invocations"][0]["toolExecutionNotifications"] == [
        {"level": "note", "message": {"text": "assumed: batch=1"}}
    ]


def test_the_culprits_node_comes_first() -> None:
    result = as_sarif(REPORT)["runs"][0]["results"][0]
    assert result["message"]["text"] == (
        "layer 1 on sm89 by tensorrt-rtx 1.7.1.116: not fused; without `Tanh` (softcap) it is"
    )
    assert [node["name"] for node in result["locations"][0]["logicalLocations"]] == ["b/Tanh", "b/Softmax"]
    assert (result["ruleId"], result["level"]) == ("attention-not-fused", "warning")


def test_the_text_tells_every_layer_and_the_whole() -> None:
    assert REPORT.text().splitlines() == [
        "models/my model.onnx by tensorrt-rtx 1.7.1.116: batch=1, seq=T; planned device memory at T = 2048 and 4096",
        "sm89:",
        "  layer 0 (a/Softmax): fused [10 B -> 20 B]",
        "  layer 1 (b/Softmax): not fused; without `Tanh` (softcap) it is [67.0 MiB -> 262 MiB]",
        "  layer 2 (c): refused: no kernel",
        "  whole model: refused: no kernel",
    ]


def test_architectures_with_equal_verdicts_are_told_once() -> None:
    both = [replace(region, arch=arch) for arch in ("sm89", "sm120") for region in REPORT.regions]
    report = replace(REPORT, archs=("sm89", "sm120"), regions=tuple(both), whole=())
    assert report.text().splitlines()[1] == "sm89, sm120:"
    assert len(report.text().splitlines()) == 5
    other = replace(report, regions=(*both[:-1], replace(both[-1], verdict="fused", words="")))
    assert [line for line in other.text().splitlines() if line.startswith("sm")] == ["sm89:", "sm120:"]


def test_equal_neighbours_are_told_once() -> None:
    first = REPORT.regions[0]
    report = replace(REPORT, regions=tuple(replace(first, layer=n, node=f"{n}/Softmax") for n in range(12)), whole=())
    assert report.text().splitlines()[2:] == ["  layers 0-11 (0/Softmax .. 11/Softmax): fused [10 B -> 20 B]"]


def test_exit_codes_say_whether_anything_was_judged() -> None:
    assert [REPORT.exit_code(), REPORT.exit_code("unfused")] == [0, 1]
    assert [FUSED.exit_code(), FUSED.exit_code("unfused")] == [0, 0]
    assert [EMPTY.exit_code(), EMPTY.exit_code("unfused")] == [3, 3]
    unknown = replace(REPORT, regions=(UNKNOWN, UNKNOWN))
    assert [unknown.exit_code(), unknown.exit_code("unfused")] == [3, 3]
    assert replace(REPORT, regions=(UNKNOWN, REPORT.regions[0])).exit_code("unfused") == 0
    assert replace(REPORT, regions=(UNKNOWN, REPORT.regions[1])).exit_code("unfused") == 1


def test_where_no_change_helps_it_is_said() -> None:
    unfused = replace(REPORT.regions[1], culprits=(), changes_tried=3)
    assert unfused.sentence() == "not fused; nothing that can be left out makes it fused (3 tried)"
    both = replace(REPORT.regions[1], is_together=True, culprits=(*REPORT.regions[1].culprits,
                   Culprit(words="in fp16 instead of fp32", node="")))  # fmt: skip
    assert both.sentence() == (
        "not fused; without `Tanh` (softcap) and in fp16 instead of fp32 it is (no one of them is enough)"
    )
