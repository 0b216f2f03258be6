"""A run as JUnit XML, as Jenkins, GitLab and GitHub actions read it: one testcase per case.

`printable` makes visible what XML 1.0 cannot hold: control characters, surrogates, U+FFFE and U+FFFF.
"""

import math
import xml.etree.ElementTree as ET  # only written here, never parsed
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.analysis.groups import FLOAT64, judge_of_row, latency_ms
from attnbench.records import Record
from attnbench.report.findings import broken_gates, progress_note
from attnbench.report.judged import how_judged, judges_text
from attnbench.report.names import geometry_name, length_name, told_apart
from attnbench.report.text import printable

_ERRORS = frozenset({"crashed", "error", "timeout"})
_FACTS = ("started_at_utc", "command", "threads", "noise_floor", "delta", "harness_ns")


def junit_xml(records: Sequence[Record], manifest: Mapping[str, Any], run_dir: str) -> str:
    """The document as text.

    `ok` passes; a wrong answer, or a required arm that is not ok, is a failure; what broke is an error; what did not
    run is skipped with its reason; planned cases without a record are one error.
    The properties `judged_by` and `judging` say what answers were compared with: float64, or another arm, as an answer
    that differs then says of itself.
    A testcase's time is its median latency in seconds, and left out where there is none.

    Args:
        records: judged records.
        manifest: of the run; every key may be missing.
        run_dir: where the run lies, as a person would type it.
    """
    places = [geometry_name(r) for r in records]
    lengths = [f" T={length}" if (length := length_name(r)) else "" for r in records]
    keys = [f"{place}/{r.arm}{length}" for place, r, length in zip(places, records, lengths, strict=True)]
    names = [key.removeprefix(f"{place}/") for place, key in zip(places, told_apart(records, keys), strict=True)]
    required = set((manifest.get("sweep") or {}).get("require") or ())
    cases = [_case(r, name, required) for r, name in zip(records, names, strict=True)]
    if missing := progress_note(records, manifest, run_dir):
        whole = ET.Element("testcase", classname="run", name="every planned case has a record")
        _add(whole, "error", "incomplete", missing, "")
        cases.append(whole)
    counts = {kind: sum(case.find(tag) is not None for case in cases)
              for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))}  # fmt: skip
    totals = {"tests": str(len(cases)), "failures": str(counts["failures"]), "errors": str(counts["errors"])}
    totals |= _seconds("time", manifest.get("elapsed_s"))
    root = ET.Element("testsuites", {"name": "attnbench", **totals})
    suite = ET.SubElement(root, "testsuite", {"name": "attnbench", **totals, "skipped": str(counts["skipped"])})
    if started := str(manifest.get("started_at_utc") or ""):
        suite.set("timestamp", printable(started.removesuffix("Z").partition("+")[0]))  # the schemas know no time zone
    properties = ET.SubElement(suite, "properties")
    judging = [("judged_by", judges_text(records)), ("judging", how_judged(records))] if records else []
    for name, value in [*_properties(manifest, run_dir), *judging]:
        ET.SubElement(properties, "property", name=printable(name), value=printable(value))
    suite.extend(cases)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(r: Record, name: str, required: set[str]) -> ET.Element:
    case = ET.Element("testcase", classname=printable(geometry_name(r)), name=printable(name))
    if (latency := latency_ms(r)) is not None:
        case.attrib |= _seconds("time", latency / 1e3)
    reason = r.reason or "no reason was recorded"
    if r.status == "mismatch":
        gates = "; ".join(broken_gates(r)) or reason
        judge = judge_of_row(r)
        told = gates if judge in (None, FLOAT64) else f"differs from {judge}, which is no proof: {gates}"
        _add(case, "failure", "mismatch", told, reason)
    elif r.status in _ERRORS:
        _add(case, "error", r.status, reason, "")
    elif r.status != "ok" and required & {r.arm, r.runtime}:
        _add(case, "failure", r.status, f"named by --require, and not ok: {r.status}: {reason}", "")
    elif r.status != "ok":
        _add(case, "skipped", r.status, f"{r.status}: {reason}", "")
    return case


def _add(case: ET.Element, tag: str, kind: str, message: str, text: str) -> None:
    child = ET.SubElement(case, tag, type=kind, message=printable(message))
    if text and text != message:
        child.text = printable(text)


def _properties(manifest: Mapping[str, Any], run_dir: str) -> list[tuple[str, str]]:
    machine = (manifest.get("environment") or {}).get("machine")
    rows = [("run_dir", run_dir), *((name, manifest.get(name)) for name in _FACTS)]
    rows.append(("cpu_model", machine.get("cpu_model") if isinstance(machine, Mapping) else None))
    versions = {"attnbench": manifest.get("attnbench_version"), **(manifest.get("versions") or {})}
    rows += [(f"version.{name}", version) for name, version in versions.items()]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _seconds(name: str, value: Any) -> dict[str, str]:
    """Plain digits: the schema knows no exponents."""
    known = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return {name: f"{value:.6f}"} if known else {}
