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
CALL = 0
"""The only key of `TryLock.holder`."""
CLOSE_TIMEOUT_SECONDS = 0.5
"""Maximum time that the end of a run waits for the holder."""


class TryLock:
    """Runs calls one at a time, guarded, and adds the time they take to the ring's overhead.

    `holder` is empty, or maps `CALL` to the start time of the call that holds the lock, an object
    of its own. `setdefault` acquires the lock, so that an exception that arrives right after it,
    such as KeyboardInterrupt, still releases the lock. This takes a third of the time of
    `threading.Lock`. No call runs once the guard is disabled.
    """

    def __init__(self, ring: RingWriter, guard: ErrorGuard) -> None:
        self.ring, self.guard = ring, guard
        self.holder: dict[int, float] = {}
        self.deferred: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def run(self, job: Callable[..., Any], *args: Any) -> None:
        """Run `job` now, or defer it to the holder. Never raises, unless the guard is strict."""
        if self.guard.disabled:
            return
        began = perf_counter()
        holder = self.holder
        try:
            if holder.setdefault(CALL, began) is not began:
                self.defer(job, args)
                return
            job(*args)
            if self.deferred:
                self.run_deferred()
            self.ring.overhead_seconds += perf_counter() - began
        except Exception as error:
            self.guard.handle_error(error)
        finally:
            # Without a call, in which another exception could arrive.
            if CALL in holder and holder[CALL] is began:
                del holder[CALL]

    def close(self, final_job: Callable[[], None]) -> None:
        """Run the deferred calls, then `final_job`, and reject every later call."""
        deadline = monotonic() + CLOSE_TIMEOUT_SECONDS
        while self.holder and monotonic() < deadline:
            sleep(0.001)
        is_held, was_enabled = bool(self.holder), not self.guard.disabled
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
