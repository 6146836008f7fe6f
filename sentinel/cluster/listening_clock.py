"""A clock that counts the seconds in which this process could receive messages."""

from __future__ import annotations

from collections.abc import Callable

MAX_INTERVAL_SECONDS = 1.0
"""The most that one `advance` counts. A process that was suspended received nothing meanwhile."""


class ListeningClock:
    """Counts `seconds` of listening time. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_advance = clock()
        self.seconds = 0.0

    def advance(self, *, is_listening: bool = True) -> bool:
        """Count the time since the last call, at most MAX_INTERVAL_SECONDS; whether it was more.

        Nothing is counted unless `is_listening`: while messages cannot arrive though this runs.
        """
        now = self._clock()
        passed = now - self._last_advance
        if is_listening:
            self.seconds += min(max(0.0, passed), MAX_INTERVAL_SECONDS)
        self._last_advance = now
        return passed > MAX_INTERVAL_SECONDS
