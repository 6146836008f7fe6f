"""Watch: one part of the machine, looked at from a thread of its own, so that only it can hang."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Generic, TypeVar

from sentinel.model.counters import Counters

log = logging.getLogger(__name__)

MAX_RETRY_SECONDS = 600.0
"""The longest wait before a look that failed is tried again."""

T = TypeVar("T")


@dataclass
class MetricPoller(Generic[T]):
    """Calls `look` every `seconds`; `newest` is when it last answered, by `clock`, and what.

    A look that fails is counted, told in the log once, and tried again ever more seldom. One that
    never returns leaves `newest` to age, and nothing waits for it.
    """

    part: str
    read: Callable[[], T]
    interval_seconds: float
    counters: Counters
    clock: Callable[[], float] = time.time
    latest: tuple[float, T] | None = None
    consecutive_failures: int = 0
    _stopping: Event = field(default_factory=Event)

    def start(self) -> None:
        """Begin; the thread is a daemon, and keeps no process alive."""
        Thread(target=self._run, name=f"sentinel-{self.part}", daemon=True).start()

    def stop(self) -> None:
        """No further look; one that is under way is not waited for."""
        self._stopping.set()

    def poll_once(self) -> float:
        """Look now; the seconds to wait before the next look."""
        try:
            seen = self.read()
        except Exception as error:
            return self._record_failure(error)
        if self.consecutive_failures:
            log.info("The %s of this machine can be measured again", self.part)
        self.latest, self.consecutive_failures = (self.clock(), seen), 0
        return self.interval_seconds

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(self.poll_once())

    def _record_failure(self, error: Exception) -> float:
        self.counters.add("sentinel_node_read_errors_total", self.part)
        if not self.consecutive_failures:
            log.info(
                "The %s of this machine cannot be measured (%s: %s); it will be tried again",
                self.part,
                type(error).__name__,
                error,
            )
        self.consecutive_failures += 1
        return min(
            self.interval_seconds * 2.0 ** min(self.consecutive_failures, 32), MAX_RETRY_SECONDS
        )
