"""Detects a positive series leaving its recent or its first level, and whether the reward rose."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log

from sentinel.stats.first_level_shift import READY_VALUES, FirstLevelShift
from sentinel.stats.margin_cusum import MarginCusum
from sentinel.stats.reward_gain import RewardGain


@dataclass
class LevelShift:
    """A rise (`sign` +1) or fall (-1) by more than `shift_factor`, which is above 1.

    `far_factor` is the ratio to the first level that counts as a shift whatever the recent level;
    the shift begins half way there. `sudden_share` is that of FirstLevelShift.
    """

    sign: int
    shift_factor: float
    far_factor: float
    sudden_share: float = 0.0
    first: FirstLevelShift = field(init=False)
    _cusum: MarginCusum = field(init=False)

    def __post_init__(self) -> None:
        self.first = FirstLevelShift(self.sign, self.far_factor, self.sudden_share)
        self._cusum = MarginCusum(sign=self.sign, min_sigma=0.05)
        self._margin = log(self.shift_factor)

    def add(self, value: float, reward: float | None, step: int) -> None:
        """Add a positive value, and the reward of the same record if there is a finite one."""
        self._cusum.update(log(value), self._margin, step)
        self.first.add(value, reward, step)

    @property
    def count(self) -> int:
        """Number of values."""
        return self.first.count

    @property
    def first_level(self) -> float:
        """Median of the first values, 0 before the first."""
        return self.first.first_level

    @property
    def first_value(self) -> float:
        """The very first value. Raises IndexError before it."""
        return self.first.first_value

    @property
    def current_level(self) -> float:
        """Median of the latest values. Raises StatisticsError before the first."""
        return self.first.current_level

    @property
    def reward_gain(self) -> RewardGain:
        """Levels of the reward."""
        return self.first.reward_gain

    @property
    def is_ready(self) -> bool:
        """Whether there are enough values for a first and a current level."""
        return self.first.count >= READY_VALUES

    @property
    def has_begun(self) -> bool:
        """Whether the series has left its recent level, or is half way to far from its first."""
        return self._cusum.is_alarmed or self.first.half_way_step is not None

    @property
    def has_left_recent_level(self) -> bool:
        """Whether the series is off its own recent level by more than the factor."""
        return self._cusum.is_alarmed

    @property
    def expected_level(self) -> float:
        """The recent level; the first level while there is no recent one."""
        cusum = self._cusum
        return exp(cusum.baseline_median) if cusum.is_armed else self.first_level

    @property
    def onset(self) -> int | None:
        """Step at which the series began to leave its recent or first level; None if at both."""
        half_way_step = self.first.half_way_step
        if self._cusum.evidence == 0.0:
            return half_way_step
        onset = self._cusum.onset
        return onset if half_way_step is None else min(onset, half_way_step)

    def evidence(self, quantity: str) -> dict[str, float | str]:
        """Levels of the quantity and of the reward, as evidence of a finding."""
        return {
            f"{quantity}_median_of_8": self.current_level,
            f"{quantity}_at_start": self.first_level,
            f"{quantity}_expected": self.expected_level,
            **self.reward_gain.evidence(),
        }

    @property
    def is_unrewarded(self) -> bool:
        """Whether the reward is known and has not risen with the shift."""
        return self.first.is_unrewarded(self.expected_level if self._cusum.is_alarmed else None)
