"""Sections in a terminal: the same lines and tables as in the page, within a number of columns."""

import io
from collections.abc import Sequence

from attnbench.report.sections import Section, Table
from attnbench.report.text import printable

_UNBROKEN = 22  # columns this narrow are not wrapped where all fit: an arm, a figure with its interval
_FOLDED = 12  # a column whose words are broken has at least this much


class _Page(io.StringIO):
    """A text buffer that tells rich which encoding its text will be written in."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream that the text goes to."""
        return self._encoding


def sections_text(sections: Sequence[Section], *, width: int, color: bool = False, encoding: str = "utf-8") -> str:
    """All sections, one after the other; what the encoding cannot hold is written with backslashes."""
    from rich.console import Console
    from rich.text import Text

    page = _Page(encoding)
    console = Console(
        file=page, width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    for i, section in enumerate(sections):
        if i:
            console.print()
        console.print(Text(_clean(section.title, encoding), style="bold"))
        for line in (section.intro, *section.lines):
            if line:
                console.print(Text(_clean(line, encoding), overflow="fold"))
        for table in section.tables:
            console.print(Text(_clean(table.caption, encoding), style="bold"))
            console.print(_rich_table(table, width, encoding, ascii_only=console.options.ascii_only))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def _widths(table: Table, width: int) -> list[int]:
    """Of every column: all of a narrow one, else its longest word; less, the widest first, where all is too much.

    rich takes from the widest whatever its words are, and breaks the names of arms.
    """
    cells = [[name, *(row[i] for row in table.rows)] for i, name in enumerate(table.head)]
    whole = [max(map(len, column)) for column in cells]
    words = [min(_UNBROKEN, max(len(word) for cell in column for word in ["", *cell.split()])) for column in cells]
    least = [full if full <= _UNBROKEN else word for full, word in zip(whole, words, strict=True)]
    for smaller in (words, [min(_FOLDED, word) for word in words]):
        for i in sorted(range(len(least)), key=lambda i: -least[i]):
            if sum(least) + 2 * len(least) > width:  # a space and a border beside each
                least[i] = min(least[i], smaller[i])
    for i in sorted(range(len(least)), key=lambda i: whole[i] - least[i]):
        left = max(0, width - sum(least) - 2 * len(least))
        least[i] += min(left, whole[i] - least[i])
    return least


def _rich_table(table: Table, width: int, encoding: str, *, ascii_only: bool) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.ASCII if ascii_only else box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name, columns in zip(table.head, _widths(table, width), strict=True):
        drawn.add_column(Text(_clean(name, encoding)), overflow="fold", width=columns)
    for row in table.rows:
        drawn.add_row(*(Text(_clean(cell, encoding), overflow="fold") for cell in row))
    return drawn


def _clean(text: str, encoding: str) -> str:
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)
