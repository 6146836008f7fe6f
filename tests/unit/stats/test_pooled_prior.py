"""Priors pooled from alike runs: trusted where the runs agree."""

from math import inf

import pytest

from sentinel.stats.baseline import TrajectoryPrior
from sentinel.stats.pooled_prior import GENERAL_LEVEL_SD, pool_priors


def course(level, slope=1.0):
    knots = tuple((travel / 4, level + slope * travel / 4) for travel in range(20))
    return TrajectoryPrior(0.0, inf, 0.3, 128.0, knots)


def test_no_course_gives_no_prior():
    assert pool_priors([]) is None
    assert pool_priors([TrajectoryPrior()]) is None


def test_one_run_is_its_own_course_with_the_general_uncertainty():
    pooled = pool_priors([course(2.0)])
    assert pooled.course_at(1.1) == pytest.approx(3.1)
    assert pooled.level_sd == pytest.approx(GENERAL_LEVEL_SD)


def test_runs_that_agree_are_trusted_more_than_runs_that_differ():
    alike = pool_priors([course(2.0 + shift) for shift in (-0.1, 0.0, 0.1, 0.05)])
    different = pool_priors([course(2.0 + shift) for shift in (-2.0, 0.0, 1.0, 2.0)])
    assert alike.level_sd < GENERAL_LEVEL_SD < different.level_sd
    assert alike.course_at(2.5) == pytest.approx(4.5, abs=0.05)


def test_the_course_of_a_run_that_ends_early_goes_on_as_it_ended():
    short = TrajectoryPrior(course=course(2.0).course[:8])
    pooled = pool_priors([short, course(2.0)])
    assert pooled.course_at(4.0) == pytest.approx(6.0, abs=1e-6)
