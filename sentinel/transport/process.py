"""Processes identified by pid and start time, from /proc.

The files read here are readable by every user, unless the system hides processes of other users
(`hidepid` of proc(5)). A hidden process is treated as one that does not exist.
"""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

_STATE_FIELD, _PARENT_FIELD, _FLAGS_FIELD, _START_TICKS_FIELD, _EXIT_CODE_FIELD = 0, 1, 6, 19, 49
"""Positions in /proc/<pid>/stat after the command name (fields 3, 4, 9, 22 and 52 of proc(5))."""
_PF_EXITING = 0x4
"""Flag of a process that the kernel is ending: it may release memory and devices for seconds."""
_CPU_TICKS_FIELDS = slice(11, 13)
"""Positions of the CPU time in user and in kernel mode (fields 14 and 15)."""

_HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The namespace of the host, whose number is constant: PROC_PID_INIT_INO of the kernel."""

_SCHEDULER_VARIABLES = frozenset({"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "_CONDOR_SLOT"})
"""Each is set in the jobs of a scheduler that kills what is left at the end of a job."""

_NOTEBOOK_VARIABLE = "JPY_PARENT_PID"
"""Set in the kernels of Jupyter."""

MAX_STAT_BYTES = 4096
"""Read limit for that file, which holds 52 numbers and is at most a quarter of this size."""


class Process(NamedTuple):
    """A process, identified by pid and start time, since pids are reused.

    `start_ticks` is in clock ticks since boot. Both values survive an exec.

    >>> Process.current().is_alive()
    True
    """

    pid: int
    start_ticks: int

    @staticmethod
    def current() -> Process:
        """The calling process. Raises OSError if /proc is not mounted."""
        process = Process.from_pid(os.getpid())
        if process is None:
            raise OSError("/proc is not mounted, so processes with a reused pid are not detected.")
        return process

    @staticmethod
    def from_pid(pid: int) -> Process | None:
        """The process that has that pid now, or None."""
        fields = _stat_fields(pid)
        return Process(pid, int(fields[_START_TICKS_FIELD])) if fields else None

    def parent(self) -> Process | None:
        """The process that started or adopted this one; None if either is gone or hidden."""
        fields = _stat_fields(self.pid)
        return Process.from_pid(int(fields[_PARENT_FIELD])) if fields else None

    def state(self) -> str:
        """Its state as in proc(5), one letter; empty if it is gone or hidden."""
        fields = _stat_fields(self.pid)
        return fields[_STATE_FIELD] if fields else ""

    def cpu_seconds(self) -> float:
        """CPU time that its threads have used; 0 if it is gone or hidden."""
        fields = _stat_fields(self.pid)
        ticks = sum(map(int, fields[_CPU_TICKS_FIELDS])) if fields else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def cpu_wait_seconds(self) -> float:
        """Time in which its first thread waited for a CPU; 0 if the kernel does not measure it."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def is_alive(self) -> bool:
        """Whether it still runs. A zombie does not."""
        fields = _stat_fields(self.pid)
        return bool(
            fields
            and int(fields[_START_TICKS_FIELD]) == self.start_ticks
            and fields[_STATE_FIELD] not in ("Z", "X")
        )

    def is_exiting(self) -> bool:
        """Whether it runs no code of its own any more; also true if it is gone."""
        fields = _stat_fields(self.pid)
        return not (
            fields
            and int(fields[_START_TICKS_FIELD]) == self.start_ticks
            and fields[_STATE_FIELD] not in ("Z", "X")
            and not int(fields[_FLAGS_FIELD]) & _PF_EXITING
        )

    def exit_status(self) -> int | None:
        """Its status as of waitpid(2), until its parent has read it; None if it is not known."""
        fields = _stat_fields(self.pid)
        if not fields or int(fields[_START_TICKS_FIELD]) != self.start_ticks:
            return None
        status = int(fields[_EXIT_CODE_FIELD])
        is_zombie = fields[_STATE_FIELD] in ("Z", "X")
        is_exiting = bool(int(fields[_FLAGS_FIELD]) & _PF_EXITING)
        return status if is_zombie or (is_exiting and status) else None


def ends_job() -> bool:
    """Whether the agent may be killed soon after the end of this process.

    By the kernel, if this is the first process of a container, its child or grandchild: what is
    between them is a script, a launcher, or an init process such as tini, which ends soon after. Or
    by the scheduler of a cluster, at the end of the job: a script of several commands waits after
    each. A child of a shell with a terminal, and the kernel of a notebook, are no job.
    """
    is_first = os.getpid() == 1
    if (os.isatty(0) and not is_first) or _NOTEBOOK_VARIABLE in os.environ:
        return False
    if not _SCHEDULER_VARIABLES.isdisjoint(os.environ):
        return True
    return (is_first or os.getppid() <= 1 or _grandparent_pid() == 1) and _is_contained()


def _grandparent_pid() -> int:
    """The pid of the parent of the parent; 0 if it is gone or hidden."""
    try:
        parent = Process(os.getppid(), 0).parent()
    except OSError:
        return 0
    return parent.pid if parent else 0


def _is_contained() -> bool:
    """Whether the process ids of this process are not those of the host."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) != _HOST_PID_NAMESPACE
    except OSError:
        return False


def is_killed(pid: int) -> bool:
    """Whether each thread of that process has ended or will, without running its code again.

    The kernel ends a thread that waits for a disk once the disk responds. Until then the process
    is a zombie that cannot be waited for, and keeps its locks.
    """
    try:
        if Process(pid, 0).state() != "Z":
            return False
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
        return all(_is_ending((thread / "status").read_text()) for thread in threads)
    except OSError:
        # It has ended meanwhile, or this process has too many open files.
        return False


def _is_ending(status: str) -> bool:
    """Whether a thread has ended or has SIGKILL pending, by its `status` as of proc(5)."""
    fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
    pending = int(fields.get("SigPnd", "0"), 16)
    return fields.get("State", "")[:1] in {"Z", "X"} or bool(pending >> (SIGKILL - 1) & 1)


def read_environ(pid: int) -> dict[str, str]:
    """Environment variables of a process at its start; empty if it is gone or another user's."""
    entries = _read_strings(pid, "environ")
    return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)


def read_arguments(pid: int) -> list[str]:
    """Command line of a process; empty if it is gone or hidden."""
    return _read_strings(pid, "cmdline")


def _read_strings(pid: int, name: str) -> list[str]:
    """The NUL-separated strings of a file of /proc/<pid>."""
    try:
        content = Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return []
    return content.decode(errors="replace").split("\0")


def _stat_fields(pid: int) -> list[str]:
    try:
        # Called four times a second for each rank: `open` would cost more than the read itself.
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, MAX_STAT_BYTES).decode(errors="replace")
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # A process that hidepid hides belongs to another user and is not a rank of this run.
        return []
    # A command name may contain spaces and brackets, so the last bracket ends it.
    return text[text.rindex(")") + 2 :].split()
