"""A section of the page as data: what it says, in words and tables. The template draws it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text. The first cell of a row names the row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    panel: int | None = None  # position of the chart that it belongs to: the page's filter hides it with the chart


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section: an introduction, lines that state one thing each, then tables."""

    id: str  # unique in the page; the target of links
    title: str
    intro: str = ""
    lines: Sequence[str] = ()
    tables: Sequence[Table] = ()
    picture: str = ""  # a file of plots/ without its ending
    svg: str = ""  # the same, drawn in the page
