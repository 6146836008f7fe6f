"""Minima, saddles and maxima of surfaces, with noise, holes and borders."""

import math

import numpy as np
import pytest

from sentinel.insight.sampling import sample_surface
from sentinel.insight.surface_features import find_features

SQUARE = [(-1.0, 1.0), (-1.0, 1.0)]


def two_minima(x, y):
    return 4 * (x**2 - 0.36) ** 2 + 1.2 * y**2 + 0.15 * x


def saddle(x, y):
    return x**2 - y**2 + 0.3 * x * y


def hat(x, y):
    """A maximum inside of a circular valley, whose lowest and highest place are opposite."""
    return 6 * (np.hypot(x - 0.1, y) - 0.5) ** 2 + 0.2 * x


def bowl(x, y):
    return (x - 0.2) ** 2 + 3 * (y + 0.1) ** 2


def features(function, max_evaluations=600, n=51):
    def evaluate(points):
        return function(*np.array(points).T).tolist()

    surface = sample_surface(evaluate, SQUARE, max_evaluations=max_evaluations, batch_size=50)
    return find_features(surface.points, surface.grid(n))


def places(found, kind):
    return [(each["x"], each["y"]) for each in found if each["kind"] == kind]


def test_two_minima_and_the_saddle_between_them():
    found = features(two_minima)

    assert [each["kind"] for each in found] == ["minimum", "minimum", "saddle"]
    lowest, other, between = found
    assert (lowest["x"], lowest["y"]) == pytest.approx((-0.6, 0), abs=0.05)
    assert (other["x"], other["y"]) == pytest.approx((0.59, 0), abs=0.05)
    assert (between["x"], between["y"]) == pytest.approx((0.02, 0), abs=0.05)
    assert lowest["depth"] is None
    assert other["depth"] == pytest.approx(between["loss"] - other["loss"], abs=0.01)


def test_a_saddle_alone():
    found = features(saddle)

    assert [each["kind"] for each in found] == ["saddle"]
    assert places(found, "saddle") == [pytest.approx((0, 0), abs=0.05)]


def test_a_maximum_inside_a_circular_valley():
    found = features(hat)

    assert places(found, "minimum") == [pytest.approx((-0.4, 0), abs=0.06)]
    assert places(found, "maximum") == [pytest.approx((0.1, 0), abs=0.05)]
    assert places(found, "saddle") == [pytest.approx((0.6, 0), abs=0.12)]


def test_a_bowl_has_one_minimum_and_a_slope_none():
    assert places(features(bowl), "minimum") == [pytest.approx((0.2, -0.1), abs=0.05)]
    assert len(features(bowl)) == 1
    assert features(lambda x, y: 3 * x - y) == []


def test_a_narrow_minimum_is_at_its_lowest_evaluation():
    def function(x, y):
        return bowl(x, y) - 2 * np.exp(-((x + 0.333) ** 2 + (y - 0.417) ** 2) / (2 * 0.04**2))

    found = features(function, max_evaluations=1040)

    lowest = found[0]
    assert (lowest["x"], lowest["y"]) == pytest.approx((-0.333, 0.417), abs=0.02)
    assert lowest["loss"] == pytest.approx(function(-0.333, 0.417), abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_noise_makes_no_minima(seed):
    rng = np.random.default_rng(seed)

    def noisy(function):
        return lambda x, y: function(x, y) + rng.normal(0, 0.04, np.shape(x))

    assert len(places(features(noisy(two_minima)), "minimum")) == 2
    assert len(places(features(noisy(bowl)), "minimum")) == 1
    assert features(noisy(lambda x, y: 0 * x)) == []


def test_a_steep_corner_does_not_hide_minima():
    found = features(lambda x, y: two_minima(x, y) + np.exp(12 * (x + y - 1)), 1040)

    assert len(places(found, "minimum")) == 2


def test_a_known_error_hides_shallower_minima():
    surface = sample_surface(
        lambda points: two_minima(*np.array(points).T).tolist(), SQUARE, max_evaluations=400
    )

    found = find_features(surface.points, surface.grid(31), noise=0.5)

    assert len(places(found, "minimum")) == 1


def test_holes():
    found = features(lambda x, y: np.where(x + y > 0.9, np.nan, two_minima(x, y)))

    assert len(places(found, "minimum")) == 2
    assert find_features({(0.0, 0.0): math.inf}, ([0.0], [0.0], [[math.nan]])) == []


def test_a_plateau_has_no_features():
    assert features(lambda x, y: 0 * x + 7.0) == []


def test_a_curve_has_no_saddles():
    surface = sample_surface(
        lambda points: [4 * (x**2 - 0.36) ** 2 + 0.15 * x for (x,) in points],
        [(-1.0, 1.0)],
        max_evaluations=51,
    )

    found = find_features(surface.points, surface.grid(201))

    assert [each["kind"] for each in found] == ["minimum", "minimum", "maximum"]
    assert [each["x"] for each in found] == pytest.approx([-0.61, 0.59, 0.03], abs=0.03)
    assert all(each["y"] == 0.0 for each in found)
