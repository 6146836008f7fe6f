"""Mean rewards of the last episodes that are new enough to be compared.

Control libraries log the mean over the last 100 episodes, of which a record adds only a few. Such
means drift like a random walk, and one rare reward raises a hundred of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

NEW_EPISODES = 12.5
"""New episodes in a mean that is compared: eight of them span the 100 of a mean, as that of
Baselines, Stable-Baselines3 and RLlib."""

YOUNG_EPISODES, YOUNG_NEW_EPISODES = 400, 6.0
"""Episodes of a run up to which fewer suffice: a short run has no more."""

MIN_STEPS = 16
"""Steps between two means: fewer are those of the optimizer or of iterations, which do not count
episodes."""

REWARD_PATTERN = re.compile(r"(.*/)?(ep_?rew_?mean|episode_reward_mean)", re.IGNORECASE)
LENGTH_PATTERN = re.compile(r"(.*/)?(ep_?len_?mean|episode_len_mean)", re.IGNORECASE)
STEPS_PATTERN = re.compile(r"(.*/)?(total_timesteps|timesteps_total)", re.IGNORECASE)
"""Names of the mean reward and length of the last episodes, and of the number of all steps."""


@lru_cache
def is_episode_mean(reward_key: str) -> bool:
    """Whether the reward is the mean of the last episodes, by the key that is logged."""
    return bool(REWARD_PATTERN.fullmatch(reward_key))


@dataclass(slots=True)
class EpisodeWindow:
    """Counts the episodes between means, by their mean length and the steps."""

    _episodes: float = 0.0
    """New episodes since the last mean that was compared."""
    _last_steps: float = 0.0
    _total: float = 0.0

    def update(self, values: Mapping[str, float], step: int) -> bool:
        """Add a record; whether its mean is new enough, as any is that is not known to overlap."""
        length, steps = _value(values, LENGTH_PATTERN), _value(values, STEPS_PATTERN)
        if length is None or not length > 0.0:
            return True
        if steps is None:
            steps = float(step)
            if 0.0 <= steps - self._last_steps < MIN_STEPS:
                self._last_steps = steps
                return True
        # A step that went back is that of another attempt, or of another unit.
        added = max(0.0, steps - self._last_steps) / length
        self._episodes, self._total = self._episodes + added, self._total + added
        self._last_steps = steps
        is_young = self._total <= YOUNG_EPISODES
        if self._episodes < (YOUNG_NEW_EPISODES if is_young else NEW_EPISODES):
            return False
        self._episodes = 0.0
        return True


def _value(values: Mapping[str, float], pattern: re.Pattern[str]) -> float | None:
    return next((value for name, value in values.items() if pattern.fullmatch(name)), None)
