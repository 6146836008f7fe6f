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

LULL = 16
"""Into so many parts a window is cut to say for how many values its median is known to be near."""


@dataclass
class MarginCusum:
    """One-sided, of bounded memory (5 windows), armed after 2 * WARM values.

    `sign` is +1 to watch for rises, -1 for falls. `window` is how many values make the baseline,
    `lag` how far it stays behind. `floor` is the least spread believed. The margin is `sigmas` of
    that spread at least. `evidence` is the sum, `onset` what `update` was told `at` when it last
    left zero. `armed` says whether there is a baseline to judge by.

    A window's median moves by one place a value, so that for some time after a look at the window
    it is known on which side of it most values are. Such a value is evidence of nothing; it waits,
    and the window is looked at again only when one comes that might be, or that time is over.
    """

    sign: int
    window: int = 128
    lag: int = 32
    floor: float = 1e-9
    sigmas: float = 0.0
    evidence: float = 0.0
    onset: int = 0
    alarmed: bool = False
    armed: bool = False
    _baseline: RollingQuantiles = field(init=False)
    _waiting: deque[float] = field(default_factory=deque)
    _lull: int = 0
    _unseen: int = 0
    """Values that came in this lull, of at most `_lull`."""
    _near: float = 0.0

    def __post_init__(self) -> None:
        self._baseline = RollingQuantiles(self.window)

    @property
    def usual(self) -> float:
        """Median of the baseline. Raises IndexError before it has a value."""
        self._catch_up()
        return self._baseline.median

    @property
    def sigma(self) -> float:
        """Spread of the baseline, never below the floor. Raises IndexError as `usual` does."""
        self._catch_up()
        return max(self._baseline.sigma, self.floor)

    def update(self, value: float, margin: float, at: int) -> bool:
        """Take a finite value; True while the series is away by more than the margin."""
        if self.holds(value, margin):
            self._unseen += 1
            self._waiting.append(value)
            self.onset = at
            return False
        self._catch_up()
        if self.armed:
            self._weigh(value, margin, at)
        self._waiting.append(value)
        self._release()
        return self.alarmed

    def holds(self, value: float, margin: float) -> bool:
        """Whether a value is surely within the margin, as far as is known without a look."""
        return self._unseen < self._lull and self.sign * (value - self._near) <= margin

    def _weigh(self, value: float, margin: float, at: int) -> None:
        excess, before = self.sign * (value - self._baseline.median) - margin, self.evidence
        if before == 0.0:
            self.onset = at
            if excess <= 0.0:
                # Whatever the spread is: there was nothing, and this is less.
                return
        sigma = self.sigma
        if self.sigmas * sigma > margin:
            excess = self.sign * (value - self._baseline.median) - self.sigmas * sigma
        gathered = before + max(-CLIP, min(CLIP, excess / sigma)) - ALLOWANCE
        self.evidence = min(max(0.0, gathered), 1.5 * ALARM)
        self.alarmed = self.evidence > (ALARM / 4 if self.alarmed else ALARM)

    def _release(self) -> None:
        # The lag grows with the run, so that a young run has a baseline too.
        seen = len(self._baseline) + len(self._waiting)
        wait = min(self.lag, seen // 2)
        if self.armed and self.evidence >= ALARM / 2:
            wait = FROZEN * self.window
        while len(self._waiting) > wait:
            self._baseline.add(self._waiting.popleft())
        size = len(self._baseline)
        self.armed = size >= WARM
        self._lull = 0
        if self.evidence == 0.0 and size == self.window and len(self._waiting) == self.lag:
            self._lull = size // LULL
            self._near = self._baseline.ordered()[size // 2 - self.sign * self._lull]

    def _catch_up(self) -> None:
        """Bring the baseline to where it would be had every value been looked at."""
        for _ in range(self._unseen):
            self._baseline.add(self._waiting.popleft())
        self._lull = self._unseen = 0
