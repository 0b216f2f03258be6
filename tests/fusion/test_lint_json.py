"""What `attnbench fusion --onnx --json` prints is what docs/fusion-lint.schema.json says, and nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest

from attnbench.fusion.lint_report import LintReport
from attnbench.fusion.linter import lint
from attnbench.fusion.sarif import as_sarif
from tests.fusion.planted import Layer, encoder
from tests.fusion.test_sarif import EMPTY, FUSED, REPORT, UNKNOWN, assert_valid

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "fusion-lint.schema.json").read_text(encoding="utf-8"))


def closed(schema: Any) -> Any:
    """The schema as this version has to keep it: fields that it does not tell of are refused."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(part) for name, part in schema.items()}
    return made | {"additionalProperties": False} if made.get("type") == "object" else made


def assert_told(report: LintReport) -> None:
    jsonschema.Draft202012Validator(closed(SCHEMA)).validate(json.loads(json.dumps(report.as_dict())))


@pytest.mark.parametrize("report", [REPORT, EMPTY, FUSED, replace(REPORT, regions=(UNKNOWN,), seq_lens=())])
def test_every_outcome_is_as_documented(report: LintReport) -> None:
    assert_told(report)


def test_a_real_one_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    layers = [Layer(), Layer(inside=("softcap",)), Layer(scores="operator", inside=("softcap",))]
    onnx.save(encoder(layers), tmp_path / "m.onnx")
    report = lint(tmp_path / "m.onnx")
    assert [region.verdict for region in report.regions] == ["fused", "unfused", "refused"]
    assert_told(report)
    assert_valid(as_sarif(report))


def test_the_schema_refuses_what_is_wrong() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    told = json.loads(json.dumps(REPORT.as_dict()))
    for broken in ({"archs": []}, {"sha256": "none"}, {"seq_lens": [0]}, {"regions": [{"layer": 0}]}, {"extra": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(closed(SCHEMA)).validate(told | broken)
