"""How options of the commands are declared: one look, one set of help panels."""

from typing import Annotated, Any

import typer
import typer.core

MACHINE, INSTRUMENT, RUN, DECIDE = "Is my machine right", "Is the instrument right", "Run", "From rows to decisions"
WHAT, HOW, WHERE = "What is compared", "How it is run", "Where it goes"

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.", metavar="")]
Lists = list[str] | None


def listed(*names: str, help: str, panel: str = WHAT, default: str = "") -> Any:
    """A flag that takes several values."""
    return single(*names, help=help, metavar="A,B,...", panel=panel, default=default)


def repeated(*names: str, help: str, metavar: str, panel: str) -> Any:
    """A flag that is given once for each value."""
    return single(*names, help=help, metavar=metavar, panel=panel)


def single(*names: str, help: str, metavar: str, panel: str = HOW, default: str = "") -> Any:
    """A flag that takes one value; `default` is what holds without it, in words."""
    told = rf"{help} [dim]\[default: {default}][/dim]" if default else help
    return typer.Option(*names, help=told, metavar=metavar, rich_help_panel=panel, show_default=False)


def switch(*names: str, help: str, panel: str = HOW) -> Any:
    """A flag without a value."""
    return typer.Option(*names, help=help, metavar="", rich_help_panel=panel, show_default=False)


class PlainHelp(typer.core.TyperCommand):
    """A command whose `--help` is listed without `<bool>` behind it."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option, with nothing where other options name their value."""
        return _without_value(super().get_help_option(ctx))


class PlainHelpGroup(typer.core.TyperGroup):
    """The same for the program itself."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option, with nothing where other options name their value."""
        return _without_value(super().get_help_option(ctx))


def _without_value(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
