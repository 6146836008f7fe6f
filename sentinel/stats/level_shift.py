"""Detects a positive series leaving its recent or its first level, and whether the reward rose.

Entropy and length of a policy change as it learns, slowly and with a rising reward; if the policy
breaks, they change without.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import exp, isfinite, log, pi, sqrt
from statistics import median

from sentinel.stats.margin_cusum import MarginCusum
from sentinel.stats.reward_gain import MEDIAN_ERROR, RewardGain
from sentinel.stats.reward_history import RewardHistory

FIRST_VALUES = 5
"""Values whose median is the first level."""

CURRENT_VALUES = 8
"""Values whose median is the current level: five of eight values move it."""

SUDDEN_VALUES = 3
"""Values in a row below the sudden share that end the first values: no chance, whatever the noise.
"""

CHANGE_MEMORY = 1 / 32
"""Weight of the latest change in the mean absolute change of neighbouring logarithms."""

MEAN_CHANGE_TO_SIGMA = sqrt(pi) / 2
"""Standard deviation of normal noise, divided by the mean absolute difference of neighbours."""

SIGNIFICANT_ERRORS = 3.0
"""Standard errors by which the current level must differ from the first one."""

FEW_VALUES = 4
"""Of so many values the noise is estimated too low by half."""

EARLIER_SHARE = 0.25
"""Share of a shift, of its logarithm, up to which a record belongs to the time before."""

NOTE_PERIOD = 32
"""Values between two noted levels."""

NOTED_LEVELS = 2

ROUNDING_MARGIN = 1 - 1e-9
"""Values short of half way by a rounding error are counted; the exact test follows."""


@dataclass
class LevelShift:
    """A rise (`sign` +1) or fall (-1) by more than `shift_factor`, which is above 1.

    `far_factor` is the ratio to the first level that counts as a shift whatever the recent level;
    the shift begins half way there. A healthy series may drift in that direction as the number of
    its values to the power of `natural_exponent`: that drift is not a shift, however fast it is in
    a young run. Three values in a row below `sudden_share` of the first ones are not among them.
    """

    sign: int
    shift_factor: float
    far_factor: float
    natural_exponent: float = 0.0
    sudden_share: float = 0.0
    count: int = 0
    first_level: float = 0.0
    """Median of the first values, 0 before the first."""
    highest_usual_level: float = 0.0
    """Highest of the noted levels, except the latest and those of a shift; 0 at first."""
    noted_levels: deque[float] = field(default_factory=lambda: deque(maxlen=NOTED_LEVELS))
    """Current levels every 32 values, the latest two."""
    reward_gain: RewardGain = field(default_factory=RewardGain)
    _cusum: MarginCusum = field(init=False)
    _first_values: list[float] = field(default_factory=list)
    _current_values: deque[float] = field(default_factory=lambda: deque(maxlen=CURRENT_VALUES))
    _half_way_count: int = 0
    """Of the latest values, those half way to far, or short of it by a rounding error."""
    _half_way_step: int | None = None
    _is_first_level_final: bool = False
    _last_usual_level: float = 0.0
    _last_log: float | None = None
    _mean_change: float = 0.0
    """Mean absolute difference of the logarithms of neighbours; a running mean."""
    _reward_history: RewardHistory = field(default_factory=RewardHistory)
    _reward_before_shift: float | None = None

    def __post_init__(self) -> None:
        self._cusum = MarginCusum(sign=self.sign, min_sigma=0.05)
        self._margin = log(self.shift_factor)
        self._half_way_log = log(self.far_factor) / 2
        self._half_way_factor = sqrt(self.far_factor) * ROUNDING_MARGIN

    def add(self, value: float, reward: float | None, step: int) -> None:
        """Add a positive value, and the reward of the same record if there is a finite one."""
        self.count += 1
        self._update_first_shift(value, step)
        cusum, gain = self._cusum, self.reward_gain
        had_no_evidence = cusum.evidence == 0.0
        drift = self._natural_drift if self.natural_exponent else 0.0
        log_value = log(value)
        cusum.update(log_value - drift, self._margin, step)
        self._update_noise(log_value)
        if self.count % NOTE_PERIOD == 0:
            self.noted_levels.append(self.current_level)
            self.highest_usual_level = max(self.highest_usual_level, self._last_usual_level)
            self._last_usual_level = self.current_level if cusum.evidence == 0.0 else 0.0
        if had_no_evidence and cusum.evidence > 0.0 and gain.is_ready:
            self._reward_before_shift = gain.current_level
        if reward is not None and isfinite(reward):
            gain.add(reward)
            self._reward_history.add(log_value, reward)

    def _update_noise(self, log_value: float) -> None:
        if self._last_log is not None:
            weight = max(CHANGE_MEMORY, 1 / (self.count - 1))
            self._mean_change += weight * (abs(log_value - self._last_log) - self._mean_change)
        self._last_log = log_value

    def _update_first_level(self, value: float) -> None:
        values = self._first_values
        values.append(value)
        before = values[:-SUDDEN_VALUES]
        if len(before) > 1 and max(values[-SUDDEN_VALUES:]) < self.sudden_share * min(before):
            self._first_values = before
            self._is_first_level_final = True
        self._is_first_level_final |= len(values) == FIRST_VALUES
        self.first_level = median(self._first_values)

    def _update_first_shift(self, value: float, step: int) -> None:
        if not self._is_first_level_final:
            self._update_first_level(value)
            self._current_values.append(value)
            self._half_way_count = sum(map(self._is_beyond, self._current_values))
        else:
            if len(self._current_values) == CURRENT_VALUES:
                self._half_way_count -= self._is_beyond(self._current_values[0])
            self._current_values.append(value)
            self._half_way_count += self._is_beyond(value)
        # The median can be half way only if half of the values are.
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
        """Median of the latest values. Raises StatisticsError before the first."""
        return median(self._current_values)

    @property
    def reward_before(self) -> float | None:
        """Reward before the shift began, or None."""
        has_no_evidence = self.count and self._cusum.evidence == 0.0
        if has_no_evidence and self.reward_gain.is_ready:
            return self.reward_gain.current_level
        return self._reward_before_shift

    @property
    def has_begun(self) -> bool:
        """Whether the series has left its recent level, or is half way to far from its first."""
        return self._cusum.is_alarmed or self._half_way_step is not None

    @property
    def is_ready(self) -> bool:
        """Whether there are enough values for a first and a current level."""
        return self.count >= FIRST_VALUES + CURRENT_VALUES

    @property
    def first_value(self) -> float:
        """The very first value. Raises IndexError before it."""
        return self._first_values[0]

    @property
    def has_left_recent_level(self) -> bool:
        """Whether the series is off its own recent level by more than the factor."""
        return self._cusum.is_alarmed

    @property
    def expected_level(self) -> float:
        """The recent level with natural drift; the first level while there is no recent one."""
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
        """Step at which the series began to leave its recent or first level; None if at both."""
        if self._cusum.evidence == 0.0:
            return self._half_way_step
        onset = self._cusum.onset
        return onset if self._half_way_step is None else min(onset, self._half_way_step)

    def evidence(self, quantity: str) -> dict[str, float | str]:
        """Levels of the quantity and of the reward, as evidence of a finding."""
        return {
            f"{quantity}_median_of_8": self.current_level,
            f"{quantity}_at_start": self.first_level,
            f"{quantity}_expected": self.expected_level,
            **self.reward_gain.evidence(),
        }

    @property
    def is_significant(self) -> bool:
        """Whether noise cannot explain the difference of the current from the first level."""
        error = MEDIAN_ERROR * MEAN_CHANGE_TO_SIGMA * self._mean_change
        error *= sqrt(1 / len(self._first_values) + 1 / len(self._current_values))
        error *= 1 + FEW_VALUES / self.count
        shift = self.sign * log(self.current_level / self.first_level)
        return shift > SIGNIFICANT_ERRORS * error

    @property
    def is_unrewarded(self) -> bool:
        """Whether the reward is known and has not risen with the shift.

        It is not above its level before the shift; if the series is only off its first level, also
        not above the start of the run, unless its gain is lost again.
        """
        return self._is_unrewarded(is_recent=self.has_left_recent_level)

    @property
    def is_unrewarded_since_start(self) -> bool:
        """The same of a series that is only off its first level."""
        return self._is_unrewarded(is_recent=False)

    def _is_unrewarded(self, *, is_recent: bool) -> bool:
        gain = self.reward_gain
        if not gain.is_ready:
            return False
        start = self.expected_level if is_recent else self.first_level
        limit = log(start) + EARLIER_SHARE * log(self.current_level / start)
        before = self._reward_history.reward_at_level(self.sign, limit)
        if before is not None and gain.is_above(before):
            return False
        return (is_recent and before is not None) or gain.has_lost or not gain.has_gained
