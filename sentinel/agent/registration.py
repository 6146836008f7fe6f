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
from sentinel.transport.run_lock import is_lock_held

WILDCARD_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
"""Addresses to listen at that nobody can connect to: the node's name is told instead."""


MAX_LOCK_ATTEMPTS, LOCK_RETRY_SECONDS = 5, 0.02
"""How often, and how many seconds apart, the lock is tried."""


class AlreadyServedError(RuntimeError):
    """Another agent serves the run."""


@dataclass
class AgentRegistration:
    """The claim of this process on a run: `agent.lock`, `agent.json` and a Prometheus target.

    `directory` is the run's, `targets` the folder that Prometheus's file discovery reads.
    """

    run: str
    run_directory: Path
    targets_directory: Path
    _lock_fd: int = field(default=-1, init=False)

    def acquire(self) -> None:
        """Take the run over. Raises AlreadyServedError, naming the process that has it.

        The kernel gives the lock back when its owner dies, however it dies.
        """
        lock = self.run_directory / "agent.lock"
        self._lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not self._try_lock():
            owner = os.read(self._lock_fd, 32).decode(errors="replace").strip()
            os.close(self._lock_fd)
            self._lock_fd = -1
            raise AlreadyServedError(f"Run {self.run} is served by process {owner}.")
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, str(os.getpid()).encode(), 0)

    def _try_lock(self) -> bool:
        # Somebody who only asks whether the run is served holds the lock for a moment too.
        for _ in range(MAX_LOCK_ATTEMPTS):
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_RETRY_SECONDS)
            else:
                return True
        return False

    def register(self, host: str, port: int) -> str:
        """Write where the agent listens; return its address as others can reach it."""
        host = socket.gethostname() if host in WILDCARD_ADDRESSES else host
        url = f"http://{host}:{port}"
        node = os.uname().nodename
        told = {"run": self.run, "node": node, "pid": os.getpid(), "port": port, "url": url}
        self._remove_stale_targets()
        _write_json_atomically(self.run_directory / "agent.json", told)
        _write_json_atomically(self._target_path, [{"targets": [f"{host}:{port}"], "labels": {}}])
        return url

    def write_outcome(self, stop_record: Record) -> None:
        """Write `outcome.json`: how the run ended, at which step, and by which ranks."""
        told = {
            "run": self.run,
            "step": stop_record.step,
            "time": stop_record.time,
            "attempt": stop_record.attempt,
        }
        _write_json_atomically(
            self.run_directory / "outcome.json", {**told, **stop_record.attributes}
        )

    def release(self) -> None:
        """Take the target away, so that nobody asks an agent that is no more, and let go."""
        self._target_path.unlink(missing_ok=True)
        (self.run_directory / "agent.json").unlink(missing_ok=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _remove_stale_targets(self) -> None:
        """Take away the targets of agents that were killed: their ports may be ours by now."""
        for target in self.targets_directory.glob("*.json"):
            lock = self.run_directory.parent / target.stem / "agent.lock"
            if target != self._target_path and not is_lock_held(lock):
                target.unlink(missing_ok=True)

    @property
    def _target_path(self) -> Path:
        return self.targets_directory / f"{self.run}.json"


def _write_json_atomically(path: Path, content: Any) -> None:
    """Replace the file in one piece: a reader sees the old one or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(content))
    beside.replace(path)
