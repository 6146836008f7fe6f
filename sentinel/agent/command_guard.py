"""Ends the command of `sentinel run` if that is killed, so that no rank is left without a launcher.

A process of its own waits for the end of `sentinel run`, which SIGKILL leaves no time to handle. It
then does what a scheduler does: SIGTERM to the command, which ends what it started, and SIGKILL
30 s later to what still runs. The death signal of the kernel (PR_SET_PDEATHSIG) alone would leave
ranks: of a command that ignores it, and of a shell, which ends without its children.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic, sleep

import psutil

from sentinel.client.spawn import agent_command, agent_environment

GRACE_SECONDS = 30.0
"""Time from SIGTERM to SIGKILL, as in Slurm (`KillWait`) and Kubernetes."""
_POLL_INTERVAL_SECONDS = 0.2
_PID_BYTES = 4
_STDIN = 0


class CommandGuard:
    """Guards one command of this process, as soon as `watch` is called.

    The agents of `run` are not ended: they report the end. Raises OSError if there can be no
    further process.
    """

    def __init__(self, run: str) -> None:
        reading, self._pipe = os.pipe()
        try:
            # A program of its own: what kills `sentinel run` by its command line spares it.
            child = subprocess.Popen(  # noqa: S603 - our own command line
                [sys.executable, "-P", "-m", __name__, run],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=agent_environment(os.environ, None),
                start_new_session=True,
            )
        finally:
            os.close(reading)
        # Popen warns about a child that is never waited for.
        child.returncode = 0

    def watch(self, pid: int) -> None:
        """Set the process that is ended after this one; without effect if the guard was killed."""
        with suppress(BrokenPipeError):
            os.write(self._pipe, pid.to_bytes(_PID_BYTES, "little"))


def guard_command(run: str) -> None:
    """Read the pid of a command from standard input, and end it at the end of that."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = int.from_bytes(os.read(_STDIN, _PID_BYTES), "little")
    if not pid:
        return
    try:
        command = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    # The pipe is closed by the end of the process that has its other end.
    os.read(_STDIN, 1)
    end_processes(command, agent_command(run))


def end_processes(command: psutil.Process, spared: list[str]) -> None:
    """End a process, then its descendants, by SIGTERM; what is left after the grace by SIGKILL.

    Descendants get no SIGTERM while the command runs: it may need them to end, such as the workers
    of a data loader to save a checkpoint. Those with the command line `spared` are not ended.
    """
    deadline, asked = monotonic() + GRACE_SECONDS, set[psutil.Process]()
    running = {command} if _is_running(command) else set()
    # A process that waits for a device does not end until the device answers.
    while running and monotonic() < deadline + GRACE_SECONDS:
        # Before any of them ends: afterwards their children have another parent.
        running |= {each for parent in running for each in _descendants(parent, spared)}
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


def _descendants(process: psutil.Process, spared: list[str]) -> Iterator[psutil.Process]:
    """The children and their children, without those with that command line."""
    children: list[psutil.Process] = []
    with suppress(psutil.Error):
        children = process.children()
    for child in children:
        # One that has ended has no command line.
        with suppress(psutil.Error):
            # The interpreter may be another one.
            if child.cmdline()[1:] == spared[1:]:
                continue
        yield child
        yield from _descendants(child, spared)


if __name__ == "__main__":
    guard_command(sys.argv[1])
