"""Margin CUSUM: has a series left its own recent level, by more than matters, and stayed away?

Each value is standardised against the median and spread of a window that lags behind, less a
margin that has a meaning of its own (a factor, or a number of sigmas). The result is clipped, so
no single value can raise an alarm however wild, and summed from zero as in Page's CUSUM. While
evidence gathers the window is frozen: a baseline that learnt from the fault would call it usual.

Source: Page, "Continuous inspection schemes", Biometrika 1954; clipping, margin, lag and freezing
are ours.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sentinel.stats.rolling_quantiles import RollingQuantiles

ALLOWANCE = 0.5
"""Sigmas beyond the margin that count as nothing."""

CLIP = 3.0
"""Most that one value may count, in sigmas: an alarm takes at least ALARM / 2.5 = 4 values."""

ALARM = 10.0
"""Evidence at which the series has left; it has come back at a quarter of that."""

WARM = 16
"""Values the baseline needs before anything is judged."""

FROZEN = 4
"""A baseline waits at most this many windows; then the new level has become the usual one."""


@dataclass
class MarginCusum:
    """One-sided, of bounded memory (5 windows), armed after 2 * WARM values.

    `sign` is +1 to watch for rises, -1 for falls. `window` is how many values make the baseline,
    `lag` how far it stays behind. `floor` is the least spread believed. `evidence` is the sum,
    `onset` what `update` was told `at` when it last left zero.
    """

    sign: int
    window: int = 128
    lag: int = 32
    floor: float = 1e-9
    evidence: float = 0.0
    onset: int = 0
    alarmed: bool = False
    baseline: RollingQuantiles = field(init=False)
    _waiting: deque[float] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.baseline = RollingQuantiles(self.window)

    @property
    def armed(self) -> bool:
        """Whether there is a baseline to judge by."""
        return len(self.baseline) >= WARM

    @property
    def usual(self) -> float:
        """Median of the baseline."""
        return self.baseline.median

    @property
    def sigma(self) -> float:
        """Spread of the baseline, never below the floor."""
        return max(self.baseline.sigma, self.floor)

    def update(self, value: float, margin: float, at: int) -> bool:
        """Take a finite value; True while the series is away by more than `margin`."""
        if self.armed:
            self._weigh(value, margin, at)
        self._waiting.append(value)
        self._release()
        return self.alarmed

    def _weigh(self, value: float, margin: float, at: int) -> None:
        sigma = self.sigma
        surplus = (self.sign * (value - self.usual) - margin) / sigma
        before = self.evidence
        gathered = before + max(-CLIP, min(CLIP, surplus)) - ALLOWANCE
        self.evidence = min(max(0.0, gathered), 1.5 * ALARM)
        if before == 0.0:
            self.onset = at
        self.alarmed = self.evidence > (ALARM / 4 if self.alarmed else ALARM)

    def _release(self) -> None:
        # The lag grows with the run, so that a young run has a baseline too.
        seen = len(self.baseline) + len(self._waiting)
        wait = min(self.lag, seen // 2)
        if self.armed and self.evidence >= ALARM / 2:
            wait = FROZEN * self.window
        while len(self._waiting) > wait:
            self.baseline.add(self._waiting.popleft())
