"""Departure: has a positive series left its level, recent or first, and did the reward gain by it?

Entropy and length of a policy change as it learns. They do so in their own time and with profit;
a policy that breaks changes them without.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import median

from sentinel.stats.margin_cusum import MarginCusum
from sentinel.stats.reward_gain import RewardGain

FIRST_VALUES = 5
"""Values whose median is where the series began."""

CURRENT_VALUES = 8
"""Values whose median is where it is: it takes five of eight to say anything."""

ROUNDING_MARGIN = 1 - 1e-9
"""Values a rounding error short of being half way count as if they were, until it is looked at."""


@dataclass
class LevelShift:
    """`sign` is +1 for a rise, -1 for a fall; `factor`, over 1, is how much of one matters.

    `far` is the factor over its first level at which it is away whatever it did lately: it has
    begun to be where it is half way there. `natural` is the power of the run's length so far with
    which a healthy series may go that way: what it does by that alone is no departure, however fast
    it is in a young run.
    """

    sign: int
    shift_factor: float
    far_factor: float
    natural_exponent: float = 0.0
    count: int = 0
    first_level: float = 0.0
    """Median of the first values, 0 before there is one."""
    reward_gain: RewardGain = field(default_factory=RewardGain)
    _cusum: MarginCusum = field(init=False)
    _first_values: list[float] = field(default_factory=list)
    _current_values: deque[float] = field(default_factory=lambda: deque(maxlen=CURRENT_VALUES))
    _half_way_count: int = 0
    """Of the latest values, those half way there, or all but there."""
    _half_way_step: int | None = None
    _reward_before_shift: float | None = None

    def __post_init__(self) -> None:
        self._cusum = MarginCusum(sign=self.sign, min_sigma=0.05)
        self._margin = log(self.shift_factor)
        self._half_way_log = log(self.far_factor) / 2
        self._half_way_factor = sqrt(self.far_factor) * ROUNDING_MARGIN

    def add(self, value: float, reward: float | None, step: int) -> None:
        """Take a positive value, and the finite reward of the same record where there is one."""
        self.count += 1
        self._update_first_shift(value, step)
        course, merit = self._cusum, self.reward_gain
        calm = course.evidence == 0.0
        size = log(value)
        course.update(
            size - self._natural_drift if self.natural_exponent else size, self._margin, step
        )
        if calm and course.evidence > 0.0 and merit.is_ready:
            self._reward_before_shift = merit.current_level
        if reward is not None:
            merit.add(reward)

    def _update_first_shift(self, value: float, step: int) -> None:
        if len(self._first_values) < FIRST_VALUES:
            self._first_values.append(value)
            self.first_level = median(self._first_values)
            self._current_values.append(value)
            self._half_way_count = sum(map(self._is_beyond, self._current_values))
        else:
            if len(self._current_values) == CURRENT_VALUES:
                self._half_way_count -= self._is_beyond(self._current_values[0])
            self._current_values.append(value)
            self._half_way_count += self._is_beyond(value)
        # A median is beyond what half of the values are beyond, and only then need be known.
        if 2 * self._half_way_count < len(self._current_values) or not self._is_half_way():
            self._half_way_step = None
        elif self._half_way_step is None:
            self._half_way_step = step

    def _is_beyond(self, value: float) -> bool:
        if self.sign < 0:
            return value * self._half_way_factor < self.first_level
        return value > self.first_level * self._half_way_factor

    def _is_half_way(self) -> bool:
        return self.sign * log(self.current_level / self.first_level) > self._half_way_log

    @property
    def current_level(self) -> float:
        """Median of the latest values. Raises StatisticsError before there is one."""
        return median(self._current_values)

    @property
    def reward_before(self) -> float | None:
        """Reward before the departure began, or None."""
        calm = self.count and self._cusum.evidence == 0.0
        return (
            self.reward_gain.current_level
            if calm and self.reward_gain.is_ready
            else self._reward_before_shift
        )

    @property
    def has_begun(self) -> bool:
        """Whether it has left its recent level, or is half way to being far from its first."""
        return self._cusum.is_alarmed or self._half_way_step is not None

    @property
    def is_ready(self) -> bool:
        """Whether there are enough values to speak of a first and a present level."""
        return self.count >= FIRST_VALUES + CURRENT_VALUES

    @property
    def first_value(self) -> float:
        """The very first value; IndexError before there is one."""
        return self._first_values[0]

    @property
    def has_left_recent_level(self) -> bool:
        """Whether it is away from its own recent level by more than the factor."""
        return self._cusum.is_alarmed

    @property
    def expected_level(self) -> float:
        """What that recent level leads to expect here; the first one while there is none."""
        return (
            exp(self._cusum.baseline_median + self._natural_drift)
            if self._cusum.is_armed
            else self.first_level
        )

    @property
    def _natural_drift(self) -> float:
        return self.sign * self.natural_exponent * log(self.count)

    @property
    def onset(self) -> int | None:
        """Step at which it began to leave its recent or its first level; None while at both."""
        if self._cusum.evidence == 0.0:
            return self._half_way_step
        began = self._cusum.onset
        return began if self._half_way_step is None else min(began, self._half_way_step)

    @property
    def is_unrewarded(self) -> bool:
        """Whether the reward is known and no better for it.

        It is not above where it was before the departure, where there was one from the recent
        level, or not above where the run began, or has been lost again.
        """
        if not self.reward_gain.is_ready:
            return False
        if self.reward_gain.has_lost or not self.reward_gain.has_gained:
            return True
        return (
            self.has_left_recent_level
            and self.reward_before is not None
            and not self.reward_gain.is_above(self.reward_before)
        )
