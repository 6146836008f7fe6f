"""Presence: one agent per run and node, and the files by which others find it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.model.record import Record
from sentinel.transport.run_lock import held

EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
"""Addresses to listen at that nobody can connect to: the node's name is told instead."""


ATTEMPTS, PAUSE = 5, 0.02
"""How often, and how many seconds apart, the lock is tried."""


class AlreadyServedError(RuntimeError):
    """Another agent serves the run."""


@dataclass
class Presence:
    """The claim of this process on a run: `agent.lock`, `agent.json` and a Prometheus target.

    `directory` is the run's, `targets` the folder that Prometheus's file discovery reads.
    """

    run: str
    directory: Path
    targets: Path
    _lock: int = field(default=-1, init=False)

    def claim(self) -> None:
        """Take the run over. Raises AlreadyServedError, naming the process that has it.

        The kernel gives the lock back when its owner dies, however it dies.
        """
        lock = self.directory / "agent.lock"
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not self._locked():
            owner = os.read(self._lock, 32).decode(errors="replace").strip()
            os.close(self._lock)
            self._lock = -1
            raise AlreadyServedError(f"Run {self.run} is served by process {owner}.")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _locked(self) -> bool:
        # Somebody who only asks whether the run is served holds the lock for a moment too.
        for _ in range(ATTEMPTS):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(PAUSE)
            else:
                return True
        return False

    def announce(self, host: str, port: int) -> str:
        """Write where the agent listens; return its address as others can reach it."""
        host = socket.gethostname() if host in EVERY_ADDRESS else host
        url = f"http://{host}:{port}"
        node = os.uname().nodename
        told = {"run": self.run, "node": node, "pid": os.getpid(), "port": port, "url": url}
        self._sweep()
        _write(self.directory / "agent.json", told)
        _write(self._target, [{"targets": [f"{host}:{port}"], "labels": {}}])
        return url

    def conclude(self, last: Record) -> None:
        """Write `outcome.json`: how the run ended, at which step, and by which ranks."""
        told = {"run": self.run, "step": last.step, "time": last.time, "attempt": last.attempt}
        _write(self.directory / "outcome.json", {**told, **last.facts})

    def withdraw(self) -> None:
        """Take the target away, so that nobody asks an agent that is no more, and let go."""
        self._target.unlink(missing_ok=True)
        (self.directory / "agent.json").unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _sweep(self) -> None:
        """Take away the targets of agents that were killed: their ports may be ours by now."""
        for target in self.targets.glob("*.json"):
            lock = self.directory.parent / target.stem / "agent.lock"
            if target != self._target and not held(lock):
                target.unlink(missing_ok=True)

    @property
    def _target(self) -> Path:
        return self.targets / f"{self.run}.json"


def _write(path: Path, content: Any) -> None:
    """Replace the file in one piece: a reader sees the old one or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(content))
    beside.replace(path)
