"""Guards the level of one signal: how far it leaves its usual level, and a bound of its own.

Formula: the level is the median of the last 8 values. It is beyond if it is past `matters`, and a
baseline without a trend has 8 nats of evidence that the values are past their recent level by more
than the margin, or the level is past the best level of the run by twice the margin, as after a slow
change; or if it is past `limit` after the first 64 values.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import exp, inf, log

from sentinel.stats.baseline import Baseline, level_baseline
from sentinel.stats.rolling_quantiles import median_of_sorted

LEVEL_VALUES = 8
"""Values whose median is the level."""

FAR_MARGINS = 2.0
"""Margins from the best level that no change of the task explains, however slow."""

WARMUP_VALUES = 16
"""First values, which are not evaluated: queues of samples fill, routers learn to balance."""

LIMIT_VALUES = 64
"""Values after which a level past its limit counts: a policy that learns may leave it."""

MIN_SIGMA_SHARE = 1 / 8
"""Least spread of the values as a share of the margin: shares of few events are often all 0."""


@dataclass(slots=True)
class LevelGuard:
    """The level of a signal that may not rise (`sign` +1) or fall (-1).

    The margin is a difference; with `least` above 0 it is a factor, and lower values count as
    `least`. `matters` is the level from which a shift is a problem, `limit` the level that is one
    by itself; None for no bound. `usual` is the level that the present one left, None if it is only
    past its limit.
    """

    sign: int
    margin: float
    matters: float | None = None
    limit: float | None = None
    least: float = 0.0
    level: float = 0.0
    usual: float | None = None
    is_ready: bool = False
    is_beyond: bool = False
    _count: int = 0
    _best: float = inf
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=LEVEL_VALUES))
    _far_since: int | None = None
    """Step since which the level is past its best one by the margin, or past its limit."""
    _distance: float = field(init=False)
    _baseline: Baseline = field(init=False)

    def __post_init__(self) -> None:
        self._distance = log(self.margin) if self.least else self.margin
        sigma = MIN_SIGMA_SHARE * self._distance
        self._baseline = level_baseline(self.sign, self._distance, sigma, least=self.least)

    def update(self, value: float, step: int) -> None:
        """Add a finite value."""
        self._count += 1
        if self._count <= WARMUP_VALUES:
            return
        scaled = log(max(value, self.least)) if self.least else value
        self._recent.append(scaled)
        self._baseline.update(value, self._count, step)
        self.is_ready = len(self._recent) == LEVEL_VALUES
        if not self.is_ready:
            return
        level = median_of_sorted(sorted(self._recent))
        self.level = exp(level) if self.least else level
        self._best = min(self._best, self.sign * level)
        past_best = self.sign * level - self._best
        is_past_limit = (
            self.limit is not None and self._count > LIMIT_VALUES and self._is_past(self.limit)
        )
        is_far = past_best > self._distance or is_past_limit
        self._far_since = (step if self._far_since is None else self._far_since) if is_far else None
        self.usual, self.is_beyond = None, is_past_limit
        shift, best = self._baseline.toward(self.sign), self.sign * self._best
        if shift.is_alarmed:
            self.usual = self._baseline.expected(shift)
        elif past_best > FAR_MARGINS * self._distance:
            self.usual = exp(best) if self.least else best
        if self.usual is not None:
            self.is_beyond |= self.matters is None or self._is_past(self.matters)

    @property
    def onset(self) -> int | None:
        """Step at which the level began to leave its usual one, or passed its limit."""
        shift = self._baseline.toward(self.sign)
        return shift.onset if shift.is_alarmed else self._far_since

    def _is_past(self, bound: float) -> bool:
        return self.sign * (self.level - bound) > 0.0
