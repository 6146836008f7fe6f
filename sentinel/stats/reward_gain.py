"""Merit: has a reward become better since some moment, or been lost again?

What a policy does differently is no fault where it is paid for. This tells whether it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from statistics import median

from sentinel.stats.rolling_quantiles import RollingQuantiles, middle

FIRST = 16
"""Rewards whose median is where the run began."""

LATELY = 64
"""Rewards whose median tells what has been gained: a gain is no matter of a moment."""

LEVEL = 16
"""Rewards whose median makes a level, reached or lost."""

NOW = 8
"""Rewards whose median is the level now: few, since what they are held against may be sudden."""

FEWEST = 8
"""Rewards before anything is said."""

CHANGE_TO_SIGMA = 1.4826 / 2**0.5
"""A median absolute change over a standard deviation, for white normal noise."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal noise."""

CLEARLY = 2.5
"""Standard errors by which a gain of a moment must stand out."""

LOST = 1 / 3
"""Share of the gain, and with it `LOST_NOISES` of the noise, that is no wobble."""

LOST_NOISES = 3.0


@dataclass
class Merit:
    """First, best and present level of a reward, and its noise; all of them medians."""

    count: int = 0
    first: float = 0.0
    """Median of the first rewards, 0 before there is one."""
    best: float | None = None
    _first: list[float] = field(default_factory=list)
    _lately: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(LATELY))
    _changes: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(LATELY))
    _last: float | None = None
    _over: int = 0
    """Of the rewards that make the level, those over the best one."""

    def add(self, reward: float) -> None:
        """Take a finite reward."""
        if self._last is not None:
            self._changes.add(abs(reward - self._last))
        self._last = reward
        self.count += 1
        if len(self._first) < FIRST:
            self._first.append(reward)
            self.first = median(self._first)
        self._lately.add(reward)
        if self.best is not None:
            self._over += (reward > self.best) - (self._lately.before(LEVEL) > self.best)
        # A median is over what half of the values are over, and only then need be known.
        if self.count >= LEVEL and (self.best is None or self._over >= LEVEL // 2):
            self._raise_best()

    def _raise_best(self) -> None:
        level = self._level
        if self.best is None or level > self.best:
            self.best = level
            self._over = sum(reward > level for reward in self._lately.latest(LEVEL))

    @property
    def known(self) -> bool:
        """Whether there are enough rewards to say anything."""
        return self.count >= FEWEST

    @property
    def now(self) -> float:
        """Median of the latest rewards; IndexError before there is one."""
        return middle(self._lately.latest(NOW))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, told from neighbours; 0 before two rewards."""
        return self._changes.median * CHANGE_TO_SIGMA if len(self._changes) else 0.0

    @property
    def gained(self) -> bool:
        """Whether it lately stands above where it began, or now does and clearly so."""
        first, noise = self.first, MEDIAN_ERROR * self.noise
        error = noise * sqrt(1 / len(self._first) + 1 / len(self._lately))
        now_error = noise * sqrt(1 / len(self._first) + 1 / min(NOW, self.count))
        return self._lately.median - first > error or self.now - first > CLEARLY * now_error

    @property
    def lost(self) -> bool:
        """Whether it has lost a part of what had been gained that matters."""
        if self.best is None:
            return False
        fallen = self.best - self._level
        return fallen > LOST * (self.best - self.first) and fallen > LOST_NOISES * self.noise

    def above(self, level: float) -> bool:
        """Whether it stands above `level`, itself a median of as many, beyond the error."""
        error = sqrt(2 / min(NOW, self.count))
        return self.now - level > MEDIAN_ERROR * error * self.noise

    @property
    def _level(self) -> float:
        return middle(self._lately.latest(LEVEL))
