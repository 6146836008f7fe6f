"""What all commands have in common."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
import typer

from sentinel.cli.main import app

HEAVY = {"numpy", "torch", "requests", "ruptures", "starlette", "sentinel.config.settings"}
"""Modules that take longer to import than a shell may wait for a completion."""

SERVICES = {"agent", "mcp", "run", "serve"}
"""Commands that run until they are stopped, and print the output of others or an address."""

CODE = f"""
import sys
sys.argv[0] = "sentinel"
from sentinel.cli.main import app
try:
    app()
finally:
    print(*sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""


def commands():
    root = typer.main.get_command(app)
    for name in root.list_commands(None):
        command = root.get_command(None, name)
        if isinstance(command, click.Group) or hasattr(command, "commands"):
            yield from ((f"{name} {each}", sub) for each, sub in command.commands.items())
        else:
            yield name, command


@pytest.mark.parametrize(("name", "command"), [*commands()], ids=lambda each: f"{each}"[:30])
def test_a_command_prints_json_and_documents_its_exit_status(name, command):
    options = {option for parameter in command.params for option in parameter.opts}

    assert name in SERVICES or "--json" in options
    assert "Exit status:" in command.help


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["--help"], {}, "replay"),
        (["ack", "--help"], {}, "--revoke"),
        (
            [],
            {
                "_SENTINEL_COMPLETE": "complete_bash",
                "COMP_WORDS": "sentinel ack gr",
                "COMP_CWORD": "2",
            },
            "grpo-1",
        ),
    ],
)
def test_help_and_completion_import_nothing_heavy(tmp_path, arguments, environ, expected):
    (tmp_path / "runs" / "grpo-1").mkdir(parents=True)
    homes = {"SENTINEL_HOME": str(tmp_path), "SENTINEL_RUNTIME_DIR": str(tmp_path / "runtime")}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        env={**os.environ, **homes, **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert expected in done.stdout
    assert not done.stderr.strip()
