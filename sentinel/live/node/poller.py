"""Watch: one part of the machine, looked at from a thread of its own, so that only it can hang."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Generic, TypeVar

from sentinel.model.counters import Tally

log = logging.getLogger(__name__)

SELDOM_SECONDS = 600.0
"""The longest wait before a look that failed is tried again."""

T = TypeVar("T")


@dataclass
class Watch(Generic[T]):
    """Calls `look` every `seconds`; `newest` is when it last answered, by `clock`, and what.

    A look that fails is counted, told in the log once, and tried again ever more seldom. One that
    never returns leaves `newest` to age, and nothing waits for it.
    """

    part: str
    look: Callable[[], T]
    seconds: float
    tally: Tally
    clock: Callable[[], float] = time.time
    newest: tuple[float, T] | None = None
    failures: int = 0
    _over: Event = field(default_factory=Event)

    def start(self) -> None:
        """Begin; the thread is a daemon, and keeps no process alive."""
        Thread(target=self._run, name=f"sentinel-{self.part}", daemon=True).start()

    def stop(self) -> None:
        """No further look; one that is under way is not waited for."""
        self._over.set()

    def once(self) -> float:
        """Look now; the seconds to wait before the next look."""
        try:
            seen = self.look()
        except Exception as error:
            return self._failed(error)
        if self.failures:
            log.info("The %s of this machine can be measured again", self.part)
        self.newest, self.failures = (self.clock(), seen), 0
        return self.seconds

    def _run(self) -> None:
        while not self._over.is_set():
            self._over.wait(self.once())

    def _failed(self, error: Exception) -> float:
        self.tally.add("sentinel_machine_errors_total", self.part)
        if not self.failures:
            log.info(
                "The %s of this machine cannot be measured (%s: %s); it will be tried again",
                self.part,
                type(error).__name__,
                error,
            )
        self.failures += 1
        return min(self.seconds * 2.0 ** min(self.failures, 32), SELDOM_SECONDS)
