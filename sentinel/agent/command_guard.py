"""Ends the command of `sentinel run` if that is killed, so that no rank is left without a launcher.

A process of its own waits for the end of `sentinel run`, which SIGKILL leaves no time to handle. It
then does what a scheduler does: SIGTERM to the command, which ends what it started, and SIGKILL
30 s later to what still runs. The death signal of the kernel (PR_SET_PDEATHSIG) alone would leave
ranks: of a command that ignores it, and of a shell, which ends without its children.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import psutil

GRACE_SECONDS = 30.0
"""Time from SIGTERM to SIGKILL, as in Slurm (`KillWait`) and Kubernetes."""
_POLL_INTERVAL_SECONDS = 0.2
_PID_BYTES = 4
_PIPE_DESCRIPTOR = 3


class CommandGuard:
    """Guards one command of this process, as soon as `watch` is called.

    An agent, whose command line is `agent_command`, is not ended: it reports the end. Raises
    OSError if there can be no further process.
    """

    def __init__(self, agent_command: list[str]) -> None:
        reading, self._pipe = os.pipe()
        if os.fork():
            os.close(reading)
            return
        try:
            _detach(reading)
            pid = int.from_bytes(os.read(_PIPE_DESCRIPTOR, _PID_BYTES), "little")
            if pid:
                command = psutil.Process(pid)
                # The pipe is closed by the end of the process that has its other end.
                os.read(_PIPE_DESCRIPTOR, 1)
                end_processes(command, agent_command)
        finally:
            os._exit(0)

    def watch(self, pid: int) -> None:
        """Set the process that is ended after this one; without effect if the guard was killed."""
        with suppress(BrokenPipeError):
            os.write(self._pipe, pid.to_bytes(_PID_BYTES, "little"))


def _detach(pipe: int) -> None:
    """Leave the terminal, the group and the files of the process that is watched."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(_PIPE_DESCRIPTOR):
        os.dup2(null, descriptor)
    os.dup2(pipe, _PIPE_DESCRIPTOR)
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) > _PIPE_DESCRIPTOR:
            # That of the listing is closed already.
            with suppress(OSError):
                os.close(int(path.name))
    os.chdir("/")


def end_processes(command: psutil.Process, agent_command: list[str]) -> None:
    """End a process, then its descendants, by SIGTERM; what is left after the grace by SIGKILL.

    Descendants get no SIGTERM while the command runs: it may need them to end, such as the workers
    of a data loader to save a checkpoint.
    """
    deadline, asked = monotonic() + GRACE_SECONDS, set[psutil.Process]()
    running = {command} if _is_running(command) else set()
    while running:
        # Before any of them ends: afterwards their children have another parent.
        running |= {each for parent in running for each in _descendants(parent, agent_command)}
        number = signal.SIGTERM if monotonic() < deadline else signal.SIGKILL
        addressed = {command} if command in running and number == signal.SIGTERM else running
        for each in addressed - (asked if number == signal.SIGTERM else set()):
            with suppress(psutil.Error):
                each.send_signal(number)
        asked |= addressed
        sleep(_POLL_INTERVAL_SECONDS)
        running = {each for each in running if _is_running(each)}


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _descendants(process: psutil.Process, agent_command: list[str]) -> Iterator[psutil.Process]:
    """The children and their children, without agents and theirs."""
    with suppress(psutil.Error):
        for child in process.children():
            # The interpreter may be another one.
            if child.cmdline()[1:] != agent_command[1:]:
                yield child
                yield from _descendants(child, agent_command)
