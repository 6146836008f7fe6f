"""Travel: how far an optimiser can have moved the weights, as the sum of its learning rates."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LEARNING_RATE = 1e6
"""No learning rate is this large; sums of such would run out of numbers."""


WARMUP_SETTLED_RECORDS = 32
"""Records without a new highest rate, after which the warm-up is taken to be over."""


@dataclass
class CumulativeLearningRate:
    """Sums learning rates; counts records for a run that gave none with its first.

    The unit is whatever the rates are in, so only ratios of two sums mean something. Once the
    warm-up is over, a rate above its peak counts as the peak: a rate set too high by mistake must
    not excuse what it does.
    """

    total: float = 0.0
    _last_rate: float | None = None
    _counts_records: bool = False
    _peak: float = 0.0
    _records_since_peak: int = 0

    def add(self, rate: float | None) -> float:
        """Take the rate of one record, None where it gave none; returns the sum.

        A record without a usable rate moves by the rate before it.
        """
        usable = rate is not None and 0.0 <= rate < MAX_LEARNING_RATE
        if self._last_rate is None:
            self._counts_records = not usable
        if self._counts_records:
            rate = 1.0
        elif not usable:
            rate = self._last_rate
        self._last_rate = rate
        self.total += self._capped_rate(rate or 0.0)
        return self.total

    def _capped_rate(self, rate: float) -> float:
        if rate <= self._peak:
            self._records_since_peak += 1
        elif self._records_since_peak < WARMUP_SETTLED_RECORDS:
            self._peak, self._records_since_peak = rate, 0
        return min(rate, self._peak)
