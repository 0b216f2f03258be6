"""What the linter found as SARIF 2.1.0, as GitHub, GitLab and editors read it: one result per attention not fused.

GitHub shows every result as an alert, whatever its `kind` (PSRule #955), refuses a whole file for one result without a
location (codeql-action #2459), and takes results with equal fingerprints for one.
"""

import hashlib
import os
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from attnbench import __version__
from attnbench.fusion.lint_report import LintReport, RegionVerdict

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"  # names the format; nothing is fetched
_RULES = {
    "unfused": ("attention-not-fused", "warning", "Attention that is not fused.",
                "It holds its scores in device memory, which grows with T x T. The message names what keeps it from "
                "being fused; write that part of the model otherwise, or leave it out, and export it again."),
    "refused": ("attention-refused", "warning", "Attention that the compiler refuses.",
                "TensorRT-RTX builds no engine of it; the message has its words. Export the model in another form."),
    "unknown": ("attention-unknown", "note", "Attention that cannot be judged.",
                "Planned device memory does not tell whether it is fused. Lint it with a longer --seq, or give the "
                "sizes of its dims with --set and --bind."),
}  # fmt: skip
_FIRST_LINE = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}  # GitHub wants one; ONNX has no lines


def as_sarif(report: LintReport) -> dict[str, Any]:
    """The log of one run, as JSON can hold it; what is fused is in its properties and is no result."""
    driver = {"name": "attnbench fusion", "semanticVersion": __version__, "rules": [_rule(v) for v in _RULES]}
    told = [region for region in report.regions if region.verdict in _RULES]
    fused = [region for region in report.regions if region.verdict not in _RULES]
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": _notifications(report)}
    properties = {
        "sizes": report.sizes,
        "seq_lens": list(report.seq_lens),
        "fused": [{"layer": region.layer, "node": region.node, "arch": region.arch} for region in fused],
        "whole": {whole.arch: whole.verdict for whole in report.whole},
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver, "extensions": [{"name": report.compiler}]},
                "invocations": [invocation],
                "artifacts": [{"location": {"uri": _uri(report.path)}, "hashes": {"sha-256": report.sha256}}],
                "results": [_result(report, region) for region in told],
                "columnKind": "unicodeCodePoints",
                "properties": properties,
            }
        ],
    }


def _rule(verdict: str) -> dict[str, Any]:
    name, level, short, full = _RULES[verdict]
    return {
        "id": name,
        "name": "".join(part.capitalize() for part in name.split("-")),
        "shortDescription": {"text": short},
        "fullDescription": {"text": full},
        "help": {"text": full},
        "defaultConfiguration": {"level": level},
    }


def _notifications(report: LintReport) -> list[dict[str, Any]]:
    """What is about the run and no attention: what was assumed, where witnesses disagree, that nothing was found."""
    found = [{"level": "note", "message": {"text": note}} for note in report.notes]
    if not report.regions:
        found.append({"level": "warning", "message": {"text": "no attention was found, so nothing was judged"}})
    return found


def _result(report: LintReport, region: RegionVerdict) -> dict[str, Any]:
    rule, level, _, _ = _RULES[region.verdict]
    text = f"layer {region.layer} on {region.arch} by {report.compiler}: {region.sentence()}"
    nodes = list(dict.fromkeys([*(c.node for c in region.culprits if c.node), region.node]))
    identity = f"{region.layer}:{region.arch}:{region.node}"
    return {
        "ruleId": rule,
        "ruleIndex": list(_RULES).index(region.verdict),
        "level": level,
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(report.path), "index": 0},
                    "region": dict(_FIRST_LINE),
                },
                "logicalLocations": [{"name": node, "kind": "element"} for node in nodes],
            }
        ],
        # of its own, for GitHub's is the hash of line 1, which all results of a model have
        "partialFingerprints": {"primaryLocationLineHash": f"{_short_hash(identity)}:1", "attention/v1": identity},
        "properties": {"planned_activation_bytes": list(region.planned_activation_bytes), "operator": region.operator},
    }


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _uri(path: str) -> str:
    """A relative path stays relative, so that it is found from the root of a repository."""
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(os.fsencode(pure.as_posix()))
