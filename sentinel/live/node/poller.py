"""Polls one kind of measurement in its own thread, so that a hanging driver blocks nothing else."""

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
"""Longest wait after a failed read."""

T = TypeVar("T")


@dataclass
class MetricPoller(Generic[T]):
    """Calls `read` every `interval_seconds`; `latest` is the last result and its time by `clock`.

    A failed read is counted, logged once and retried with exponential backoff. A read that never
    returns leaves `latest` unchanged, and nothing waits for it.
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
        """Start the daemon thread."""
        Thread(target=self._run, name=f"sentinel-{self.part}", daemon=True).start()

    def stop(self) -> None:
        """Stop polling, without waiting for a read in progress."""
        self._stopping.set()

    def poll_once(self) -> float:
        """Read once; returns the seconds to wait before the next read."""
        try:
            result = self.read()
        except Exception as error:
            return self._record_failure(error)
        if self.consecutive_failures:
            log.info("The %s of this node can be measured again", self.part)
        self.latest, self.consecutive_failures = (self.clock(), result), 0
        return self.interval_seconds

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(self.poll_once())

    def _record_failure(self, error: Exception) -> float:
        self.counters.add("sentinel_node_read_errors_total", self.part)
        if not self.consecutive_failures:
            log.info(
                "The %s of this node cannot be measured (%s: %s); it is retried",
                self.part,
                type(error).__name__,
                error,
            )
        self.consecutive_failures += 1
        return min(
            self.interval_seconds * 2.0 ** min(self.consecutive_failures, 32), MAX_RETRY_SECONDS
        )
