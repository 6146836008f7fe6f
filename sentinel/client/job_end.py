"""Waits at the exit of a process whose container or job ends with it, for the agent to send alerts.

The end of the first process of a container, or of a job, kills the agent. A launcher such as
torchrun ends the other ranks and itself once one rank has failed, so any rank may have to wait.
Only shared memory is used: an access to the home directory could block the trainer.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep, time

from sentinel.transport.launch_status import LAUNCHER_PID_VARIABLE
from sentinel.transport.paths import SETTLED_NAME, is_agent_running
from sentinel.transport.process import Process, ends_job

JOB_END_SECONDS = 20.0
"""How long an exit waits. Kubernetes, Slurm and torchrun kill after 30."""
MAX_FAILURE_SECONDS = 10.0
"""How long the exit of a failed rank waits while other ranks run: they do not learn of its end
before, and an error that follows from the end of another rank is not reported again."""
AGENT_START_SECONDS = 5.0
"""How long a failed rank waits for an agent that another rank starts."""
_POLL_SECONDS = 0.02


class JobEnd:
    """What the exit of this process waits for, in one run; `directory` is that of its rings.

    The process that has started the agent waits for the end of the agent. While others run, a
    failed rank waits until its failure is reported. `is_agent_alive` is whether there is an agent
    to wait for, `starts_agent` whether this process starts it.
    """

    def __init__(
        self, directory: Path, is_agent_alive: Callable[[], bool], *, starts_agent: bool
    ) -> None:
        self._directory, self._is_agent_alive = directory, is_agent_alive
        self._starts_agent, self._failed_at = starts_agent, 0.0
        if not _awaited:
            atexit.register(_wait_at_exit, os.getpid())
        _awaited[:] = [*(each for each in _awaited if each.is_agent_alive()), self]

    def is_agent_alive(self) -> bool:
        """Whether there is an agent to wait for."""
        return self._is_agent_alive()

    def note_failure(self) -> None:
        """Note that this rank has just failed."""
        self._failed_at = time()

    def is_over(self) -> bool:
        """Whether nothing has to be waited for any more."""
        if not self._is_agent_alive() and not self._is_agent_starting():
            return True
        if not self._failed_at:
            return not self._starts_agent
        if self._starts_agent and not self._has_other_ranks():
            return False
        return time() - self._failed_at >= MAX_FAILURE_SECONDS or self._is_settled()

    def _is_agent_starting(self) -> bool:
        """Whether an agent that another process starts may not hold its lock yet."""
        return not self._starts_agent and time() - self._failed_at < AGENT_START_SECONDS

    def _is_settled(self) -> bool:
        """Whether an end of a rank was reported since the failure."""
        try:
            return (self._directory / SETTLED_NAME).stat().st_mtime >= self._failed_at
        except OSError:
            return False

    def _has_other_ranks(self) -> bool:
        """Whether other ranks of this node run."""
        # `sentinel run` needs none of this, and has to start soon.
        from sentinel.transport.ring import read_header  # noqa: PLC0415
        from sentinel.transport.ring_layout import OUTCOMES  # noqa: PLC0415

        own = Process.current()
        headers = map(read_header, self._directory.glob("*.ring"))
        return any(
            header.outcome == OUTCOMES[0] and header.process != own and header.process.is_alive()
            for header in headers
            if header is not None
        )


_awaited: list[JobEnd] = []
"""What this process waits for at its exit, all together."""


def await_reports(directory: Path) -> JobEnd | None:
    """Let the exit of a rank that starts no agent wait if the rank fails, where its job may end.

    `directory` is that of the rings of the run in shared memory.
    """
    if not ends_with_agent():
        return None
    return JobEnd(directory, lambda: is_agent_running(directory), starts_agent=False)


def ends_with_agent() -> bool:
    """Whether the agent may be killed soon after the end of this process, and no other waits."""
    # Below `sentinel run`, that waits: the agent ends only after the command.
    return LAUNCHER_PID_VARIABLE not in os.environ and ends_job()


def _wait_at_exit(pid: int) -> None:
    """Wait at the exit of the process `pid`, not of its forks."""
    if os.getpid() != pid:
        return
    deadline = monotonic() + JOB_END_SECONDS
    # With this a launcher ends the ranks that are left, while the failure is being reported.
    has_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with suppress(KeyboardInterrupt, OSError, ValueError):
        if has_default:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while monotonic() < deadline and not all(each.is_over() for each in _awaited):
            sleep(_POLL_SECONDS)
    with suppress(ValueError):
        if has_default:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
