"""Registration of the one agent per run and node: its locks, and the files others find it by."""

from __future__ import annotations

import errno
import fcntl
import grp
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.model.json_safe import parse_object
from sentinel.model.record import Record
from sentinel.transport.paths import (
    AGENT_LOCK,
    has_killed_owner,
    is_agent_running,
    ring_dir,
    shared_run_dir,
)
from sentinel.transport.replaced_file import replacing

log = logging.getLogger(__name__)

WILDCARD_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
"""Addresses to listen at that no client can connect to; the URL has the node's name instead."""

REGISTRATION_NAME = "agent.json"
MAX_LOCK_ATTEMPTS = 5
LOCK_RETRY_SECONDS = 0.02
CLOSING_OWNER = "closing"
"""Content of the lock of a run without an agent whose cases another process closes."""
MAX_CLOSING_SECONDS = 60.0
"""Longest wait of an agent that starts for that process, which needs some seconds."""


_NO_LOCK_ERRORS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
"""Errors of a file system that has no locks."""

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def closing_lock(directory: Path) -> Iterator[bool]:
    """Hold the lock of a run without an agent to close its cases; whether no process has it.

    An agent of the run that starts meanwhile waits. Raises OSError.
    """
    descriptor = os.open(directory / AGENT_LOCK, _LOCK_FLAGS, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in _NO_LOCK_ERRORS:
                raise
        if not os.fstat(descriptor).st_nlink:
            # The process that held it has removed the file, and another one may have a new one.
            yield False
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, CLOSING_OWNER.encode(), 0)
        yield True
    finally:
        os.close(descriptor)


class AlreadyServedError(RuntimeError):
    """Another agent serves the run."""


@dataclass
class AgentRegistration:
    """Registration of this process for a run: `agent.lock`, `agent.json`, a Prometheus target.

    The lock in shared memory is that of this node; trainers look there. The one in the home
    directory excludes agents with another shared memory and the same home directory. Prometheus
    reads `targets_directory` by its file discovery; with `targets_group`, members of that group
    can.
    """

    run: str
    targets_directory: Path
    targets_group: str = ""
    _directory: Path | None = field(default=None, init=False)
    _target: dict[str, Any] = field(default_factory=dict, init=False)
    _lock_fds: list[int] = field(default_factory=list, init=False)
    _home: Path | None = field(default=None, init=False)
    """The directory that `lock_home` has locked."""
    _home_lock: int = field(default=-1, init=False)
    _is_released: bool = field(default=False, init=False)
    is_waiting: bool = field(default=False, init=False)
    """Whether it waits for a process that closes the cases of the run."""
    has_replaced_killed: bool = field(default=False, init=False)
    """Whether a killed agent, which the kernel has not ended, holds locks of files of the run."""

    def acquire(self) -> None:
        """Lock the run on this node. Raises AlreadyServedError with the id of the other process.

        The kernel releases the locks when their owner dies.
        """
        self._lock(ring_dir(self.run) / AGENT_LOCK)

    def set_directory(self, directory: Path) -> None:
        """Lock the run directory, for the files of this agent. Raises AlreadyServedError."""
        if directory != self._home:
            self._lock_if_possible(directory)
        self._directory = directory

    def lock_home(self, directory: Path) -> None:
        """Lock the run's directory in the home directory, unless it is locked.

        Callable from any thread. Raises AlreadyServedError, also once the registration is released,
        and OSError.
        """
        if not self._is_released and self._home == directory and self._is_home_locked():
            return
        descriptor = self._lock_if_possible(directory, is_home=True)
        if self._is_released:
            # Its thread waited for the disk until another agent of this process served the run.
            if descriptor in self._lock_fds:
                self._lock_fds.remove(descriptor)
                os.close(descriptor)
            raise AlreadyServedError(f"Run {self.run} is served by another agent of this process.")
        self._home, self._home_lock = directory, descriptor

    def _is_home_locked(self) -> bool:
        """Whether the lock holds, and its file was not deleted; True where there are no locks."""
        return self._home_lock < 0 or os.fstat(self._home_lock).st_nlink > 0

    def _lock_if_possible(self, directory: Path, *, is_home: bool = False) -> int:
        """Lock a directory; -1, with a warning, where the file system has no locks."""
        try:
            return self._lock(directory / AGENT_LOCK, is_home=is_home)
        except OSError as error:
            if error.errno not in _NO_LOCK_ERRORS:
                raise
            # The lock in shared memory excludes other agents of this node.
            log.warning("%s has no locks: agents of other nodes are not excluded", directory)
            return -1

    def former_port(self) -> int:
        """The port of this run's last agent on this node, if it was killed; else 0."""
        assert self._directory is not None
        try:
            former = parse_object((self._directory / REGISTRATION_NAME).read_text(errors="replace"))
        except OSError:
            return 0
        port = former.get("port")
        is_here = former.get("run") == self.run and former.get("node") == os.uname().nodename
        return port if is_here and isinstance(port, int) and 0 < port < 65536 else 0

    def _lock(self, path: Path, *, is_home: bool = False) -> int:
        """Lock that file. Raises AlreadyServedError, OSError.

        That of a killed agent which waits for a disk is replaced in shared memory. In the home
        directory, where the last call of that agent still has an effect, it raises TimeoutError.
        """
        owner, attempts, deadline = "", 0, time.monotonic() + MAX_CLOSING_SECONDS
        # `is_agent_running` in another process holds the lock briefly, and an agent that ends
        # removes the file.
        while attempts < MAX_LOCK_ATTEMPTS and time.monotonic() < deadline:
            self.is_waiting = owner == CLOSING_OWNER
            attempts += not self.is_waiting
            # The process that has moved the files of a dead run has removed the directory.
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, _LOCK_FLAGS, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    # On a full file system the lock holds without the process id, which is shown.
                    with suppress(OSError):
                        os.ftruncate(descriptor, 0)
                        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                    self._lock_fds.append(descriptor)
                    self.is_waiting = False
                    return descriptor
            except BlockingIOError:
                owner = os.read(descriptor, 32).decode(errors="replace").strip()
                if has_killed_owner(path):
                    if is_home:
                        os.close(descriptor)
                        message = "a killed agent waits for it"
                        raise TimeoutError(errno.ETIMEDOUT, message, str(path)) from None
                    self.has_replaced_killed |= _remove_lock_of_killed(path)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(LOCK_RETRY_SECONDS)
        self.is_waiting = False
        raise AlreadyServedError(f"Run {self.run} is served by process {owner}.")

    def register(
        self, host: str, port: int, token: str = "", certificate_file: Path | None = None
    ) -> str:
        """Write `agent.json`; return the URL at which other nodes reach the agent.

        `token` lets other processes of this user ask the agent. With a certificate, which they
        expect it to have, the agent is reached over HTTPS.
        """
        assert self._directory is not None
        url = listening_url(host, port, certificate_file)
        scheme, _, address = url.partition("://")
        node = os.uname().nodename
        registration = {"run": self.run, "node": node, "pid": os.getpid(), "port": port, "url": url}
        registration |= {"token": token, "certificate_file": str(certificate_file or "")}
        labels = {} if certificate_file is None else {"__scheme__": scheme}
        _write_json_atomically(self._directory / REGISTRATION_NAME, registration, mode=0o600)
        # Last: the thread that copies `agent.json` copies it once there is a target.
        self._target = {"targets": [address], "labels": labels}
        return url

    @property
    def is_registered(self) -> bool:
        """Whether `register` was called, so that there are `agent.json` and a target."""
        return bool(self._target)

    def publish_target(self) -> None:
        """Write the target for Prometheus. Raises OSError."""
        directory = self.targets_directory
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        self._remove_stale_targets()
        group = _group_id(self.targets_group) if self.targets_group else None
        if group is not None:
            _permit_group(directory.parent, group, stat.S_IXGRP)
            _permit_group(directory, group, stat.S_IRGRP | stat.S_IXGRP)
        _write_json_atomically(self._target_path, [self._target], group=group)

    def write_outcome(self, stop_record: Record) -> None:
        """Write `outcome.json`: how the run ended, at which step, and which ranks ended it."""
        assert self._directory is not None
        outcome = {
            "run": self.run,
            "step": stop_record.step,
            "time": stop_record.time,
            "attempt": stop_record.attempt,
        }
        _write_json_atomically(
            self._directory / "outcome.json", {**outcome, **stop_record.attributes}
        )

    def withdraw_target(self) -> None:
        """Remove the target for Prometheus. Raises OSError."""
        self._target_path.unlink(missing_ok=True)

    def release(self) -> None:
        """Release the locks, and remove `agent.json`."""
        self._is_released = True
        directory = ring_dir(self.run)
        paths = []
        if self._directory is not None:
            paths.append(self._directory / REGISTRATION_NAME)
        if self._lock_fds:
            # An agent that has opened the removed file sees that, and creates a new one.
            paths.append(directory / AGENT_LOCK)
        for path in paths:
            # The disk may have become unusable; a stale file is replaced by the next agent.
            with suppress(OSError):
                path.unlink(missing_ok=True)
        while self._lock_fds:
            os.close(self._lock_fds.pop())
        # Not empty if the run goes on, or another agent serves it.
        with suppress(OSError):
            directory.rmdir()

    def _remove_stale_targets(self) -> None:
        """Remove the targets of killed agents: this agent may listen on the port of one."""
        runs = self.targets_directory.parent / "runs"
        for target in self.targets_directory.glob("*.json"):
            if target != self._target_path and not _is_served(runs / target.stem):
                target.unlink(missing_ok=True)

    @property
    def _target_path(self) -> Path:
        return self.targets_directory / f"{self.run}.json"


def _remove_lock_of_killed(path: Path) -> bool:
    """Remove the lock file of a killed agent, unless another process does; whether it is removed.

    The lock of the directory lets one process at a time do so: by the time that another looks, the
    file may be that of the next agent.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_killed = has_killed_owner(path)
        if is_killed:
            path.unlink()
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return is_killed


def listening_url(host: str, port: int, certificate_file: Path | None) -> str:
    """The URL of a server that listens on that address, as other nodes reach it."""
    host = socket.gethostname() if host in WILDCARD_ADDRESSES else host
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{'http' if certificate_file is None else 'https'}://{address}"


def _is_served(directory: Path) -> bool:
    """Whether the run of that directory has an agent, here or on another node."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        registration = json.loads((directory / REGISTRATION_NAME).read_text())
        if registration["node"] != os.uname().nodename:
            return True
    return is_agent_running(directory) or is_agent_running(shared_run_dir(directory.name))


def _group_id(name: str) -> int:
    """The id of a group, given its name or its id. Raises OSError."""
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        message = f"targets_group: there is no group {name!r} on this machine"
        raise OSError(errno.EINVAL, message) from None


def _permit_group(path: Path, group: int, mode: int) -> None:
    """Give the group these permissions on the file. Raises OSError."""
    status = path.stat()
    if status.st_gid != group:
        os.chown(path, -1, group)
    if status.st_mode & mode != mode:
        path.chmod(stat.S_IMODE(status.st_mode) | mode)


def _write_json_atomically(
    path: Path, content: Any, mode: int = 0o644, group: int | None = None
) -> None:
    """Replace the file atomically: a reader sees the old content or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.touch(mode=mode)
        temporary.write_text(json.dumps(content))
        if group is not None:
            _permit_group(temporary, group, stat.S_IRGRP)
