"""What the commands print: results on stdout, everything else on stderr."""

import json
import os
import shutil
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.errors import printable

if TYPE_CHECKING:
    from attnbench.api import Run


def say(text: str) -> None:
    """Print a line; a reader that has gone away, or a closed stdout, is not an error."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (stdout of what is left of this process)


def say_wrapped(text: str, *, hang: int = 2) -> None:
    """A line for people, broken at the width of their terminal; whole where a program reads it."""
    if not is_terminal():
        say(text)
        return
    lines = textwrap.wrap(text, width(), subsequent_indent=" " * hang, break_on_hyphens=False, break_long_words=False)
    say("\n".join(lines))


def note(text: str) -> None:
    """Lines on stderr, beside the results on stdout."""
    if sys.stderr is None:
        return
    with suppress(BrokenPipeError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def complain(text: str) -> None:
    """One line on stderr."""
    note("attnbench: " + printable(" ".join(text.split("\n"))))


def width() -> int:
    """Columns of the terminal; 80 without one."""
    return max(40, shutil.get_terminal_size((80, 24)).columns if is_terminal() else 80)


def is_terminal() -> bool:
    """Does stdout go to a person?"""
    return sys.stdout is not None and sys.stdout.isatty()


def encoding() -> str:
    """What stdout can hold."""
    return getattr(sys.stdout, "encoding", None) or "ascii"


def color() -> bool:
    """May text be coloured?"""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show_run(run: "Run", as_json: bool) -> None:
    """The table at the end of a bench, or what a script needs, on stdout."""
    from attnbench import terminal

    if as_json:
        say(json.dumps(terminal.run_as_dict(run), indent=2))
        return
    say(terminal.run_text(run, width=width(), color=color(), encoding=encoding()))
