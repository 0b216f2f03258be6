"""How options of the commands are declared: one look, one set of help panels."""

from typing import Annotated, Any

import typer

MACHINE, INSTRUMENT, RUN, DECIDE = "Is my machine right", "Is the instrument right", "Run", "From rows to decisions"
WHAT, HOW, WHERE = "What is compared", "How it is run", "Where it goes"

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Lists = list[str] | None


def listed(*names: str, help: str, panel: str = WHAT) -> Any:
    """A flag that takes several values."""
    return typer.Option(*names, help=help, metavar="A,B,...", rich_help_panel=panel, show_default=False)


def single(*names: str, help: str, metavar: str, panel: str = HOW) -> Any:
    """A flag that takes one value."""
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


def switch(*names: str, help: str, panel: str = HOW) -> Any:
    """A flag without a value."""
    return typer.Option(*names, help=help, rich_help_panel=panel)
