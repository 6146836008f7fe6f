"""Entropy of a policy over tokens and its reward; other policies are excluded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from sentinel.stats.level_shift import LevelShift

ACTION_ENTROPY_KEYS = frozenset({"entropy_loss", "losses/entropy"})
"""Keys of stable-baselines3 and CleanRL for the entropy of a distribution of actions."""

MIN_ENTROPY = 1e-7
"""Nats per token; lower values count as this, so that their logarithm exists."""


@dataclass
class PolicyEntropy:
    """Updates `level_shift`, unless the entropy turns out to be that of continuous actions."""

    level_shift: LevelShift
    is_continuous: bool = False

    def add(self, values: Mapping[str, float], logged_as: str, step: int) -> bool:
        """Add `entropy` and `reward` of a record; whether there are enough values to evaluate."""
        entropy, reward = values["entropy"], values.get("reward")
        if not isfinite(entropy):
            return False
        self.is_continuous |= entropy < 0.0 or logged_as in ACTION_ENTROPY_KEYS
        if self.is_continuous:
            return False
        self.level_shift.add(max(entropy, MIN_ENTROPY), reward, step)
        return self.level_shift.is_ready
