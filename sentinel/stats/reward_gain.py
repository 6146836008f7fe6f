"""Tests whether a reward has risen since an earlier point, or its gain is lost again.

A policy that changes is not at fault if its reward rises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import sqrt
from statistics import median

from sentinel.stats.rolling_quantiles import CHANGE_TO_SIGMA, median_of_sorted

FIRST_REWARDS = 16
"""Rewards whose median is the first level."""

RECENT_REWARDS = 64
"""Rewards whose median shows a lasting gain."""

LEVEL_REWARDS = 16
"""Rewards whose median is a level that can be reached or lost."""

CURRENT_REWARDS = 8
"""Rewards whose median is the current level: few, since the change to compare may be sudden."""

MIN_REWARDS = 8
"""Rewards needed for any result."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median divided by that of a mean, for normal noise."""

CLEAR_GAIN_ERRORS = 2.5
"""Standard errors by which a recent gain must stand out."""

LOST_GAIN_SHARE = 1 / 3
"""Share of the gain that must be lost, and more than `LOST_NOISE_SIGMAS` of the noise."""

LOST_NOISE_SIGMAS = 3.0

MAX_UNREAD_REWARDS = 64
"""Rewards that are kept before they are added to the levels."""

ROUNDING_SHARE = 1e-9
"""Share of a level by which means of equal rewards may differ."""


@dataclass(slots=True)
class RewardGain:
    """First, best and current level of a reward, and its noise; all are medians."""

    count: int = 0
    _first_rewards: list[float] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_REWARDS + 1))
    """The recent rewards and the one before, from which results are computed when needed."""
    _best_level: float | None = None
    """The highest median of 16 rewards, at every eighth of them."""
    _read_count: int = 0
    _unread: list[float] = field(default_factory=list)
    """Rewards that are not part of the levels yet: most need no result."""

    def add(self, reward: float) -> None:
        """Add a finite reward."""
        self.count += 1
        unread = self._unread
        unread.append(reward)
        if len(unread) == MAX_UNREAD_REWARDS:
            self._read()

    def extend(self, rewards: Collection[float]) -> None:
        """Add finite rewards."""
        self.count += len(rewards)
        self._unread += rewards
        if len(self._unread) >= MAX_UNREAD_REWARDS:
            self._read()

    def _read(self) -> None:
        unread = self._unread
        if not unread:
            return
        if len(self._first_rewards) < FIRST_REWARDS:
            self._first_rewards += unread[: FIRST_REWARDS - len(self._first_rewards)]
        while unread:
            added = unread[: CURRENT_REWARDS - self._read_count % CURRENT_REWARDS]
            del unread[: len(added)]
            self._recent.extend(added)
            self._read_count += len(added)
            if self._read_count % CURRENT_REWARDS == 0 and self._read_count >= LEVEL_REWARDS:
                level = _median(self._recent, LEVEL_REWARDS)
                best = self._best_level
                self._best_level = level if best is None else max(level, best)

    @property
    def first_level(self) -> float:
        """Median of the first rewards, 0 before the first."""
        self._read()
        return median(self._first_rewards or [0.0])

    @property
    def is_ready(self) -> bool:
        """Whether there are enough rewards for a result."""
        return self.count >= MIN_REWARDS

    @property
    def current_level(self) -> float:
        """Median of the latest rewards. Raises IndexError before the first."""
        return self._median_of_latest(CURRENT_REWARDS)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, from differences of neighbours; 0 before two rewards."""
        self._read()
        changes = sorted([abs(later - earlier) for earlier, later in pairwise(self._recent)])
        return median_of_sorted(changes) * CHANGE_TO_SIGMA if changes else 0.0

    def _median_of_latest(self, count: int) -> float:
        self._read()
        return _median(self._recent, count)

    @property
    def has_gained(self) -> bool:
        """Whether the recent median is above the first level, or the current one clearly is."""
        first, noise = self.first_level, MEDIAN_ERROR * self.noise
        error = noise * sqrt(1 / len(self._first_rewards) + 1 / min(RECENT_REWARDS, self.count))
        now_error = noise * sqrt(
            1 / len(self._first_rewards) + 1 / min(CURRENT_REWARDS, self.count)
        )
        return (
            self._median_of_latest(RECENT_REWARDS) - first > error
            or self.current_level - first > CLEAR_GAIN_ERRORS * now_error
        )

    @property
    def has_lost(self) -> bool:
        """Whether a significant part of the gain is lost."""
        self._read()
        best = self._best_level
        if best is None:
            return False
        level = _median(self._recent, LEVEL_REWARDS)
        least = max(LOST_GAIN_SHARE * (best - self.first_level), LOST_NOISE_SIGMAS * self.noise)
        return best - level > least

    @property
    def has_kept_gain(self) -> bool:
        """Whether the reward is known, has gained, and not lost its gain."""
        return self.is_ready and self.has_gained and not self.has_lost

    def is_above(self, level: float) -> bool:
        """Whether the current level exceeds `level`, a median of as many, beyond the error."""
        error = MEDIAN_ERROR * sqrt(2 / min(CURRENT_REWARDS, self.count)) * self.noise
        return self.current_level - level > error + ROUNDING_SHARE * abs(level)

    def evidence(self) -> dict[str, float | str]:
        """Current and first level as evidence of a finding; empty before there are enough."""
        if not self.is_ready:
            return {}
        return {"reward_median_of_8": self.current_level, "reward_at_start": self.first_level}


def _median(values: deque[float], count: int) -> float:
    """Median of the last `count` values."""
    return median_of_sorted(sorted(islice(reversed(values), count)))
