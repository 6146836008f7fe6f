"""Start and exit status of the command that `sentinel run` launched, stored in shared memory.

The file `launch.json` is replaced atomically. The agent reads it to report a command that fails
before any rank starts, and to name the signal that killed the command.
"""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sentinel.transport import paths
from sentinel.transport.process import Process
from sentinel.transport.replaced_file import replace_file

LAUNCHER_PID_VARIABLE = "SENTINEL_LAUNCHER_PID"
"""Environment variable of every process below `sentinel run`: the process id of the launcher."""
LAUNCH_STATUS_NAME = "launch.json"
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT


class LaunchStatus(NamedTuple):
    """One command, from its start to its exit.

    `launcher` is the process of `sentinel run`. `started_at` and `ended_at` are in seconds since
    the epoch; `ended_at` is None while the command runs. `exit_code` is the status as a shell
    reports it: 128 + n for signal n. `stop_signal` is the first signal to end the command that
    `sentinel run` received, at `stop_signal_at`; both are empty without one. `name` is that which
    the user gave the run, if any.
    """

    run: str
    launcher: Process
    command: str
    started_at: float
    ended_at: float | None = None
    exit_code: int = 0
    stop_signal: str = ""
    stop_signal_at: float | None = None
    name: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the command exited with an error and had not been asked to end."""
        return (
            self.ended_at is not None
            and self.exit_code not in {0, INTERRUPTED_EXIT_CODE}
            and not self.stop_signal
        )

    @property
    def exit_attributes(self) -> dict[str, str]:
        """`exit_code`, and `signal` if one killed the command; empty while it runs."""
        if self.ended_at is None:
            return {}
        name = signal_name(self.exit_code)
        return {"exit_code": str(self.exit_code), **({"signal": name} if name else {})}

    def with_exit(self, exit_code: int, ended_at: float) -> LaunchStatus:
        """A copy with the command's exit."""
        return self._replace(ended_at=ended_at, exit_code=exit_code)

    def with_stop_signal(self, name: str, received_at: float) -> LaunchStatus:
        """A copy with that signal, unless it has one."""
        if self.stop_signal:
            return self
        return self._replace(stop_signal=name, stop_signal_at=received_at)

    def write(self) -> None:
        """Replace the status file of the run. Raises OSError."""
        path = _status_path(self.run)
        fields = {
            "pid": self.launcher.pid,
            "start_ticks": self.launcher.start_ticks,
            "command": self.command,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "exit_code": self.exit_code,
            "stop_signal": self.stop_signal,
            "stop_signal_at": self.stop_signal_at,
            "name": self.name,
        }
        replace_file(path, json.dumps(fields).encode())

    def remove(self) -> None:
        """Remove the status file, and the directory of a run that has no other file."""
        path = _status_path(self.run)
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()


def read_launch_status(run: str) -> LaunchStatus | None:
    """The run's newest launch; None without one or if it is unreadable."""
    try:
        # Read four times a second: `ring_dir` would check and create the directory each time.
        path = paths.shared_run_dir(run) / LAUNCH_STATUS_NAME
        fields = json.loads(path.read_text())
        stop_signal_at = fields.get("stop_signal_at")
        return LaunchStatus(
            run,
            Process(int(fields["pid"]), int(fields["start_ticks"])),
            str(fields["command"]),
            float(fields["started_at"]),
            None if fields["ended_at"] is None else float(fields["ended_at"]),
            int(fields["exit_code"]),
            str(fields.get("stop_signal", "")),
            None if stop_signal_at is None else float(stop_signal_at),
            str(fields.get("name", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove_launch_files(run: str) -> None:
    """Remove what `sentinel run` and agents of a dead run left beside its rings, once it has none.

    An agent that still reads a ring needs the exit status, and the keys of what was sent. The
    status of a launcher that runs stays. Raises OSError.
    """
    if paths.list_rings(run):
        return
    launch, directory = read_launch_status(run), paths.shared_run_dir(run)
    if launch is None or not launch.launcher.is_alive():
        (directory / LAUNCH_STATUS_NAME).unlink(missing_ok=True)
    names = (paths.START_LOG_NAME, paths.SENT_LOG_NAME, paths.SETTLED_NAME, paths.HOME_RINGS_NAME)
    for name in names:
        (directory / name).unlink(missing_ok=True)


def signal_name(exit_code: int) -> str:
    """Name of the signal that a shell's exit status stands for, or "".

    >>> signal_name(137), signal_name(3)
    ('SIGKILL', '')
    """
    try:
        return signal.Signals(exit_code - 128).name if exit_code > 128 else ""
    except ValueError:
        return ""


def _status_path(run: str) -> Path:
    return paths.ring_dir(run) / LAUNCH_STATUS_NAME
