"""The reward that a run had while another of its series was still at its earlier level.

A policy may change for good: completions become longer while their reward rises. What counts is the
reward since the change began, however slow it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

BLOCK = 4
"""Records in a block; two adjacent blocks hold as many rewards as a current level."""

MAX_BLOCKS = 64
"""Stored blocks; of older ones only every second one is kept each time."""


@dataclass
class RewardHistory:
    """Mean level and mean reward of blocks of records that have both."""

    _levels: list[float] = field(default_factory=list)
    _rewards: list[float] = field(default_factory=list)
    _block_levels: list[float] = field(default_factory=list)
    _block_rewards: list[float] = field(default_factory=list)

    def add(self, level: float, reward: float) -> None:
        """Add finite values of one record."""
        self._block_levels.append(level)
        self._block_rewards.append(reward)
        if len(self._block_levels) < BLOCK:
            return
        self._levels.append(fmean(self._block_levels))
        self._rewards.append(fmean(self._block_rewards))
        self._block_levels.clear()
        self._block_rewards.clear()
        if len(self._levels) > MAX_BLOCKS:
            del self._levels[1 : MAX_BLOCKS // 2 : 2], self._rewards[1 : MAX_BLOCKS // 2 : 2]

    def reward_at_level(self, sign: int, limit: float) -> float | None:
        """Mean reward of the latest two blocks whose level is not beyond `limit`, or None.

        Beyond is above for a `sign` of +1, below for -1.
        """
        levels = self._levels
        for last in range(len(levels) - 1, 0, -1):
            if sign * (levels[last] + levels[last - 1] - 2 * limit) <= 0.0:
                return (self._rewards[last] + self._rewards[last - 1]) / 2
        return None
