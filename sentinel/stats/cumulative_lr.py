"""Travel: how far an optimiser can have moved the weights, as the sum of its learning rates."""

from __future__ import annotations

from dataclasses import dataclass

ABSURD = 1e6
"""No learning rate is this large; sums of such would run out of numbers."""


SETTLED = 32
"""Records without a new highest rate, after which the warm-up is taken to be over."""


@dataclass
class Travel:
    """Sums learning rates; counts records for a run that gave none with its first.

    The unit is whatever the rates are in, so only ratios of two sums mean something. Once the
    warm-up is over, a rate above its peak counts as the peak: a rate set too high by mistake must
    not excuse what it does.
    """

    so_far: float = 0.0
    _rate: float | None = None
    _counts: bool = False
    _peak: float = 0.0
    _settled: int = 0

    def add(self, rate: float | None) -> float:
        """Take the rate of one record, None where it gave none; returns the sum.

        A record without a usable rate moves by the rate before it.
        """
        usable = rate is not None and 0.0 <= rate < ABSURD
        if self._rate is None:
            self._counts = not usable
        if self._counts:
            rate = 1.0
        elif not usable:
            rate = self._rate
        self._rate = rate
        self.so_far += self._believed(rate or 0.0)
        return self.so_far

    def _believed(self, rate: float) -> float:
        if rate <= self._peak:
            self._settled += 1
        elif self._settled < SETTLED:
            self._peak, self._settled = rate, 0
        return min(rate, self._peak)
