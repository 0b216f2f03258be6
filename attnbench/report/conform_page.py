"""The matrix of conformance as one offline page: numbers on hover, on click and by keyboard, and without script."""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.report.conform_text import VERDICTS, counts, split

HERE = Path(__file__).parent
_WORDS = {"conforms": "ok", "differs": "differs", "refuses": "refuses", "unsupported": "–"}


def matrix_page(matrix: Mapping[str, Any], *, title: str) -> str:
    """The page."""
    cells = matrix["cells"]
    probes, own = split(cells)
    numbers = {id(cell): i for i, cell in enumerate(cells)}
    css, own_css, script = (
        (HERE / name).read_text(encoding="utf-8") for name in ("report.css", "conform.css", "conform.js")
    )
    versions = ", ".join(f"{name} {version}" for name, version in matrix["versions"].items())
    key = "".join(f'<span class="{v}">{_WORDS[v]}</span>{_KEY[v]} &nbsp; ' for v in VERDICTS)
    data = json.dumps(list(cells), ensure_ascii=False).replace("<", "\\u003c")
    notices = "".join(f"<li>{html.escape(n)}</li>" for n in matrix["notices"])
    parts = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title>",
        f'<meta name=viewport content="width=device-width,initial-scale=1"><style>{css}{own_css}</style></head><body>',
        f"<header><h1>{html.escape(title)}</h1>",
        f"<p>Probes: {counts(probes)}. Cases of the onnx package: {counts(own)}.</p>",
        f'<p class=key>{key}</p><p class=muted>{html.escape(versions)}; {matrix["seconds"]:.0f} s. Hover or move with '
        "the arrow keys for the numbers of a cell, click or Enter keeps them, Esc lets go.</p>",
        f"<ul class=alert>{notices}</ul>" if notices else "",
        "</header><main>",
        "<section><h2>What differs</h2>", _list(cells, "differs"), "</section>",
        "<section><h2>Probes</h2>", _table(probes, "arm", numbers), "</section>",
        "<section><h2>Cases of the onnx package for Attention</h2>", _table(own, "runtime", numbers), "</section>",
        "<section><h2>What is refused</h2>", _list(cells, "refuses"), "</section>",
        "<section id=cell hidden aria-live=polite><button type=button>close</button><dl class=facts></dl></section>",
        f"</main><script type=application/json id=data>{data}</script><script>{script}</script></body></html>",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


_KEY = {
    "conforms": "the right answer", "differs": "another answer", "refuses": "an error, in the library's words",
    "unsupported": "not claimed by the plug-in, or not available here",
}  # fmt: skip


def _table(cells: Sequence[Mapping[str, Any]], column: str, numbers: Mapping[int, int]) -> str:
    if not cells:
        return "<p>None were run.</p>"
    heads = list(dict.fromkeys(cell[column] for cell in cells))
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for cell in cells:
        rows.setdefault(cell["probe"], {})[cell[column]] = cell
    head = "".join(f"<th scope=col><span class=arm>{html.escape(name)}</span></th>" for name in heads)
    body = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th>{''.join(_cell(row[h], numbers[id(row[h])]) for h in heads)}</tr>"
        for name, row in rows.items()
    )
    top = f"<thead><tr><th scope=col>probe</th>{head}</tr></thead>"
    return f'<div class=scroll><table class="matrix">{top}<tbody>{body}</tbody></table></div>'


def _cell(cell: Mapping[str, Any], number: int) -> str:
    verdict = cell["verdict"]
    hint = f"{verdict}: {cell['how']}" if cell["how"] else verdict
    if cell["error"] is not None:
        hint += f"; error {cell['error']:.3g}, {cell['limit']:g} is allowed"
    if verdict == "differs" and (cell["expected"] or cell["got"]):
        hint += f"; expected {cell['expected']}, got {cell['got']}"
    if cell["words"]:
        hint += f"; its words: {cell['words']}"
    label = html.escape(f"{cell['probe']}, {cell['arm']}: {hint}", quote=True)
    shown = f'<button type=button aria-pressed=false data-i={number} aria-label="{label}" title="{label}"'
    return f"<td>{shown} class={verdict}>{_WORDS[verdict]}</button></td>"


def _list(cells: Sequence[Mapping[str, Any]], verdict: str) -> str:
    """One line per arm and cause, with the numbers of the first probe that shows it."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        if cell["verdict"] == verdict:
            found.setdefault((cell["arm"], cell["how"]), []).append(cell)
    if not found:
        return "<p>Nothing.</p>"
    rows = "".join(
        f"<tr><th scope=row>{html.escape(arm).replace('@', '<wbr>@')}</th><td>{html.escape(how)}</td>"
        f"<td>{html.escape(', '.join(c['probe'] for c in group))}</td><td>{html.escape(_numbers(group[0]))}</td></tr>"
        for (arm, how), group in found.items()
    )
    head = "<thead><tr><th>arm</th><th>how</th><th>probes</th><th>first, expected → got</th></tr></thead>"
    return f"<div class=scroll><table>{head}<tbody>{rows}</tbody></table></div>"


def _numbers(cell: Mapping[str, Any]) -> str:
    return f"{cell['expected']} → {cell['got']}" if cell["expected"] or cell["got"] else "no numbers"
