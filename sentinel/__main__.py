"""The command `sentinel`, also as `python -m sentinel`.

Each training starts `run` and `agent`. Their usual command lines are parsed here, since typer takes
longer to import than all of `run`; any other command line is left to it. A command is imported only
if it is called.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Collection
from pathlib import Path

COMPLETION_VARIABLE = "_SENTINEL_COMPLETE"
"""Set by a shell that completes a command line."""
STARTERS = ("run", "preflight")
"""Commands that start a program of the user, which inherits the environment."""
OBJECTS_PER_COLLECTION = 20_000
"""New objects after which the garbage collector runs. With the 700 of Python it takes a tenth of
the time in which modules are imported, and a sixth of that of a head of 16,384 ranks: their objects
are in no cycles."""


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    gc.set_threshold(OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    # The collection at the end of a process takes a sixth of a short command, and frees nothing
    # that the system does not.
    atexit.register(gc.freeze)
    command, *arguments = sys.argv[1:] or [""]
    names = {"run": ("--run", "--config"), "agent": ("--run",)}.get(command, ())
    parsed = split_options(arguments, names) if names else None
    if parsed is not None and COMPLETION_VARIABLE not in os.environ:
        options, words = parsed
        if command == "run" and words:
            from sentinel.agent.command_runner import run_command  # noqa: PLC0415

            config = Path(options["--config"]) if "--config" in options else None
            sys.exit(run_command(words, options.get("--run"), config))
        if command == "agent" and options and not words:
            _use_no_pydantic_plugins()
            from sentinel.cli._agent_service import serve_run  # noqa: PLC0415

            sys.exit(serve_run(options["--run"], os.environ))
    if command not in STARTERS:
        _use_no_pydantic_plugins()
    from sentinel.cli.main import app  # noqa: PLC0415

    sys.exit(app())


def _use_no_pydantic_plugins() -> None:
    """Let pydantic look for no plug-ins, for which it reads a file of every installed package."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def split_options(
    arguments: list[str], names: Collection[str]
) -> tuple[dict[str, str], list[str]] | None:
    """The options at the beginning, with their values, and the words behind them.

    `--` may stand between them. None if there is any other option.

    >>> split_options(["--run", "sft", "--", "python", "-c", "pass"], {"--run"})
    ({'--run': 'sft'}, ['python', '-c', 'pass'])
    """
    options: dict[str, str] = {}
    words = list(arguments)
    while len(words) > 1 and words[0] in names:
        options[words[0]] = words[1]
        del words[:2]
    if words[:1] == ["--"]:
        return options, words[1:]
    return None if words and words[0].startswith("-") else (options, words)


if __name__ == "__main__":
    main()
