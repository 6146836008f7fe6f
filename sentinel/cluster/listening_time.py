"""Awake: how long we have been listening, as opposed to how long it has been."""

from __future__ import annotations

from collections.abc import Callable

MAX_INTERVAL_SECONDS = 1.0
"""Seconds between two looks that count: a process that was stopped heard nobody meanwhile."""


class ListeningClock:
    """Counts `seconds` in which somebody could have been heard. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_advance = clock()
        self.seconds = 0.0

    def advance(self) -> None:
        """Count on to now."""
        now = self._clock()
        self.seconds += min(max(0.0, now - self._last_advance), MAX_INTERVAL_SECONDS)
        self._last_advance = now
