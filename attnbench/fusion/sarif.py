"""What the linter found as SARIF 2.1.0, as GitHub, GitLab and editors read it: one result per attention."""

from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from attnbench import __version__
from attnbench.fusion.lint_report import LintReport, RegionVerdict

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"  # names the format; nothing is fetched
_RULES = {
    "unfused": ("attention-not-fused", "Attention that holds its scores in device memory, which grows with T x T."),
    "refused": ("attention-refused", "Attention that the compiler refuses."),
    "unknown": ("attention-unknown", "Attention of which planned device memory does not tell whether it is fused."),
    "fused": ("attention-fused", "Attention whose planned device memory grows in proportion to T."),
}
_LEVELS = {"unfused": "warning", "refused": "warning", "unknown": "note", "fused": "none"}


def as_sarif(report: LintReport) -> dict[str, Any]:
    """The log of one run, as JSON can hold it."""
    rules = [
        {"id": name, "name": _pascal(name), "shortDescription": {"text": words}} for name, words in _RULES.values()
    ]
    driver = {"name": "attnbench fusion", "semanticVersion": __version__, "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver, "extensions": [{"name": report.compiler}]},
                "invocations": [{"executionSuccessful": True}],
                "artifacts": [{"location": {"uri": _uri(report.path)}, "hashes": {"sha-256": report.sha256}}],
                "results": [_result(report, region) for region in report.regions],
                "properties": {"sizes": report.sizes, "seq_lens": list(report.seq_lens), "notes": list(report.notes)},
            }
        ],
    }


def _result(report: LintReport, region: RegionVerdict) -> dict[str, Any]:
    rule, _ = _RULES[region.verdict]
    text = f"layer {region.layer} on {region.arch} by {report.compiler}: {region.sentence()}"
    nodes = list(dict.fromkeys([*(c.node for c in region.culprits if c.node), region.node]))
    found: dict[str, Any] = {
        "ruleId": rule,
        "ruleIndex": [name for name, _ in _RULES.values()].index(rule),
        "level": _LEVELS[region.verdict],
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(report.path), "index": 0},
                    "region": {"startLine": 1},  # readers of code want one; an ONNX file has none
                },
                "logicalLocations": [{"name": node, "kind": "element"} for node in nodes],
            }
        ],
        "partialFingerprints": {"attention/v1": f"{region.layer}:{region.arch}:{region.node}"},
        "properties": {"planned_activation_bytes": list(region.planned_activation_bytes), "operator": region.operator},
    }
    return found if region.verdict != "fused" else {**found, "kind": "pass"}


def _uri(path: str) -> str:
    """A relative path stays relative, so that it is found from the root of a repository."""
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix())


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))
