"""Advice in words: which arm for which request, one arm for all, profiles for compiled engines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attnbench.analysis.choice import Advice, Decision, Limits
from attnbench.analysis.laws import Estimate
from attnbench.analysis.profiles import Partition, recommended
from attnbench.report.sections import Section, Table
from attnbench.report.text import fmt_bytes, fmt_count, fmt_error, fmt_list, fmt_ms, fmt_number, fmt_percent, unique

MAX_ROWS = 40  # of a table; JSON has all


def advice_section(
    advices: Sequence[Advice], limits: Limits, profiles: Mapping[str, Sequence[Partition]], *, has_workload: bool
) -> Section:
    """The section of the report, and what the terminal shows.

    Args:
        advices: one per variant.
        limits: that were given.
        profiles: name of an advice to its partitions; none without a workload.
        has_workload: False: every measured size counts once.
    """
    lines, tables = [], []
    for advice in advices:
        lines += [f"{advice.name}: {text}" for text in _summary(advice)]
        tables.append(_decisions_table(advice))
        if advice.policies:
            tables.append(_policies_table(advice))
        if profiles.get(advice.name):
            tables.append(_profiles_table(advice.name, profiles[advice.name]))
    source = "Every request of the workload" if has_workload else "No workload given: every measured size once"
    intro = (
        f"{source}{_limits_text(limits)}. Figures are measured where the length was; ~ is the law's, * the law's "
        "beyond the measured lengths. Arms whose order is not shown there are a toss-up: more is asked of a "
        "difference than for the fastest at one T, so that there are more of them. Memory is above the loaded and "
        "bound model. Names leave out onnx-."
    )
    return Section(id="advice", title="Which arm to take", intro=intro, lines=lines, tables=tables)


def _limits_text(limits: Limits) -> str:
    given = [
        text
        for value, text in (
            (limits.latency_ms, f"latency at most {fmt_ms(limits.latency_ms)}"),
            (limits.memory_bytes, f"memory at most {fmt_bytes(limits.memory_bytes)}"),
            (limits.error, f"error at most {fmt_error(limits.error)}"),
        )
        if value is not None
    ]
    return f", with {fmt_list(given)} at the upper end of the interval" if given else ""


def _summary(advice: Advice) -> list[str]:
    """The answer in a sentence or two."""
    unserved = [d for d in advice.decisions if d.chosen is None]
    said = []
    for reason in unique(d.reason for d in unserved):
        sizes = [_size(d) for d in unserved if d.reason == reason]
        said.append(f"{fmt_count(len(sizes), 'size')} cannot be served ({fmt_list(sizes, 5)}): {reason}.")
    if advice.policies and advice.mixed_ms is not None:
        best = advice.policies[0]
        said.append(
            f"one arm for all: {_short(best.candidate)}, {_interval(best.latency_ms)} ms a request on average; "
            f"each request by its fastest arm: {_interval(advice.mixed_ms)} ms."
        )
    elif not unserved:
        said.append("no single arm can serve every size within the limits.")
    return said


def _size(decision: Decision) -> str:
    return f"batch {decision.requests.batch_size}, T = {decision.requests.seq_len}"


def _interval(estimate: Estimate | None) -> str:
    """`23.4 (22.9-23.9)`."""
    if estimate is None:
        return ""
    low, mid, high = (fmt_number(v) for v in estimate)
    return f"{mid} ({low}-{high})"


_MARKS = {"measured": "", "law": " ~", "extrapolated": " *"}


def _decisions_table(advice: Advice) -> Table:
    rows = []
    several = len({d.requests.batch_size for d in advice.decisions}) > 1
    for decision in advice.decisions[:MAX_ROWS]:
        r = decision.requests
        size = [f"{r.batch_size} x {r.seq_len:,}" if several else f"{r.seq_len:,}", f"{r.number:g}"]
        if decision.chosen is None:
            rows.append([*size, "none", "", "", ""])
            continue
        option = decision.option(decision.chosen)
        memory = "" if option.memory_bytes is None else fmt_bytes(option.memory_bytes.mid)
        latency = _interval(option.latency_ms) + _MARKS[option.by]
        rivals = fmt_list([_short(name) for name in decision.toss_up], 1)
        rows.append([*size, _short(decision.chosen), latency, memory, rivals])
    left_out = len(advice.decisions) - MAX_ROWS
    caption = advice.name + (f" (the first {MAX_ROWS}; --json has {left_out} more)" if left_out > 0 else "")
    head = ("batch x T" if several else "T", "count", "arm", "ms", "memory", "toss-up with")
    return Table(caption=caption, head=head, rows=rows)


def _short(candidate: str) -> str:
    return candidate.removeprefix("onnx-")


def _policies_table(advice: Advice) -> Table:
    rows = [
        [
            _short(p.candidate), _interval(p.latency_ms), fmt_bytes(p.memory_bytes), fmt_error(p.error),
            "yes" if p.is_optimal else "",
        ]
        for p in advice.policies
    ]  # fmt: skip
    head = ("arm", "mean ms", "most memory", "most error", "Pareto")
    return Table(caption=f"{advice.name}: one arm for every request", head=head, rows=rows)


def _profiles_table(name: str, found: Sequence[Partition]) -> Table:
    best = recommended(found)
    rows = [
        [
            str(len(p.profiles)), ", ".join(f"[{r.minimum}, {r.opt}, {r.maximum}]" for r in p.profiles),
            fmt_percent(p.padding), fmt_percent(p.switching), "recommended" if p is best else "",
        ]
        for p in found
    ]  # fmt: skip
    head = ("profiles", "[min, opt, max] of T", "padding", "switching", "")
    return Table(caption=f"{name}: profiles for a compiled engine, padded to their max", head=head, rows=rows)


def advice_as_dict(advices: Sequence[Advice], profiles: Mapping[str, Sequence[Partition]]) -> dict[str, Any]:
    """All of it, for JSON."""
    return {
        "advice": [
            {**asdict(a), "decisions": [_decision_as_dict(d) for d in a.decisions]}
            | {"profiles": [asdict(p) for p in profiles.get(a.name, ())]}
            for a in advices
        ]
    }


def _decision_as_dict(decision: Decision) -> dict[str, Any]:
    r = decision.requests
    return {
        "batch_size": r.batch_size, "seq_len": r.seq_len, "count": r.number, "chosen": decision.chosen,
        "toss_up": list(decision.toss_up), "reason": decision.reason, "options": [asdict(o) for o in decision.options],
    }  # fmt: skip
