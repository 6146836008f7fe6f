"""Minima, saddles and maxima of surfaces, with noise, holes and borders."""

import math

import numpy as np
import pytest

from sentinel.insight.surface.features import find_features
from sentinel.insight.surface.sampling import SampledSurface, sample_surface

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


def rosenbrock(x, y):
    return (1 - x) ** 2 + 100 * (y - x * x) ** 2


def monkey_saddle(x, y):
    u, v = x - 0.013, y + 0.127
    return u**3 - 3 * u * v**2


def quadratic(condition, angle, at):
    c, s = np.cos(angle), np.sin(angle)

    def function(x, y):
        u, v = c * (x - at[0]) + s * (y - at[1]), c * (y - at[1]) - s * (x - at[0])
        return (u**2 + condition * v**2) / 2

    return function


def features(function, max_evaluations=600, n=51, *, bounds=SQUARE, tolerance=0.0, is_exact=False):
    def evaluate(points):
        return function(*np.array(points).T).tolist()

    surface = sample_surface(
        evaluate, bounds, max_evaluations=max_evaluations, batch_size=50, tolerance=tolerance
    )
    return find_features(surface, surface.grid(n), evaluate if is_exact else None)


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


def test_a_saddle_of_three_valleys():
    found = features(monkey_saddle)

    assert [each["kind"] for each in found] == ["saddle"]
    assert places(found, "saddle") == [pytest.approx((0.013, -0.127), abs=0.01)]


@pytest.mark.parametrize(("budget", "tolerance"), [(1089, 1e-3), (400, 0.0), (150, 0.0)])
def test_a_convex_quadratic_has_one_minimum_and_no_saddle(budget, tolerance):
    """Rotated, with conditions of 10 to 10,000: a grid makes bumps on the floor of a valley."""
    rng = np.random.default_rng(budget)
    for _ in range(34):
        at = rng.uniform(-0.9, 0.9, 2)
        function = quadratic(10 ** rng.uniform(1, 4), rng.uniform(0, np.pi), at)

        found = features(function, budget, 101, tolerance=tolerance)

        assert [each["kind"] for each in found] == ["minimum"]
        assert places(found, "minimum") == [pytest.approx(tuple(at), abs=1e-3)]


def test_a_valley_that_leaves_the_picture_has_no_features():
    rng = np.random.default_rng(3)
    for _ in range(30):
        at = rng.choice([-1, 1], 2) * rng.uniform(1.05, 1.5, 2)
        function = quadratic(10 ** rng.uniform(1, 4), rng.uniform(0, np.pi), at)

        assert features(function, 400, 101) == []


@pytest.mark.parametrize("budget", [200, 1089])
def test_a_curved_valley_has_no_saddle(budget):
    bounds = [(-2.0, 2.0), (-1.0, 3.0)]

    found = features(rosenbrock, budget, 101, bounds=bounds, tolerance=1e-3, is_exact=True)

    (minimum,) = found
    assert minimum["kind"] == "minimum"
    assert minimum["evaluated"]
    assert minimum["loss"] == rosenbrock(minimum["x"], minimum["y"]) < 0.05


def test_a_minimum_is_placed_between_the_points_and_evaluated_there():
    function = quadratic(3614.0, 0.7, (0.1234, -0.3217))

    (between,) = features(function, 1089, 101, tolerance=1e-3)
    (evaluated,) = features(function, 1089, 101, tolerance=1e-3, is_exact=True)

    assert not between["evaluated"]
    assert evaluated["evaluated"]
    for each in (between, evaluated):
        assert (each["x"], each["y"]) == pytest.approx((0.1234, -0.3217), abs=1e-6)
    assert evaluated["loss"] == function(evaluated["x"], evaluated["y"]) >= 0


def test_a_saddle_in_a_narrow_valley():
    def function(x, y):
        u, v = 0.8 * x + 0.6 * y, 0.8 * y - 0.6 * x
        return 40 * (u**2 - 0.16) ** 2 + 100 * v**2

    found = features(function, 1089, 101)

    assert [each["kind"] for each in found] == ["minimum", "minimum", "saddle"]
    assert places(found, "saddle") == [pytest.approx((0, 0), abs=0.01)]
    assert sorted(places(found, "minimum")) == [
        pytest.approx((-0.32, -0.24), abs=0.01),
        pytest.approx((0.32, 0.24), abs=0.01),
    ]


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


def test_a_sharp_curved_valley_has_one_minimum():
    """Triangles make bumps on its floor."""

    def ravine(x, y):
        return np.log1p((1 - 1.6 * x) ** 2 + 100 * (1.6 * y - 2.304 * x**2 + 0.3) ** 2)

    found = features(ravine, 1089, 101, is_exact=True)

    assert [each["kind"] for each in found] == ["minimum"]


def test_holes():
    found = features(lambda x, y: np.where(x + y > 0.9, np.nan, two_minima(x, y)))

    assert len(places(found, "minimum")) == 2
    nothing = SampledSurface({(0.0, 0.0): math.inf}, ((-1.0, 1.0),) * 2)
    assert find_features(nothing, ([0.0], [0.0], [[math.nan]])) == []


def test_a_plateau_has_no_features():
    assert features(lambda x, y: 0 * x + 7.0) == []


def test_a_curve_has_no_saddles():
    surface = sample_surface(
        lambda points: [4 * (x**2 - 0.36) ** 2 + 0.15 * x for (x,) in points],
        [(-1.0, 1.0)],
        max_evaluations=51,
    )

    found = find_features(surface, surface.grid(201))

    assert [each["kind"] for each in found] == ["minimum", "minimum", "maximum"]
    assert [each["x"] for each in found] == pytest.approx([-0.61, 0.59, 0.03], abs=0.03)
    assert all(each["y"] == 0.0 for each in found)
