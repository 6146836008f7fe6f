"""Ends the command of `sentinel run` if that is killed, so that no rank is left without a launcher.

A process of its own waits for the end of `sentinel run`, which SIGKILL leaves no time to handle. It
then does what a scheduler does: SIGTERM to the command, which ends what it started, and SIGKILL
30 s later to what still runs. The death signal of the kernel (PR_SET_PDEATHSIG) alone would leave
ranks: of a command that ignores it, and of a shell, which ends without its children.

The process runs this file, which imports little: each `sentinel run` starts one.
"""

from __future__ import annotations

import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

IMPORT_DELAY_SECONDS = 1.0
"""How long a command runs before the guard imports what it needs to end it."""
_PID_BYTES = 4
_STDIN, _STDERR = 0, 2


class CommandGuard:
    """Guards one command of this process, as soon as `watch` is called.

    The agents of `run` are not ended: they report the end. `environ` is the environment of the
    guard, in which it finds this package. Raises OSError if there can be no further process.
    """

    def __init__(self, run: str, environ: Mapping[str, str]) -> None:
        # The guard itself does not need it.
        import signal  # noqa: PLC0415

        reading, self._pipe = os.pipe()
        try:
            # A program of its own: what kills `sentinel run` by its command line spares it.
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", __file__, run],
                environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reading, _STDIN),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=signal.valid_signals(),
            )
        finally:
            os.close(reading)

    def watch(self, pid: int) -> None:
        """Set the process that is ended after this one; without effect if the guard was killed."""
        try:
            os.write(self._pipe, pid.to_bytes(_PID_BYTES, "little"))
        except BrokenPipeError:
            return


def guard_command(run: str) -> None:
    """Read the pid of a command from standard input, and end it at the end of that."""
    # What `sentinel run` got from its parent is not kept open or busy.
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - only the numbers are needed
        try:
            if int(name) > _STDERR:
                os.close(int(name))
        except OSError:
            # That of the listing itself.
            continue
    pid = int.from_bytes(os.read(_STDIN, _PID_BYTES), "little")
    if not pid:
        return
    descriptor = _open_process(pid)
    if descriptor is not None:
        # A command that ends this soon needs nothing of what follows.
        select.select([_STDIN], [], [], IMPORT_DELAY_SECONDS)
        if _has_ended(descriptor):
            return
    import psutil  # noqa: PLC0415

    from sentinel.agent.process_tree import end_processes  # noqa: PLC0415
    from sentinel.client.spawn import agent_command  # noqa: PLC0415

    try:
        command = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    if descriptor is not None and _has_ended(descriptor):
        # Another process may have the pid now.
        return
    # The pipe is closed by the end of the process that has its other end.
    os.read(_STDIN, 1)
    end_processes(command, agent_command(run))


def _open_process(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None before Linux 5.3."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _has_ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


if __name__ == "__main__":
    guard_command(sys.argv[1])
