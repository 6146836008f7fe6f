"""A lock that never makes a caller wait: calls made while it is held are deferred.

A caller that finds the lock held (another thread, or a signal handler that interrupted the holder)
queues its call; the holder runs the queue before it releases the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter, sleep
from typing import Any

from sentinel.client.guard import ErrorGuard
from sentinel.transport.ring import RingWriter

MAX_DEFERRED_CALLS = 256
"""Maximum length of the queue; further calls are counted as dropped."""
CLOSE_TIMEOUT_SECONDS = 0.5
"""Maximum time that the end of a run waits for the holder."""


class TryLock:
    """Runs calls one at a time, guarded, and adds the time they take to the ring's overhead.

    `token` is a list of one element: popping it acquires the lock, appending it releases the lock.
    This takes a quarter of the time of `threading.Lock`. No call runs once the guard is disabled.
    """

    def __init__(self, ring: RingWriter, guard: ErrorGuard) -> None:
        self.ring, self.guard = ring, guard
        self.token = [None]
        self.deferred: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def run(self, job: Callable[..., Any], *args: Any) -> None:
        """Run `job` now, or defer it to the holder. Never raises, unless the guard is strict."""
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
        """Run the deferred calls, then `final_job`, and reject every later call."""
        deadline = monotonic() + CLOSE_TIMEOUT_SECONDS
        while not self.token and monotonic() < deadline:
            sleep(0.001)
        is_held, was_enabled = not self.token, not self.guard.disabled
        self.guard.disabled = True
        try:
            if was_enabled and not is_held:
                self.run_deferred()
                final_job()
        except Exception as error:
            self.guard.handle_error(error)

    def defer(self, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Queue a call for the holder to run."""
        if len(self.deferred) >= MAX_DEFERRED_CALLS:
            self.ring.count_drop("busy")
            return
        # The caller may change its dictionary before the call runs.
        copied = tuple(arg.copy() if type(arg) is dict else arg for arg in args)
        self.deferred.append((job, copied))

    def run_deferred(self) -> None:
        """Run the deferred calls. Only the holder may call this."""
        while self.deferred:
            job, args = self.deferred.popleft()
            job(*args)
