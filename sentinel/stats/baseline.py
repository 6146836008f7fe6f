"""Baseline of one signal: its expected trajectory, and the evidence that it departs from it.

Formula
    expected = level + slope * (travel - middle), fitted to the medians of the older and the newer
               half of a window that lags behind. A trend in the tested direction is expected to
               continue, one away from it to stop
    doubt    = 0.7 standard errors of `expected`, plus `bend` for each unit of travel since `middle`
    z        = (distance from `expected` in the tested direction - margin - doubt) / sigma
    evidence = EvidenceCusum of z, in nats

A series without a trend, whose level alone is expected to stay, is that with a slope of 0.

Units: a signal with `is_log` is evaluated as its logarithm. `travel` is the logarithm of the sum of
the learning rates so far, or of the number of values: in it a power of the distance that the policy
moved is a straight line.

Sigma is robust (interquartile range) and widened where neighbouring residuals agree in sign, since
autocorrelated noise stays on one side for longer. Slope and sigma are shrunk to their prior from
healthy runs, as is usual in empirical Bayes (Efron & Morris, JASA 1973): a young run has a scale
from the start. While evidence accumulates the fit is frozen, so that it does not adapt to the
fault.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, pi, sin, sqrt
from statistics import median

from sentinel.stats.evidence_cusum import MAX_SUM_NATS, EvidenceCusum

WINDOW = 128
"""Values of a fit."""

LAG = 24
"""Values by which a fit stays behind, in young runs a third of all."""

FIRST_FIT_VALUES = 8
"""Values of the first fit, which a run of 12 values has."""

RENEWAL = 16
"""Values after which the fit is renewed; before the window is full a quarter of it, and after four
windows twice as many.
"""

FREEZE_NATS = 2.5
"""Evidence from which on the fit is the one from before the evidence."""

MAX_FROZEN_VALUES = 4 * WINDOW
"""Values after which the new level is adopted."""

THRESHOLD_VALUES = 8
"""Values that have to hold the threshold to bring the evidence to its bound."""

MEDIAN_VARIANCE = 1.57
"""Variance of a median divided by that of a mean, for normal noise."""

DOUBT_ERRORS = 0.7
"""Standard errors of the expected value that are no evidence."""

LEAST_MARGIN_SIGMAS = 0.2
"""Margin in sigmas of a signal whose noise is far above its margin."""

ALARM_NATS, CLEAR_SHARE = 8.0, 0.5
"""Evidence above which there is an alarm, and the share of it at which the alarm ends."""

YOUNG_SIGMA = 4.0
"""A fit of n values takes sigma to be 1 + YOUNG_SIGMA / n times its estimate."""

MAX_CORRELATION = 0.8
"""Largest autocorrelation that widens sigma."""

MAX_UNRESOLVED_SHARE = 0.125
"""Share of values at or below `least` from which on the slope counts as unknown."""

KNOT_SPACING = 0.25
"""Travel between two knots of the exported course."""

COURSE_BEND = 0.3
"""Share of `bend` that remains where the course of alike runs is known."""

CLIPPED = 0.1
"""Distance from `least`, in units of the fit, up to which a level is not known."""

MAX_KNOTS = 64
"""Knots that are kept; the spacing makes it e^16 in learning rates."""


@dataclass(frozen=True, slots=True)
class TrajectoryPrior:
    """What is known of the trajectory of a signal before the run, per unit of the fit.

    `slope` and `slope_sd` are the power of travel; `slope_sd` infinity trusts the run alone.
    `sigma` is the noise, worth `weight` values. `course` are knots of travel and level of alike
    runs: the signal is then evaluated relative to it, with a level that is `level_sd` from it.
    """

    slope: float = 0.0
    slope_sd: float = inf
    sigma: float = 1.0
    weight: float = 0.0
    course: tuple[tuple[float, float], ...] = ()
    level_sd: float = inf

    def course_at(self, travel: float) -> float:
        """Level of the course; beyond its ends it goes on as in its outermost unit of travel."""
        course = self.course
        if len(course) < 2:
            return course[0][1] if course else 0.0
        if travel <= course[0][0]:
            low, high = 0, bisect_right(course, (course[0][0] + 1.0, inf)) - 1
        elif travel >= course[-1][0]:
            low, high = bisect_right(course, (course[-1][0] - 1.0, -inf)), len(course) - 1
        else:
            high = bisect_right(course, (travel, inf))
            low = high - 1
        (before, start), (after, end) = course[min(low, len(course) - 2)], course[max(high, 1)]
        origin, level = (after, end) if travel >= course[-1][0] else (before, start)
        return level + (end - start) * (travel - origin) / (after - before)


@dataclass(frozen=True, slots=True)
class BaselineSettings:
    """How a signal is evaluated.

    `rise_margin` and `fall_margin` are what does not matter, infinite if that direction is not
    tested; a margin is at least `margin_sigmas` of the noise. `floor` is the value below which no
    rise counts, and `least` the smallest that a logarithm takes. `min_sigma` is the smallest noise.
    `bend` is how much a power may yet change. `young_slope` is the power in the tested direction
    that a run may have while its slope is not known well. `max_correlation` is the largest
    autocorrelation that widens the noise. `max_nats` is the most evidence of a shift: the less, the
    sooner it ends once the signal is back.
    """

    prior: TrajectoryPrior
    rise_margin: float = inf
    fall_margin: float = inf
    margin_sigmas: float = LEAST_MARGIN_SIGMAS
    is_log: bool = True
    least: float = 1e-12
    floor: float = 0.0
    min_sigma: float = 1e-9
    bend: float = 0.15
    young_slope: float = 0.0
    max_correlation: float = MAX_CORRELATION
    max_nats: float = MAX_SUM_NATS


# Not frozen, but never changed: a frozen one takes several times as long to create.
@dataclass(slots=True)
class Fit:
    """Level at `middle` and slope of a window of `count` values that ends at `end`, in travel.

    `is_partial`: the window is not full, or a good part of its values is below what is resolved, so
    that the slope is not known well.
    """

    level: float
    slope: float
    slope_error: float
    middle: float
    end: float
    sigma: float
    count: int
    is_partial: bool


@dataclass(slots=True)
class Direction:
    """The evidence that a signal departs from its trajectory in one direction (`sign` +1 or -1)."""

    sign: int
    margin: float
    cusum: EvidenceCusum
    fit: Fit | None = None
    """The fit in use: the newest, or while there is evidence that from before it."""
    is_outdated: bool = False
    """Whether there is a newer fit, which is used once there is no evidence."""
    frozen_values: int = 0
    is_alarmed: bool = False
    """Whether the evidence is above `ALARM_NATS`, or has been and not fallen to a share of it."""
    expected_least: float = -inf
    """A lower bound on the scaled value that can be evidence, times `sign`."""

    @property
    def evidence(self) -> float:
        """Evidence in nats; 0 while the signal is where it is expected."""
        return self.cusum.evidence

    @property
    def onset(self) -> int:
        """Step at which the departure probably began; of meaning only with evidence."""
        return self.cusum.onset_range[0]

    @property
    def onset_range(self) -> tuple[int, int]:
        """Steps between which the departure began; of meaning only with evidence."""
        return self.cusum.onset_range

    @property
    def is_armed(self) -> bool:
        """Whether the signal is evaluated yet."""
        return self.fit is not None


@dataclass(slots=True)
class Baseline:
    """Expected trajectory of one signal; `rise` and `fall` hold the evidence against it."""

    settings: BaselineSettings
    prior: TrajectoryPrior | None = None
    """Prior of this run, in place of that of the settings."""
    count: int = 0
    rise: Direction = field(init=False)
    fall: Direction = field(init=False)
    _has_course: bool = False
    _renew_at: int = 0
    _unit: float = 1.0
    _travel: float = 0.0
    _newest: Fit | None = None
    _lowest_usual: float = inf
    _highest_usual: float = -inf
    """Scaled values between the two are no evidence in either direction, and need no test."""
    _values: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW + LAG))
    _travels: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW + LAG))
    _course: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self.prior = self.prior or settings.prior
        self._has_course = bool(self.prior.course)
        self.rise = Direction(1, settings.rise_margin, EvidenceCusum(settings.max_nats))
        self.fall = Direction(-1, settings.fall_margin, EvidenceCusum(settings.max_nats))

    def update(self, value: float, travel: float, step: int, unit: float = 1.0) -> None:
        """Add a finite value, given in `unit`s, and how far the run has travelled."""
        if self.count >= self._renew_at:
            self._renew()
        self.count += 1
        self._unit, self._travel = unit, travel
        settings, scaled = self.settings, value / unit
        if settings.is_log:
            scaled = log(scaled) if scaled > settings.least else log(settings.least)
        if self._has_course:
            scaled -= self._course_level()
        # Most values are where they are expected.
        if scaled > self._highest_usual:
            self._highest_usual = self._test(self.rise, scaled, step)
        if scaled < self._lowest_usual:
            self._lowest_usual = -self._test(self.fall, scaled, step)
        self._values.append(scaled)
        self._travels.append(travel)

    def set_rise_margin(self, margin: float) -> None:
        """Change what does not matter of a rise from the next value on."""
        self.rise.margin, self.rise.expected_least = margin, -inf
        self._highest_usual = -inf

    def toward(self, sign: int) -> Direction:
        """The evidence of a rise for a `sign` of +1, of a fall for -1."""
        return self.rise if sign > 0 else self.fall

    def expected(self, direction: Direction) -> float | None:
        """The value expected now, in the signal's unit; None before there is a fit."""
        if direction.fit is None:
            return None
        level = direction.fit.level + direction.sign * self._trend(direction, direction.fit)
        return self._unscaled(level)

    def threshold(self, direction: Direction, bound: float) -> float | None:
        """The value that, held for 8 values, brings the evidence to `bound`; None if unknown."""
        fit = direction.fit
        if fit is None:
            return None
        z = direction.cusum.z_to_reach(bound, THRESHOLD_VALUES)
        away = self._trend(direction, fit) + self._tolerance(direction, fit) + z * _sigma(fit)
        return self._unscaled(fit.level + direction.sign * away)

    def export(self) -> TrajectoryPrior | None:
        """The trajectory of this run as a prior for alike runs; None before there is a fit."""
        fit = self._newest
        if fit is None:
            return None
        weight = float(min(self.count, WINDOW))
        return TrajectoryPrior(0.0, inf, fit.sigma, weight, tuple(self._course))

    def _scaled(self, value: float) -> float:
        return log(max(value, self.settings.least)) if self.settings.is_log else value

    def _unscaled(self, level: float) -> float:
        level += self._course_level()
        return self._unit * (exp(min(level, 700.0)) if self.settings.is_log else level)

    def _is_clipped(self, fit: Fit) -> bool:
        """Whether the values are too small for the logarithm: they do not show the level."""
        prior, least = self.prior, self._scaled(self.settings.least)
        return prior is not None and fit.level - least < CLIPPED - prior.course_at(fit.middle)

    def _course_level(self) -> float:
        prior = self.prior
        return prior.course_at(self._travel) if prior is not None and prior.course else 0.0

    def _test(self, direction: Direction, scaled: float, step: int) -> float:
        """Test a value in one direction; returns what the next one, times `sign`, has to exceed."""
        if direction.margin == inf:
            return inf
        cusum, sign = direction.cusum, direction.sign
        if cusum.evidence < FREEZE_NATS:
            direction.frozen_values = 0
            if not cusum.evidence and direction.is_outdated:
                self._adopt_fit(direction)
        else:
            direction.frozen_values += 1
            if direction.frozen_values > MAX_FROZEN_VALUES:
                cusum.reset()
                self._adopt_fit(direction)
        fit = direction.fit
        if fit is None:
            return -inf
        away = sign * (scaled - fit.level) - self._trend(direction, fit)
        away -= self._tolerance(direction, fit)
        if sign > 0 and self.settings.floor:
            away = min(away, scaled + self._course_level() - self._scaled(self.settings.floor))
        bound = ALARM_NATS * (CLEAR_SHARE if direction.is_alarmed else 1.0)
        direction.is_alarmed = cusum.update(away / _sigma(fit), step) > bound
        return -inf if direction.is_outdated or cusum.evidence else direction.expected_least

    def _adopt_fit(self, direction: Direction) -> None:
        fit = direction.fit = self._newest
        direction.is_outdated = False
        if fit is not None:
            # Travel never decreases, so that trend and tolerance are at least those at `end`.
            margin = max(direction.margin, self.settings.margin_sigmas * fit.sigma)
            slope = self._slope(direction, fit)
            direction.expected_least = (
                direction.sign * fit.level + slope * (fit.end - fit.middle) + margin
            )

    def _trend(self, direction: Direction, fit: Fit) -> float:
        """Expected change since the middle of the window, in the tested direction."""
        slope = self._slope(direction, fit)
        return slope * ((self._travel if slope > 0.0 else fit.end) - fit.middle)

    def _slope(self, direction: Direction, fit: Fit) -> float:
        slope = direction.sign * fit.slope
        if fit.is_partial and not self._has_course:
            return max(slope, self.settings.young_slope)
        return slope

    def _tolerance(self, direction: Direction, fit: Fit) -> float:
        """Margin and doubt: the distance beyond the trend that is no evidence."""
        gone = self._travel - fit.middle
        slope_error = fit.slope_error * gone
        error = sqrt(
            MEDIAN_VARIANCE * fit.sigma * fit.sigma / fit.count + slope_error * slope_error
        )
        margin = max(direction.margin, self.settings.margin_sigmas * fit.sigma)
        # The bends of alike runs are in their course; what is left is between runs.
        bend = self.settings.bend * (COURSE_BEND if self._has_course else 1.0)
        return margin + DOUBT_ERRORS * error + bend * abs(gone)

    def _renew(self) -> None:
        is_old = self.count >= 4 * WINDOW
        self._renew_at = self.count + (
            2 * RENEWAL if is_old else RENEWAL if self.count >= WINDOW else RENEWAL // 4
        )
        lag = min(LAG, self.count // 3)
        stop = len(self._values) - lag
        if stop < FIRST_FIT_VALUES or self.prior is None:
            return
        start = max(0, stop - WINDOW)
        values, travels = [*self._values][start:stop], [*self._travels][start:stop]
        fit = _fit(values, travels, self.prior, self.settings)
        if self.prior.course and self._is_clipped(fit):
            return
        self._newest, self._lowest_usual, self._highest_usual = fit, inf, -inf
        self.rise.is_outdated = self.fall.is_outdated = True
        course = self._course
        if len(course) < MAX_KNOTS and (not course or fit.middle > course[-1][0] + KNOT_SPACING):
            course.append((fit.middle, fit.level + self.prior.course_at(fit.middle)))


def level_baseline(
    sign: int,
    margin: float,
    min_sigma: float,
    *,
    least: float = 0.0,
    margin_sigmas: float = LEAST_MARGIN_SIGMAS,
) -> Baseline:
    """The baseline of a series without a trend, for a rise (`sign` +1) or a fall (-1).

    Its logarithm is evaluated, with lower values as `least`, unless that is 0. Any travel will do.
    The margin allows for noise that lasts for several values.
    """
    settings = BaselineSettings(
        TrajectoryPrior(slope_sd=0.0),
        rise_margin=margin if sign > 0 else inf,
        fall_margin=margin if sign < 0 else inf,
        margin_sigmas=margin_sigmas,
        is_log=least > 0.0,
        least=least,
        min_sigma=min_sigma,
        bend=0.0,
        max_correlation=0.0,
        max_nats=1.4 * ALARM_NATS,
    )
    return Baseline(settings)


def _sigma(fit: Fit) -> float:
    return fit.sigma * (1 + YOUNG_SIGMA / fit.count)


def _fit(
    values: Sequence[float],
    travels: Sequence[float],
    prior: TrajectoryPrior,
    settings: BaselineSettings,
) -> Fit:
    count, half = len(values), len(values) // 2
    older, newer = sorted(values[:half]), sorted(values[half:])
    old, new = median(older), median(newer)
    unresolved = 0
    if settings.is_log:
        least = log(settings.least)
        unresolved = bisect_right(older, least) + bisect_right(newer, least)
    first, last = travels[half // 2], travels[half + (count - half) // 2]
    apart = max(last - first, 1e-3)
    raw_slope = (new - old) / apart
    residuals = [
        value - old - raw_slope * (travel - first)
        for value, travel in zip(values, travels, strict=True)
    ]
    ordered = sorted(residuals)
    sigma = (ordered[(3 * count) // 4] - ordered[count // 4]) / 1.349
    variance = prior.weight * prior.sigma * prior.sigma + count * sigma * sigma
    sigma = sqrt(variance / (prior.weight + count))
    if settings.max_correlation:
        sigma *= _widening(residuals, settings.max_correlation)
    sigma = max(sigma, settings.min_sigma)
    error = 1.25 * sigma * sqrt(4 / count) / apart
    trust = _trust(prior.slope_sd, error)
    level = (old + new) / 2
    return Fit(
        level=_trust(prior.level_sd, sigma * sqrt(MEDIAN_VARIANCE / count)) * level,
        slope=prior.slope + trust * (raw_slope - prior.slope),
        slope_error=sqrt(trust) * error,
        middle=(first + last) / 2,
        end=travels[-1],
        sigma=sigma,
        count=count,
        is_partial=count < WINDOW or unresolved > MAX_UNRESOLVED_SHARE * WINDOW,
    )


def _trust(prior_sd: float, error: float) -> float:
    """Weight of an estimate with this error against a prior with that standard deviation."""
    if prior_sd == inf:
        return 1.0
    variance = prior_sd * prior_sd
    return variance / (variance + error * error) if variance else 0.0


def _widening(residuals: Sequence[float], max_correlation: float) -> float:
    """Factor of sigma for autocorrelated noise, from how often neighbours have one sign.

    Of normal noise with correlation r they have it with probability 1/2 + arcsin(r) / pi.
    """
    pairs, is_above = len(residuals) - 1, bytes([residual > 0.0 for residual in residuals])
    differ = is_above.count(b"\0\1") + is_above.count(b"\1\0")
    # Less one standard error, so that independent noise is rarely widened.
    share = (pairs - differ) / pairs - 0.5 / sqrt(pairs)
    if share <= 0.5:
        return 1.0
    correlation = min(sin(pi * (share - 0.5)), max_correlation)
    return sqrt((1 + correlation) / (1 - correlation))
