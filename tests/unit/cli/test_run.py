"""`sentinel run`, before it starts the command."""

import errno
from pathlib import Path

from typer.testing import CliRunner

from sentinel.agent.command_runner import EXIT_NOT_EXECUTABLE, CommandRunner
from sentinel.cli.main import app


def test_a_command_in_a_folder_without_permission_cannot_be_executed(monkeypatch):
    """Python 3.11 raises where the path of the command may not be searched."""

    def stat(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    started = []

    def run(self):
        started.append(self)
        return EXIT_NOT_EXECUTABLE

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(CommandRunner, "run", run)
    result = CliRunner().invoke(app, ["run", "--", "/closed/python", "train.py"])

    assert result.exit_code == EXIT_NOT_EXECUTABLE
    assert len(started) == 1
