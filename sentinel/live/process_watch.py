"""Watches the processes of ranks, and learns how each of them ended.

A pidfd becomes readable when its process ends, so `wait` returns at once. The exit status is read
from /proc until the parent has read it, and on Linux 6.15 or newer from the pidfd afterwards.
Without pidfds (Linux before 5.3) the processes are polled, and most statuses stay unknown.
"""

from __future__ import annotations

import os
import select
import signal
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from typing import NamedTuple

from sentinel.transport.process import Process

EXIT_SECONDS = 0.5
"""How long a process may take to exit before it counts as gone; one with a GPU takes seconds."""

_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""`struct pidfd_info` of linux/pidfd.h: mask, cgroup, eleven ids, exit code."""
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO.size << 16) | (0xFF << 8) | 11
"""_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)."""
_PIDFD_INFO_EXIT = 1 << 3


class ProcessEnd(NamedTuple):
    """When a process ended, in seconds of the watch's clock, and its status as of waitpid(2).

    The status is None if it is not known.
    """

    ended_at: float
    status: int | None = None

    @property
    def attributes(self) -> Mapping[str, str]:
        """`signal` or `code`; empty if the status is not known."""
        if self.status is None:
            return {}
        code = os.waitstatus_to_exitcode(self.status)
        if code >= 0:
            return {"code": str(code)}
        try:
            return {"signal": signal.Signals(-code).name}
        except ValueError:
            return {"signal": f"signal {-code}"}


@dataclass
class ProcessWatch:
    """The processes of the ranks of one node; `ends` are those that ended.

    `clock` returns seconds since the epoch.
    """

    clock: Callable[[], float]
    ends: dict[Process, ProcessEnd] = field(default_factory=dict)
    _descriptors: dict[Process, int] = field(default_factory=dict)
    """The pidfd of each running process; -1 without one."""
    _exiting_since: dict[Process, float] = field(default_factory=dict)
    _poll: select.poll = field(default_factory=select.poll)

    def add(self, process: Process) -> None:
        """Watch a process; one that is gone has ended before, at an unknown time."""
        if process in self._descriptors or process in self.ends:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            descriptor = -1
        # Checked after it is open: the pid may have been reused.
        if Process.from_pid(process.pid) != process:
            self.ends[process] = ProcessEnd(0.0)
            _close(descriptor)
            return
        self._descriptors[process] = descriptor
        if descriptor >= 0:
            self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Wait; returns early when a process ends."""
        self._poll.poll(seconds * 1000.0)

    def update(self, *, thorough: bool) -> None:
        """Add processes that ended to `ends`.

        `thorough` also finds those that are exiting, and those without a pidfd; it reads a file for
        each process.
        """
        readable = {descriptor for descriptor, _ in self._poll.poll(0)}
        for process, descriptor in [*self._descriptors.items()]:
            if descriptor in readable:
                self._end(process)
            elif thorough and process.is_exiting():
                since = self._exiting_since.setdefault(process, self.clock())
                is_polled = descriptor < 0 and not process.is_alive()
                if is_polled or not 0.0 <= self.clock() - since < EXIT_SECONDS:
                    self._end(process)

    def has_exiting(self) -> bool:
        """Whether a process is exiting whose end is not yet in `ends`."""
        return bool(self._exiting_since)

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._descriptors.values():
            _close(descriptor)
        self._descriptors.clear()

    def _end(self, process: Process) -> None:
        descriptor = self._descriptors.pop(process)
        ended_at = self._exiting_since.pop(process, self.clock())
        status = process.exit_status()
        if status is None and descriptor >= 0:
            status = _reaped_status(descriptor)
        self.ends[process] = ProcessEnd(ended_at, status)
        if descriptor >= 0:
            self._poll.unregister(descriptor)
        _close(descriptor)


def _reaped_status(descriptor: int) -> int | None:
    """The status of a process whose parent has read it; None before Linux 6.15."""
    info = bytearray(_PIDFD_INFO.size)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        ioctl(descriptor, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return status if mask & _PIDFD_INFO_EXIT else None


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        with suppress(OSError):
            os.close(descriptor)
