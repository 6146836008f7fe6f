"""A lock that never makes a caller wait: calls made while it is held are deferred.

A caller that finds the lock held (another thread, or a signal handler that interrupted the holder)
queues its call; the holder runs the queue before it releases the lock. Under the interpreter's lock
a holder that is interrupted waits for all other threads, for 5 ms each. The queue covers what 16
threads log in that time at 5,000 calls per second each, and the calls of tight loops for some
milliseconds. Beyond it calls are dropped and counted: nothing but waiting would keep them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic, perf_counter, sleep
from typing import Any

from sentinel.client.guard import ErrorGuard
from sentinel.transport.ring import RingWriter

MAX_DEFERRED_CALLS = 16_384
"""Maximum length of the queue; further calls are counted as dropped."""
MAX_CALLS_RUN = 64
"""Most queued calls that one call runs, so that no caller is held up by many others."""
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
        self.dropped_calls: dict[int, int] = {}
        """Number of dropped calls by thread: a shared number would lose counts."""

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
            if self.deferred and not self.run_deferred():
                self.defer(job, args)
            else:
                job(*args)
                if self.deferred:
                    self.run_deferred()
                self.ring.overhead_seconds += perf_counter() - began
            del holder[CALL]
        except BaseException as error:
            # Without a call, in which another exception could arrive.
            if CALL in holder and holder[CALL] is began:
                del holder[CALL]
            if not isinstance(error, Exception):
                raise
            self.guard.handle_error(error)

    def close(self, final_job: Callable[[], None]) -> None:
        """Run the deferred calls, then `final_job`, and reject every later call."""
        deadline = monotonic() + CLOSE_TIMEOUT_SECONDS
        while self.holder and monotonic() < deadline:
            sleep(0.001)
        is_held, was_enabled = bool(self.holder), not self.guard.disabled
        self.guard.disabled = True
        try:
            if was_enabled and not is_held:
                while not self.run_deferred() and monotonic() < deadline:
                    pass
                self.drop(len(self.deferred))
                self.publish_drops()
                final_job()
        except Exception as error:
            self.guard.handle_error(error)

    def defer(self, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Queue a call for the holder to run."""
        if len(self.deferred) >= MAX_DEFERRED_CALLS:
            self.drop(1)
            return
        # The caller may change its dictionary before the call runs.
        copied = tuple(arg.copy() if type(arg) is dict else arg for arg in args)
        self.deferred.append((job, copied))

    def run_deferred(self) -> bool:
        """Run deferred calls, in their order; whether none is left. Only the holder may call it."""
        for _ in range(MAX_CALLS_RUN):
            if not self.deferred:
                break
            job, args = self.deferred.popleft()
            job(*args)
        if self.dropped_calls:
            self.publish_drops()
        return not self.deferred

    def drop(self, count: int) -> None:
        """Count calls that do not run."""
        thread = get_ident()
        self.dropped_calls[thread] = self.dropped_calls.get(thread, 0) + count

    def publish_drops(self) -> None:
        """Publish the number of dropped calls. Only the holder may call it."""
        self.ring.set_drops("busy", sum([*self.dropped_calls.values()]))
