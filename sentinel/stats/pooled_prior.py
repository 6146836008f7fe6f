"""One trajectory prior from those of several alike runs.

Formula
    course   = mean over the runs of their courses, at the knots of all
    level_sd = sqrt((k s0^2 + sum over the runs of (mean distance from the course)^2) / (k + n - 1))
    slope_sd = the same of the slopes of that distance, with its own s0
    sigma    = median of the noise of the runs

Runs that agree give a prior that is trusted; runs that differ give one that hardly counts. With
`k` = 2 and the general standard deviations s0, a single run counts little more than none.

Source: the posterior of a variance with an inverse-gamma prior, Gelman et al., "Bayesian Data
Analysis", section 2.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, median

from sentinel.stats.baseline import MAX_KNOTS, WINDOW, TrajectoryPrior

GENERAL_LEVEL_SD = 0.5
"""Standard deviation of the logarithm of a signal between runs of one configuration."""

GENERAL_SLOPE_SD = 0.2
"""Standard deviation of its power of travel."""

GENERAL_WEIGHT = 2
"""Runs that the general standard deviations count for."""

MIN_KNOTS = 2
"""Knots of a course that is used."""


def pool_priors(priors: Sequence[TrajectoryPrior]) -> TrajectoryPrior | None:
    """The prior of a further run that is like these; None if no run has a course.

    The course ends where that of the longest run ends.
    """
    usable = [prior for prior in priors if len(prior.course) >= MIN_KNOTS]
    if not usable:
        return None
    travels = sorted({travel for prior in usable for travel, _ in prior.course})
    travels = travels[:: -(-len(travels) // MAX_KNOTS)]
    course = tuple(
        (travel, fmean(prior.course_at(travel) for prior in usable)) for travel in travels
    )
    pooled = TrajectoryPrior(course=course)
    distances = [_distance(prior, pooled) for prior in usable]
    return TrajectoryPrior(
        slope=0.0,
        slope_sd=_shrunk_sd([slope for _, slope in distances], GENERAL_SLOPE_SD),
        sigma=median(prior.sigma for prior in usable),
        weight=min(float(WINDOW), sum(prior.weight for prior in usable) / 2),
        course=course,
        level_sd=_shrunk_sd([level for level, _ in distances], GENERAL_LEVEL_SD),
    )


def _distance(prior: TrajectoryPrior, pooled: TrajectoryPrior) -> tuple[float, float]:
    """Mean distance of a run from the pooled course, and its slope per unit of travel."""
    travels = [travel for travel, _ in prior.course]
    away = [level - pooled.course_at(travel) for travel, level in prior.course]
    middle = fmean(travels)
    spread = sum((travel - middle) ** 2 for travel in travels)
    slope = sum((t - middle) * y for t, y in zip(travels, away, strict=True)) / spread
    return fmean(away), slope


def _shrunk_sd(distances: Sequence[float], general: float) -> float:
    total = GENERAL_WEIGHT * general * general + sum(each * each for each in distances)
    return sqrt(total / (GENERAL_WEIGHT + len(distances) - 1))
