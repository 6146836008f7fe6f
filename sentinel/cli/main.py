"""The `sentinel` command line: finds the subcommands among the modules of this package."""

from __future__ import annotations

import io
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from sentinel import __version__
from sentinel.config import plugins


class CommandGroup(TyperGroup):
    """Imports the module of a subcommand when that is looked up."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all subcommands."""
        del ctx
        return [name for name in plugins.module_names("cli") if name != "main"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The subcommand; None if there is none of that name."""
        names = self.list_commands(ctx)
        # The message about an unknown name suggests one of all.
        for name in [cmd_name] if cmd_name in names else names:
            if name not in self.commands:
                self.commands[name] = _load_command(name)
        return self.commands.get(cmd_name)


def _load_command(name: str) -> Any:
    """The subcommand of the module `name`: its `app`, or its function of that name."""
    module = plugins.load_module("cli", name)
    loaded = typer.Typer()
    # With a callback, this is a group also of one command.
    loaded.callback()(sentinel)
    if hasattr(module, "app"):
        loaded.add_typer(module.app, name=name)
    else:
        context = getattr(module, "CONTEXT", None)
        loaded.command(name, context_settings=context)(getattr(module, name))
    return typer.main.get_group(loaded).commands[name]


app = typer.Typer(
    name="sentinel",
    cls=CommandGroup,
    help="Training-health monitor for PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"sentinel {__version__}")
        raise typer.Exit


@app.callback()
def sentinel(
    version: bool = typer.Option(  # noqa: ARG001 - its callback prints it
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    """Monitor PyTorch training and notify the right person with a diagnosis."""
    # A terminal without Unicode shows a question mark in place of a character, not an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
