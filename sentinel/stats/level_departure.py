"""Departure of a positive series from its first level or its trajectory, and the reward meanwhile.

Entropy and length of a policy change as it learns, slowly and with a rising reward; if the policy
breaks, they change without. The trajectory and the evidence against it are those of the shared
baseline.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import log
from statistics import median

from sentinel.stats.baseline import Baseline, Direction
from sentinel.stats.first_level_shift import CURRENT_VALUES, FIRST_VALUES, READY_VALUES
from sentinel.stats.new_extreme import NewExtreme
from sentinel.stats.reward_gain import RewardGain

EXTREME_MARGIN = 0.1
"""Logarithm of the factor by which a level must be beyond all earlier ones."""


@dataclass
class LevelDeparture:
    """Compares the current level with the first one and with the expected one.

    `sign` is +1 for rises, -1 for falls. From the trajectory a level has departed if the evidence
    is `sure` nats, it is `ratio` times the expected level or beyond (below 1 for falls), and it is
    beyond every level of the run before: a series that returns has not departed.
    """

    sign: int
    ratio: float
    sure: float
    count: int = 0
    first_level: float = 0.0
    """Median of the first values, 0 before the first."""
    expected_level: float = 0.0
    """The level that the trajectory predicts; the first level while it is unknown."""
    is_off_course: bool = False
    """Whether the level has departed from the trajectory."""
    reward_before: float | None = None
    """Level of the reward when the evidence began, if it was known."""
    _first_values: list[float] = field(default_factory=list)
    _current_values: deque[float] = field(default_factory=lambda: deque(maxlen=CURRENT_VALUES))
    _extremes: NewExtreme = field(default_factory=NewExtreme)
    _had_evidence: bool = False
    _onset_range: tuple[int, int] | None = None

    def add(self, value: float, baseline: Baseline, direction: Direction, gain: RewardGain) -> None:
        """Add a positive value, with the baseline of the signal and the reward of the run."""
        self.count += 1
        if len(self._first_values) < FIRST_VALUES:
            self._first_values.append(value)
            self.first_level = self.expected_level = median(self._first_values)
        self._current_values.append(value)
        self._extremes.add(self.sign * value)
        was_off_course, self.is_off_course = self.is_off_course, False
        evidence = direction.evidence
        if evidence > 0.0 and not self._had_evidence:
            self.reward_before = gain.current_level if gain.is_ready else None
        self._had_evidence = evidence > 0.0
        # After a while the new level is no new extreme any more, but still off course.
        if evidence >= self.sure and (was_off_course or self._is_extreme()):
            expected = baseline.expected(direction)
            self.expected_level = self.first_level if expected is None else expected
            beyond = log(self.current_level / self.expected_level) - log(self.ratio)
            self.is_off_course = self.sign * beyond >= 0.0
            self._onset_range = direction.onset_range

    def _is_extreme(self) -> bool:
        earlier = self._extremes.previous_maximum
        if earlier is None:
            return True
        return self.sign * log(self.current_level / abs(earlier)) > EXTREME_MARGIN

    @property
    def current_level(self) -> float:
        """Median of the latest values. Raises StatisticsError before the first."""
        return median(self._current_values)

    @property
    def is_ready(self) -> bool:
        """Whether there are enough values for a first and a current level."""
        return self.count >= READY_VALUES

    @property
    def onset_range(self) -> tuple[int, int] | None:
        """Steps between which the level began to depart from its trajectory, if it has."""
        return self._onset_range if self.is_off_course else None

    def evidence(self, quantity: str, gain: RewardGain) -> dict[str, float | str]:
        """Levels of the quantity and of the reward, as evidence of a finding."""
        return {
            f"{quantity}_median_of_8": self.current_level,
            f"{quantity}_at_start": self.first_level,
            f"{quantity}_expected": self.expected_level,
            **gain.evidence(),
        }

    def is_unrewarded(self, gain: RewardGain) -> bool:
        """Whether the reward is known and has not risen meanwhile.

        It is not above the start of the run, or its gain has been lost again, or it is not above
        its level before the departure from the trajectory.
        """
        before = self.reward_before
        if not gain.is_ready:
            return False
        if gain.has_lost or not gain.has_gained:
            return True
        return self.is_off_course and before is not None and not gain.is_above(before)
