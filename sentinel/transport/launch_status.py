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

LAUNCHED = "SENTINEL_LAUNCHED"
"""Environment variable of whatever `sentinel run` started: the process id of the launcher."""
INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True)
class Launch:
    """One command, from its start to its end.

    `process` is the launcher's. `began` and `ended` are in seconds since the epoch, `ended` None
    while the command runs. `code` is the exit status as a shell gives it: 128 + n for signal n.
    """

    run: str
    process: Process
    command: str
    began: float
    ended: float | None = None
    code: int = 0

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than well, or by a person's interrupt."""
        return self.ended is not None and self.code not in {0, INTERRUPTED}

    @property
    def facts(self) -> dict[str, str]:
        """How it ended: `exit_code`, and `signal` where one ended it; empty before."""
        if self.ended is None:
            return {}
        name = signal_of(self.code)
        return {"exit_code": str(self.code), **({"signal": name} if name else {})}

    def over(self, code: int, now: float) -> Launch:
        """The same, ended."""
        return replace(self, ended=now, code=code)

    def write(self) -> None:
        """Leave it in the run's directory. Raises OSError."""
        path = _path(self.run)
        told = {
            "pid": self.process.pid,
            "started": self.process.started,
            "command": self.command,
            "began": self.began,
            "ended": self.ended,
            "code": self.code,
        }
        beside = path.with_name(f".{path.name}.{self.process.pid}")
        beside.write_text(json.dumps(told))
        beside.replace(path)


def read(run: str) -> Launch | None:
    """The run's newest launch; None where it was started otherwise, or nothing can be read."""
    try:
        told = json.loads(_path(run).read_text())
        return Launch(
            run,
            Process(int(told["pid"]), int(told["started"])),
            str(told["command"]),
            float(told["began"]),
            None if told["ended"] is None else float(told["ended"]),
            int(told["code"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def signal_of(code: int) -> str:
    """Name of the signal that an exit status of a shell speaks of, or nothing.

    >>> signal_of(137), signal_of(3)
    ('SIGKILL', '')
    """
    try:
        return signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        return ""


def _path(run: str) -> Path:
    return paths.run_dir(run) / "launch.json"
