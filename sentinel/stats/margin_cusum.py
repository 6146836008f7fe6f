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

SLACK_SIGMAS = 0.5
"""Sigmas beyond the margin that count as nothing."""

CLIP_SIGMAS = 3.0
"""Most that one value may count, in sigmas: an alarm takes at least ALARM / 2.5 = 4 values."""

ALARM_THRESHOLD = 10.0
"""Evidence at which the series has left; it has come back at a quarter of that."""

WARMUP_VALUES = 16
"""Values the baseline needs before anything is judged."""

MAX_FROZEN_WINDOWS = 4
"""A baseline waits at most this many windows; then the new level has become the usual one."""

SKIP_WINDOW_PARTS = 16
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
    min_sigma: float = 1e-9
    margin_sigmas: float = 0.0
    evidence: float = 0.0
    onset: int = 0
    is_alarmed: bool = False
    is_armed: bool = False
    _baseline: RollingQuantiles = field(init=False)
    _waiting: deque[float] = field(default_factory=deque)
    _max_skipped: int = 0
    _skipped: int = 0
    """Values that came in this lull, of at most `_lull`."""
    _skip_bound: float = 0.0

    def __post_init__(self) -> None:
        self._baseline = RollingQuantiles(self.window)

    @property
    def baseline_median(self) -> float:
        """Median of the baseline. Raises IndexError before it has a value."""
        self._absorb_skipped()
        return self._baseline.median

    @property
    def sigma(self) -> float:
        """Spread of the baseline, never below the floor. Raises IndexError as `usual` does."""
        self._absorb_skipped()
        return max(self._baseline.sigma, self.min_sigma)

    def update(self, value: float, margin: float, step: int) -> bool:
        """Take a finite value; True while the series is away by more than the margin."""
        if self.is_within_margin(value, margin):
            self._skipped += 1
            self._waiting.append(value)
            self.onset = step
            return False
        self._absorb_skipped()
        if self.is_armed:
            self._accumulate(value, margin, step)
        self._waiting.append(value)
        self._advance_baseline()
        return self.is_alarmed

    def is_within_margin(self, value: float, margin: float) -> bool:
        """Whether a value is surely within the margin, as far as is known without a look."""
        return (
            self._skipped < self._max_skipped and self.sign * (value - self._skip_bound) <= margin
        )

    def _accumulate(self, value: float, margin: float, step: int) -> None:
        excess, before = self.sign * (value - self._baseline.median) - margin, self.evidence
        if before == 0.0:
            self.onset = step
            if excess <= 0.0:
                # Whatever the spread is: there was nothing, and this is less.
                return
        sigma = self.sigma
        if self.margin_sigmas * sigma > margin:
            excess = self.sign * (value - self._baseline.median) - self.margin_sigmas * sigma
        gathered = before + max(-CLIP_SIGMAS, min(CLIP_SIGMAS, excess / sigma)) - SLACK_SIGMAS
        self.evidence = min(max(0.0, gathered), 1.5 * ALARM_THRESHOLD)
        self.is_alarmed = self.evidence > (
            ALARM_THRESHOLD / 4 if self.is_alarmed else ALARM_THRESHOLD
        )

    def _advance_baseline(self) -> None:
        # The lag grows with the run, so that a young run has a baseline too.
        seen = len(self._baseline) + len(self._waiting)
        wait = min(self.lag, seen // 2)
        if self.is_armed and self.evidence >= ALARM_THRESHOLD / 2:
            wait = MAX_FROZEN_WINDOWS * self.window
        while len(self._waiting) > wait:
            self._baseline.add(self._waiting.popleft())
        size = len(self._baseline)
        self.is_armed = size >= WARMUP_VALUES
        self._max_skipped = 0
        if self.evidence == 0.0 and size == self.window and len(self._waiting) == self.lag:
            self._max_skipped = size // SKIP_WINDOW_PARTS
            self._skip_bound = self._baseline.sorted_values()[
                size // 2 - self.sign * self._max_skipped
            ]

    def _absorb_skipped(self) -> None:
        """Bring the baseline to where it would be had every value been looked at."""
        for _ in range(self._skipped):
            self._baseline.add(self._waiting.popleft())
        self._max_skipped = self._skipped = 0
