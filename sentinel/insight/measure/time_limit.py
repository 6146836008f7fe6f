"""A limit of the time of a measurement, which the ranks agree on."""

from __future__ import annotations

import time

from sentinel.insight.measure.rank_exchange import RankExchange
from sentinel.insight.measure.surface_error import SurfaceError


class OutOfTimeError(SurfaceError):
    """A measurement took longer than it may."""


class TimeLimit:
    """Passed after `seconds` from now on the slowest rank; None is never.

    Raises ValueError if `seconds` is not positive.
    """

    def __init__(self, seconds: float | None, exchange: RankExchange) -> None:
        if seconds is not None and not seconds > 0:
            raise ValueError(f"`max_seconds` must be above 0, or None for no limit: {seconds!r}.")
        self._seconds, self._exchange = seconds, exchange
        self._started = time.monotonic()
        self._is_passed = False

    def is_passed(self) -> bool:
        """Whether the time is over. Every rank asks at the same places, and gets one answer."""
        if self._seconds is not None and not self._is_passed:
            seconds = time.monotonic() - self._started
            self._is_passed = max(self._exchange.gather(seconds)) > self._seconds
        return self._is_passed

    def check(self) -> None:
        """Raise OutOfTimeError if the time is over."""
        if self.is_passed():
            raise OutOfTimeError(
                f"It takes longer than {self._seconds:.3g} s: allow more time, or choose fewer "
                "weights or a smaller batch."
            )
