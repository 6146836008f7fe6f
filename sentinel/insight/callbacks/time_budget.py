"""The time that computations beside a training may take: a share of its wall time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeBudget:
    """Grows with the wall time since `start`, and shrinks by what computations took.

    `max_share` is the largest share of the wall time that they may take, from 0 to 1; None or 1 is
    no limit. Raises ValueError for another value.
    """

    def __init__(
        self, max_share: float | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if max_share is not None and not 0 < max_share <= 1:
            raise ValueError(
                f"max_share is {max_share}: give a share of the training time above 0 and up to 1, "
                "or None for no limit."
            )
        self.max_share = None if max_share == 1 else max_share
        self._clock = clock
        self._started = clock()
        self.spent_seconds = 0.0

    def start(self) -> None:
        """Begin to count: the training starts."""
        self._started = self._clock()
        self.spent_seconds = 0.0

    def available_seconds(self) -> float | None:
        """What the next computation may take, in seconds; None is no limit.

        After a computation that takes this long, the share is kept: spent + available =
        share * (wall time so far + available).
        """
        if self.max_share is None:
            return None
        granted = self.max_share * self.wall_seconds() - self.spent_seconds
        return max(0.0, granted / (1.0 - self.max_share))

    def wall_seconds(self) -> float:
        """The time since the training started."""
        return self._clock() - self._started

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Count the time of the block as spent."""
        begin = self._clock()
        try:
            yield
        finally:
            self.spent_seconds += self._clock() - begin
