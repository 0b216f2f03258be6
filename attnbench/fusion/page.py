"""The matrix as one offline page: the tables, what differs, what is refused and why."""

import html
from collections.abc import Sequence
from pathlib import Path

from attnbench import report
from attnbench.fusion import text
from attnbench.fusion.matrix import Matrix
from attnbench.fusion.questions import Question
from attnbench.fusion.verdicts import FAILED, FUSED, REFUSED, UNFUSED, UNSUPPORTED, Answer
from attnbench.report.text import fmt_bytes

_CLASS = {FUSED: "fused", UNFUSED: "unfused", REFUSED: "refused", UNSUPPORTED: "unsupported", FAILED: "failed"}
_CSS = """
.fusion td{padding:3px 7px;border:2px solid var(--card);text-align:center;border-radius:4px}
.fusion thead th{position:static;text-align:center;white-space:normal;padding:3px 5px}
.fusion thead th:first-child{text-align:left}
.fused{background:var(--f2)}.unfused{background:var(--s3);font-weight:700;color:#1c2025}
.refused{background:var(--edge)}.unsupported{background:var(--even);color:var(--muted)}.failed{background:var(--bad);color:#fff}
.key span{display:inline-block;padding:2px 8px;border-radius:4px;margin-right:8px}
@media screen and (prefers-color-scheme: dark){.unfused{color:#fff}}
"""


def matrix_page(matrix: Matrix) -> str:
    """The page; a cell tells its planned bytes on hover."""
    css = (Path(report.__file__).parent / "report.css").read_text(encoding="utf-8")
    plan = matrix.plan
    title = f"Is attention fused? {matrix.compiler}"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in matrix.counts.items())
    key = "".join(
        f'<p class=key><span class="{_CLASS[verdict]}">{text.MARKS[verdict]}</span>{text.MEANING[verdict]}</p>'
        for verdict in _CLASS if verdict in matrix.counts
    )  # fmt: skip
    if any(answer.strict == REFUSED for answer in matrix.answers):
        key += f"<p class=key><span>*</span>{text.STRICT_REFUSED}</p>"
    sections = [
        f"<section><h2>{', '.join(archs)}</h2>{_table(answers, matrix.compiler)}</section>"
        for archs, answers in text.fold(matrix)
    ]
    lists = [
        _list("The two witnesses differ", [a for a in matrix.answers if a.disagreement]),
        _list("What is refused", [a for a in matrix.answers if a.verdict == REFUSED]),
        _list("What recipes cannot write", [a for a in matrix.answers if a.verdict == UNSUPPORTED]),
        _list("What failed", [a for a in matrix.answers if a.verdict == FAILED]),
    ]
    parts = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title>",
        f'<meta name=viewport content="width=device-width,initial-scale=1"><style>{css}{_CSS}</style></head><body>',
        f"<header><h1>{html.escape(title)}</h1>",
        f"<p>Part core, 8 heads, batch 1, compiled at T = {plan.seq_len} and {2 * plan.seq_len} without a GPU. "
        f"{len(plan.questions)} questions x {len(plan.archs)} architectures: {counts}. Architectures with equal "
        "verdicts share a table.</p>", key, "</header><main>", *sections, *lists, "</main></body></html>",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def _table(answers: dict[Question, Answer], compiler: str) -> str:
    rows, columns, cells = text.axes(answers)
    head = "".join(
        f"<th scope=col>{dtype}<br>{html.escape(recipe).replace('-', '-<wbr>')}</th>" for dtype, recipe in columns
    )
    body = "".join(
        f"<tr><th scope=row>{html.escape(row)}</th>"
        f"{''.join(_cell(cells.get((row, column)), compiler) for column in columns)}</tr>"
        for row in rows
    )
    table = (
        f"<table class=fusion><thead><tr><th scope=col>question</th>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
    return f"<div class=scroll>{table}</div>"


def _cell(answer: Answer | None, compiler: str) -> str:
    if answer is None:
        return "<td></td>"
    hint = f"{answer.question.label}, {compiler}: {answer.verdict}"
    if answer.score_matrices is not None:
        short, long = (fmt_bytes(count) for count in answer.planned_activation_bytes)
        hint += f"; {short} at T = {answer.seq_lens[0]}, {long} at {answer.seq_lens[1]}"
        hint += f", grows by {answer.score_matrices:.2f} score matrices"
    for more in (answer.disagreement, text.short_words(answer.words)):
        hint += f"; {more}" if more else ""
    return f'<td class={_CLASS[answer.verdict]} title="{html.escape(hint, quote=True)}">{text.mark(answer)}</td>'


def _list(title: str, answers: Sequence[Answer]) -> str:
    if not answers:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{html.escape(text.spoken(group))}</th><td>{html.escape(said)}</td></tr>"
        for said, group in text.causes(answers).items()
    )
    return f"<section><h2>{title}</h2><div class=scroll><table><tbody>{rows}</tbody></table></div></section>"
