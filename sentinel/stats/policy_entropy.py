"""Policy entropy: the course of a policy over tokens beside its reward; nothing of any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from sentinel.stats.level_shift import LevelShift

ACTION_ENTROPY_KEYS = frozenset({"entropy_loss", "losses/entropy"})
"""What stable-baselines3 and CleanRL call the entropy of a distribution of actions."""

MIN_ENTROPY = 1e-7
"""Nats per token; what is less is as good as this, so that there is a logarithm."""


@dataclass
class PolicyEntropy:
    """Feeds `course`, until the entropy proves to be one over continuous actions."""

    level_shift: LevelShift
    is_continuous: bool = False

    def add(self, values: Mapping[str, float], logged_as: str, step: int) -> bool:
        """Take the `entropy` of a record, and its `reward`; whether its course can be judged."""
        entropy, reward = values["entropy"], values.get("reward")
        if not isfinite(entropy):
            return False
        self.is_continuous |= entropy < 0.0 or logged_as in ACTION_ENTROPY_KEYS
        if self.is_continuous:
            return False
        paid_in = reward if reward is not None and isfinite(reward) else None
        self.level_shift.add(max(entropy, MIN_ENTROPY), paid_in, step)
        return self.level_shift.is_ready
