"""Adaptive sampling of loss surfaces beside a uniform grid, `adaptive` and loss-landscapes.

Each surface is sampled by each, and compared with the true losses on a grid of 401x401 points. All
errors are the maximum over that grid, as a multiple of the error of a uniform grid of 51x51 points
with linear interpolation. Those with the heading `linear` compare like with like: triangles between
the points of each. Budget and tolerance are the defaults of `loss_surface`: 1,089 points, which are
42 % of that grid's, and 0.1 % of the median loss above the lowest one. `adaptive` gets as many
points as are sampled.

The library `adaptive` and loss-landscapes (`pip install loss-landscapes`) are left out if they are
not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from itertools import product

import numpy as np
from scipy.interpolate import (
    CloughTocher2DInterpolator,
    LinearNDInterpolator,
    RectBivariateSpline,
    RegularGridInterpolator,
)

from sentinel.insight.surface.loss_surface import EVALUATIONS_2D, TOLERANCE
from sentinel.insight.surface.sampling import sample_surface

Surface = Callable[[np.ndarray, np.ndarray], np.ndarray]

UNIFORM = 51
FINE = 401
SQUARE = [(-1.0, 1.0), (-1.0, 1.0)]

# ------------------------------------------------------------------------------------ surfaces


def rotated(rng: np.random.Generator) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Coordinates that are turned by a random angle and moved by a random distance."""
    angle, shift = rng.uniform(0, 2 * np.pi), rng.uniform(-0.4, 0.4, 2)
    c, s = np.cos(angle), np.sin(angle)
    return lambda x, y: (c * x + s * y - shift[0], c * y - s * x - shift[1])


def bowl(rng: np.random.Generator) -> Surface:
    turn, k = rotated(rng), rng.uniform(0.1, 1.0, 2)

    def surface(x, y):
        u, v = turn(x, y)
        return k[0] * u**2 + k[1] * v**2

    return surface


def ripples(rng: np.random.Generator) -> Surface:
    turn, k, phase = rotated(rng), rng.uniform(2, 9, 2), rng.uniform(0, 6, 2)

    def surface(x, y):
        u, v = turn(x, y)
        return np.sin(k[0] * u + phase[0]) * np.cos(k[1] * v + phase[1])

    return surface


def waves(rng: np.random.Generator) -> Surface:
    k, phase, size = rng.normal(0, 4, (5, 2)), rng.uniform(0, 6, 5), rng.uniform(0.2, 1, 5)
    return lambda x, y: sum(
        s * np.sin(a * x + b * y + p) for (a, b), p, s in zip(k, phase, size, strict=True)
    )


def quartic(rng: np.random.Generator) -> Surface:
    """The polynomial of Rosenbrock, whose valley is wide."""
    turn, steep = rotated(rng), rng.uniform(5, 30)

    def surface(x, y):
        u, v = turn(x, y)
        return (1 - u) ** 2 + steep * (v - u * u) ** 2

    return surface


def saddle(rng: np.random.Generator) -> Surface:
    turn, k = rotated(rng), rng.uniform(0.3, 2)

    def surface(x, y):
        u, v = turn(x, y)
        return u**2 - k * v**2 + 0.3 * np.sin(2 * u)

    return surface


def logarithmic_bowl(rng: np.random.Generator) -> Surface:
    inner, k = bowl(rng), rng.uniform(3, 10)
    return lambda x, y: np.log1p(k * inner(x, y))


def cliff(rng: np.random.Generator) -> Surface:
    turn, steep, height, around = rotated(rng), rng.uniform(20, 80), rng.uniform(0.5, 2), bowl(rng)
    return lambda x, y: height * np.tanh(steep * turn(x, y)[0]) + around(x, y)


def narrow_minimum(rng: np.random.Generator) -> Surface:
    at, width, depth = rng.uniform(-0.8, 0.8, 2), rng.uniform(0.03, 0.08), rng.uniform(1, 4)
    around = bowl(rng)
    return lambda x, y: (
        around(x, y) - depth * np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / (2 * width**2))
    )


def ravine(rng: np.random.Generator) -> Surface:
    """The logarithm of Rosenbrock's function: a curved valley with a sharp bottom."""
    turn, steep, bend = rotated(rng), 10 ** rng.uniform(1.5, 3), rng.uniform(0.6, 1.2)

    def surface(x, y):
        u, v = turn(1.6 * x, 1.6 * y)
        return np.log1p((1 - u) ** 2 + steep * (v - bend * u * u) ** 2)

    return surface


def ridge(rng: np.random.Generator) -> Surface:
    turn, width, height, around = (
        rotated(rng),
        rng.uniform(0.03, 0.07),
        rng.uniform(1, 3),
        bowl(rng),
    )
    return lambda x, y: height * np.exp(-((turn(x, y)[0] / width) ** 2) / 2) + around(x, y)


def crater(rng: np.random.Generator) -> Surface:
    turn, radius, steep, around = (
        rotated(rng),
        rng.uniform(0.2, 0.4),
        rng.uniform(20, 60),
        bowl(rng),
    )
    return lambda x, y: np.tanh(steep * (np.hypot(*turn(x, y)) - radius)) + around(x, y)


def exploding_corner(rng: np.random.Generator) -> Surface:
    signs, steep, inner = rng.choice([-1, 1], 2), rng.uniform(6, 14), bowl(rng)
    return lambda x, y: inner(x, y) + 3 * np.exp(steep * (signs[0] * x + signs[1] * y - 2))


def crease(rng: np.random.Generator) -> Surface:
    turn, slope, around = rotated(rng), rng.uniform(1, 3), bowl(rng)
    return lambda x, y: slope * np.abs(turn(x, y)[0]) + around(x, y)


WITH_LOCAL_STRUCTURE = (
    cliff,
    narrow_minimum,
    ravine,
    ridge,
    crater,
    exploding_corner,
    crease,
)
ALL_SMOOTH = (bowl, ripples, waves, quartic, saddle, logarithmic_bowl)


def network_plane() -> Surface:
    """The loss of a small network in the plane of its initial weights and two trainings."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    angle = torch.rand(256, 1) * 9
    side = torch.randint(0, 2, (256, 1))
    turned = angle + torch.pi * side
    data = torch.cat([angle * turned.cos(), angle * turned.sin()], 1) / 6
    model = nn.Sequential(
        nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    loss_fn = nn.BCEWithLogitsLoss()
    initial = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        nn.utils.vector_to_parameters(initial.clone(), model.parameters())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(400):
            chosen = torch.randint(0, 256, (64,))
            optimizer.zero_grad()
            loss_fn(model(data[chosen]), side[chosen].float()).backward()
            optimizer.step()
        ends.append(nn.utils.parameters_to_vector(model.parameters()).detach() - initial)

    @torch.no_grad()
    def surface(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        losses = []
        for a, b in zip(np.ravel(x), np.ravel(y), strict=True):
            weights = initial + (a + 0.5) * ends[0] + (b + 0.5) * ends[1]
            nn.utils.vector_to_parameters(weights, model.parameters())
            losses.append(loss_fn(model(data), side.float()).item())
        return np.array(losses).reshape(np.shape(x))

    return surface


# ------------------------------------------------------------------------------------- methods


class Truth:
    """The losses of a surface on a fine grid."""

    def __init__(self, surface: Surface, count: int) -> None:
        self.surface, self.count = surface, count
        axis = np.linspace(-1, 1, count)
        self.x, self.y = np.meshgrid(axis, axis)
        self.losses = surface(self.x, self.y)

    def error(self, found: np.ndarray) -> float:
        return float(np.abs(np.reshape(found, self.losses.shape) - self.losses).max())

    def interpolated(self, kind: type, points: dict[tuple[float, ...], float]) -> float:
        found = kind(np.array(list(points)), np.array(list(points.values())))
        return self.error(found(self.x, self.y))


def uniform(truth: Truth) -> tuple[float, float, float]:
    """Errors with linear interpolation in squares and in triangles, and with a spline."""
    axis = np.linspace(-1, 1, UNIFORM)
    losses = truth.surface(*np.meshgrid(axis, axis, indexing="ij"))
    linear = RegularGridInterpolator((axis, axis), losses)((truth.x, truth.y))
    spline = RectBivariateSpline(axis, axis, losses).ev(truth.x, truth.y)
    places = product(axis.tolist(), repeat=2)
    points = dict(zip(places, losses.ravel().tolist(), strict=True))
    triangles = truth.interpolated(LinearNDInterpolator, points)
    return truth.error(linear), triangles, truth.error(spline)


def own(truth: Truth) -> tuple[int, float, float]:
    """Evaluations, the error of the surface, and that of linear interpolation of its points."""
    found = sample_surface(
        lambda points: truth.surface(*np.array(points).T).tolist(),
        SQUARE,
        max_evaluations=EVALUATIONS_2D,
        batch_size=EVALUATIONS_2D,
        tolerance=TOLERANCE,
    )
    error = truth.error(np.array(found.grid(truth.count)[2]))
    return len(found.points), error, truth.interpolated(LinearNDInterpolator, found.points)


def adaptive_library(truth: Truth, budget: int) -> tuple[int, float, float]:
    """Evaluations, and the errors of linear and of cubic interpolation."""
    from adaptive import Learner2D
    from adaptive.runner import simple

    learner = Learner2D(lambda at: truth.surface(*np.array(at)[:, None]).item(), bounds=SQUARE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simple(learner, goal=lambda each: each.npoints >= budget)
        return (
            len(learner.data),
            truth.interpolated(LinearNDInterpolator, learner.data),
            truth.interpolated(CloughTocher2DInterpolator, learner.data),
        )


def loss_landscapes_grid(truth: Truth) -> tuple[int, float]:
    """Evaluations of a grid as large as the uniform one, and the error of linear interpolation.

    Its rows go from one side to the other and back, and those that go back are one step off
    (version 3.0.6). The grid is placed so that the error is smallest.
    """
    import torch
    from loss_landscapes import planar_interpolation
    from loss_landscapes.metrics.metric import Metric

    class Place(torch.nn.Module):
        def __init__(self, x: float, y: float) -> None:
            super().__init__()
            self.at = torch.nn.Parameter(torch.tensor([x, y], dtype=torch.float64))

    class Height(Metric):
        def __call__(self, wrapper):
            (at,) = wrapper.modules[0].parameters()
            return truth.surface(*at.detach().numpy()[:, None]).item()

    # The end is not evaluated, so it is one step further.
    end = -1 + 2 * UNIFORM / (UNIFORM - 1)
    models = Place(-1, -1), Place(end, -1), Place(-1, end)
    with torch.no_grad():
        losses = planar_interpolation(*models, Height(), steps=UNIFORM, deepcopy_model=True)
    step, x = 2 / (UNIFORM - 1), np.linspace(-1, 1, UNIFORM)
    errors = []
    for offset in (0.0, 0.5, 1.0):
        grid = RegularGridInterpolator(
            (x, x + offset * step), losses, bounds_error=False, fill_value=None
        )
        errors.append(truth.error(grid((truth.x, truth.y))))
    return losses.size, min(errors)


# ----------------------------------------------------------------------------------------- run

COLUMNS = (
    "uniform: error",
    "spline",
    "sentinel: points",
    "error",
    "of the tolerance",
    "linear",
    "adaptive: points",
    "linear",
    "cubic",
    "loss-landscapes: points",
    "error",
    "seconds",
)


def measure(name: str, surface: Surface, fine: int = FINE) -> tuple[float, float]:
    """Print a row of the table; the errors of sentinel, also with linear interpolation."""
    began = time.perf_counter()
    truth = Truth(surface, fine)
    base, triangles, spline = uniform(truth)
    points, error, linear = own(truth)
    allowed = TOLERANCE * (np.median(truth.losses) - truth.losses.min())
    row = [f"{base:.2g}", f"{spline / base:.2f}", str(points)]
    row += [f"{error / base:.2f}", f"{error / allowed:.2f}", f"{linear / triangles:.2f}"]
    if importlib.util.find_spec("adaptive"):
        points, straight, cubic = adaptive_library(truth, points)
        row += [str(points), f"{straight / triangles:.2f}", f"{cubic / base:.2f}"]
    else:
        row += ["-"] * 3
    if importlib.util.find_spec("loss_landscapes"):
        points, other = loss_landscapes_grid(truth)
        row += [str(points), f"{other / base:.2f}"]
    else:
        row += ["-"] * 2
    print("|", name, "|", " | ".join(row), "|", f"{time.perf_counter() - began:.0f} |", flush=True)
    return error / base, linear / triangles


def narrow_minima(share: float, count: int, tolerance: float) -> int:
    """How many Gaussian minima of that standard deviation, as a share of the side, are found."""
    rng, width, found = np.random.default_rng(7), 2 * share, 0
    for _ in range(count):
        around, (a, b) = bowl(rng), rng.uniform(-0.85, 0.85, 2)

        def losses(points, around=around, a=a, b=b):
            x, y = np.array(points).T
            well = np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * width**2))
            return (around(x, y) - well).tolist()

        points = sample_surface(
            losses,
            SQUARE,
            max_evaluations=EVALUATIONS_2D,
            batch_size=EVALUATIONS_2D,
            tolerance=tolerance,
        ).points
        found += sum(np.hypot(x - a, y - b) < 2 * width for x, y in points) > 9
    return found


def main() -> None:
    """Print the table, and how many surfaces meet the targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="random surfaces of each kind")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--minima", type=int, default=20, help="narrow minima of each size")
    parser.add_argument("--network-fine", type=int, default=201, help="points per side")
    arguments = parser.parse_args()
    for package in ("adaptive", "loss_landscapes"):
        if not importlib.util.find_spec(package):
            print(f"{package} is not installed: its columns are empty.")
    print("| surface |", " | ".join(COLUMNS), "|")
    print("|" + "---|" * (len(COLUMNS) + 1))
    for title, kinds in (("local structure", WITH_LOCAL_STRUCTURE), ("smooth", ALL_SMOOTH)):
        found = [
            measure(f"{kind.__name__} {seed}", kind(np.random.default_rng(seed)))
            for kind in kinds
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        ]
        met = [sum(each[i] <= 1 for each in found) for i in range(2)]
        print(f"{title}: {met[0]} of {len(found)} within the error of the uniform grid", end="")
        print(f" ({met[1]} with linear interpolation)")
    measure("network", network_plane(), arguments.network_fine)
    for share in (0.006, 0.01, 0.015, 0.02, 0.03):
        found = [narrow_minima(share, arguments.minima, each) for each in (TOLERANCE, 0.0)]
        print(
            f"minima with a standard deviation of {share:.1%} of the side that are found: ", end=""
        )
        print(f"{found[0]} of {arguments.minima}, with tolerance 0 {found[1]}")


if __name__ == "__main__":
    main()
