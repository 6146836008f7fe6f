"""Merit: has a reward become better since some moment, or been lost again?

What a policy does differently is no fault where it is paid for. This tells whether it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from statistics import median

from sentinel.stats.rolling_quantiles import RollingQuantiles, median_of_sorted

FIRST_REWARDS = 16
"""Rewards whose median is where the run began."""

RECENT_REWARDS = 64
"""Rewards whose median tells what has been gained: a gain is no matter of a moment."""

LEVEL_REWARDS = 16
"""Rewards whose median makes a level, reached or lost."""

CURRENT_REWARDS = 8
"""Rewards whose median is the level now: few, since what they are held against may be sudden."""

MIN_REWARDS = 8
"""Rewards before anything is said."""

CHANGE_TO_SIGMA = 1.4826 / 2**0.5
"""A median absolute change over a standard deviation, for white normal noise."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal noise."""

CLEAR_GAIN_ERRORS = 2.5
"""Standard errors by which a gain of a moment must stand out."""

LOST_GAIN_SHARE = 1 / 3
"""Share of the gain, and with it `LOST_NOISES` of the noise, that is no wobble."""

LOST_NOISE_SIGMAS = 3.0


@dataclass
class RewardGain:
    """First, best and present level of a reward, and its noise; all of them medians."""

    count: int = 0
    first_level: float = 0.0
    """Median of the first rewards, 0 before there is one."""
    best_level: float | None = None
    _first_rewards: list[float] = field(default_factory=list)
    _recent: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(RECENT_REWARDS))
    _changes: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(RECENT_REWARDS))
    _last_reward: float | None = None
    _above_best_count: int = 0
    """Of the rewards that make the level, those over the best one."""

    def add(self, reward: float) -> None:
        """Take a finite reward."""
        if self._last_reward is not None:
            self._changes.add(abs(reward - self._last_reward))
        self._last_reward = reward
        self.count += 1
        if len(self._first_rewards) < FIRST_REWARDS:
            self._first_rewards.append(reward)
            self.first_level = median(self._first_rewards)
        self._recent.add(reward)
        if self.best_level is not None:
            self._above_best_count += (reward > self.best_level) - (
                self._recent.value_before(LEVEL_REWARDS) > self.best_level
            )
        # A median is over what half of the values are over, and only then need be known.
        if self.count >= LEVEL_REWARDS and (
            self.best_level is None or self._above_best_count >= LEVEL_REWARDS // 2
        ):
            self._update_best()

    def _update_best(self) -> None:
        level = self._smoothed_level
        if self.best_level is None or level > self.best_level:
            self.best_level = level
            self._above_best_count = sum(
                reward > level for reward in self._recent.sorted_latest(LEVEL_REWARDS)
            )

    @property
    def is_ready(self) -> bool:
        """Whether there are enough rewards to say anything."""
        return self.count >= MIN_REWARDS

    @property
    def current_level(self) -> float:
        """Median of the latest rewards; IndexError before there is one."""
        return median_of_sorted(self._recent.sorted_latest(CURRENT_REWARDS))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, told from neighbours; 0 before two rewards."""
        return self._changes.median * CHANGE_TO_SIGMA if len(self._changes) else 0.0

    @property
    def has_gained(self) -> bool:
        """Whether it lately stands above where it began, or now does and clearly so."""
        first, noise = self.first_level, MEDIAN_ERROR * self.noise
        error = noise * sqrt(1 / len(self._first_rewards) + 1 / len(self._recent))
        now_error = noise * sqrt(
            1 / len(self._first_rewards) + 1 / min(CURRENT_REWARDS, self.count)
        )
        return (
            self._recent.median - first > error
            or self.current_level - first > CLEAR_GAIN_ERRORS * now_error
        )

    @property
    def has_lost(self) -> bool:
        """Whether it has lost a part of what had been gained that matters."""
        if self.best_level is None:
            return False
        fallen = self.best_level - self._smoothed_level
        return (
            fallen > LOST_GAIN_SHARE * (self.best_level - self.first_level)
            and fallen > LOST_NOISE_SIGMAS * self.noise
        )

    def is_above(self, level: float) -> bool:
        """Whether it stands above `level`, itself a median of as many, beyond the error."""
        error = sqrt(2 / min(CURRENT_REWARDS, self.count))
        return self.current_level - level > MEDIAN_ERROR * error * self.noise

    @property
    def _smoothed_level(self) -> float:
        return median_of_sorted(self._recent.sorted_latest(LEVEL_REWARDS))
