"""Loss oscillation: the loss swings periodically, or its noise grew and does.

Formula
    swing    = the last 64 values of ln(loss) minus a straight line, clipped to 4 standard
               deviations
    strength = highest autocorrelation of the swing at lags of 2 to 24 values, past its first zero
    Finding  = strength exceeds `beat`, the swing's standard deviation exceeds `least`, and
               `wider` times the usual one (the median of those before) or the swing is smooth: its
               lowest autocorrelation before that lag is at least 80 % as large; twice,
               16 values apart
    warning  = a smooth swing of twice `least` and a period of 4 values or more in six such tests,
               over which it keeps 70 % of its size, the loss does not fall by a quarter of it, and
               the learning rate does not both fall and rise
    A run with a reward is not evaluated, since the loss of a policy gradient has no meaningful
    level.

Units
    `beat`: correlation, up to 1. `wider`: plain factor. `least`: fraction of the loss.

Source
    A learning rate too high for the curvature makes the loss swing to and fro (Cohen et al. 2021,
    arXiv:2103.00065). Data in a fixed order repeat with the period of an epoch or a shard, but in
    an arbitrary pattern, whose values half a period apart are not opposite.

Defaults
    Of 60 generated logs each whose loss swings by 10, 20 or 45 % with a period of 4 to 22 values,
    from the first step or from a later one, 51, 55 and 59 have a warning. So have 0 of 180
    whose swing shrinks, 0 of 90 with as much white noise and 3 of 90 with data in a fixed order.
    Noise of 64 values does not reach `beat` 0.45 twice in a row, and a schedule does not reach
    `wider` 1.4; `least` 0.03 excludes swings that are not visible.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice, pairwise
from math import inf, log, sqrt
from operator import mul
from statistics import fmean, median

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import Record

WINDOW = 64
"""Values in the tested window."""

VALUES_PER_TEST = 16
"""Values from one test to the next."""

PERIODS = range(2, 25)
"""Tested periods, in values."""

BASELINE_DEVIATIONS = 64
"""Maximum number of deviations in the reference."""

RECENT_DEVIATIONS = 4
"""Latest deviations, which are not part of the reference."""

MIN_LASTING_PERIOD = 4
"""Shortest period of a warning: data sources that take turns have 2 or 3."""

MULTIPLE_GAIN = 1.2
"""Factor of the correlation by which a multiple of a period is the better one."""

MIN_RATE_CHANGE = 1.1
"""Factor by which a learning rate that falls and rises within the window explains the swing."""

SMOOTH_SHARE = 0.8
"""Negative correlation half a period apart, as a share of the strength: a sine has 1, a sawtooth
0.5, an arbitrary pattern less."""

LASTING_TESTS = 6
"""Tests in a row of a swing that lasts: the last five are of more than a window."""

KEPT_SHARE = 0.7
"""Share of its size that a swing which does not shrink keeps."""


@dataclass
class Oscillation:
    """Evaluates the last values of `loss`, once every 16 values."""

    beat: float = 0.45
    wider: float = 1.4
    least: float = 0.03

    needs = frozenset({"loss"})
    signal = "loss"
    severity = Severity.INFO
    remedy = (
        "Halve {learning rate}, or raise {batch size}. If the period is that of an epoch or a "
        "data file, shuffle the data instead."
    )

    def __post_init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._steps: deque[int] = deque(maxlen=WINDOW)
        self._rates: deque[float] = deque(maxlen=WINDOW)
        self._deviations: deque[float] = deque(maxlen=BASELINE_DEVIATIONS)
        self._values_since_test = 0
        self._has_reward = False
        self._levels: deque[tuple[float, float]] = deque(maxlen=LASTING_TESTS - 1)
        """Deviation and mean of the newest tests."""
        self._in_a_row = 0
        self._finding: Finding | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one loss."""
        loss = record.values["loss"]
        self._has_reward |= "reward" in record.values
        if self._has_reward or not 0.0 < loss < inf:
            return None
        self._values.append(log(loss))
        self._steps.append(record.step)
        self._rates.append(record.values.get("learning_rate", 0.0))
        self._values_since_test += 1
        if len(self._values) == WINDOW and self._values_since_test >= VALUES_PER_TEST:
            self._values_since_test = 0
            self._test_window()
        if len(self._deviations) <= RECENT_DEVIATIONS:
            return None
        return self._finding or CLEAR

    def _test_window(self) -> None:
        rest = _detrend(list(self._values))
        deviation = sqrt(fmean(map(mul, rest, rest)))
        before = list(islice(self._deviations, max(0, len(self._deviations) - RECENT_DEVIATIONS)))
        self._deviations.append(deviation)
        self._levels.append((deviation, fmean(self._values)))
        usual = median(before) if before else deviation
        is_large = deviation > self.least
        period, strength, is_smooth = _dominant_period(rest) if is_large else (0, 0.0, False)
        is_wide = bool(before) and deviation > self.wider * usual
        is_found = strength > self.beat and (is_wide or is_smooth)
        self._in_a_row = self._in_a_row + 1 if is_found else 0
        is_long = period >= MIN_LASTING_PERIOD and self._in_a_row >= LASTING_TESTS
        is_lasting = is_smooth and is_long and self._lasts(deviation)
        onset = self._steps[0] if self._finding is None else self._finding.onset_step
        self._finding = None
        if self._in_a_row >= 2:
            self._finding = Finding(
                summary=f"Loss oscillates by {deviation:.1%} with a period of {period} logged "
                f"values; its usual deviation is {usual:.1%}.",
                evidence={
                    "loss_swing_relative": deviation,
                    "usual_loss_swing_relative": usual,
                    "swing_period_in_logged_values": float(period),
                    "since_step": float(onset or 0),
                },
                severity=Severity.WARNING if is_lasting else None,
                onset_step=onset,
            )

    def _lasts(self, deviation: float) -> bool:
        """Whether the swing has neither shrunk nor let the loss fall over the last tests."""
        largest = max(each for each, _ in self._levels)
        fall = self._levels[0][1] - self._levels[-1][1]
        is_kept = deviation > KEPT_SHARE * largest and fall < deviation / 4
        return is_kept and deviation > 2 * self.least and not self._has_cyclic_rate()

    def _has_cyclic_rate(self) -> bool:
        """Whether the learning rate both fell and rose in the window, by more than a little."""
        changes = [after - before for before, after in pairwise(self._rates)]
        is_large = max(self._rates) > MIN_RATE_CHANGE * min(self._rates)
        return is_large and min(changes) < 0.0 < max(changes)


def _detrend(values: list[float]) -> list[float]:
    """Residuals of the values from their line, clipped to 4 standard deviations."""
    n, mean = len(values), fmean(values)
    spread = n * (n * n - 1) / 12
    ramp, centred = [i - (n - 1) / 2 for i in range(n)], [y - mean for y in values]
    slope = sum(map(mul, ramp, centred)) / spread
    residuals = [y - slope * x for x, y in zip(ramp, centred, strict=True)]
    bound = 4 * 1.4826 * median(map(abs, residuals))
    return [max(-bound, min(bound, x)) for x in residuals]


def _dominant_period(residuals: list[float]) -> tuple[int, float, bool]:
    """Lag and value of the highest autocorrelation past its first zero, and whether it is smooth.

    Lag and value are 0 if there is none.
    """
    power = sum(map(mul, residuals, residuals))
    period, strength, lowest, lowest_before = 0, 0.0, 0.0, 0.0
    for lag in range(1, PERIODS.stop):
        correlation = sum(map(mul, residuals, islice(residuals, lag, None)))
        # A longer lag has fewer pairs.
        correlation = correlation / power * len(residuals) / (len(residuals) - lag)
        # A multiple of a period has nearly the same correlation.
        is_multiple = period > 0 and lag % period == 0
        least = strength * (MULTIPLE_GAIN if is_multiple else 1.0)
        if lowest < 0.0 and lag in PERIODS and correlation > least:
            period, strength, lowest_before = lag, correlation, lowest
        lowest = min(lowest, correlation)
    return period, strength, -lowest_before > SMOOTH_SHARE * strength
