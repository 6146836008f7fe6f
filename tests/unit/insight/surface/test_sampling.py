"""Sampling of surfaces: errors beside a grid, holes, budgets, known points, and order."""

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from sentinel.insight.surface.features import find_features
from sentinel.insight.surface.sampling import (
    MAX_FINITE_LOSS,
    SampledSurface,
    denser_near,
    sample_surface,
)

SQUARE = [(-1.0, 1.0), (-1.0, 1.0)]
UNIFORM = 51 * 51
LOCAL, SMOOTH = int(0.4 * UNIFORM), int(1.1 * UNIFORM)
FINE = np.linspace(-1.0, 1.0, 201)


def bowl(x, y):
    return 0.5 * (x - 0.1) ** 2 + 1.5 * (y + 0.2) ** 2


def ripples(x, y):
    return np.sin(5 * x + 2 * y) * np.cos(4 * y - x)


def cliff(x, y):
    return bowl(x, y) / 2 + np.tanh(40 * (0.8 * x + 0.6 * y - 0.13))


def narrow_minimum(x, y):
    return bowl(x, y) - 2 * np.exp(-((x - 0.33) ** 2 + (y + 0.41) ** 2) / (2 * 0.04**2))


def ravine(x, y):
    return np.log1p(bowl(x, y) + 300 * (y - 0.9 * x**2 + 0.3) ** 2)


def ridge(x, y):
    return bowl(x, y) + 2 * np.exp(-(((0.5 * x - 0.87 * y - 0.2) / 0.05) ** 2) / 2)


def vectorised(function: Callable) -> Callable:
    return lambda points: function(*np.array(points).T).tolist()


def uniform_error(function: Callable) -> float:
    """Largest error of linear interpolation on the uniform grid."""
    axis = np.linspace(-1.0, 1.0, 51)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    found = RegularGridInterpolator((axis, axis), function(x, y))
    x, y = np.meshgrid(FINE, FINE, indexing="ij")
    return float(np.abs(found((x, y)) - function(x, y)).max())


def error(surface: SampledSurface, function: Callable) -> float:
    xs, ys, rows = surface.grid(len(FINE))
    x, y = np.meshgrid(xs, ys)
    return float(np.abs(np.array(rows) - function(x, y)).max())


@pytest.mark.parametrize("function", [cliff, narrow_minimum, ravine, ridge])
def test_local_structure_needs_less_than_half_the_points_of_a_grid(function):
    surface = sample_surface(vectorised(function), SQUARE, max_evaluations=LOCAL, batch_size=64)

    assert len(surface.points) <= LOCAL
    assert error(surface, function) <= uniform_error(function)


@pytest.mark.parametrize("function", [bowl, ripples])
def test_a_smooth_surface_is_sampled_on_a_grid(function):
    surface = sample_surface(vectorised(function), SQUARE, max_evaluations=SMOOTH, batch_size=64)

    xs, ys = ({point[axis] for point in surface.points} for axis in (0, 1))
    assert len(xs) == len(ys) == 53
    assert len(surface.points) == 53 * 53
    assert surface.interpolation == "spline"
    assert error(surface, function) <= 0.05 * uniform_error(function)


@pytest.mark.parametrize("weights", [(1, -1, 0), (1, 1, 0), (0, 0, 1), (2, 0.5, 0.7)])
@pytest.mark.parametrize("budget", [225, 400, LOCAL])
def test_a_quadratic_surface_is_exact(weights, budget):
    def quadratic(x, y):
        return weights[0] * x**2 + weights[1] * y**2 + weights[2] * x * y + 0.3 * x + 5

    surface = sample_surface(vectorised(quadratic), SQUARE, max_evaluations=budget)

    assert error(surface, quadratic) < 1e-12
    assert surface.estimated_error < 1e-12


def gentle_waves(x, y):
    return np.sin(3 * x) * np.cos(3 * y)


@pytest.mark.parametrize(("function", "points"), [(bowl, 113), (gentle_waves, 417)])
def test_a_smooth_surface_is_done_within_the_tolerance(function, points):
    surface = sample_surface(
        vectorised(function), SQUARE, max_evaluations=1089, batch_size=64, tolerance=1e-3
    )

    assert len(surface.points) == points
    losses = function(*np.meshgrid(FINE, FINE))
    assert error(surface, function) <= 1e-3 * (np.median(losses) - losses.min())


@pytest.mark.parametrize("function", [cliff, narrow_minimum, ravine, ridge, ripples])
def test_other_surfaces_take_all_points(function):
    def sample(tolerance):
        return sample_surface(
            vectorised(function), SQUARE, max_evaluations=1089, batch_size=64, tolerance=tolerance
        )

    within = sample(1e-3)

    assert len(within.points) == 1089
    assert error(within, function) <= max(
        1.2 * error(sample(0.0), function), 0.5 * uniform_error(function)
    )


@pytest.mark.parametrize("at", [(0.1, 0.2), (-0.37, 0.61), (0.83, -0.49)])
def test_a_minimum_of_a_fortieth_of_the_side_is_not_missed(at):
    """On a surface that would be done with few points."""

    def function(x, y):
        return bowl(x, y) - np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / (2 * 0.05**2))

    surface = sample_surface(
        vectorised(function), SQUARE, max_evaluations=1089, batch_size=64, tolerance=1e-3
    )

    assert len(surface.points) == 1089
    assert error(surface, function) < 0.02


def test_a_smooth_curve_is_done_within_the_tolerance():
    surface = sample_surface(
        lambda points: [x**2 for (x,) in points],
        [(-1.0, 1.0)],
        max_evaluations=49,
        tolerance=1e-3,
    )

    assert len(surface.points) == 19
    xs, _, rows = surface.grid(77)
    assert rows[0] == pytest.approx(np.array(xs) ** 2, abs=1e-12)


def test_refinement_ends_within_the_tolerance():
    def function(x, y):
        return np.maximum(bowl(x, y), 4 * np.abs(x - y) - 7)

    few = sample_surface(vectorised(function), SQUARE, max_evaluations=4000, tolerance=0.02)

    assert len(few.points) < 2000


def test_the_estimated_error_is_near_the_error():
    for function, budget in ((cliff, LOCAL), (ripples, SMOOTH)):
        surface = sample_surface(vectorised(function), SQUARE, max_evaluations=budget)

        assert 0.3 < surface.estimated_error / error(surface, function) < 3


def test_a_coarse_picture_comes_first_and_each_shows_more():
    pictures: list[SampledSurface] = []
    final = sample_surface(
        vectorised(cliff), SQUARE, max_evaluations=LOCAL, on_points=pictures.append
    )

    assert len(pictures[0].points) <= 36
    counts = [len(picture.points) for picture in pictures]
    assert counts == sorted(set(counts))
    assert len(pictures) > 10
    assert pictures[-1] == final
    assert np.isfinite(pictures[0].grid(9)[2]).all()


def test_points_do_not_depend_on_the_size_of_a_batch():
    sizes: list[int] = []

    def evaluate(points):
        sizes.append(len(points))
        return vectorised(cliff)(points)

    alone = sample_surface(vectorised(cliff), SQUARE, max_evaluations=300)
    shared = sample_surface(evaluate, SQUARE, max_evaluations=300, batch_size=8)

    assert alone == shared
    assert list(alone.points) == list(shared.points)
    assert max(sizes) == 8
    assert len(sizes) < 300 / 8 * 2


def test_known_points_are_not_evaluated_again():
    first = sample_surface(vectorised(cliff), SQUARE, max_evaluations=300)
    some = dict(list(first.points.items())[:200])
    evaluated: list[tuple[float, ...]] = []

    def evaluate(points):
        evaluated.extend(points)
        return vectorised(cliff)(points)

    again = sample_surface(evaluate, SQUARE, max_evaluations=300, known=some)

    assert again == first
    assert len(evaluated) == 100
    assert not some.keys() & set(evaluated)


def test_an_error_of_the_function_is_raised():
    def evaluate(points):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        sample_surface(evaluate, SQUARE, max_evaluations=100)


def with_hole(value: float) -> Callable:
    def evaluate(points):
        return [bowl(x, y) if x + y < 0.7 else value for x, y in points]

    return evaluate


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_a_hole_is_shown_and_its_edge_is_refined(value):
    surface = sample_surface(with_hole(value), SQUARE, max_evaluations=500)

    assert len(surface.points) == 500
    xs, ys, rows = surface.grid(41)
    wrong = 0
    for y, row in zip(ys, rows, strict=True):
        for x, loss in zip(xs, row, strict=True):
            if x + y < 0.65:
                assert loss == pytest.approx(bowl(x, y), abs=0.02)
            wrong += x + y > 0.75 and not math.isnan(loss)
    assert wrong == 0
    near = sum(abs(x + y - 0.7) < 0.15 for x, y in surface.points)
    assert near > 100


def test_a_surface_without_finite_losses_is_all_hole():
    surface = sample_surface(lambda points: [math.nan] * len(points), SQUARE, max_evaluations=400)

    assert len(surface.points) == 100
    assert np.isnan(surface.grid(5)[2]).all()
    assert math.isnan(surface.estimated_error)


def test_one_finite_loss_among_holes():
    surface = sample_surface(
        lambda points: [0.5 if point == (-1.0, -1.0) else math.inf for point in points],
        SQUARE,
        max_evaluations=200,
    )

    assert surface.grid(3)[2][0][0] == 0.5


@pytest.mark.parametrize("loss", [0.0, 3.25, -1e12, 1e-300])
def test_a_plateau_is_flat(loss):
    surface = sample_surface(lambda points: [loss] * len(points), SQUARE, max_evaluations=150)

    assert surface.grid(7)[2] == [[pytest.approx(loss, rel=1e-12)] * 7] * 7
    assert surface.estimated_error == pytest.approx(0.0, abs=abs(loss) * 1e-12)


def test_evaluated_points_are_shown_exactly():
    surface = sample_surface(vectorised(bowl), SQUARE, max_evaluations=121)

    _, _, rows = surface.grid(11)
    at = {(round(x, 9), round(y, 9)): loss for (x, y), loss in surface.points.items()}
    for j in range(11):
        for i in range(11):
            point = (round(-1 + i / 5, 9), round(-1 + j / 5, 9))
            assert rows[j][i] == pytest.approx(at[point], abs=1e-12)


@pytest.mark.parametrize("bounds", [[(-0.5, 2.0), (10.0, 10.25)], [(1e-9, 2e-9), (-1e6, 1e6)]])
def test_bounds_of_any_size(bounds):
    def evaluate(points):
        (low, high), (bottom, top) = bounds
        units = [((x - low) / (high - low), (y - bottom) / (top - bottom)) for x, y in points]
        return [cliff(2 * u - 1, 2 * v - 1) for u, v in units]

    surface = sample_surface(evaluate, bounds, max_evaluations=LOCAL)

    for (low, high), values in zip(bounds, zip(*surface.points, strict=True), strict=True):
        assert min(values) == low
        assert max(values) == high
    _, _, rows = surface.grid(len(FINE))
    x, y = np.meshgrid(FINE, FINE)
    assert np.abs(np.array(rows) - cliff(x, y)).max() <= uniform_error(cliff)


def test_one_dimension():
    def step(x):
        return np.tanh(60 * (x - 0.237)) + x**2

    surface = sample_surface(
        lambda points: [step(x) for (x,) in points], [(-1.0, 1.0)], max_evaluations=51
    )

    xs, ys, rows = surface.grid(401)
    assert len(surface.points) == 51
    assert ys == []
    assert len(rows) == 1
    uniform = np.interp(xs, np.linspace(-1, 1, 51), step(np.linspace(-1, 1, 51)))
    actual = step(np.array(xs))
    assert np.abs(rows[0] - actual).max() < 0.3 * np.abs(uniform - actual).max()


def test_a_smooth_curve_is_sampled_evenly():
    surface = sample_surface(
        lambda points: [x**2 for (x,) in points], [(-1.0, 1.0)], max_evaluations=49
    )

    assert sorted(x for (x,) in surface.points) == pytest.approx(np.linspace(-1, 1, 49))
    xs, _, rows = surface.grid(77)
    assert rows[0] == pytest.approx(np.array(xs) ** 2, abs=1e-12)


def test_a_curve_with_a_hole():
    surface = sample_surface(
        lambda points: [x if x < 0.3 else math.inf for (x,) in points],
        [(-1.0, 1.0)],
        max_evaluations=31,
    )

    xs, _, rows = surface.grid(101)
    for x, loss in zip(xs, rows[0], strict=True):
        assert math.isnan(loss) or loss == pytest.approx(x, abs=1e-6)
        assert math.isnan(loss) == (x > 0.3) or abs(x - 0.3) < 0.02


def test_density_draws_points_to_a_trajectory():
    path = [(0.5, 0.5), (0.4, 0.3)]
    plain = sample_surface(vectorised(bowl), SQUARE, max_evaluations=400)
    dense = sample_surface(
        vectorised(bowl), SQUARE, max_evaluations=400, density=denser_near(path, 0.2, factor=10)
    )

    def near(surface):
        return sum(math.dist(point, (0.45, 0.4)) < 0.2 for point in surface.points)

    assert len(dense.points) == 400
    assert near(dense) > 3 * near(plain)
    assert error(dense, bowl) < 0.05


@pytest.mark.parametrize("budget", [9, 10, 16, 24, 25, 30, 49, 100])
def test_small_budgets(budget):
    surface = sample_surface(vectorised(cliff), SQUARE, max_evaluations=budget)

    assert 0.3 * budget < len(surface.points) <= budget
    assert np.isfinite(surface.grid(13)[2]).all()


@pytest.mark.parametrize("budget", range(3, 20))
def test_small_budgets_of_a_curve(budget):
    surface = sample_surface(
        lambda points: [abs(x) for (x,) in points], [(-1.0, 1.0)], max_evaluations=budget
    )

    assert budget - 1 <= len(surface.points) <= budget
    assert np.isfinite(surface.grid(13)[2]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_evaluations": 8}, "max_evaluations is 8: .* at least 9"),
        ({"bounds": [(0.0, 1.0)], "max_evaluations": 2}, "at least 3"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"tolerance": -1e-3}, "tolerance is -0.001"),
        ({"tolerance": math.nan}, "tolerance is nan"),
        ({"bounds": [(1.0, 1.0), (0.0, 1.0)]}, r"bounds \(1.0, 1.0\)"),
        ({"bounds": [(0.0, math.nan), (0.0, 1.0)]}, "bounds"),
        ({"bounds": [(0.0, 1.0)] * 3}, "bounds has 3 pairs"),
        ({"density": lambda point: -1.0}, "density"),
        ({"evaluate": lambda points: []}, "evaluate returned 0 losses for 1 points"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    defaults = {"evaluate": vectorised(bowl), "bounds": SQUARE, "max_evaluations": 100}

    with pytest.raises(ValueError, match=message):
        sample_surface(**{**defaults, **arguments})


def test_denser_near_needs_points():
    with pytest.raises(ValueError, match="at least one point"):
        denser_near([], 0.1)


SAMPLE = """
import math, os, sys, time
from sentinel.insight.surface.sampling import sample_surface
from sentinel.insight.surface.cache import SurfaceCache

cache, slow_after = SurfaceCache("k", sys.argv[1]), int(sys.argv[2])
count = 0

def evaluate(points):
    global count
    if count >= slow_after:
        print("half", flush=True)
        time.sleep(600)
    count += len(points)
    losses = [math.tanh(40 * (0.8 * x + 0.6 * y - 0.13)) for x, y in points]
    cache.append(dict(zip(points, losses)))
    return losses

surface = sample_surface(
    evaluate, [(-1.0, 1.0)] * 2, max_evaluations=300, batch_size=7, known=cache.known()
)
print(count, hash(tuple(surface.points.items())), surface.estimated_error)
"""


def test_a_surface_whose_process_is_killed_is_continued(tmp_path):
    def start(folder, slow_after):
        command = [sys.executable, "-c", SAMPLE, str(tmp_path / folder), str(slow_after)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    killed, whole = start("killed", 200), start("whole", 10**6)
    assert killed.stdout.readline() == "half\n"
    killed.kill()
    killed.communicate()
    continued = start("killed", 10**6)

    count, *result = whole.communicate()[0].split()
    assert count == "300"
    again, *same = continued.communicate()[0].split()
    assert int(again) <= 100
    assert same == result


@settings(max_examples=max(10, settings.default.max_examples // 100))
@given(seed=st.integers(0, 10**9))
def test_any_surface_is_sampled(seed):
    """Holes, spikes, plateaus, noise and losses of any size, in one and two dimensions."""
    rng = np.random.default_rng(seed)
    dimensions, budget = int(rng.integers(1, 3)), int(rng.integers(9, 250))
    waves, at = rng.normal(0, 5, (3, dimensions)), rng.uniform(-1, 1, dimensions)
    kind, scale = rng.integers(0, 8), 10.0 ** int(rng.choice([-200, 0, 0, 0, 149]))

    def loss(point):
        distance = float(np.linalg.norm(np.array(point) - at))
        return {
            0: math.nan if distance < 0.5 else distance,
            1: math.inf if distance > 0.8 else distance,
            2: 1e100 if distance < 0.1 else distance,
            3: float(distance < 0.3),
            4: 7.0,
            5: -math.inf if rng.random() < 0.95 else distance,
            6: rng.normal(),
        }.get(int(kind), float(np.sin(waves @ np.array(point)).sum())) * scale

    bounds = [(-1.0, 1.0)] * dimensions
    density = denser_near([tuple(at.tolist())], 0.2) if rng.random() < 0.2 else None
    surface = sample_surface(
        lambda points: [loss(point) for point in points],
        bounds,
        max_evaluations=budget,
        batch_size=int(rng.integers(1, 20)),
        on_points=lambda each: each.grid(5),
        density=density,
        tolerance=float(rng.choice([0.0, 1e-3, 0.1])),
    )

    assert len(surface.points) <= budget
    grid = surface.grid(21)
    find_features(surface, grid)
    losses, rows = list(surface.points.values()), np.array(grid[2])
    if all(abs(each) < MAX_FINITE_LOSS for each in losses):
        slack = max(losses) - min(losses) + 1e-9 * max(map(abs, losses))
        assert rows.max() <= max(losses) + slack
        assert rows.min() >= min(losses) - slack
