"""The `sentinel` command line: loads the subcommands from the modules of this package."""

from __future__ import annotations

import io
import sys

import typer

from sentinel import __version__
from sentinel.config import plugins

app = typer.Typer(
    name="sentinel",
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


for _name, _module in plugins.load_modules("cli").items():
    if _name == "main":
        continue
    if hasattr(_module, "app"):
        app.add_typer(_module.app, name=_name)
    else:
        _context = getattr(_module, "CONTEXT", None)
        app.command(_name, context_settings=_context)(getattr(_module, _name))
