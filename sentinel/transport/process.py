"""Process: which process that was, told apart from a later one with the same number; its parent.

What is read of a process, anybody may read, unless the system hides those of other users: of these
nothing is known, as if they were not there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_STATE_FIELD, _PARENT_FIELD, _START_TICKS_FIELD = 0, 1, 19
"""Places in /proc/<pid>/stat, counted after the command name (fields 3, 4 and 22 of proc(5))."""

MAX_STAT_BYTES = 4096
"""Bytes of that file; a kernel that knows of 52 numbers writes a quarter of it at most."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process by number and start time; numbers alone are used again.

    `started` is in clock ticks since boot, as the kernel counts it. Both survive an exec.

    >>> Process.me().alive()
    True
    """

    pid: int
    start_ticks: int

    @staticmethod
    def current() -> Process:
        """The calling process."""
        found = Process.from_pid(os.getpid())
        if found is None:
            raise OSError("/proc is not mounted, so a process cannot be told from its successors.")
        return found

    @staticmethod
    def from_pid(pid: int) -> Process | None:
        """The process that has that number now, or None where there is none."""
        fields = _stat_fields(pid)
        return Process(pid, int(fields[_START_TICKS_FIELD])) if fields else None

    def parent(self) -> Process | None:
        """The process that began it, or has taken it over; None where it is gone, or hidden."""
        fields = _stat_fields(self.pid)
        return Process.from_pid(int(fields[_PARENT_FIELD])) if fields else None

    def is_stopped(self) -> bool:
        """Whether it is held by a stop signal or a debugger (states T and t of proc(5))."""
        fields = _stat_fields(self.pid)
        return bool(fields) and fields[_STATE_FIELD] in ("T", "t")

    def is_alive(self) -> bool:
        """Whether it still runs. A zombie does not: it only waits for its parent to look."""
        fields = _stat_fields(self.pid)
        return bool(
            fields
            and int(fields[_START_TICKS_FIELD]) == self.start_ticks
            and fields[_STATE_FIELD] not in ("Z", "X")
        )


def _stat_fields(pid: int) -> list[str]:
    try:
        # Four times a second for each rank: what `open` builds around this costs more than it.
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, MAX_STAT_BYTES).decode(errors="replace")
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # What may not be looked at (hidepid of proc(5)) is another user's, and no rank of ours.
        return []
    # A command name may hold spaces and brackets: only its last bracket can be trusted.
    return text[text.rindex(")") + 2 :].split()
