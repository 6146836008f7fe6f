"""Sum of the learning rates of a run: how far the optimizer can have moved the weights."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LEARNING_RATE = 1e6
"""Larger values are not learning rates; their sum could overflow."""

WARMUP_SETTLED_RECORDS = 32
"""Records without a new maximum after which the warm-up counts as over."""

MAX_ZERO_RECORDS = 16
"""Records with a rate of 0 at the start after which the rates count as rounded to 0 by the log."""


@dataclass(slots=True)
class CumulativeLearningRate:
    """Sums learning rates; counts records if the first record has no rate, or all rates are 0.

    The unit is that of the rates, so only ratios of two sums are meaningful. After the warm-up a
    rate above its peak counts as the peak: a rate set too high by mistake must not excuse its
    effects.
    """

    total: float = 0.0
    _last_rate: float | None = None
    _counts_records: bool = False
    _peak: float = 0.0
    _records_since_peak: int = 0
    _zero_records: int = 0

    def add(self, rate: float | None, records: float = 1.0) -> float:
        """Add the rate of one record, None if it has none; return the sum.

        A record without a usable rate counts with the rate before it. `records` is for how many it
        stands, if records before it are missing.
        """
        usable = rate is not None and 0.0 <= rate < MAX_LEARNING_RATE
        if self._last_rate is None:
            self._counts_records = not usable
        if self._counts_records:
            rate = 1.0
        elif not usable:
            rate = self._last_rate
        self._last_rate = rate
        rate = rate or 0.0
        if rate <= self._peak:
            self._records_since_peak += 1
        else:
            rate = self._cap_rate(rate)
        self.total += records * rate
        if not self.total:
            self._zero_records += 1
            self._counts_records |= self._zero_records >= MAX_ZERO_RECORDS
        return self.total

    def _cap_rate(self, rate: float) -> float:
        """The rate above the peak, which is the new peak until the warm-up is over."""
        if self._records_since_peak < WARMUP_SETTLED_RECORDS:
            self._peak, self._records_since_peak = rate, 0
        return self._peak
