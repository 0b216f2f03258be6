"""SARIF 2.1.0 by the properties that its schema requires, on a report made by hand."""

from dataclasses import replace

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


def test_what_the_schema_requires_is_there() -> None:
    log = as_sarif(REPORT)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    assert all(extension["name"] for extension in run["tool"]["extensions"])
    assert all(isinstance(entry["executionSuccessful"], bool) for entry in run["invocations"])
    for result in run["results"]:
        assert result["message"]["text"]
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result.get("kind", "fail") == "fail" or result["level"] == "none"  # 3.27.10
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"] == {"uri": "models/my%20model.onnx", "index": 0}
        assert all(node["name"] for node in location["logicalLocations"])


def test_the_culprits_node_comes_first() -> None:
    result = as_sarif(REPORT)["runs"][0]["results"][1]
    assert result["message"]["text"] == (
        "layer 1 on sm89 by tensorrt-rtx 1.7.1.116: not fused; without `Tanh` (softcap) it is"
    )
    assert [node["name"] for node in result["locations"][0]["logicalLocations"]] == ["b/Tanh", "b/Softmax"]
    assert (result["ruleId"], result["level"]) == ("attention-not-fused", "warning")


def test_the_text_tells_every_layer_and_the_whole() -> None:
    assert REPORT.text().splitlines() == [
        "models/my model.onnx by tensorrt-rtx 1.7.1.116: batch=1, seq=T; planned device memory at T = 2048 and 4096",
        "sm89:",
        "  layer 0 (a/Softmax): fused [0.0 -> 0.0 MB]",
        "  layer 1 (b/Softmax): not fused; without `Tanh` (softcap) it is [70.3 -> 274.7 MB]",
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
    assert report.text().splitlines()[2:] == ["  layers 0-11 (0/Softmax .. 11/Softmax): fused [0.0 -> 0.0 MB]"]


def test_where_no_change_helps_it_is_said() -> None:
    unfused = replace(REPORT.regions[1], culprits=(), changes_tried=3)
    assert unfused.sentence() == "not fused; nothing that can be left out makes it fused (3 tried)"
    both = replace(REPORT.regions[1], is_together=True, culprits=(*REPORT.regions[1].culprits,
                   Culprit(words="in fp16 instead of fp32", node="")))  # fmt: skip
    assert both.sentence() == (
        "not fused; without `Tanh` (softcap) and in fp16 instead of fp32 it is (no one of them is enough)"
    )
