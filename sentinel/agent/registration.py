"""Registration of the one agent per run and node: its locks, and the files others find it by."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.model.record import Record
from sentinel.transport.paths import AGENT_LOCK, is_agent_running, ring_dir

WILDCARD_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
"""Addresses to listen at that no client can connect to; the URL has the node's name instead."""

MAX_LOCK_ATTEMPTS = 5
LOCK_RETRY_SECONDS = 0.02


class AlreadyServedError(RuntimeError):
    """Another agent serves the run."""


@dataclass
class AgentRegistration:
    """Registration of this process for a run: `agent.lock`, `agent.json`, a Prometheus target.

    The lock in shared memory is that of this node; trainers look there. The one in the run
    directory excludes agents of other nodes with the same home directory. Prometheus reads
    `targets_directory` by its file discovery.
    """

    run: str
    run_directory: Path
    targets_directory: Path
    _lock_fds: dict[Path, int] = field(default_factory=dict, init=False)

    def acquire(self) -> None:
        """Lock the run. Raises AlreadyServedError with the process id of another agent.

        The kernel releases the locks when their owner dies.
        """
        try:
            for directory in (ring_dir(self.run), self.run_directory):
                if directory not in self._lock_fds:
                    self._lock_fds[directory] = self._lock(directory / AGENT_LOCK)
        except BaseException:
            self._unlock()
            raise

    def _lock(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        # `is_agent_running` in another process holds the lock briefly, and an agent that ends
        # removes the file.
        for _ in range(MAX_LOCK_ATTEMPTS):
            descriptor = os.open(path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                    return descriptor
            except BlockingIOError:
                owner = os.read(descriptor, 32).decode(errors="replace").strip()
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(LOCK_RETRY_SECONDS)
        raise AlreadyServedError(f"Run {self.run} is served by process {owner}.")

    def _unlock(self) -> None:
        while self._lock_fds:
            os.close(self._lock_fds.popitem()[1])

    def register(
        self, host: str, port: int, token: str = "", certificate_file: Path | None = None
    ) -> str:
        """Write the registration files; return the URL at which other nodes reach the agent.

        `token` lets other processes of this user ask the agent. With a certificate, which they
        expect it to have, the agent is reached over HTTPS.
        """
        host = socket.gethostname() if host in WILDCARD_ADDRESSES else host
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        scheme = "http" if certificate_file is None else "https"
        url = f"{scheme}://{address}"
        node = os.uname().nodename
        registration = {"run": self.run, "node": node, "pid": os.getpid(), "port": port, "url": url}
        registration |= {"token": token, "certificate_file": str(certificate_file or "")}
        labels = {} if certificate_file is None else {"__scheme__": scheme}
        self._remove_stale_targets()
        _write_json_atomically(self.run_directory / "agent.json", registration, mode=0o600)
        _write_json_atomically(self._target_path, [{"targets": [address], "labels": labels}])
        return url

    def write_outcome(self, stop_record: Record) -> None:
        """Write `outcome.json`: how the run ended, at which step, and which ranks ended it."""
        outcome = {
            "run": self.run,
            "step": stop_record.step,
            "time": stop_record.time,
            "attempt": stop_record.attempt,
        }
        _write_json_atomically(
            self.run_directory / "outcome.json", {**outcome, **stop_record.attributes}
        )

    def release(self) -> None:
        """Remove the registration files and release the locks."""
        for path in (self._target_path, self.run_directory / "agent.json"):
            # The disk may have become unusable; a stale file is replaced by the next agent.
            with suppress(OSError):
                path.unlink(missing_ok=True)
        if self._lock_fds:
            # An agent that has opened the removed file sees that, and creates a new one.
            with suppress(OSError):
                (ring_dir(self.run) / AGENT_LOCK).unlink(missing_ok=True)
        self._unlock()

    def _remove_stale_targets(self) -> None:
        """Remove the targets of killed agents: this agent may listen on the port of one."""
        for target in self.targets_directory.glob("*.json"):
            owner = self.run_directory.parent / target.stem
            if target != self._target_path and not is_agent_running(owner):
                target.unlink(missing_ok=True)

    @property
    def _target_path(self) -> Path:
        return self.targets_directory / f"{self.run}.json"


def _write_json_atomically(path: Path, content: Any, mode: int = 0o644) -> None:
    """Replace the file atomically: a reader sees the old content or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=mode)
    temporary.write_text(json.dumps(content))
    temporary.replace(path)
