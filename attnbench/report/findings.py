"""What the records say, as sentences and rows: who is fastest, what is wrong, what did not run and why."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.groups import JUDGED_BY, Panel, latency_ms
from attnbench.records import COMPILES_ONLY, FAILED, Record
from attnbench.report.judged import words_of
from attnbench.report.merged import folder_of, manifest_of, runs_of
from attnbench.report.text import (
    fmt_bytes,
    fmt_count,
    fmt_duration,
    fmt_error,
    fmt_interval,
    fmt_list,
    fmt_ms,
    fmt_percent,
    fmt_ratio,
    unique,
)

_WAY_OUT = {
    "oom": "raise --memory-limit, or use a smaller T or batch",
    "timeout": "raise --timeout, or use a smaller T",
    "crashed": "read the worker's log in logs/ of the run",
    "error": "read the worker's log in logs/ of the run",
    "skipped": "--no-oom-skip, a higher --memory-limit, or a smaller T",
    "compiled": "run it on a machine with the device that it was compiled for",
    "unsupported": "choose another exporter, dtype or variant for this runtime",
}
_MODEL_WAY_OUT = {"unsupported": "choose another runtime (--runtimes), exporter or dtype for this model"}
_TO_RESUME = "; --resume this run"  # how the sweep ends a reason; the way out says it with the folder
# Installed, but no part of any figure; all versions stand in the environment section.
_UNDER_THE_HOOD = frozenset({"pandas", "pyarrow", "pydantic", "matplotlib", "psutil", "threadpoolctl", "nvidia-ml-py"})
_STOP_WORDS = {
    "precision": "at the wanted precision",
    "budget": "by the time budget",
    "rounds": "at the most rounds",
    "outlying": "early, far from the baseline",
}


@dataclass(frozen=True, kw_only=True)
class Pick:
    """Who is fastest at one x of a panel."""

    x: int
    kind: str  # winner, toss-up, unranked, nothing
    arms: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Cases that share arm, status and reason."""

    arm: str
    status: str
    reason: str
    way_out: str
    where: str
    count: int


def pick_at(panel: Panel, x: int) -> Pick:
    """The set of fastest arms at x with intervals, or why there is none."""
    names = {id(r): arm for arm in panel.arms if (r := panel.cells.get((arm, x))) is not None}
    right = panel.ok_at(x)
    if not right:
        counts = Counter(r.status for arm in panel.arms if (r := panel.cells.get((arm, x))) is not None)
        words = words_of(panel.judge).nothing_ran if counts["mismatch"] else "nothing ran"
        text = f"{words} (" + ", ".join(f"{n} {status}" for status, n in counts.items()) + ")"
        return Pick(x=x, kind="nothing", arms=(), text=text)
    fastest = [r for r in right if r.fastest]
    if not fastest:
        arm = names[id(right[0])]
        text = (
            f"no ranking (too few rounds, or contended); the lowest median is {arm}'s, {fmt_ms(latency_ms(right[0]))}"
        )
        return Pick(x=x, kind="unranked", arms=(arm,), text=text)
    arms = tuple(names[id(r)] for r in fastest)
    if len(right) == 1:
        alone = words_of(panel.judge).only_one
        return Pick(x=x, kind="winner", arms=arms, text=f"{arms[0]} {figures(right[0])}, {alone}")
    if len(fastest) == 1:
        return Pick(x=x, kind="winner", arms=arms, text=f"{arms[0]} {figures(fastest[0])}")
    shown = [f"{arm} {figures(r, ratio=False)}" for arm, r in zip(arms, fastest, strict=True)]
    return Pick(x=x, kind="toss-up", arms=arms, text=f"toss-up between {fmt_list(shown, 3)}")


def figures(record: Record, *, ratio: bool = True) -> str:
    """`(0.312 ms, 0.310 to 0.315; 1.21x torch-sdpa, 1.19 to 1.23)`."""
    interval = fmt_interval(record.latency_ms_ci_low, record.latency_ms_ci_high)
    text = fmt_ms(record.latency_ms_median) + (f", {interval}" if interval else "")
    if ratio and record.speedup_vs_baseline is not None and record.arm != record.baseline_arm:
        text += f"; {fmt_ratio(record.speedup_vs_baseline)} {record.baseline_arm}"
        interval = fmt_interval(record.speedup_ci_low, record.speedup_ci_high)
        text += f", {interval}" if interval else ""
    return f"({text}; contended)" if "contended" in record.flags else f"({text})"


def headline(panel: Panel) -> list[Pick]:
    """The fastest set at short, middle and long T."""
    return [pick_at(panel, x) for x in panel.sample_xs()]


def trust_line(records: Sequence[Record], manifest: Mapping[str, Any]) -> list[str]:
    """Noise floor, how rounds stopped, contended visits, the harness's own cost: a sentence each."""
    if runs := runs_of(manifest, records):
        return [f"{run.name}: {' '.join(trust_line(run.records, run.manifest))}" for run in runs]
    sentences: list[str] = []
    floor, pairs = manifest.get("noise_floor"), manifest.get("noise_pairs") or 0
    if floor is None:
        sentences.append("The noise floor was not measured: no problem has two timed replicas of the baseline.")
    else:
        baseline = manifest.get("baseline_arm") or "the baseline"
        sentences.append(
            f"Noise floor {fmt_percent(floor)}: so much did two workers of {baseline} differ ({_floor_words(pairs)})."
        )
    if (delta := manifest.get("delta")) is not None:
        sentences.append(f"Nothing closer to 1 than {fmt_percent(delta)} is called faster or slower.")
    stopped = Counter(r.stopped_by for r in records if r.stopped_by is not None)
    if stopped:
        words = [f"{fmt_count(n, 'case')} {_STOP_WORDS.get(why, 'by ' + why)}" for why, n in stopped.most_common()]
        rounds = [r.round_count for r in records if r.round_count]
        after = f" after {span([min(rounds), max(rounds)], ' to ')} rounds" if rounds else ""
        sentences.append(f"Timing stopped{after}: {', '.join(words)}.")
    if (manifest.get("gpu_workers") or {}).get("mode") == "one-at-a-time":
        sentences.append(
            "Workers had the GPU one at a time: a round is a pass over fresh ones, so ratios pair what lies seconds to "
            "minutes apart."
        )
    sentences += _visits(records, manifest)
    if (harness := manifest.get("harness_ns")) is not None:
        sentences.append(f"The harness itself costs {harness:.0f} ns per timed call.")
    return sentences


def _floor_words(pairs: int) -> str:
    """What the floor is of its A/A pairs: of fewer than ten, the 90th percentile is the largest."""
    if pairs == 1:
        return "one pair"
    return f"{'90th percentile' if pairs >= 10 else 'largest'} of {fmt_count(pairs, 'pair')}"


def _visits(records: Sequence[Record], manifest: Mapping[str, Any]) -> list[str]:
    sentences = []
    visits, contended = manifest.get("visits"), manifest.get("contended_visits")
    if visits and contended is not None:
        share = fmt_percent(contended / visits) if contended else "none"
        sentences.append(f"Contended visits: {contended:,} of {visits:,} ({share}).")
    timed = [r for r in records if COMPILES_ONLY not in r.flags]  # the others have their section
    flagged = Counter(flag for r in timed for flag in r.flags if not flag.startswith(JUDGED_BY))
    if flagged:
        words = [f"{fmt_count(n, 'case')} {flag}" for flag, n in sorted(flagged.items())]
        sentences.append(f"Flagged: {', '.join(words)}.")
    return sentences


def machine_facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Machine, threads, versions, date and command as (name, value); of several runs one row each."""
    if runs := runs_of(manifest):
        return [(run.name, _run_facts(run.manifest)) for run in runs]
    environment = manifest.get("environment") or {}
    rows = [("machine", _machine(environment))]
    rows += [(key, flat_text(value)) for key in ("memory", "os") if (value := environment.get(key))]
    rows.append(("threads", str(manifest.get("threads", "unknown"))))
    versions = {"attnbench": manifest.get("attnbench_version"), **(manifest.get("versions") or {})}
    shown = [f"{name} {version}" for name, version in versions.items() if version and name not in _UNDER_THE_HOOD]
    rows.append(("versions", ", ".join(shown) or "unknown"))
    elapsed = fmt_duration(manifest.get("elapsed_s"))
    rows.append(("date", str(manifest.get("started_at_utc", "unknown")) + (f", took {elapsed}" if elapsed else "")))
    return rows


def _run_facts(manifest: Mapping[str, Any]) -> str:
    """What `machine_facts` says of a run, in a line."""
    facts = [(name, value) if name != "machine" else ("", value) for name, value in machine_facts(manifest)]
    facts.append(("command", str(manifest.get("command", "unknown"))))
    return "; ".join(f"{name} {value}".strip() for name, value in facts)


def _machine(environment: Mapping[str, Any]) -> str:
    """The processor in a few words; all that is known stands in the environment section."""
    machine = environment.get("machine")
    if not isinstance(machine, Mapping):
        return flat_text(machine or "unknown")
    words = [str(machine.get("cpu_model") or "unknown processor")]
    for key, noun in (("physical_cores", "core"), ("logical_cpus", "logical CPU")):
        if isinstance(machine.get(key), int):
            words.append(fmt_count(machine[key], noun))
    return ", ".join(
        words
        + [
            str(machine[key])
            for key in ("architecture", "hypervisor")
            if machine.get(key, "unknown") not in (None, "unknown")
        ]
    )


def flat_text(value: Any) -> str:
    """A value of the manifest in one line: mappings as `key value`, lists with commas."""
    if isinstance(value, Mapping):
        known = {key: item for key, item in value.items() if item not in (None, "", {}, [])}
        return ", ".join(
            f"{key.removesuffix('_bytes')} {fmt_bytes(item)}"
            if str(key).endswith("_bytes") and isinstance(item, int)
            else f"{key} {flat_text(item)}"
            for key, item in known.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(flat_text(item) for item in value)
    return str(value)


def wrong_answers(panels: Sequence[Panel]) -> list[dict[str, str]]:
    """Every `mismatch`: arm, problem, and each gate that it broke with the measured and the allowed value."""
    one_facet = len({panel.facet for panel in panels}) == 1
    return [
        {
            "arm": arm,
            "where": panel.title() if one_facet else f"{panel.facet.title()}: {panel.title()}",
            "x": panel.at(x),
            "gates": "; ".join(broken_gates(r)) or r.reason,
        }
        for panel in panels
        for (arm, x), r in panel.cells.items()
        if r.status == "mismatch"
    ]


def broken_gates(r: Record) -> list[str]:
    """The gates that the record fails, as `worst row 3.0e-02, allowed 2.0e-06`."""
    gates = (
        ("worst row", r.worst_row_rel_err, r.worst_row_limit),
        ("gain", r.gain_err, r.gain_limit),
        ("worst row (peaked inputs)", r.peaked_worst_row_rel_err, r.peaked_worst_row_limit),
        ("gain (peaked inputs)", r.peaked_gain_err, r.gain_limit),
    )
    broken = [
        f"{name} {fmt_error(value)}, allowed {fmt_error(limit)}"
        for name, value, limit in gates
        if value is not None and limit is not None and not value <= limit
    ]
    return broken + ([f"{r.nan_count:,} NaN"] if r.nan_count else [])


def did_not_run(panels: Sequence[Panel], manifest: Mapping[str, Any], run_dir: str = "RUN_DIR") -> list[Trouble]:
    """What has no figures and is not wrong, grouped by status, reason and way out; failures first.

    Args:
        panels: of the run.
        manifest: of the run.
        run_dir: how the run's folder is written in a command that a person could type.
    """
    groups: dict[tuple[str, str, str], list[tuple[Panel, str, int]]] = defaultdict(list)
    for panel in panels:
        for (arm, x), r in panel.cells.items():
            if r.status not in ("ok", "mismatch"):
                reason, way_out = r.reason or "no reason was recorded", _way_out(r, manifest, run_dir)
                reason = reason.partition(_TO_RESUME)[0] if "--resume" in way_out else reason
                reason = reason.removesuffix(f"; {way_out}")  # an unavailable row has it in its reason
                groups[r.status, reason, way_out].append((panel, arm, x))
    found = [
        Trouble(
            arm=fmt_list(unique(arm for _, arm, _ in members), 4), status=status, reason=reason, way_out=way_out,
            where=_where(members, panels), count=len(members),
        )
        for (status, reason, way_out), members in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda t: (t.status not in FAILED, t.status == "unavailable", t.status == "skipped"))


def _way_out(r: Record, manifest: Mapping[str, Any], run_dir: str) -> str:
    runtime = (manifest_of(manifest, r.run_id).get("runtimes") or {}).get(r.runtime) or {}
    if r.status == "unavailable":
        return str(runtime.get("fix") or "run attnbench doctor: it names what to install")
    if r.status == "skipped" and "--resume" in r.reason:
        return f"attnbench bench --resume {folder_of(manifest, r.run_id, run_dir)} with a longer --time-budget"
    return (_WAY_OUT | (_MODEL_WAY_OUT if r.model is not None else {})).get(r.status, "")


def _where(members: Sequence[tuple[Panel, str, int]], everything: Sequence[Panel]) -> str:
    """`self: T = 512, 1024; causal: all T`; part and dtype are named only when there are several facets."""
    panels = {panel.number: panel for panel, _, _ in members}
    places = {(panel.number, x) for panel, _, x in members}
    if len(everything) > 1 and places == {(panel.number, x) for panel in everything for x in panel.xs}:
        return "everywhere"
    one_facet = len({panel.facet for panel in panels.values()}) == 1
    parts = []
    for number, panel in panels.items():
        xs = sorted({x for p, _, x in members if p.number == number})
        name = panel.title() if one_facet else f"{panel.facet.part} {panel.facet.dtype} {panel.title()}"
        name += f" of {panel.facet.run}" if panel.facet.run and not one_facet else ""
        parts.append(f"{name}: {_lengths(panel, xs)}")
    return "; ".join(parts[:4]) + (f"; and {len(parts) - 4} more places" if len(parts) > 4 else "")


def _lengths(panel: Panel, xs: Sequence[int]) -> str:
    if not panel.has_x:
        return panel.at(xs[0])
    return f"all {panel.x_label}" if xs == panel.xs else f"{panel.x_label} = {span(xs)}"


def span(xs: Sequence[int], joint: str = ", ") -> str:
    """A few values in full, many as `128 to 4096 (12 values)`."""
    values = sorted(set(xs))
    return joint.join(map(str, values)) if len(values) < 7 else f"{values[0]} to {values[-1]} ({len(values)} values)"


def progress_note(records: Sequence[Record], manifest: Mapping[str, Any], run_dir: str) -> str:
    """A sentence when the run is not whole: interrupted, or with planned cases that have no record."""
    if runs := runs_of(manifest, records):
        notes = [(run.name, progress_note(run.records, run.manifest, run.folder)) for run in runs]
        return " ".join(f"{name}: {note}." for name, note in notes if note)
    planned = manifest.get("cases_planned") or len(records)
    missing = planned - len(records)
    if not manifest.get("interrupted") and missing <= 0:
        return ""
    word = "was interrupted" if manifest.get("interrupted") else "is not complete"
    text = f"This run {word}: {fmt_count(len(records), 'record')} of {fmt_count(planned, 'planned case')}."
    return text + (f" The rest follows with attnbench bench --resume {run_dir}" if missing > 0 else "")
