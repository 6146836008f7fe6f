"""Detects a positive series leaving its first or its recent level, and whether the reward rose.

Entropy and length of a policy change as it learns, slowly and with a rising reward; if the policy
breaks, they change without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, isfinite, log, pi, sqrt
from statistics import fmean, median

from sentinel.stats.baseline import Baseline, level_baseline
from sentinel.stats.reward_gain import MEDIAN_ERROR, RewardGain
from sentinel.stats.reward_history import RewardHistory

FIRST_VALUES = 5
"""Values whose median is the first level."""

CURRENT_VALUES = 8
"""Values whose median is the current level: five of eight values move it."""

SUDDEN_VALUES = 3
"""Values in a row below the sudden share that end the first values: no chance, whatever the noise.
"""

BLOCK = CURRENT_VALUES
"""Values in a block, whose means show how much levels differ without a shift."""

COMPARED_BLOCKS = 4
"""First and latest blocks that are compared, and blocks needed to know their noise."""

CHANGE_MEMORY = 1 / 32
"""Weight of the latest change in a mean absolute change of neighbours."""

CHANGE_TO_SIGMA = sqrt(pi) / 2
"""Standard deviation of normal noise, divided by the mean absolute difference of neighbours."""

YOUNG_SIGMA = 4.0
"""Noise of n values, of a run without blocks yet, counts 1 + YOUNG_SIGMA / n times."""

SIGNIFICANT_ERRORS = 4.0
"""Standard errors by which the current level must differ from the first one."""

MAX_UNREAD_VALUES = 64
"""Values that are kept before they are added to the noise."""

MIN_SIGMA, LEAST = 0.05, 1e-300
"""Least spread of the logarithms about the recent level, and least value."""

EARLIER_SHARE = 0.25
"""Share of a shift, of its logarithm, up to which a record belongs to the time before."""

ROUNDING_MARGIN = 1 - 1e-9
"""Values short of half way by a rounding error are counted; the exact test follows."""


@dataclass(slots=True)
class MeanChange:
    """Running mean of the absolute difference of neighbours, as a measure of noise."""

    count: int = 0
    """Number of differences."""
    _last: float | None = None
    _mean: float = 0.0

    def extend(self, values: Iterable[float]) -> None:
        """Add finite values."""
        count, last, mean = self.count, self._last, self._mean
        for value in values:
            if last is not None:
                count += 1
                weight = CHANGE_MEMORY if count * CHANGE_MEMORY >= 1.0 else 1 / count
                mean += weight * (abs(value - last) - mean)
            last = value
        self.count, self._last, self._mean = count, last, mean

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise."""
        return CHANGE_TO_SIGMA * self._mean


@dataclass(slots=True)
class LevelShift:
    """A rise (`sign` +1) or fall (-1) of the current level of a positive series.

    `far_factor` is the ratio to the first level that counts as a shift, which begins half way
    there; `recent_factor` that to the recent level, where the caller knows of no other course.
    Three values in a row below `sudden_share` of those before them are not among the first.
    """

    sign: int
    far_factor: float
    recent_factor: float | None = None
    sudden_share: float = 0.0
    count: int = 0
    first_level: float = 0.0
    """Median of the first values, 0 before the first."""
    half_way_step: int | None = None
    """Step since which the current level is half way to far; None if it is not."""
    _recent: Baseline = field(init=False)
    _reward_gain: RewardGain = field(default_factory=RewardGain)
    _first_values: list[float] = field(default_factory=list)
    _current_values: deque[float] = field(default_factory=lambda: deque(maxlen=CURRENT_VALUES))
    _half_way_count: int = 0
    """Of the latest values, those half way to far, or short of it by a rounding error."""
    _is_first_level_final: bool = False
    _values_noise: MeanChange = field(default_factory=MeanChange)
    _changes_noise: MeanChange = field(default_factory=MeanChange)
    _block: list[float] = field(default_factory=list)
    _first_blocks: list[float] = field(default_factory=list)
    _latest_blocks: deque[float] = field(default_factory=lambda: deque(maxlen=COMPARED_BLOCKS))
    """Means of the logarithms of blocks."""
    _reward_history: RewardHistory = field(default_factory=RewardHistory)
    _unread: list[tuple[float, float | None]] = field(default_factory=list)
    """Values and rewards that are not part of the noise and the rewards yet: while the current
    level is near the first one, neither is needed."""

    _half_way_log: float = field(init=False)
    _half_way_factor: float = field(init=False)

    def __post_init__(self) -> None:
        self._half_way_log = log(self.far_factor) / 2
        self._half_way_factor = sqrt(self.far_factor) * ROUNDING_MARGIN
        margin = log(self.recent_factor or inf)
        self._recent = level_baseline(self.sign, margin, MIN_SIGMA, least=LEAST)

    def add(self, value: float, reward: float | None, step: int) -> None:
        """Add a positive value, and the reward of the same record if there is a finite one."""
        self.count += 1
        if self.recent_factor is not None:
            self._recent.update(value, self.count, step)
        self._update_levels(value, step)
        unread = self._unread
        unread.append((value, reward))
        if len(unread) == MAX_UNREAD_VALUES:
            self._read()

    def _read(self) -> None:
        """Add the unread values to the noise, and the rewards to their levels."""
        unread = self._unread
        logs = [log(value) for value, _ in unread]
        self._values_noise.extend(logs)
        block = self._block = self._block + logs
        while len(block) >= BLOCK:
            self._add_block(sum(block[:BLOCK]) / BLOCK)
            del block[:BLOCK]
        rewarded = [
            (log_value, reward)
            for log_value, (_, reward) in zip(logs, unread, strict=True)
            if reward is not None and isfinite(reward)
        ]
        if rewarded:
            levels, rewards = zip(*rewarded, strict=True)
            self._reward_gain.extend(rewards)
            self._reward_history.extend(levels, rewards)
        unread.clear()

    @property
    def reward_gain(self) -> RewardGain:
        """Levels of the reward."""
        self._read()
        return self._reward_gain

    def _add_block(self, mean: float) -> None:
        if self._latest_blocks:
            # Changes of the change: a steady growth is no noise.
            self._changes_noise.extend((mean - self._latest_blocks[-1],))
        self._latest_blocks.append(mean)
        if len(self._first_blocks) < COMPARED_BLOCKS:
            self._first_blocks.append(mean)

    def _update_levels(self, value: float, step: int) -> None:
        values = self._current_values
        if not self._is_first_level_final:
            self._update_first_level(value)
            values.append(value)
            self._half_way_count = sum(map(self._is_beyond, values))
        else:
            if self._half_way_count and len(values) == CURRENT_VALUES:
                self._half_way_count -= self._is_beyond(values[0])
            values.append(value)
            if self._is_beyond(value):
                self._half_way_count += 1
        # The median can be half way only if half of the values are.
        may_be = 2 * self._half_way_count >= len(values)
        if not may_be or self._shift_from(self.first_level) <= self._half_way_log:
            self.half_way_step = None
        elif self.half_way_step is None:
            self.half_way_step = step

    def _update_first_level(self, value: float) -> None:
        values = self._first_values
        values.append(value)
        before = values[:-SUDDEN_VALUES]
        if len(before) > 1 and max(values[-SUDDEN_VALUES:]) < self.sudden_share * min(before):
            self._first_values = before
            self._is_first_level_final = True
        self._is_first_level_final |= len(values) == FIRST_VALUES
        self.first_level = median(self._first_values)

    def _is_beyond(self, value: float) -> bool:
        if self.sign < 0:
            return value * self._half_way_factor < self.first_level
        return value > self.first_level * self._half_way_factor

    def _shift_from(self, level: float) -> float:
        """Logarithm of the factor by which the current level is beyond `level`."""
        # The quotient may be 0 or infinite.
        return self.sign * (log(self.current_level) - log(level))

    @property
    def current_level(self) -> float:
        """Median of the latest values. Raises StatisticsError before the first."""
        return median(self._current_values)

    @property
    def is_ready(self) -> bool:
        """Whether there are enough values for a first and a current level."""
        return self.count >= FIRST_VALUES + CURRENT_VALUES

    @property
    def has_begun(self) -> bool:
        """Whether the series has left its recent level, or is half way to far from its first."""
        return self.has_left_recent_level or self.half_way_step is not None

    @property
    def has_left_recent_level(self) -> bool:
        """Whether the series is off its own recent level by more than the factor."""
        return self._recent.toward(self.sign).is_alarmed

    @property
    def expected_level(self) -> float:
        """The recent level; the first level while there is no recent one."""
        return self._recent.expected(self._recent.toward(self.sign)) or self.first_level

    @property
    def onset(self) -> int | None:
        """Step at which the series began to leave its recent or first level; None if at both."""
        direction = self._recent.toward(self.sign)
        steps = (direction.onset if direction.evidence else None, self.half_way_step)
        return min((step for step in steps if step is not None), default=None)

    @property
    def first_value(self) -> float:
        """The very first value. Raises IndexError before it."""
        return self._first_values[0]

    @property
    def is_off_first_value(self) -> bool:
        """Whether noise of single values cannot explain the difference from the first value."""
        self._read()
        return self._shift_from(self.first_value) > SIGNIFICANT_ERRORS * self._values_noise.sigma

    @property
    def is_significant(self) -> bool:
        """Whether noise cannot explain the difference of the current from the first level.

        Either of the levels, or of the first and the latest blocks, whose noise is known later and
        includes what lasts for several values.
        """
        self._read()
        shift = self._shift_from(self.first_level)
        counts = len(self._first_values), len(self._current_values)
        has_blocks = len(self._first_blocks) == COMPARED_BLOCKS
        # A change of independent values has sqrt(2) times their sigma, that of changes sqrt(6).
        block_noise = self._changes_noise.sigma / sqrt(3)
        noise = block_noise * sqrt(BLOCK)
        if not has_blocks:
            noise = self._values_noise.sigma * (1 + YOUNG_SIGMA / self.count)
        error = MEDIAN_ERROR * noise * sqrt(1 / counts[0] + 1 / counts[1])
        if shift > SIGNIFICANT_ERRORS * error:
            return True
        if not has_blocks:
            return False
        shift = self.sign * (fmean(self._latest_blocks) - fmean(self._first_blocks))
        error = block_noise * sqrt(2 / COMPARED_BLOCKS)
        return shift > SIGNIFICANT_ERRORS * error

    def is_unrewarded(self, expected: float | None = None) -> bool:
        """Whether the reward is known and has not risen with the shift.

        It is not above its level before the shift from `expected`, by default the recent level. If
        the series is only off its first level, the reward is not above the start of the run either,
        or its gain is lost again.
        """
        gain = self.reward_gain
        if not gain.is_ready:
            return False
        if expected is None and self.has_left_recent_level:
            expected = self.expected_level
        start = self.first_level if expected is None else expected
        limit = log(start) + self.sign * EARLIER_SHARE * self._shift_from(start)
        before = self._reward_history.reward_at_level(self.sign, limit)
        if before is not None and gain.is_above(before):
            return False
        is_known = expected is not None and before is not None
        return is_known or gain.has_lost or not gain.has_gained

    def evidence(self, quantity: str, expected: float | None = None) -> dict[str, float | str]:
        """Levels of the quantity and of the reward, as evidence of a finding."""
        return {
            f"{quantity}_median_of_8": self.current_level,
            f"{quantity}_at_start": self.first_level,
            f"{quantity}_expected": self.expected_level if expected is None else expected,
            **self.reward_gain.evidence(),
        }
