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
from sentinel.stats.reward_gain import Merit

FIRST = 5
"""Values whose median is where the series began."""

NOW = 8
"""Values whose median is where it is: it takes five of eight to say anything."""

ALL_BUT = 1 - 1e-9
"""Values a rounding error short of being half way count as if they were, until it is looked at."""


@dataclass
class Departure:
    """`sign` is +1 for a rise, -1 for a fall; `factor`, over 1, is how much of one matters.

    `far` is the factor over its first level at which it is away whatever it did lately: it has
    begun to be where it is half way there. `natural` is the power of the run's length so far with
    which a healthy series may go that way: what it does by that alone is no departure, however fast
    it is in a young run.
    """

    sign: int
    factor: float
    far: float
    natural: float = 0.0
    count: int = 0
    first: float = 0.0
    """Median of the first values, 0 before there is one."""
    merit: Merit = field(default_factory=Merit)
    _course: MarginCusum = field(init=False)
    _first: list[float] = field(default_factory=list)
    _now: deque[float] = field(default_factory=lambda: deque(maxlen=NOW))
    _beyond: int = 0
    """Of the latest values, those half way there, or all but there."""
    _half_way: int | None = None
    _before: float | None = None

    def __post_init__(self) -> None:
        self._course = MarginCusum(sign=self.sign, floor=0.05)
        self._margin = log(self.factor)
        self._half = log(self.far) / 2
        self._edge = sqrt(self.far) * ALL_BUT

    def add(self, value: float, reward: float | None, step: int) -> None:
        """Take a positive value, and the finite reward of the same record where there is one."""
        self.count += 1
        self._note(value, step)
        course, merit = self._course, self.merit
        calm = course.evidence == 0.0
        size = log(value)
        course.update(size - self._drift if self.natural else size, self._margin, step)
        if calm and course.evidence > 0.0 and merit.known:
            self._before = merit.now
        if reward is not None:
            merit.add(reward)

    def _note(self, value: float, step: int) -> None:
        if len(self._first) < FIRST:
            self._first.append(value)
            self.first = median(self._first)
            self._now.append(value)
            self._beyond = sum(map(self._is_beyond, self._now))
        else:
            if len(self._now) == NOW:
                self._beyond -= self._is_beyond(self._now[0])
            self._now.append(value)
            self._beyond += self._is_beyond(value)
        # A median is beyond what half of the values are beyond, and only then need be known.
        if 2 * self._beyond < len(self._now) or not self._is_half_way():
            self._half_way = None
        elif self._half_way is None:
            self._half_way = step

    def _is_beyond(self, value: float) -> bool:
        if self.sign < 0:
            return value * self._edge < self.first
        return value > self.first * self._edge

    def _is_half_way(self) -> bool:
        return self.sign * log(self.now / self.first) > self._half

    @property
    def now(self) -> float:
        """Median of the latest values. Raises StatisticsError before there is one."""
        return median(self._now)

    @property
    def before(self) -> float | None:
        """Reward before the departure began, or None."""
        calm = self.count and self._course.evidence == 0.0
        return self.merit.now if calm and self.merit.known else self._before

    @property
    def begun(self) -> bool:
        """Whether it has left its recent level, or is half way to being far from its first."""
        return self._course.alarmed or self._half_way is not None

    @property
    def known(self) -> bool:
        """Whether there are enough values to speak of a first and a present level."""
        return self.count >= FIRST + NOW

    @property
    def opening(self) -> float:
        """The very first value; IndexError before there is one."""
        return self._first[0]

    @property
    def left(self) -> bool:
        """Whether it is away from its own recent level by more than the factor."""
        return self._course.alarmed

    @property
    def usual(self) -> float:
        """What that recent level leads to expect here; the first one while there is none."""
        return exp(self._course.usual + self._drift) if self._course.armed else self.first

    @property
    def _drift(self) -> float:
        return self.sign * self.natural * log(self.count)

    @property
    def onset(self) -> int | None:
        """Step at which it began to leave its recent or its first level; None while at both."""
        if self._course.evidence == 0.0:
            return self._half_way
        began = self._course.onset
        return began if self._half_way is None else min(began, self._half_way)

    @property
    def unpaid(self) -> bool:
        """Whether the reward is known and no better for it.

        It is not above where it was before the departure, where there was one from the recent
        level, or not above where the run began, or has been lost again.
        """
        if not self.merit.known:
            return False
        if self.merit.lost or not self.merit.gained:
            return True
        return self.left and self.before is not None and not self.merit.above(self.before)
