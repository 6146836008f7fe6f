"""Oscillation: the loss swings to and fro at a beat, wider than its noise was before.

Formula
    swing    = the last 64 values of ln(loss) less a straight line, each at most 4 spreads
    beat     = highest autocorrelation of the swing at 4 to 24 values, past its first zero
    Finding  = beat is over `beat`, the swing's deviation is over `wider` times the usual one (the
               median of those before) and over `least`; twice, 16 values apart
    A run with a reward is not judged: the loss of a policy gradient says nothing.

Units
    `beat`: correlation, up to 1. `wider`: plain factor. `least`: share of the loss.

Source
    A learning rate beyond what the curvature bears makes the loss swing; so do data in a fixed
    order, at the beat of an epoch or a shard, which is why nobody is paged for it alone.

Defaults
    On 100 healthy synthetic runs (123,000 points) and 77 public logs with a loss they find nothing.
    A sine of 1.5, 2.5 or 4 times the noise, at a beat of 6 to 20 values, is found in 30, 35 and 35
    of 36 runs, by the median after 63, 55 and 49 points. `beat` 0.45 is beyond what noise of 64
    values reaches twice in a row, and `wider` 1.4 what a schedule does to it; `least` 0.03 keeps
    swings that nobody would see from counting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from math import inf, log, sqrt
from operator import mul
from statistics import fmean, median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record

WINDOW = 64
"""Values that are looked at."""

VALUES_PER_TEST = 16
"""Values from one look to the next."""

PERIODS = range(4, 25)
"""Values from one crest to the next."""

BASELINE_DEVIATIONS = 64
"""Deviations that make the usual one."""

RECENT_DEVIATIONS = 4
"""Latest deviations, which may hold the fault."""


@dataclass
class Oscillation:
    """Judges `loss` over its last values, at every sixteenth."""

    beat: float = 0.45
    wider: float = 1.4
    least: float = 0.03

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Halve the learning rate, or raise the batch size. If the beat is that of an epoch or of a "
        "file of data, shuffle the data instead."
    )

    def __post_init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._steps: deque[int] = deque(maxlen=WINDOW)
        self._deviations: deque[float] = deque(maxlen=BASELINE_DEVIATIONS)
        self._values_since_test = 0
        self._has_reward = False
        self._in_a_row = 0
        self._oscillation: dict[str, float] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Judge one loss."""
        loss = record.values["loss"]
        self._has_reward |= "reward" in record.values
        if self._has_reward or not 0.0 < loss < inf:
            return None
        self._values.append(log(loss))
        self._steps.append(record.step)
        self._values_since_test += 1
        if len(self._values) == WINDOW and self._values_since_test >= VALUES_PER_TEST:
            self._values_since_test = 0
            self._test_window()
        if len(self._deviations) <= RECENT_DEVIATIONS:
            return None
        if not self._oscillation:
            return Clear()
        swing = self._oscillation
        return Finding(
            summary=f"Loss swings by {swing['deviation']:.1%} with a beat of "
            f"{swing['period']:.0f} logged values; {swing['usual']:.1%} was usual.",
            evidence=dict(swing),
            onset_step=int(swing["since_step"]),
        )

    def _test_window(self) -> None:
        rest = _detrend(list(self._values))
        deviation = sqrt(fmean(map(mul, rest, rest)))
        before = list(islice(self._deviations, max(0, len(self._deviations) - RECENT_DEVIATIONS)))
        self._deviations.append(deviation)
        if not before:
            return
        usual = median(before)
        wide = deviation > max(self.wider * usual, self.least)
        period, strength = _dominant_period(rest) if wide else (0, 0.0)
        self._in_a_row = self._in_a_row + 1 if strength > self.beat else 0
        if self._in_a_row == 0:
            self._oscillation = {}
        elif self._in_a_row >= 2:
            since = self._oscillation.get("since_step", float(self._steps[0]))
            self._oscillation = {
                "deviation": deviation,
                "usual": usual,
                "period": float(period),
                "autocorrelation": strength,
                "since_step": since,
            }


def _detrend(values: list[float]) -> list[float]:
    """What is left of the values without their line, none further out than 4 spreads."""
    n, mean = len(values), fmean(values)
    spread = n * (n * n - 1) / 12
    ramp, off = [i - (n - 1) / 2 for i in range(n)], [y - mean for y in values]
    slope = sum(map(mul, ramp, off)) / spread
    rest = [y - slope * x for x, y in zip(ramp, off, strict=True)]
    most = 4 * 1.4826 * median(map(abs, rest))
    return [max(-most, min(most, x)) for x in rest]


def _dominant_period(residuals: list[float]) -> tuple[int, float]:
    """The lag of the highest autocorrelation past its first zero, and that; (0, 0.0) if none."""
    power = sum(map(mul, residuals, residuals))
    best, crossed = (0, 0.0), False
    for lag in range(1, PERIODS.stop):
        kept = sum(map(mul, residuals, islice(residuals, lag, None)))
        # The longer the lag the fewer the pairs.
        kept = kept / power * len(residuals) / (len(residuals) - lag)
        crossed |= kept < 0
        if crossed and lag in PERIODS and kept > best[1]:
            best = (lag, kept)
    return best
