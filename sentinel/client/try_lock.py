"""Gate: lets one caller at a time into the recorder, and never makes the others wait.

Who comes while somebody is inside (another thread, or a signal handler that interrupted the very
code inside) leaves the call aside; whoever is inside does it before leaving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter, sleep
from typing import Any

from sentinel.client.guard import ErrorGuard
from sentinel.transport.ring import RingWriter

MAX_DEFERRED_CALLS = 256
"""Calls left aside at most; further ones are counted as dropped."""
CLOSE_TIMEOUT_SECONDS = 0.5
"""Seconds the end of a run waits for a thread inside."""


class TryLock:
    """Runs calls one at a time, guarded, and adds up the time they cost in `ring`.

    There is one `token`: who pops it is inside, and appends it again to leave. That is a lock
    nobody can wait for, at a quarter of a lock's price. A guard that is off keeps the gate shut.
    """

    def __init__(self, ring: RingWriter, guard: ErrorGuard) -> None:
        self.ring, self.guard = ring, guard
        self.token = [None]
        self.deferred: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def run(self, job: Callable[..., Any], *args: Any) -> None:
        """Do `job`, now or through whoever is inside. Never raises, unless the guard is strict."""
        if self.guard.disabled:
            return
        began = perf_counter()
        try:
            self.token.pop()
        except IndexError:
            self.defer(job, args)
            return
        try:
            job(*args)
            if self.deferred:
                self.run_deferred()
            self.ring.overhead_seconds += perf_counter() - began
        except Exception as error:
            self.guard.handle_error(error)
        finally:
            self.token.append(None)

    def close(self, final_job: Callable[[], None]) -> None:
        """Do what is left aside, then `last`, and let nobody in any more."""
        until = monotonic() + CLOSE_TIMEOUT_SECONDS
        while not self.token and monotonic() < until:
            sleep(0.001)
        inside, wanted = not self.token, not self.guard.disabled
        self.guard.disabled = True
        try:
            if wanted and not inside:
                self.run_deferred()
                final_job()
        except Exception as error:
            self.guard.handle_error(error)

    def defer(self, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Let whoever is inside do it."""
        if len(self.deferred) >= MAX_DEFERRED_CALLS:
            self.ring.count_drop("busy")
            return
        # The caller may change its dictionary before its turn comes.
        copied = tuple(arg.copy() if type(arg) is dict else arg for arg in args)
        self.deferred.append((job, copied))

    def run_deferred(self) -> None:
        """Do what was left aside. Only for who is inside."""
        while self.deferred:
            job, args = self.deferred.popleft()
            job(*args)
