"""The reward that a run had while another of its series was still at its earlier level.

A policy may change for good: completions become longer while their reward rises. What counts is the
reward since the change began, however slow it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor

BLOCK = 8
"""Records in a block: as many rewards as a current level has."""

BIN = 0.1
"""Width of a level for which the latest block is stored."""

MAX_BINS = 256
"""Stored blocks; more replace the oldest."""


@dataclass(slots=True)
class RewardHistory:
    """Means of level and reward over blocks of records; of each level, the latest block."""

    _block_count: int = 0
    _levels: list[float] = field(default_factory=list)
    _rewards: list[float] = field(default_factory=list)
    _blocks: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    """Number, mean level and mean reward of a block by its bin."""

    def extend(self, levels: Iterable[float], rewards: Iterable[float]) -> None:
        """Add finite values of as many records."""
        self._levels += levels
        self._rewards += rewards
        levels, rewards, blocks = self._levels, self._rewards, self._blocks
        end = len(levels) - len(levels) % BLOCK
        if not end:
            return
        for at in range(0, end, BLOCK):
            self._block_count += 1
            # Values may be as large as a float can be.
            mean = sum([level / BLOCK for level in levels[at : at + BLOCK]])
            reward = sum([each / BLOCK for each in rewards[at : at + BLOCK]])
            blocks[floor(mean / BIN)] = self._block_count, mean, reward
            if len(blocks) > MAX_BINS:
                del blocks[min(blocks, key=lambda each: blocks[each][0])]
        del levels[:end], rewards[:end]

    def reward_at_level(self, sign: int, limit: float) -> float | None:
        """Mean reward of the latest block whose level is not beyond `limit`, or None.

        Beyond is above for a `sign` of +1, below for -1.
        """
        before = [b for b in self._blocks.values() if sign * (b[1] - limit) <= 0.0]
        return max(before)[2] if before else None
