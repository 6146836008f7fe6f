"""Departure of a level from the trajectory of its signal, for one that the run never had.

The trajectory and the evidence against it are those of the shared baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

from sentinel.stats.new_extreme import NewExtreme
from sentinel.stats.shared_baselines import SharedBaselines

EXTREME_MARGIN = 0.1
"""Logarithm of the factor by which a level must be beyond all earlier ones."""

RENEWAL = 8
"""Values after which the expected level and the threshold are renewed."""


@dataclass(slots=True)
class LevelDeparture:
    """Compares the level of a signal, the median of its last 8 values, with the expected one.

    `sign` is +1 for rises, -1 for falls. A level has departed if there are `sure` nats of evidence,
    it is `ratio` times the expected level or beyond (below 1 for falls), and it is beyond every
    level of the run before: a series that returns has not departed. `threshold` is the value that,
    held, brings the evidence to `sure`; None while there is no trajectory.
    """

    signal: str
    sign: int
    ratio: float
    sure: float
    expected_level: float | None = None
    threshold: float | None = None
    evidence: float = 0.0
    """Evidence of a departure in this direction, in nats."""
    onset_range: tuple[int, int] = (0, 0)
    """Steps between which the departure began; of meaning only with evidence."""
    has_departed: bool = False
    _extremes: NewExtreme = field(default_factory=NewExtreme)

    def add(self, value: float, baselines: SharedBaselines) -> bool:
        """Add a positive value of the signal; False while there is no baseline with it."""
        baseline = baselines.by_signal.get(self.signal)
        if baseline is None:
            return False
        direction = baseline.rise if self.sign > 0 else baseline.fall
        self._extremes.add(self.sign * value)
        self.evidence = direction.cusum.evidence
        had_departed, self.has_departed = self.has_departed, False
        is_evident = self.evidence >= self.sure
        if is_evident or self.threshold is None or baseline.count % RENEWAL == 0:
            self.expected_level = baseline.expected(direction)
            self.threshold = baseline.threshold(direction, self.sure)
        if is_evident and self.expected_level is not None:
            self.onset_range = direction.onset_range
            # After a while the new level is no new extreme any more, but still off course.
            earlier, margin = self._extremes.previous_maximum, self.sign * log(self.ratio)
            is_new = had_departed or self._is_beyond(earlier, EXTREME_MARGIN)
            self.has_departed = is_new and self._is_beyond(self.expected_level, margin)
        return True

    @property
    def level(self) -> float:
        """Median of the latest values. Raises StatisticsError before the first."""
        return abs(self._extremes.current_level)

    def _is_beyond(self, level: float | None, margin: float) -> bool:
        """Whether the present level is beyond another one by a margin of their logarithms."""
        return level is None or self.sign * log(self.level / abs(level)) >= margin
