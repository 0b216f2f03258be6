"""What a plan and a run look like in a terminal, as text."""

import io
import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.records import FAILED, Record

if TYPE_CHECKING:
    from attnbench.api import Run
    from attnbench.sweep.plan import Plan


def plan_text(plan: "Plan", *, width: int) -> str:
    """Cases, predicted time by phase, predicted memory, in at most `width` columns."""
    problems = [group.problem for group in plan.groups]
    found = (p.kv_len if p.variant == "decode" else p.q_len for p in problems)
    lengths = ", ".join(map(str, sorted({length for length in found if length is not None})))
    of_model = any(p.part == "model" for p in problems)
    least = "at least " if of_model else ""  # what a call of it holds is not known
    lines = [
        f"{_count(plan.case_count, 'case')}: {_count(len(problems), 'problem')} "
        + (f"(T = {lengths}) " if lengths else "")
        + f"x {_count(len(plan.arms), 'arm')}, {_count(plan.threads, 'thread')} each",
        *(f"  {arm}" for arm in plan.arms),
        f"predicted time {_minutes(plan.total_s)}{_budget(plan)}" + (", a guess for a model" if of_model else ""),
        *(f"  {_minutes(seconds):>6}  {phase}" for phase, seconds in plan.split().items()),
        f"predicted memory {least}{_gib(plan.peak_memory_bytes)} of {_gib(plan.available_bytes)} free",
        *(f"note: {notice}" for notice in plan.notices),
    ]
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


def plan_as_dict(plan: "Plan") -> dict[str, Any]:
    """The same for JSON."""
    return {
        "sweep": plan.sweep.model_dump(mode="json"),
        "threads": plan.threads,
        "arms": list(plan.arms),
        "problems": [group.problem.as_dict() for group in plan.groups],
        "cases": plan.case_count,
        "predicted_s": plan.split(),
        "predicted_total_s": plan.total_s,
        "predicted_memory_bytes": plan.peak_memory_bytes,
        "available_memory_bytes": plan.available_bytes,
        "notices": list(plan.notices),
    }


def run_as_dict(run: "Run") -> dict[str, Any]:
    """What a script needs to go on with a run."""
    return {
        "run_dir": str(run.path),
        "report": str(run.path / "report.html"),
        "exit_code": run.exit_code,
        "statuses": dict(_statuses(run)),
        "notices": run.notices,
    }


def run_text(run: "Run", *, width: int, color: bool, encoding: str) -> str:
    """The table of who is right, fast and small at which T, then how many cases ended how, and where the report is.

    Args:
        run: a finished run.
        width: columns to keep to.
        color: with terminal colours.
        encoding: of the stream that the text goes to; what it cannot hold is drawn in ASCII.
    """
    from rich.console import Console

    from attnbench.report.terminal import summary

    page = _Page(encoding)
    console = Console(
        file=page, width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    console.print(summary(run.rows, run.manifest, width, shlex.quote(str(run.path))))
    counts = ", ".join(f"{count} {status}" for status, count in _statuses(run).items()) or "none"
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    lines += [f"cases: {counts}", *(f"note: {notice}" for notice in run.notices)]
    lines.append(
        f"report: {run.path / 'report.html'}" if run.is_reported else f"no report in {run.path}: see the notes"
    )
    return "\n".join(lines)


def exit_sentence(run: "Run") -> str:
    """Why the exit code is 1 or 3, in one sentence; empty for 0 and for an interrupt."""
    sweep = run.manifest.get("sweep") or {}
    if run.exit_code == 3:
        named = run.missing
        why = f"{named[0].runtime} was asked for and is unavailable" if named else "nothing was measured"
        return f"{why}: {_reasons(named or run.rows)}"
    if run.exit_code != 1:
        return ""
    if not run.is_reported:
        return f"no report in {run.path}: {'; '.join(run.notices) or 'it could not be written'}"
    failed = Counter(r.status for r in run.rows if r.status in FAILED)
    if failed:
        words = ", ".join(f"{count} {status}" for status, count in failed.items())
        return f"{_count(failed.total(), 'case')} failed: {words}; see {run.path / 'report.html'}"
    unmet = [r for r in run.rows if r.status != "ok" and {r.arm, r.runtime} & set(sweep.get("require", ()))]
    return f"{', '.join(dict.fromkeys(r.arm for r in unmet))} is required and not ok: {_reasons(unmet)}"


def _reasons(rows: Sequence[Record]) -> str:
    """The most frequent status and reason, and how many others there are."""
    if not rows:
        return "no case has ended"
    counts = Counter((r.status, r.reason or "no reason was recorded") for r in rows)
    (status, reason), count = counts.most_common(1)[0]
    others = f" (and {len(counts) - 1} other reasons)" if len(counts) > 2 else " (and 1 other reason)"
    return f"{_count(count, 'case')} {status}: {reason}" + others * (len(counts) > 1)


class _Page(io.StringIO):
    """A text buffer that tells rich which encoding its text will be written in."""

    encoding = "ascii"

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.encoding = encoding


def _statuses(run: "Run") -> Mapping[str, int]:
    return Counter(row.status for row in run.rows)


def _budget(plan: "Plan") -> str:
    budget_s = plan.sweep.time_budget_s
    return ", no budget" if budget_s is None else f" of a budget of {_minutes(budget_s)}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def _gib(size_bytes: int | None) -> str:
    return "an unknown amount" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"
