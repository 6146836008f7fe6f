"""CUSUM that detects a series leaving its recent level by more than a margin.

Each value is standardised against the median and spread of a window that lags behind, less the
margin (a factor, or a number of sigmas). The result is clipped, so that no single value can raise
an alarm, and summed from zero as in Page's CUSUM. While evidence accumulates the window is frozen,
so that the baseline does not adapt to the fault.

Source: Page, "Continuous inspection schemes", Biometrika 1954; clipping, margin, lag and freezing
are additions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sentinel.stats.rolling_quantiles import RollingQuantiles

SLACK_SIGMAS = 0.5
"""Sigmas beyond the margin that add no evidence."""

CLIP_SIGMAS = 3.0
"""Maximum evidence of one value, in sigmas; an alarm takes at least ALARM_THRESHOLD / 2.5 values.
"""

ALARM_THRESHOLD = 10.0
"""Evidence that raises the alarm; at a quarter of it the alarm ends."""

WARMUP_VALUES = 16
"""Values the baseline needs before values are tested."""

MAX_FROZEN_WINDOWS = 4
"""Maximum time that the baseline is frozen, in windows; then it adopts the new level."""

SKIP_WINDOW_PARTS = 16
"""The window divided by this is the number of values for which a bound on its median holds."""


@dataclass
class MarginCusum:
    """One-sided CUSUM of bounded memory (5 windows), armed after 2 * WARMUP_VALUES values.

    `sign` is +1 to detect rises, -1 for falls. `window` is the size of the baseline, `lag` how many
    values it stays behind, `min_sigma` the least spread it may have. The margin is at least
    `margin_sigmas` of that spread. `evidence` is the sum, `onset` the `step` of the update at which
    it last left zero. `is_armed` is True once there is a baseline.

    A window's median moves by at most one place per value, so a query also bounds the median for
    the next few values. A value within that bound is no evidence; it is queued, and the window is
    updated only for a value that may be evidence, or when the bound expires.
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
    """Queued values since the last query, at most `_max_skipped`."""
    _skip_bound: float = 0.0

    def __post_init__(self) -> None:
        self._baseline = RollingQuantiles(self.window)

    @property
    def baseline_median(self) -> float:
        """Median of the baseline. Raises IndexError while it is empty."""
        self._absorb_skipped()
        return self._baseline.median

    @property
    def sigma(self) -> float:
        """Spread of the baseline, at least `min_sigma`. Raises IndexError while it is empty."""
        self._absorb_skipped()
        return max(self._baseline.sigma, self.min_sigma)

    def update(self, value: float, margin: float, step: int) -> bool:
        """Add a finite value; True while the series is off by more than the margin."""
        # Certainly within the margin, without a query of the window.
        if self._skipped < self._max_skipped and self.sign * (value - self._skip_bound) <= margin:
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

    def _accumulate(self, value: float, margin: float, step: int) -> None:
        excess, before = self.sign * (value - self._baseline.median) - margin, self.evidence
        if before == 0.0:
            self.onset = step
            if excess <= 0.0:
                # No evidence so far, and this value reduces it, whatever the spread.
                return
        sigma = self.sigma
        if self.margin_sigmas * sigma > margin:
            excess = self.sign * (value - self._baseline.median) - self.margin_sigmas * sigma
        total = before + max(-CLIP_SIGMAS, min(CLIP_SIGMAS, excess / sigma)) - SLACK_SIGMAS
        self.evidence = min(max(0.0, total), 1.5 * ALARM_THRESHOLD)
        self.is_alarmed = self.evidence > (
            ALARM_THRESHOLD / 4 if self.is_alarmed else ALARM_THRESHOLD
        )

    def _advance_baseline(self) -> None:
        # The lag grows with the run, so that a young run has a baseline.
        size = len(self._baseline)
        lag = min(self.lag, (size + len(self._waiting)) // 2)
        if self.is_armed and self.evidence >= ALARM_THRESHOLD / 2:
            lag = MAX_FROZEN_WINDOWS * self.window
        excess = len(self._waiting) - lag
        if excess > 0:
            popleft = self._waiting.popleft
            self._baseline.extend([popleft() for _ in range(excess)])
            size = min(self.window, size + excess)
        self.is_armed = size >= WARMUP_VALUES
        self._max_skipped = 0
        if self.evidence == 0.0 and size == self.window and len(self._waiting) == self.lag:
            self._max_skipped = size // SKIP_WINDOW_PARTS
            self._skip_bound = self._baseline.sorted_values()[
                size // 2 - self.sign * self._max_skipped
            ]

    def _absorb_skipped(self) -> None:
        """Update the baseline with the queued values."""
        if self._skipped:
            popleft = self._waiting.popleft
            self._baseline.extend([popleft() for _ in range(self._skipped)])
        self._max_skipped = self._skipped = 0
