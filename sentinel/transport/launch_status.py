"""Launch: what `sentinel run` leaves beside a run: that a command was started, and how it ended.

It is one small file in the run's directory, replaced in one piece. The agent reads it, so that a
command that fails before any rank began is told of, and a death can be named by its signal.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from sentinel.transport import paths
from sentinel.transport.process import Process

LAUNCHER_PID_VARIABLE = "SENTINEL_LAUNCHED"
"""Environment variable of whatever `sentinel run` started: the process id of the launcher."""
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True)
class LaunchStatus:
    """One command, from its start to its end.

    `process` is the launcher's. `began` and `ended` are in seconds since the epoch, `ended` None
    while the command runs. `code` is the exit status as a shell gives it: 128 + n for signal n.
    """

    run: str
    launcher: Process
    command: str
    started_at: float
    ended_at: float | None = None
    exit_code: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether it ended otherwise than well, or by a person's interrupt."""
        return self.ended_at is not None and self.exit_code not in {0, INTERRUPTED_EXIT_CODE}

    @property
    def exit_attributes(self) -> dict[str, str]:
        """How it ended: `exit_code`, and `signal` where one ended it; empty before."""
        if self.ended_at is None:
            return {}
        name = signal_name(self.exit_code)
        return {"exit_code": str(self.exit_code), **({"signal": name} if name else {})}

    def with_exit(self, exit_code: int, ended_at: float) -> LaunchStatus:
        """The same, ended."""
        return replace(self, ended_at=ended_at, exit_code=exit_code)

    def write(self) -> None:
        """Leave it in the run's directory. Raises OSError."""
        path = _status_path(self.run)
        told = {
            "pid": self.launcher.pid,
            "started": self.launcher.start_ticks,
            "command": self.command,
            "began": self.started_at,
            "ended": self.ended_at,
            "code": self.exit_code,
        }
        beside = path.with_name(f".{path.name}.{self.launcher.pid}")
        beside.write_text(json.dumps(told))
        beside.replace(path)


def read_launch_status(run: str) -> LaunchStatus | None:
    """The run's newest launch; None where it was started otherwise, or nothing can be read."""
    try:
        told = json.loads(_status_path(run).read_text())
        return LaunchStatus(
            run,
            Process(int(told["pid"]), int(told["started"])),
            str(told["command"]),
            float(told["began"]),
            None if told["ended"] is None else float(told["ended"]),
            int(told["code"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def signal_name(exit_code: int) -> str:
    """Name of the signal that an exit status of a shell speaks of, or nothing.

    >>> signal_of(137), signal_of(3)
    ('SIGKILL', '')
    """
    try:
        return signal.Signals(exit_code - 128).name if exit_code > 128 else ""
    except ValueError:
        return ""


def _status_path(run: str) -> Path:
    return paths.run_dir(run) / "launch.json"
